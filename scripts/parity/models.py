# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What one rank asks: VisualGen's transformer, its pipeline, or diffusers' transformer.

Fields: B batch (negative, positive), C channels, T, H, W of the latents, N steps of all chunks of a
request, F frames.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from cosmos3_checkpoint import CheckpointWeights, random_weights
from cosmos3_requests import FRAMES, HEIGHT, WIDTH, Request, forward_arguments

from parity import outside

# A rank that hangs without dying ends its peers' waiting after this.
COLLECTIVE_TIMEOUT = timedelta(seconds=300)
MODELS = "tensorrt_llm._torch.visual_gen.models.cosmos3"


class _Runner:
    """What both kinds of model share: the progress file and the clock."""

    def __init__(self, spec, device, folder, rank):
        self.spec = spec
        self.device = device
        self.dtype = getattr(torch, spec["dtype"])
        self.seconds: list[float] = []
        # What was changed from outside about code that is not this project's own.
        self.outside: list[str] = []
        # Bytes of text K/V that this rank held, by case.
        self.text_bytes: dict[str, int] = {}
        self._progress = folder / "progress" if rank == 0 else None

    def begin(self, inputs: dict[str, torch.Tensor]) -> None:
        """Takes the prompts of a request."""
        raise NotImplementedError

    def end(self, case: str) -> None:
        """Forgets the prompts."""

    def forward(self, latents: torch.Tensor, timestep: int) -> torch.Tensor:
        """Returns the velocities [B, C, T, H, W] at latents [C, T, H, W]."""
        started = time.perf_counter()
        velocity = self._forward(latents.to(self.device, self.dtype), timestep)
        self.count(started)
        return velocity

    def count(self, started: float) -> None:
        """Adds a forward that began at `started` to the clock and to the progress."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds.append(time.perf_counter() - started)
        if self._progress is not None:
            self._progress.write_text(str(len(self.seconds)))

    def _weights(self) -> Mapping[str, torch.Tensor]:
        spec = self.spec
        if spec["checkpoint"]:
            return CheckpointWeights(Path(spec["checkpoint"]), spec["config"], self.device)
        return random_weights(spec["config"], spec["seed"], self.device)

    def attention(self) -> str | None:
        """Returns what attends, from the outermost wrapper to the compute backend."""
        return None

    def close(self) -> None:
        """Leaves the process group."""


class Model(_Runner):
    """VisualGen's transformer, on this rank of a process group."""

    def __init__(self, spec, device, folder, rank):
        super().__init__(spec, device, folder, rank)
        if spec["real"]:
            self.outside += outside.before_import(device, self.dtype, spec["backend"])
        self._distributed = spec["ranks"] > 1
        self.mapping = None
        if self._distributed:
            torch.distributed.init_process_group(
                spec["exchange"].lower(),
                # A file, so that no other program can take the port in between.
                init_method=f"file://{folder.resolve()}/rendezvous",
                rank=rank,
                world_size=spec["ranks"],
                timeout=COLLECTIVE_TIMEOUT,
                device_id=device if spec["exchange"] == "NCCL" else None,
            )
            mapping_class = import_module("tensorrt_llm._torch.visual_gen.mapping").VisualGenMapping
            self.mapping = mapping_class(world_size=spec["ranks"], rank=rank, **spec["layout"])
        config_class = import_module("tensorrt_llm._torch.visual_gen.config").DiffusionModelConfig
        config = config_class.from_diffusers(
            spec["config"],
            backend=spec["backend"],
            dtype=self.dtype,
            visual_gen_mapping=self.mapping,
        )
        model = self.make(config, spec, device)
        if spec["real"]:
            self.outside += outside.before_loading(model, self.dtype, device)
        model.load_weights(self._weights())
        model.post_load_weights()
        if spec["real"]:
            outside.after_loading(model, self.dtype)
        self.model = model.to(device).eval()
        self.branches = self.mapping.cfg_size if self._distributed else 1

    def make(self, config, spec, device):
        """Makes the transformer, without weights."""
        with torch.device(device):
            return import_module(f"{MODELS}.transformer_cosmos3").Cosmos3VFMTransformer(
                config, **spec["transformer_kwargs"]
            )

    def begin(self, inputs):
        """Takes this rank's prompts of a request."""
        # With one guidance branch on each half of the ranks, each has one prompt of the two.
        first = self.mapping.cfg_rank if self.branches > 1 else 0
        mine = slice(first, len(inputs["text_ids"]), self.branches)
        self.ids = inputs["text_ids"][mine].to(self.device)
        self.mask = inputs["text_mask"][mine].to(self.device)

    def end(self, case):
        """Notes what the prompts took, and forgets them."""
        self.text_bytes[case] = _tensor_bytes(self.model.cached_kv)
        self.model.reset_cache()

    def arguments(self, latents: torch.Tensor, timestep: int) -> dict[str, Any]:
        """Returns what the transformer's forward takes in one step."""
        batch = len(self.ids)
        raw = torch.full((batch,), float(timestep), device=self.device)
        return {
            "hidden_states": latents.expand(batch, *latents.shape).contiguous(),
            "timestep": raw,
            "raw_timestep": raw,
            "text_ids": self.ids,
            "text_mask": self.mask,
            "video_shape": tuple(latents.shape[1:]),
            "fps": self.spec["fps"],
        }

    def _forward(self, latents, timestep):
        video = self.model(**self.arguments(latents, timestep)).video
        if self.branches == 1:
            return video
        both = [torch.empty_like(video) for _ in range(self.branches)]
        torch.distributed.all_gather(both, video.contiguous(), group=self.mapping.cfg_group)
        return torch.cat(both)

    def attention(self):
        """Returns what attends, from the outermost wrapper to the compute backend."""
        chain, link = [], self.model.gen_layers[0].cross_attention.attn
        while link is not None:
            chain.append(type(link).__name__)
            inner = (getattr(link, name, None) for name in ("inner_backend", "inner", "backend"))
            link = next((found for found in inner if hasattr(found, "forward")), None)
        return " > ".join(chain)

    def close(self):
        """Leaves the process group."""
        if self._distributed:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()


