# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""The prompt's K/V as the generation tower of Cosmos3 reads it.

The text is never sharded along the sequence. Every rank keeps the whole trimmed prompt, but only
the K/V heads that it attends with: Ulysses hands rank u the contiguous block u of heads, so the
text is cut the same way and appended behind the exchange. Under Attention2D each column attends
to every col_size-th text row, so that each text key counts exactly once in the combination and
the columns share the work evenly for every prompt length.

Valid keys are always a prefix: [0, length) of the text, and [0, video_rows + length) once the
text stands behind the video. One int32 per sample is therefore all that a kernel has to know.

Fields: B batch, L text length of one sample, T text rows kept, S video rows (everything in the
generation sequence: control, video, audio or action), H_kv K/V heads of this tensor-parallel rank,
D head_dim.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Optional, Sequence

import torch

if TYPE_CHECKING:
    from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

# Prompts of similar length share shapes, and with them kernels, graphs and compiled code.
TEXT_BUCKET = 128

_serials = itertools.count()


def read_text_lengths(text_mask: torch.Tensor) -> tuple[int, ...]:
    """Reads the prompt lengths from a padding mask: the one host read of a request.

    Args:
        text_mask: [B, S_text], any dtype; nonzero for a token, zero for padding on the right.

    Returns:
        B lengths in tokens, each at least 1.

    Raises:
        ValueError: The mask is not two-dimensional, a prompt is empty, or a row is not ones
            followed by zeros (padding on the left or holes), which a length cannot express.
    """
    if text_mask.dim() != 2:
        raise ValueError(
            f"text_mask must be [B, S_text], got shape {tuple(text_mask.shape)}; "
            "pass one row of ones and zeros for each prompt."
        )
    valid = text_mask != 0
    lengths = valid.sum(dim=1)
    positions = torch.arange(text_mask.shape[1], device=text_mask.device)
    is_prefix = (valid == (positions < lengths[:, None])).all(dim=1)
    # One transfer for both, so that the host waits for the device once.
    host = torch.stack([lengths, is_prefix.to(lengths.dtype)]).tolist()
    for sample, (length, prefix) in enumerate(zip(*host)):
        if not prefix:
            raise ValueError(
                f"text_mask row {sample} is not ones followed by zeros; "
                "pad prompts on the right, without holes."
            )
        if length == 0:
            raise ValueError(
                f"text_mask row {sample} has no token: the prompt is empty; "
                "an unconditional prompt still needs at least one token."
            )
    return tuple(host[0])


