# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the step and request parts compare: transformers on one set of weights, by variant.

unfixed   the release's text path, whose padding the video attends to
loop      exact text K/V, one attention launch for each sample; the text tower runs on all rows
          that prompts are padded to, as the release's does
ours      exact text K/V as it is here
graph     the same from a CUDA graph
cfg2      the release's path on one prompt for each GPU, which is exact: the way around the bug
          that a user of two GPUs has
"""

from __future__ import annotations

import torch
import torch.distributed as dist

# Latent (T, H, W) of 2 x 2 patches: 37440 rows are 93 frames of 480p, 1024 a square image.
VIDEOS = {37440: (24, 60, 104), 1024: (1, 64, 64), 256: (1, 32, 32), 16: (1, 8, 8)}
# Tokens of the negative and the positive prompt.
LENGTHS = (30, 700)


class Models:
    """Transformers that share their weights, under Ulysses on all ranks but for cfg2.

    Args:
        case: "size", "backend", "video_rows", "dtype" and "text_rows", to which a pipeline pads.
        rank: This rank.
        ranks: All ranks.
        device: Of the weights.
    """

    def __init__(self, case: dict, rank: int, ranks: int, device: torch.device):
        from cosmos3_sizes import SIZES, full_config
        from cosmos3_weights import RandomWeights

        from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
        from tensorrt_llm._torch.visual_gen.cuda_graph_runner import (
            CUDAGraphRunner,
            CUDAGraphRunnerConfig,
        )
        from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
        from tensorrt_llm._torch.visual_gen.models.cosmos3 import transformer_cosmos3

        config, dtype = full_config(SIZES[case["size"]]), getattr(torch, case["dtype"])
        self.rank, self.ranks, self.text_rows = rank, ranks, case["text_rows"]

        def build(where, mapping, **options):
            settings = DiffusionModelConfig.from_diffusers(
                config, backend=case["backend"], dtype=dtype, visual_gen_mapping=mapping
            )
            with torch.device(where):
                return transformer_cosmos3.Cosmos3VFMTransformer(settings, **options)

        mapping = VisualGenMapping(world_size=ranks, rank=rank, ulysses_size=ranks)
        self.fixed = build(device, mapping)
        self.fixed.load_weights(RandomWeights(config, 0, dtype, device))
        self.transformers = {"unfixed": build("meta", mapping, text_kv="padded")}
        if ranks == len(LENGTHS):
            self.transformers["cfg2"] = build("meta", None, text_kv="padded")
        for transformer in self.transformers.values():
            transformer.load_state_dict(self.fixed.state_dict(), assign=True)
        self.adapters = [_adapter(layer.cross_attention.attn) for layer in self.fixed.gen_layers]
        self.kernels = self.adapters[0].kernels
        self.module, self.text_bucket = transformer_cosmos3, transformer_cosmos3.text_bucket

        self.runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
        if device.type == "cpu":
            # There is no free memory of a GPU to take a share of.
            self.fixed.graph_inputs.max_bytes = 1 << 30
        self.fixed.register_cuda_graph_extra_key_fns(self.runner)
        self.graphed = self.runner.wrap(self.fixed.forward)

        generator = torch.Generator(device=device).manual_seed(1)
        batch, rows = len(LENGTHS), case["text_rows"]
        self.latents = torch.randn(
            batch, config["latent_channel"], *VIDEOS[case["video_rows"]],
            generator=generator, device=device, dtype=dtype,
        )  # fmt: skip
        self.ids = torch.randint(
            config["vocab_size"], (batch, rows), generator=generator, device=device
        )
        lengths = torch.tensor(LENGTHS, device=device)[:, None]
        self.mask = torch.arange(rows, device=device) < lengths

    def select(self, variant: str):
        """Returns a variant's transformer, switched to it."""
        if variant in self.transformers:
            return self.transformers[variant]
        loop = variant == "loop"
        for adapter in self.adapters:
            adapter.kernels = None if loop else self.kernels
        self.module.text_bucket = (lambda length: self.text_rows) if loop else self.text_bucket
        return self.fixed

    def arguments(self, variant: str, number: int) -> dict:
        """What forward takes in step `number`; the latents differ from step to step."""
        samples = slice(self.rank, self.rank + 1) if variant == "cfg2" else slice(None)
        raw = torch.full((len(LENGTHS),), 900.0 - number, device=self.latents.device)[samples]
        return {
            "hidden_states": self.latents[samples].roll(number, dims=3),
            "timestep": raw / 1000,
            "raw_timestep": raw,
            "text_ids": self.ids[samples],
            "text_mask": self.mask[samples],
            "video_shape": tuple(self.latents.shape[2:]),
            "fps": 24.0,
        }

    def step(self, variant: str, number: int) -> torch.Tensor:
        """The velocities of both prompts in one denoising step."""
        transformer = self.select(variant)
        forward = self.graphed if variant == "graph" else transformer
        video = forward(**self.arguments(variant, number)).video
        if variant != "cfg2":
            return video
        # Guidance needs both.
        both = [torch.empty_like(video) for _ in LENGTHS]
        dist.all_gather(both, video.contiguous())
        return torch.cat(both)

    def text(self, variant: str) -> None:
        """What a request does once, before its first step."""
        transformer = self.select(variant)
        transformer.reset_cache()
        transformer.prepare_request(**self.arguments(variant, 0))


def _adapter(attention):
    """The TextAttention inside Ulysses, or on one rank the attention itself."""
    while not hasattr(attention, "kernels"):
        attention = attention.inner_backend
    return attention