class Oracle(_Runner):
    """diffusers' transformer, one prompt at a time and without padding."""

    def __init__(self, spec, device, folder, rank):
        super().__init__(spec, device, folder, rank)
        from cosmos3_oracle import build_oracle, oracle_velocity

        self._velocity = oracle_velocity
        self.oracle = build_oracle(
            spec["config"], None, self.dtype, device, weights=self._weights()
        )

    def begin(self, inputs):
        """Takes the prompts without their padding."""
        rows = zip(inputs["text_ids"], inputs["text_mask"])
        self.prompts = [ids[: mask.sum()].tolist() for ids, mask in rows]

    def _forward(self, latents, timestep):
        given = (float(timestep), self.spec["fps"])
        found = [self._velocity(self.oracle, latents, ids, *given) for ids in self.prompts]
        return torch.stack([one.video for one in found])


class Pipeline(Model):
    """VisualGen's pipeline, on this rank of a process group."""

    def make(self, config, spec, device):
        """Makes the pipeline with its components; the transformer is its own."""
        from cosmos3_components import make_pipeline

        if spec["real"]:
            self.outside += outside.before_pipeline(device, spec["graphs"])
        graphs = ((HEIGHT, WIDTH, FRAMES),) if spec["graphs"] else None
        self.pipeline = make_pipeline(config, device, graphs, **spec["transformer_kwargs"])
        self._scheduler = type(self.pipeline.scheduler)
        model = self.pipeline.transformer
        forward = model.forward

        def timed(*args, **kwargs):
            started = time.perf_counter()
            result = forward(*args, **kwargs)
            self.count(started)
            return result

        model.forward = timed
        return model

    def answer(self, request: Request) -> dict[str, torch.Tensor]:
        """Answers a request.

        Returns:
            "trajectory" [N, C, T, H, W], the video's latents after each step; "audio" and "action"
            where there are; and, on rank 0, "frames" uint8 [F, height, width, 3].
        """
        trail, step, pipeline = [], self._scheduler.step, self.pipeline

        def observed(scheduler, *args, **kwargs):
            result = step(scheduler, *args, **kwargs)
            if scheduler is pipeline.scheduler:
                trail.append(result[0][0].cpu())
            return result

        self._scheduler.step = observed
        try:
            output = pipeline.forward(**forward_arguments(request))
        finally:
            self._scheduler.step = step
        found = {"trajectory": torch.stack(trail)}
        for name in ("audio", "action"):
            if getattr(output, name) is not None:
                found[name] = getattr(output, name).cpu()
        frames = output.image if output.video is None else output.video[0]
        return found if frames is None else found | {"frames": frames.cpu()}

    def close(self):
        """Releases the graphs before the process group ends."""
        self.pipeline.cleanup()
        super().close()


def _tensor_bytes(value) -> int:
    """Bytes of a TextKV, of the host's padded text, or of tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "layers"):
        value = value.layers
    return sum(_tensor_bytes(item) for item in value)