@dataclass(frozen=True)
class TextKVLayout:
    """Which part of the keys one rank attends to.

    Attributes:
        ulysses_rank: Index of this rank's block of K/V heads.
        ulysses_size: Number of blocks that the K/V heads are cut into.
        row_size: Rows of the Attention2D mesh; 1 without Attention2D.
        col_size: Columns of the Attention2D mesh; 1 without Attention2D.
        col_rank: Column of this rank, which owns text rows col_rank, col_rank + col_size, ...
        ring_size: Ranks of the attention ring; 1 without one.
        ring_rank: This rank's place in the ring.
    """

    ulysses_rank: int = 0
    ulysses_size: int = 1
    row_size: int = 1
    col_size: int = 1
    col_rank: int = 0
    ring_size: int = 1
    ring_rank: int = 0

    @classmethod
    def from_mapping(cls, mapping: Optional["VisualGenMapping"]) -> "TextKVLayout":
        """Reads the layout off a VisualGenMapping; None means a single rank."""
        if mapping is None:
            return cls()
        col_size = mapping.attn2d_col_size
        attn2d = mapping.attn2d_row_size * col_size > 1
        return cls(
            ulysses_rank=mapping.ulysses_rank,
            ulysses_size=mapping.ulysses_size,
            row_size=mapping.attn2d_row_size,
            col_size=col_size,
            col_rank=mapping.cp_rank % col_size if attn2d else 0,
            ring_size=mapping.ring_size,
            ring_rank=mapping.cp_rank if mapping.ring_size > 1 else 0,
        )

    def chunk_video_rows(self, video_rows: int, chunk: int) -> int:
        """Valid video rows in what context-parallel rank `chunk` holds behind the all-to-all.

        The sequence is zero-padded on the right to a multiple of the sequence-parallel size and
        cut into equal chunks, so the padding may empty the last chunks altogether.
        """
        context_size = self.row_size * self.col_size * self.ring_size
        sequence_size = context_size * self.ulysses_size
        rows = -(-video_rows // sequence_size) * self.ulysses_size
        return min(max(video_rows - chunk * rows, 0), rows)

    def local_video_rows(self, video_rows: int) -> int:
        """Valid video rows among the keys that the compute backend of this rank is given.

        Attention2D gathers the chunks of one column in ascending order, so that every row behind
        the first padding row is padding and the valid rows are a prefix.
        """
        chunks = range(self.col_rank, self.row_size * self.col_size, self.col_size)
        if self.ring_size > 1:
            chunks = [self.ring_rank]
        return sum(self.chunk_video_rows(video_rows, chunk) for chunk in chunks)


def _readable(shape: tuple) -> str:
    """A layout's sizes and the numbers behind it; no rank's place, so that all say the same."""
    layout, *numbers = shape
    sizes = {f.name: getattr(layout, f.name) for f in fields(layout) if f.name.endswith("_size")}
    used = " ".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or "one rank"
    return f"({used}, {', '.join(map(str, numbers))})"


@dataclass
class TextKVView:
    """One layer's text K/V, with what the adapter needs to append it to the video's.

    Attributes:
        k: [B, T, H_kv / ulysses_size, D] keys after QK-norm and RoPE, zeros past each length.
        v: Like k, values.
        key_lengths: int32 [B] on the device, video_rows + text length: the valid key prefix.
        video_rows: Valid video rows among the keys of this rank; what follows them is padding.
        ring_blocks: In a ring, the views of the other ranks' blocks, in the order in which they
            pass by behind this one; they carry no text.
    """

    k: torch.Tensor
    v: torch.Tensor
    key_lengths: torch.Tensor
    video_rows: int
    ring_blocks: tuple["TextKVView", ...] = ()


class TextKV:
    """The text K/V of all layers for one batch of prompts, with the prompts' lengths.

    Lengths travel with the tensors they describe, because callers keep several of these and
    swap them by plain assignment (the transfer pipeline does, for each guidance branch).

    Attributes:
        data: [2, layers, B, T, H_kv / ulysses_size, D], keys and then values, zeros past each
            length; one tensor, so that one copy moves all of it.
        keys: One [B, T, H_kv / ulysses_size, D] view of it for each layer.
        values: Like keys.
        lengths: B prompt lengths in tokens.
        layout: This rank's share of the keys.
        serial: Number of this text in the process, never used again.
        buffer: Where CUDA graphs read this text, once it has been put there; see text_buffers.
    """

    def __init__(self, data: torch.Tensor, lengths: tuple[int, ...], layout: TextKVLayout):
        self.data = data
        self.keys, self.values = (tuple(half) for half in data)
        self.lengths = lengths
        self.layout = layout
        self.serial = next(_serials)
        self.buffer = None
        self._views: dict[int, tuple[TextKVView, ...]] = {}

    @classmethod
    def build(
        cls,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        lengths: Sequence[int],
        layout: TextKVLayout = TextKVLayout(),
    ) -> "TextKV":
        """Cuts the text tower's K/V down to what this rank attends with.

        Args:
            layers: One (K, V) pair for each layer, each [B, S_text, H_kv, D]; rows past a
                sample's length may hold anything.
            lengths: B prompt lengths in tokens.
            layout: This rank's share; the default is a single rank.

        Returns:
            Contiguous copies of T rows, a multiple of TEXT_BUCKET over the columns, that hold
            zeros past each length: kernels multiply what lies behind the prefix by zero, so it
            has to be finite.

        Raises:
            ValueError: A length is not in [1, S_text], their number is not B, the layers
                disagree in shape, dtype or device, or ulysses_size does not divide H_kv.
        """
        lengths = tuple(int(length) for length in lengths)
        if not layers:
            raise ValueError("the text tower returned no layers; expected one (K, V) for each.")
        first = layers[0][0]
        batch, text_rows, kv_heads, head_dim = first.shape
        for index, pair in enumerate(layers):
            for name, tensor in zip("KV", pair):
                found = (tuple(tensor.shape), tensor.dtype, tensor.device)
                if found != (tuple(first.shape), first.dtype, first.device):
                    raise ValueError(
                        f"text {name} of layer {index} is {found}, but K of layer 0 is "
                        f"{(tuple(first.shape), first.dtype, first.device)}; all must agree."
                    )
        if len(lengths) != batch:
            raise ValueError(
                f"{len(lengths)} text lengths {list(lengths)} for a batch of {batch} prompts; "
                "give one length for each sample."
            )
        for sample, length in enumerate(lengths):
            if not 1 <= length <= text_rows:
                raise ValueError(
                    f"text length {length} of sample {sample} is outside [1, {text_rows}], the "
                    "rows that the text tower returned; pad or truncate the prompt to fit."
                )
        if kv_heads % layout.ulysses_size != 0:
            fits = [size for size in range(1, kv_heads + 1) if kv_heads % size == 0]
            raise ValueError(
                f"{kv_heads} text K/V heads of this tensor-parallel rank cannot be split over "
                f"Ulysses size {layout.ulysses_size}; sizes that divide them: {fits}."
            )

        bucket = -(-max(lengths) // TEXT_BUCKET) * TEXT_BUCKET
        rows = -(-bucket // layout.col_size)
        heads = kv_heads // layout.ulysses_size
        shape = (2, len(layers), batch, rows, heads, head_dim)
        text = cls(first.new_zeros(shape), lengths, layout)
        head_block = slice(layout.ulysses_rank * heads, (layout.ulysses_rank + 1) * heads)
        for layer, pair in enumerate(layers):
            for source, kept in zip(pair, text.data[:, layer]):
                for sample, (length, local) in enumerate(zip(lengths, text.local_lengths)):
                    owned = slice(layout.col_rank, length, layout.col_size)
                    kept[sample, :local] = source[sample, owned, head_block]
        return text

    @property
    def local_lengths(self) -> tuple[int, ...]:
        """Text rows of each sample that this rank owns: all of them unless columns share them."""
        col_rank, col_size = self.layout.col_rank, self.layout.col_size
        return tuple(-(-max(length - col_rank, 0) // col_size) for length in self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of K and V over all layers on this rank."""
        return self.data.numel() * self.data.element_size()

    def __len__(self) -> int:
        return len(self.keys)

    def require_fit(self, gen_layers: Sequence[torch.nn.Module], layout: TextKVLayout) -> None:
        """Refuses a text that was cached by another model or for another rank's layout.

        Raises before any collective, and alike on every rank.

        Args:
            gen_layers: The generation layers, each with its `cross_attention`.
            layout: This rank's share of the keys.

        Raises:
            ValueError: The layout, or the number of layers, K/V heads or head_dim differ.
        """
        attention = gen_layers[0].cross_attention
        kv_heads = attention.local_num_key_value_heads // layout.ulysses_size
        expected = (layout, len(gen_layers), kv_heads, attention.head_dim)
        found = (self.layout, len(self), *self.data.shape[4:])
        if found != expected:
            name = "(layout, layers, K/V heads, head_dim)"
            raise ValueError(
                f"the cached text K/V holds {name} = {_readable(found)}, but the generation layers "
                f"of this rank expect {_readable(expected)}; call reset_cache(), or restore a text "
                "that this transformer cached."
            )

    def attach(self, hidden_states: torch.Tensor, video_rows: int) -> tuple[TextKVView, ...]:
        """Binds the text to a generation sequence and returns one view for each layer.

        Raises before any collective, and alike on every rank, when this text cannot belong to
        that sequence. The views of a video length are made once and kept.

        Args:
            hidden_states: [B, any, hidden] of the generation tower, sharded or not.
            video_rows: Rows of the unsharded, unpadded generation sequence.

        Raises:
            ValueError: Batch size, dtype or device differ from the text's, or video_rows < 1.
        """
        expected = (self.data.shape[2], self.data.dtype, self.data.device)
        found = (hidden_states.shape[0], hidden_states.dtype, hidden_states.device)
        if found != expected:
            raise ValueError(
                f"the cached text K/V holds (batch, dtype, device) = {expected}, but the "
                f"generation sequence is {found}; call reset_cache() when the prompts change."
            )
        if video_rows < 1:
            raise ValueError(f"video_rows is {video_rows}; the generation sequence needs a row.")
        if self.buffer is not None and self.buffer.holds(self):
            return self.buffer.views(video_rows)
        return self.views(video_rows)

    def rope_tables(
        self, tables: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns where to read the generation sequence's RoPE tables: the buffer, if it is in use.

        Args:
            tables: (cos, sin) of the whole sequence, each [B, S, 1, D].
        """
        if self.buffer is not None and self.buffer.holds(self):
            return self.buffer.rope_tables(tables)
        return tables

    def key_lengths(self, video_rows: int) -> torch.Tensor:
        """Valid keys of each sample of this rank, int32 [B] on the host."""
        local = self.layout.local_video_rows(video_rows)
        return torch.tensor([local + length for length in self.local_lengths], dtype=torch.int32)

    def views(self, video_rows: int) -> tuple[TextKVView, ...]:
        """One view for each layer, bound to a sequence of video_rows rows; made once and kept."""
        if video_rows not in self._views:
            local = self.layout.local_video_rows(video_rows)
            lengths = self.key_lengths(video_rows).to(self.data.device)
            others = self._ring_blocks(video_rows)
            self._views[video_rows] = tuple(
                TextKVView(k, v, lengths, local, others) for k, v in zip(self.keys, self.values)
            )
        return self._views[video_rows]

    def _ring_blocks(self, video_rows: int) -> tuple[TextKVView, ...]:
        """Views of the blocks that reach this rank from the others of its ring, without text."""
        size, rank = self.layout.ring_size, self.layout.ring_rank
        none = self.data[0, 0, :, :0]
        blocks = []
        for step in range(1, size):
            rows = self.layout.chunk_video_rows(video_rows, (rank - step) % size)
            lengths = torch.full((none.shape[0],), rows, dtype=torch.int32, device=none.device)
            blocks.append(TextKVView(none, none, lengths, rows))
        return tuple(blocks)

    def refresh_views(self) -> None:
        """Overwrites, in place, the lengths that earlier views hold with those of `lengths`."""
        for video_rows, views in self._views.items():
            views[0].key_lengths.copy_(self.key_lengths(video_rows))
