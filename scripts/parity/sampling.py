# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Starting latents, text rows and the denoising loop that every run follows.

Fields: B batch (negative, positive), C channels, T, H, W of the latents, N steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cosmos3_components import make_scheduler

# Text rows are padded to more than the longest prompt, so that a mask has something to mask.
TEXT_MULTIPLE = 128


def pad_prompts(prompts) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and a 1/0 mask, int64 [B, S_text], padded on the right.

    The padding repeats real ids: what a padded slot holds must not matter.
    """
    longest = max(len(prompt.ids) for prompt in prompts)
    rows = (longest // TEXT_MULTIPLE + 1) * TEXT_MULTIPLE
    ids = torch.empty(len(prompts), rows, dtype=torch.long)
    mask = torch.zeros(len(prompts), rows, dtype=torch.long)
    for sample, prompt in enumerate(prompts):
        row = torch.tensor(prompt.ids)
        ids[sample] = row.repeat(rows // len(row) + 1)[:rows]
        mask[sample, : len(row)] = 1
    return ids, mask


def starting_latents(
    shape: tuple[int, int, int, int], seed: int, coloured: bool = True
) -> torch.Tensor:
    """Returns the latents to start from, float32 [C, T, H, W], of variance 1.

    Args:
        shape: (C, T, H, W).
        seed: The same seed gives the same latents.
        coloured: Mix in low spatial frequencies. A random model turns white noise into white
            noise; with shapes in it, a picture shows where it differs from another. A trained
            model expects white noise.
    """
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(shape, generator=generator)
    if coloured:
        channels, frames, height, width = shape
        for cells, weight in ((2, 2.0), (4, 1.0), (8, 0.5)):
            coarse = torch.randn(
                (1, channels, frames, min(cells, height), min(2 * cells, width)),
                generator=generator,
            )
            # One drawing for all frames, which moves a little from each to the next.
            coarse = coarse[:, :, :1] + 0.3 * coarse
            latents = latents + weight * torch.nn.functional.interpolate(
                coarse, size=(frames, height, width), mode="trilinear", align_corners=True
            ).squeeze(0)
        latents = latents / latents.std()
    return latents


def denoise(
    forward: Callable[[torch.Tensor, int], torch.Tensor],
    latents: torch.Tensor,
    steps: int,
    guidance: float,
    dtype: torch.dtype,
) -> Iterator[dict[str, Any]]:
    """Follows the trajectory of one model and yields each step's latents and velocities.

    Args:
        forward: Takes [C, T, H, W] and a timestep, and returns velocities [2, C, T, H, W].
        latents: [C, T, H, W] to start from.
        steps: N.
        guidance: Factor of classifier-free guidance.
        dtype: What latents are kept in between steps, as pipelines do: float32, or float64 for a
            float64 model.

    Yields:
        {"latents": [C, T, H, W] before the step, "velocity": [2, C, T, H, W]}, N times, and
        lastly {"latents": the final ones}.
    """
    scheduler = make_scheduler(steps)
    latents = latents.to(dtype)[None]
    for timestep in scheduler.timesteps:
        velocity = forward(latents[0], int(timestep)).to(dtype)
        yield {"latents": latents[0], "velocity": velocity}
        negative, positive = velocity[:1], velocity[1:]
        guided = negative + guidance * (positive - negative)
        latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
    yield {"latents": latents[0]}
