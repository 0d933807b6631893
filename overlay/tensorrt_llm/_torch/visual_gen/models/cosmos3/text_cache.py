# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""What a request keeps of its prompts, and which CUDA graphs may answer it.

A replayed graph runs no Python and reads the text K/V at the addresses of its capture. The graph
runner keys graphs by tensor shapes, so a second prompt of the same shapes would silently be
answered with the first prompt's video. The runner's extra-key functions are called with forward's
arguments before every capture and replay: there the text is prepared, outside of any graph, and
its serial number becomes part of the key.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import nullcontext
from typing import Callable, ContextManager, Hashable, Optional, Sequence

import torch

from .text_kv import TextKV, read_text_lengths


def cache_text(
    transformer: torch.nn.Module,
    hidden_states: torch.Tensor,
    timestep: Optional[torch.Tensor] = None,
    raw_timestep: Optional[torch.Tensor] = None,
    text_ids: Optional[torch.Tensor] = None,
    text_mask: Optional[torch.Tensor] = None,
    video_shape: Optional[tuple[int, int, int]] = None,
    offload_context: Callable[[str], ContextManager] = nullcontext,
    fps: Optional[float] = None,
    *args,
    control_latents: Sequence[torch.Tensor] | torch.Tensor | None = None,
    transfer_share_vision_temporal_positions: bool = True,
    **kwargs,
) -> None:
    """Runs the text tower and sets the transformer's `cached_kv` and `cached_freqs_gen`.

    Takes the arguments of the transformer's forward, so that it can stand in front of it. All
    host reads of the prompts happen here, once per request.

    Args:
        transformer: The Cosmos3 transformer, with a `text_kv_layout`.
        hidden_states: [B, C, T, H, W] latents; only their device and dtype matter.
        timestep: [B], handed to the text tower.
        raw_timestep: Unused.
        text_ids: [B, S_text] token ids.
        text_mask: [B, S_text], ones and then zeros.
        video_shape: (T, H, W) of the latents.
        offload_context: Maps "reasoner" to the context in which the text tower runs.
        fps: Frames per second, which scale the temporal positions.
        *args: Further arguments of forward, unused.
        control_latents: Control latents before the video; only their number matters.
        transfer_share_vision_temporal_positions: Whether controls stand at the video's positions.
        **kwargs: Further arguments of forward, unused.

    Raises:
        ValueError: A prompt is empty or not padded on the right.
    """
    lengths = read_text_lengths(text_mask)
    frames, height, width = video_shape
    patch_rows, patch_cols, _, _ = transformer._pad_to_patch_size(height, width)
    if control_latents is None:
        num_controls = 0
    else:
        num_controls = 1 if isinstance(control_latents, torch.Tensor) else len(control_latents)
    freqs_text, freqs_gen = transformer._compute_rope_freqs(
        text_mask,
        frames,
        patch_rows,
        patch_cols,
        fps,
        hidden_states.device,
        hidden_states.dtype,
        num_vision_items=num_controls + 1,
        share_vision_temporal_positions=transfer_share_vision_temporal_positions,
    )
    with offload_context("reasoner"):
        layers = transformer.language_model(text_ids, text_mask, freqs_text, timestep=timestep)
    transformer.cached_freqs_gen = freqs_gen
    transformer.cached_kv = TextKV.build(layers, lengths, transformer.text_kv_layout)


def install_text_graph_key(
    transformer: torch.nn.Module,
    load: Optional[Callable[..., Hashable]] = None,
) -> None:
    """Adds the text to what the transformer registers as graph-key functions.

    Args:
        transformer: Has `cached_kv`, None until `cache_text` sets it, and the class-level method
            `register_cuda_graph_extra_key_fns(runner)`.
        load: Called with (transformer, runner, *args, **kwargs) of forward once the text is there;
            returns the text's part of the key. By default that is the text's serial number, so
            that each prompt has graphs of its own.
    """
    transformer.register_cuda_graph_extra_key_fns = functools.partial(
        _register_with_text, transformer, load or _SerialKey()
    )


def _register_with_text(transformer: torch.nn.Module, load: Callable[..., Hashable], runner):
    type(transformer).register_cuda_graph_extra_key_fns(transformer, runner)

    def text_key(*args, **kwargs) -> Hashable:
        if transformer.cached_kv is None:
            cache_text(transformer, *args, **kwargs)
        return load(transformer, runner, *args, **kwargs)

    runner.register_extra_key_fn("text", text_key)


class _SerialKey:
    """Keys graphs by the serial number of their text, and drops those nobody can ask for again."""

    def __init__(self):
        self._captured = weakref.WeakSet()

    def __call__(self, transformer, runner, *args, **kwargs) -> int:
        text = transformer.cached_kv
        if text not in self._captured:
            # A guidance branch that a caller saved keeps its text alive, and with it the graphs.
            if not self._captured:
                runner.clear()
            self._captured.add(text)
        return text.serial
