# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""What a request keeps of its prompts: their K/V, whole on every rank, and their lengths.

Text is never cut along the sequence. A rank keeps every prompt in full, but only the K/V heads
that it attends with: Ulysses gives rank u the contiguous block u of heads. Under Attention2D each
column owns every col_size-th text row, so that each key counts once when columns are combined. In
a ring the text belongs to the block that a rank holds itself. Behind the video's, valid keys are
always a prefix: one int32 for each sample is all that a kernel has to know.

Fields: B batch, T text rows kept, H_kv K/V heads of this tensor-parallel rank, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional, Sequence

import torch

if TYPE_CHECKING:
    from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

# Maps tensors to where they are to be read: themselves, or copies at fixed addresses.
Read = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]

# Prompts of similar length share shapes, and with them kernels, compiled code and CUDA graphs.
TEXT_BUCKETS = (256, 512, 768, 1024, 1280, 1792, 2304, 3072, 4096)


def text_bucket(length: int) -> int:
    """Text rows that are computed and kept for a longest prompt of `length` tokens."""
    longest = -(-length // 1024) * 1024
    return next((rows for rows in TEXT_BUCKETS if length <= rows), longest)


def read_text_lengths(text_mask: Optional[torch.Tensor]) -> tuple[int, ...]:
    """Reads the prompt lengths from a padding mask: the one host read of a request.

    Args:
        text_mask: [B, S_text], any dtype: ones for tokens, then zeros for padding.

    Returns:
        B lengths in tokens, each at least 1.

    Raises:
        ValueError: The mask is missing or not two-dimensional, a prompt is empty, or a row is not
            ones followed by zeros (holes, padding on the left, NaN), which no length can express.
    """
    if text_mask is None or text_mask.dim() != 2:
        raise ValueError(
            f"text_mask has shape {getattr(text_mask, 'shape', None)}; pass [B, S_text], ones and "
            "then zeros for each prompt."
        )
    lengths = (text_mask == 1).sum(dim=1)
    positions = torch.arange(text_mask.shape[1], device=text_mask.device)
    is_prefix = (text_mask == (positions < lengths[:, None])).all(dim=1)
    # One transfer for both, so that the host waits for the device once.
    host = torch.stack([lengths, is_prefix.to(lengths.dtype)]).tolist()
    for sample, (length, prefix) in enumerate(zip(*host)):
        if not (prefix and length):
            raise ValueError(
                f"text_mask row {sample} is not a token or more, ones, followed by zeros; pad "
                "prompts on the right, without holes."
            )
    return tuple(host[0])


@dataclass(frozen=True)
class TextKVLayout:
    """Which keys one rank attends to.

    Attributes:
        ulysses_size: Blocks that the heads are cut into.
        ulysses_rank: This rank's block.
        row_size: Rows of the Attention2D mesh; 1 without one.
        col_size: Columns of the Attention2D mesh; 1 without one.
        ring_size: Ranks of the attention ring; 1 without one.
        cp_rank: This rank's place in the mesh (row * col_size + column) or in the ring.
    """

    ulysses_size: int = 1
    # What a rank raises says the same on all: a rank's own place is not shown.
    ulysses_rank: int = field(default=0, repr=False)
    row_size: int = 1
    col_size: int = 1
    ring_size: int = 1
    cp_rank: int = field(default=0, repr=False)

    @classmethod
    def from_mapping(cls, mapping: Optional["VisualGenMapping"]) -> "TextKVLayout":
        """Reads the layout off a VisualGenMapping; None means a single rank."""
        if mapping is None:
            return cls()
        mesh = (mapping.attn2d_row_size, mapping.attn2d_col_size)
        heads = (mapping.ulysses_size, mapping.ulysses_rank)
        return cls(*heads, *mesh, mapping.ring_size, mapping.cp_rank)

    def text_rows(self, length: int) -> slice:
        """The rows that this rank owns of a prompt of `length` tokens."""
        return slice(self.cp_rank % self.col_size, length, self.col_size)

    def video_rows(self, video_rows: int) -> tuple[int, ...]:
        """Valid video rows in each block of keys that this rank attends to, one after the other.

        The sequence of `video_rows` is zero-padded on the right and cut into equal chunks, one for
        each context rank. A column of a mesh gathers its chunks in ascending order, and a ring
        passes them on: what is valid in a block is a prefix of it.
        """
        chunks = self.row_size * self.col_size * self.ring_size
        chunk_rows = -(-video_rows // (chunks * self.ulysses_size)) * self.ulysses_size
        valid = [min(max(video_rows - i * chunk_rows, 0), chunk_rows) for i in range(chunks)]
        if self.ring_size > 1:
            return tuple(valid[self.cp_rank - step] for step in range(self.ring_size))
        return (sum(valid[self.cp_rank % self.col_size :: self.col_size]),)


@dataclass(frozen=True)
class TextKVView:
    """What is appended to one block of video keys in one layer.

    Attributes:
        k: [B, T, H_kv / ulysses_size, D] keys after QK-norm and RoPE, zeros past each length.
        v: Like k, values.
        key_lengths: int32 [B] on the device, video_rows + text length: the valid key prefix.
        video_rows: Valid video rows of the block; what follows them is padding.
        text_lengths: B text lengths on the host, for backends that are launched on exact shapes.
    """

    k: torch.Tensor
    v: torch.Tensor
    key_lengths: torch.Tensor
    video_rows: int
    text_lengths: tuple[int, ...]


class TextKV:
    """The text K/V of all layers for one batch of prompts, with the prompts' lengths.

    Lengths travel with what they describe, because callers keep several of these and swap them by
    plain assignment (the transfer pipeline does, for each guidance branch). To readers it is a
    sequence of (K, V), one pair for each layer.

    Attributes:
        data: [2, layers, B, T, H_kv / ulysses_size, D], keys and then values, zeros past each
            length: kernels multiply what lies there by zero, so it has to be finite.
        lengths: B prompt lengths in tokens.
        layout: This rank's share of the keys.
    """

    def __init__(self, data: torch.Tensor, lengths: tuple[int, ...], layout: TextKVLayout):
        self.data = data
        self.lengths = lengths
        self.layout = layout
        self._key_lengths: dict[int, torch.Tensor] = {}
        self._views: dict[int, tuple] = {}

    @classmethod
    def build(
        cls,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        lengths: tuple[int, ...],
        layout: TextKVLayout = TextKVLayout(),
    ) -> "TextKV":
        """Cuts the text tower's K/V down to what this rank attends with.

        Args:
            layers: (K, V) of each layer, [B, S_text, H_kv, D]; anything past a sample's length.
            lengths: B prompt lengths in tokens, at most S_text.
            layout: This rank's share.
        """
        batch, text_rows, kv_heads, head_dim = layers[0][0].shape
        assert len(lengths) == batch and max(lengths) <= text_rows, (lengths, batch, text_rows)
        heads = kv_heads // layout.ulysses_size
        kept_heads = slice(layout.ulysses_rank * heads, (layout.ulysses_rank + 1) * heads)
        rows = -(-text_bucket(max(lengths)) // layout.col_size)
        shape = (2, len(layers), batch, rows, heads, head_dim)
        data = layers[0][0].new_zeros(shape)
        for layer, pair in enumerate(layers):
            for source, kept in zip(pair, data[:, layer]):
                for sample, length in enumerate(lengths):
                    owned = source[sample, layout.text_rows(length), kept_heads]
                    kept[sample, : owned.shape[0]] = owned
        return cls(data, lengths, layout)

    @property
    def local_lengths(self) -> tuple[int, ...]:
        """Text rows of each sample that this rank owns: all of them unless columns share them."""
        return tuple(len(range(n)[self.layout.text_rows(n)]) for n in self.lengths)

    def __len__(self) -> int:
        return self.data.shape[1]

    def __getitem__(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[0, layer], self.data[1, layer]

    def select(self, samples: slice | Sequence[int]) -> "TextKV":
        """A text of some of the samples, such as the conditional half of a batch."""
        everyone = range(len(self.lengths))
        chosen = list(everyone[samples] if isinstance(samples, slice) else samples)
        lengths = tuple(self.lengths[i] for i in chosen)
        return TextKV(self.data[:, :, chosen], lengths, self.layout)

    def tensors(self, video_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All that a forward reads of this text: `data`, and the int32 [blocks, B] key lengths."""
        if video_rows not in self._key_lengths:
            first, *others = self.layout.video_rows(video_rows)
            rows = [[first + n for n in self.local_lengths]]
            rows += [[other for _ in self.lengths] for other in others]
            self._key_lengths[video_rows] = self.data.new_tensor(rows, dtype=torch.int32)
        return self.data, self._key_lengths[video_rows]

    def views(self, video_rows: int, read: Read = tuple) -> tuple[tuple[TextKVView, ...], ...]:
        """For each layer what it appends to each block of keys; `read` is applied to tensors()."""
        data, key_lengths = read(self.tensors(video_rows))
        views = self._views.get(video_rows) if data is self.data else None
        if views is None:
            views = tuple(self._layer(k, v, key_lengths, video_rows) for k, v in zip(*data))
        if data is self.data:  # A copy belongs to the graphs that read it.
            self._views[video_rows] = views
        return views

    def _layer(self, k, v, key_lengths, video_rows) -> tuple[TextKVView, ...]:
        for tensor in (k, v):
            # A compiled layer serves every bucket.
            torch._dynamo.maybe_mark_dynamic(tensor, 1)
        (own, *others), none = self.layout.video_rows(video_rows), (0,) * len(self.lengths)
        views = [TextKVView(k, v, key_lengths[0], own, self.local_lengths)]
        for valid, rows in zip(key_lengths[1:], others):
            views.append(TextKVView(k[:, :0], v[:, :0], valid, rows, none))
        return tuple(views)


def require_text(cached_kv: object) -> TextKV:
    """Returns a transformer's `cached_kv`, or raises ValueError if it is no TextKV."""
    if not isinstance(cached_kv, TextKV):
        raise ValueError(
            f"cached_kv is a {type(cached_kv).__name__}, which has no prompt lengths; keep the "
            "TextKV that forward() cached, or cut it with its select(samples)."
        )
    return cached_kv


def attach_text(
    transformer: torch.nn.Module, hidden_states: torch.Tensor, video_rows: int, read: Read = tuple
) -> tuple[tuple[TextKVView, ...], ...]:
    """Binds a transformer's cached text to a generation sequence.

    Raises before any collective, and alike on every rank, where the two cannot belong together.

    Args:
        transformer: Has `cached_kv`, `gen_layers` and `text_kv_layout`.
        hidden_states: [B, any, hidden] of the generation tower, sharded or not.
        video_rows: Rows of the whole generation sequence, without padding.
        read: As in TextKV.views().

    Returns:
        For each layer, one view for each block of keys that it attends to in turn.

    Raises:
        ValueError: The text was cached for another batch, dtype, device, layout or model.
    """
    text, layout = require_text(transformer.cached_kv), transformer.text_kv_layout
    layers = transformer.gen_layers
    attention = layers[0].cross_attention
    heads = attention.local_num_key_value_heads // layout.ulysses_size
    like, data = hidden_states, text.data
    found = (data.shape[2], data.dtype, data.device, *data.shape[1::3], data.shape[5])
    expected = (like.shape[0], like.dtype, like.device, len(layers), heads, attention.head_dim)
    if found != expected or text.layout != layout:
        raise ValueError(
            "the cached text has (batch, dtype, device, layers, K/V heads, head_dim) = "
            f"{found} for {text.layout}, but the generation sequence needs {expected} for "
            f"{layout}; call reset_cache() when prompts, model or layout change."
        )
    return text.views(video_rows, read)
