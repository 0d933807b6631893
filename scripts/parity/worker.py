# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of one run: `python -m parity.worker FOLDER RANK`.

Reads FOLDER/spec.json and the tensors that it names. Rank 0 leaves FOLDER/result.pt, every rank
FOLDER/rank<r>.json; a rank that fails leaves its traceback in rank<r>.log, marks it with
rank<r>.error, and exits at once, because a peer may hang in a collective for ever.

Fields: B batch (negative, positive), C channels, T, H, W of the latents, N steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import row_products
import torch

from parity import outside
from parity.checkpoint import CheckpointWeights, random_weights
from parity.sampling import denoise
from parity.sizes import LEARNED

# A rank that hangs without dying ends its peers' waiting after this.
COLLECTIVE_TIMEOUT = timedelta(seconds=300)
MODEL = "tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3"


def main(folder: Path, rank: int) -> int:
    """Runs the rank and returns its exit status."""
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    try:
        spec = json.loads((folder / "spec.json").read_text())
        report = _run(spec, folder, rank)
        (folder / f"rank{rank}.json").write_text(json.dumps(report))
    except BaseException:
        # First, since the driver takes the earliest mark for the cause.
        (folder / f"rank{rank}.error").touch()
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return 0


def _follow_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _run(spec: dict[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(spec["device"])
    if device.type == "cuda":
        device = torch.device("cuda", rank if spec["exchange"] == "NCCL" else 0)
        torch.cuda.set_device(device)
    inputs = torch.load(spec["inputs"], weights_only=True)
    recorded = torch.load(spec["recorded"], weights_only=True) if spec["recorded"] else {}
    if spec["row_invariant"]:
        row_products.set_invariant()
    uneven = []
    with torch.no_grad():
        if spec["probe"]:
            uneven = row_products.uneven(spec["config"], spec["probe"], device)
        model = (_Oracle if spec["oracle"] else _Model)(spec, device, folder, rank)
        results = {}
        for name, steps in spec["steps"].items():
            model.begin(inputs[name])
            results[name] = _evaluate(model, spec, steps, inputs[name], recorded.get(name))
            model.end(name)
    if rank == 0:
        torch.save(results, folder / "result.pt")
    report = {
        "digest": _digest(results),
        "forward_seconds": model.seconds,
        "text_bytes": model.text_bytes,
        "device_peak_bytes": (
            torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        ),
        "files": _files_of("tensorrt_llm"),
        "attention": model.attention(),
        "outside": model.outside,
        "uneven": uneven,
    }
    model.close()
    return report


def _evaluate(model, spec, steps, inputs, recorded) -> dict[str, torch.Tensor]:
    """Answers the latents that run "one" recorded, and then follows a trajectory of its own.

    What was answered already is not computed again: a trajectory that is still equal to the
    recorded one to the last bit takes its velocities from there.
    """
    keep = torch.float64 if spec["dtype"] == "float64" else torch.float32
    results, velocities = {}, []
    if recorded is not None:
        for latents, timestep in zip(recorded["trajectory"], recorded["timesteps"].tolist()):
            velocities.append(model.forward(latents, timestep).to("cpu", keep))
            if spec["oracle"]:
                break
        results["velocity"] = torch.stack(velocities)
    if spec["oracle"]:
        return results
    timesteps = []

    def forward(latents, timestep):
        step = len(timesteps)
        timesteps.append(timestep)
        if step < len(velocities) and torch.equal(latents.cpu(), recorded["trajectory"][step]):
            return velocities[step].to(model.device)
        return model.forward(latents, timestep)

    start = inputs["latents"].to(model.device)
    trail = list(denoise(forward, start, steps, spec["guidance"], keep))
    results["trajectory"] = torch.stack([point["latents"].cpu() for point in trail])
    results["timesteps"] = torch.tensor(timesteps)
    if recorded is None:
        results["velocity"] = torch.stack([point["velocity"].cpu() for point in trail[:-1]])
    return results


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
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds.append(time.perf_counter() - started)
        if self._progress is not None:
            self._progress.write_text(str(len(self.seconds)))
        return velocity

    def _weights(self) -> Mapping[str, torch.Tensor]:
        spec = self.spec
        folder = LEARNED if spec["size"] == "learned" else spec["checkpoint"]
        if folder:
            return CheckpointWeights(Path(folder), spec["config"], self.device)
        return random_weights(spec["config"], spec["seed"], self.device)

    def attention(self) -> str | None:
        """Returns what attends, from the outermost wrapper to the compute backend."""
        return None

    def close(self) -> None:
        """Leaves the process group."""


class _Model(_Runner):
    """VisualGen's transformer, on this rank of a process group."""

    def __init__(self, spec, device, folder, rank):
        super().__init__(spec, device, folder, rank)
        from importlib import import_module

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
        transformer_class = import_module(MODEL).Cosmos3VFMTransformer
        with torch.device(device):
            model = transformer_class(config, **spec["transformer_kwargs"])
        if spec["real"]:
            self.outside += outside.before_loading(model, self.dtype, device)
        model.load_weights(self._weights())
        model.post_load_weights()
        if spec["real"]:
            outside.after_loading(model, self.dtype)
        self.model = model.to(device).eval()
        self.branches = self.mapping.cfg_size if self._distributed else 1

    def begin(self, inputs):
        # With one guidance branch on each half of the ranks, each has one prompt of the two.
        first = self.mapping.cfg_rank if self.branches > 1 else 0
        mine = slice(first, len(inputs["text_ids"]), self.branches)
        self.ids = inputs["text_ids"][mine].to(self.device)
        self.mask = inputs["text_mask"][mine].to(self.device)

    def end(self, case):
        self.text_bytes[case] = _tensor_bytes(self.model.cached_kv)
        self.model.reset_cache()

    def _forward(self, latents, timestep):
        batch = len(self.ids)
        raw = torch.full((batch,), float(timestep), device=self.device)
        video = self.model(
            hidden_states=latents.expand(batch, *latents.shape).contiguous(),
            timestep=raw,
            raw_timestep=raw,
            text_ids=self.ids,
            text_mask=self.mask,
            video_shape=tuple(latents.shape[1:]),
            fps=self.spec["fps"],
        ).video
        if self.branches == 1:
            return video
        both = [torch.empty_like(video) for _ in range(self.branches)]
        torch.distributed.all_gather(both, video.contiguous(), group=self.mapping.cfg_group)
        return torch.cat(both)

    def attention(self):
        chain, link = [], self.model.gen_layers[0].cross_attention.attn
        while link is not None:
            chain.append(type(link).__name__)
            inner = (getattr(link, name, None) for name in ("inner_backend", "inner", "backend"))
            link = next((found for found in inner if hasattr(found, "forward")), None)
        return " > ".join(chain)

    def close(self):
        if self._distributed:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()


class _Oracle(_Runner):
    """diffusers' transformer, one prompt at a time and without padding."""

    def __init__(self, spec, device, folder, rank):
        super().__init__(spec, device, folder, rank)
        from cosmos3_oracle import build_oracle, oracle_velocity

        self._velocity = oracle_velocity
        self.oracle = build_oracle(
            spec["config"], None, self.dtype, device, weights=self._weights()
        )

    def begin(self, inputs):
        rows = zip(inputs["text_ids"], inputs["text_mask"])
        self.prompts = [ids[: mask.sum()].tolist() for ids, mask in rows]

    def _forward(self, latents, timestep):
        given = (float(timestep), self.spec["fps"])
        found = [self._velocity(self.oracle, latents, ids, *given) for ids in self.prompts]
        return torch.stack([one.video for one in found])


def _tensor_bytes(value) -> int:
    """Bytes of a TextKV, of the host's padded text, or of tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "layers"):
        value = value.layers
    return sum(_tensor_bytes(item) for item in value)


def _digest(results: dict[str, dict[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for case, tensors in sorted(results.items()):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{case} {name}".encode())
            digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


def _files_of(package: str) -> dict[str, dict[str, str]]:
    """Path and digest of each module of a package that this process imported."""
    files = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and (name == package or name.startswith(f"{package}.")):
            files[name] = {
                "path": path,
                "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
            }
    return files


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
