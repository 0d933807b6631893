# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Generate videos on the embedded host: on one rank, and as P ranks do, fixed and unfixed.

What P Ulysses ranks compute, one process can: all ranks' keys together are those of the whole
sequence, padded to a multiple of P. A test holds this to real ranks over gloo.

Fields: B prompts, T frames, S video rows, L text rows, K key heads, D head width.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from cosmos3_checkpoint import CheckpointWeights
from cosmos3_sizes import LEARNED, SIZES, full_config
from parity.prompts import Prompt, tokenize
from parity.sampling import denoise, pad_prompts, starting_latents

from deviation import scenes

MODULE = "tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3"
REQUEST_SEED = 11
# Words of captions where all lengths are asked for in turn.
ALL_LENGTHS = (0, 20, 100, 500)


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        words: Of the caption, about; None for each of ALL_LENGTHS in turn.
        sections: Of the negative prompt; None is the shipped one.
        guidance: Factor of classifier-free guidance.
        steps: Of denoising.
        frames: Of the video.
        together: Whether both prompts are one batch, or each is run on ranks of its own.
        divisor: Of both prompts' numbers of tokens, so that no rank count up to it pads them.
    """

    words: int | None = 0
    sections: int | None = None
    guidance: float = 3.0
    steps: int = 10
    frames: int = scenes.FRAMES
    together: bool = True
    divisor: int = 1

    def prompts(self, number: int) -> tuple[scenes.Scene, Prompt, Prompt]:
        """Returns the scene, and the negative and positive prompt, of one of the requests.

        Raises:
            ValueError: The negative prompt's length is no multiple of `divisor`.
        """
        none = tokenize("negative", scenes.negative(self.sections))
        if len(none.ids) % self.divisor:
            raise ValueError(
                f"sections={self.sections} makes {len(none.ids)} tokens; expected a multiple of "
                f"{self.divisor}, as 2 sections make for 2 and 4"
            )
        draw = random.Random(REQUEST_SEED * 1000 + number)
        while True:
            scene = scenes.random_scene(draw)
            words = ALL_LENGTHS[number % 4] if self.words is None else self.words
            some = tokenize("positive", scenes.caption(scene, draw, words))
            if len(some.ids) % self.divisor == 0:
                return scene, none, some


class WholeSharder:
    """Pads like P ranks of a SequenceSharder, and keeps what all of them have together."""

    is_active = True

    def __init__(self, size: int):
        self.size = size

    def shard(self, x: torch.Tensor, dim: int, pad_to_multiple: bool = False) -> torch.Tensor:
        """Returns x with the zeros that make P divide its length."""
        shape = list(x.shape)
        shape[dim] = -x.shape[dim] % self.size
        return torch.cat([x, x.new_zeros(shape)], dim=dim) if shape[dim] else x

    def gather(self, x: torch.Tensor, dim: int, unpad_to: int | None = None) -> torch.Tensor:
        """Returns x without those zeros."""
        return x if unpad_to is None else x.narrow(dim, 0, unpad_to)


def build(fixed: bool, ranks: int = 1, dtype=torch.float32, mapping=None, folder: Path = LEARNED):
    """Returns the host's transformer with the learned weights.

    Args:
        fixed: Exact text K/V, or what unfixed releases do.
        ranks: P to act as, in this process.
        dtype: Of the model.
        mapping: A VisualGenMapping of real ranks, instead.
        folder: Of the weights.
    """
    fields = full_config(SIZES["learned"])
    config = import_module("tensorrt_llm._torch.visual_gen.config").DiffusionModelConfig
    config = config.from_diffusers(
        fields, backend="VANILLA", dtype=dtype, visual_gen_mapping=mapping
    )
    model = import_module(MODULE).Cosmos3VFMTransformer(
        config, text_kv="exact" if fixed else "padded"
    )
    model.load_weights(CheckpointWeights(folder, fields))
    model.post_load_weights()
    if ranks > 1:
        model.sharder = WholeSharder(ranks)
    return model.eval()


@torch.no_grad()
def video(model, request: Request, number: int) -> torch.Tensor:
    """Returns the video [3, T, SIDE, SIDE] of one of the requests."""
    _, *prompts = request.prompts(number)
    branches = [prompts] if request.together else [[prompt] for prompt in prompts]
    branches = [pad_prompts(branch) for branch in branches]
    shape = (request.frames, scenes.SIDE, scenes.SIDE)
    kept: list = [None] * len(branches)

    def forward(latents: torch.Tensor, timestep: int) -> torch.Tensor:
        found = []
        for i, (ids, mask) in enumerate(branches):
            model.cached_kv, model.cached_freqs_gen = kept[i] or (None, None)
            raw = torch.full((len(ids),), float(timestep))
            output = model(
                hidden_states=latents.to(model.dtype).expand(len(ids), -1, -1, -1, -1),
                timestep=raw, raw_timestep=raw, text_ids=ids, text_mask=mask, video_shape=shape,
                fps=24.0,
            )  # fmt: skip
            kept[i] = model.cached_kv, model.cached_freqs_gen
            found.append(output.video.float())
        return torch.cat(found)

    latents = starting_latents((3, *shape), number, coloured=False)
    *_, last = denoise(forward, latents, request.steps, request.guidance, torch.float32)
    model.reset_cache()
    return last["latents"]


@torch.no_grad()
def zero_key_mass(request: Request, ranks: int, number: int = 0) -> dict[str, list]:
    """Returns what zero keys take of the softmax in the unfixed first step, in float64.

    Returns:
        {"measured", "formula"}: for each layer and query head the share, its mean over samples
        and queries. Measured from all keys' weights; by formula from the real keys' logits and n,
        the number of zero keys: n / (n + sum exp(logits)). And "farthest", the largest difference.
    """
    view = import_module(f"{MODULE.rpartition('.')[0]}.padded_text_kv").PaddedTextKVView
    model, plain = build(False, ranks, torch.float64), view.attend
    table: dict[str, list] = {"measured": [], "formula": []}
    farthest = 0.0

    def attend(self, attention, q, k, v, **kwargs):
        nonlocal farthest
        keys = torch.cat([self.k, k], 1)
        heads = q.shape[2] // keys.shape[2]
        logits = torch.einsum("bshd,bthd->bhst", q, keys.repeat_interleave(heads, 2))
        logits = logits * attention.head_dim**-0.5
        zero = (keys == 0).all(-1).all(-1)[:, None, None]
        n = zero.sum(-1)
        by_weights = (logits.softmax(-1) * zero).sum(-1)
        real = logits.masked_fill(zero, float("-inf")).exp().sum(-1)
        by_formula = n / (n + real)
        farthest = max(farthest, float((by_weights - by_formula).abs().max()))
        for name, share in (("measured", by_weights), ("formula", by_formula)):
            table[name].append(share.mean((0, 2)).tolist())
        return plain(self, attention, q, k, v, **kwargs)

    view.attend = attend
    try:
        _, *prompts = request.prompts(number)
        ids, mask = pad_prompts(prompts)
        shape = (request.frames, scenes.SIDE, scenes.SIDE)
        latents = starting_latents((3, *shape), number, coloured=False).double()
        raw = torch.full((2,), 999.0)
        model(hidden_states=latents.expand(2, -1, -1, -1, -1), timestep=raw, raw_timestep=raw,
              text_ids=ids, text_mask=mask, video_shape=shape, fps=24.0)  # fmt: skip
    finally:
        view.attend = plain
    return {**table, "farthest": farthest}
