# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""One CUDA graph for every prompt of a text bucket.

A graph reads the text K/V, the lengths and the RoPE tables at the addresses of its capture. Here
they get addresses of their own for each shape that a graph can have, and the text of the request
at hand is copied there before the graph key is looked up: a new prompt, or a guidance branch that
the pipeline switched back to, overwrites in place what the last one left. What callers save and
restore stays the text itself, never a buffer.

Fields: B batch, T text rows, S rows of the generation sequence, D head_dim.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Callable, Hashable, Optional

import torch

from tensorrt_llm.logger import logger

from .text_cache import install_text_graph_key
from .text_kv import TextKV

# Buffers kept at a time. Each holds one text K/V and the RoPE tables of its video shape.
MAX_BUFFERS = 4
# Text rows of the largest bucket that gets a buffer; longer prompts run without graphs.
MAX_TEXT_ROWS = 4096


class TextBuffer:
    """Text K/V, key lengths and RoPE tables at fixed addresses.

    Args:
        text: What to hold first, and the model of its shapes.
        tables: (cos, sin) of the generation sequence, each [B, S, 1, D].

    Attributes:
        serial: Number of the buffer in the process, never used again.
    """

    def __init__(self, text: TextKV, tables: tuple[torch.Tensor, torch.Tensor]):
        self._storage = TextKV(torch.empty_like(text.data), text.lengths, text.layout)
        self._text: Callable[[], Optional[TextKV]] = lambda: None
        self._source: Optional[tuple[torch.Tensor, torch.Tensor]] = None
        self.serial = self._storage.serial
        self._tables = tuple(torch.empty_like(table) for table in tables)
        self.put(text, tables)

    def holds(self, text: TextKV) -> bool:
        """Whether `text` is what the buffer was filled with last."""
        return self._text() is text

    def views(self, video_rows: int):
        """The views of TextKV.views(), at the buffer's addresses."""
        return self._storage.views(video_rows)

    def rope_tables(
        self, tables: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the buffer's copy of these tables, or the tables if it has another's."""
        return self._tables if self._source is tables else tables

    def put(self, text: TextKV, tables: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Overwrites the buffer with a text and its tables, unless it holds them already."""
        if not self.holds(text):
            self._storage.data.copy_(text.data)
            self._storage.lengths = text.lengths
            self._storage.refresh_views()
            self._text = weakref.ref(text)
        if self._source is not tables:
            for table, source in zip(self._tables, tables):
                table.copy_(source)
            self._source = tables
        text.buffer = self

    @property
    def nbytes(self) -> int:
        """Bytes of K/V and tables."""
        return self._storage.nbytes + sum(t.numel() * t.element_size() for t in self._tables)


class TextBuffers:
    """Buffers by shape, least recently used out first, and the graph key that names them.

    Args:
        max_buffers: Buffers kept at a time.
        max_text_rows: Text rows above which a request runs eagerly.
    """

    def __init__(self, max_buffers: int = MAX_BUFFERS, max_text_rows: int = MAX_TEXT_ROWS):
        if max_buffers < 1:
            raise ValueError(f"max_buffers is {max_buffers}; a graph needs at least one buffer.")
        self.max_buffers = max_buffers
        self.max_text_rows = max_text_rows
        self.buffers: OrderedDict[Hashable, TextBuffer] = OrderedDict()
        self._captures_held = False
        self._said_too_long = False

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def __call__(self, transformer, runner, *args, **kwargs) -> Hashable:
        """Puts the current text where graphs read it; returns the text's part of the graph key.

        Args:
            transformer: The Cosmos3 transformer, its `cached_kv` set.
            runner: The graph runner that asks.
            *args: Arguments of forward.
            **kwargs: Arguments of forward.
        """
        text = transformer.cached_kv
        if text.data.shape[3] * text.layout.col_size > self.max_text_rows:
            return self._run_eagerly(runner, text)
        if self._captures_held:
            runner.allow_capture, self._captures_held = True, False
        tables = _sequence_tables(transformer, **kwargs)
        shape = (text.data.shape, text.data.dtype, text.data.device, tables[0].shape)
        buffer = self.buffers.get(shape)
        if buffer is None:
            if len(self.buffers) == self.max_buffers:
                _, evicted = self.buffers.popitem(last=False)
                _drop_graphs(runner, evicted.serial)
            buffer = self.buffers[shape] = TextBuffer(text, tables)
            logger.info(
                f"Cosmos3 text buffer {buffer.serial}: {text.data.shape[3]} text rows, "
                f"{tables[0].shape[1]} video rows, {buffer.nbytes / 2**20:.1f} MiB; "
                f"{len(self.buffers)} of {self.max_buffers} buffers, {self.nbytes / 2**20:.1f} MiB"
            )
        else:
            self.buffers.move_to_end(shape)
            buffer.put(text, tables)
        return buffer.serial

    def _run_eagerly(self, runner, text: TextKV) -> Hashable:
        if not self._said_too_long:
            self._said_too_long = True
            logger.warning(
                f"Cosmos3 prompt of {max(text.lengths)} tokens is longer than the largest text "
                f"buffer ({self.max_text_rows} rows): it runs without CUDA graphs."
            )
        # Uncaptured keys then run eagerly, and this text's number is no graph's.
        if runner.allow_capture:
            runner.allow_capture, self._captures_held = False, True
        return text.serial


def _sequence_tables(
    transformer, text_mask=None, audio_latents=None, action_latents=None, **kwargs
):
    """RoPE tables of the whole generation sequence, made here where host reads are allowed."""
    vision = transformer.cached_freqs_gen
    if audio_latents is None and action_latents is None:
        return vision
    if audio_latents is not None and action_latents is not None:
        raise ValueError("audio_latents and action_latents in one request; pass one of them.")
    if transformer.cached_freqs_gen_combined is None:
        device, dtype = vision[0].device, vision[0].dtype
        if action_latents is not None:
            rate = kwargs.get("action_fps")
            if rate is None:
                rate = kwargs.get("fps") or transformer.base_fps
            offset = kwargs.get("action_start_frame_offset", 1)
            rows = action_latents.shape[1]
            extra = transformer._compute_action_rope_freqs(
                rows, text_mask, float(rate), offset, device, dtype
            )
        else:
            rate = float(transformer.audio_latent_fps)
            rows = audio_latents.shape[2]
            extra = transformer._compute_audio_rope_freqs(rows, text_mask, rate, device, dtype)
        transformer.cached_freqs_gen_combined = tuple(
            torch.cat(pair, dim=1) for pair in zip(vision, extra)
        )
    return transformer.cached_freqs_gen_combined


def _drop_graphs(runner, serial: int) -> None:
    """Releases the graphs that read an evicted buffer; the runner keeps all the others."""
    for key in [key for key in runner.graphs if ("text", serial) in key]:
        runner.graphs.pop(key).reset()
        for kept in (runner.graph_outputs, runner._graph_output_refs, runner.static_inputs):
            kept.pop(key, None)


def install_text_buffers(transformer: torch.nn.Module) -> None:
    """Lets one graph serve every prompt of its shape; in place of install_text_graph_key."""
    transformer.text_buffers = TextBuffers()
    install_text_graph_key(transformer, transformer.text_buffers)
