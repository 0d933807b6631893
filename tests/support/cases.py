# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the matrices are made of: layouts, prompt lengths, heads, and numbers drawn from a seed.

Everything here is plain data that pickles, so that each rank makes the same numbers for itself.
Fields: B batch, S video rows, T text rows, H query heads, H_kv K/V heads, D head_dim.
"""

from dataclasses import dataclass

import torch

# Large and finite: a padding slot that counts anywhere ruins the result, and one that a kernel
# multiplies by weight 0 does not.
POISON = 1e4

# Two prompts far apart, one of a single token, equal ones, and both sides of a bucket's edge.
# Equal prompts are 13 long, which no rank count here divides: the rounding tail alone is the bug.
LENGTHS = {
    "len7x19": (7, 19),
    "len1x300": (1, 300),
    "len13x13": (13, 13),
    "len256x41": (256, 41),
    "len257x127": (257, 127),
}


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel axes; 1 where an axis is not used."""

    cfg: int = 1
    tp: int = 1
    ring: int = 1
    ulysses: int = 1
    rows: int = 1
    cols: int = 1

    @property
    def world_size(self) -> int:
        return self.cfg * self.tp * self.sequence_size

    @property
    def sequence_size(self) -> int:
        """Ranks that share one sequence."""
        return self.ring * self.rows * self.cols * self.ulysses

    @property
    def head_ways(self) -> int:
        """Ways that heads are cut into."""
        return self.tp * self.ulysses

    def __str__(self) -> str:
        names = [
            f"{name}{size}"
            for name, size in [("cfg", self.cfg), ("tp", self.tp), ("ring", self.ring)]
            if size > 1
        ]
        if self.rows * self.cols > 1:
            names.append(f"attn2d{self.rows}x{self.cols}")
        if self.ulysses > 1:
            names.append(f"ulysses{self.ulysses}")
        return "-".join(names) or "single"


@dataclass(frozen=True)
class AttentionCase:
    """One attention over a video and a text per sample.

    Attributes:
        layout: Parallel axes.
        lengths: Text length of each sample.
        video_rows: Rows of the generation sequence, without padding.
        heads: Query heads, over all ranks.
        kv_heads: K/V heads, over all ranks.
        backend: A name of create_attention(), or one of support.attend.DENSE.
        dtype: Of q, k and v.
        head_dim: Size of a head.
        seed: Of the numbers.
        spare_rows: Rows of the text tower past the longest prompt; 0 is a prompt at the maximum.
    """

    layout: Layout = Layout()
    lengths: tuple[int, ...] = (7, 19)
    video_rows: int = 27
    heads: int = 8
    kv_heads: int = 4
    backend: str = "VANILLA"
    dtype: torch.dtype = torch.float64
    head_dim: int = 16
    seed: int = 0
    spare_rows: int = 5

    def __str__(self) -> str:
        lengths = "x".join(str(length) for length in self.lengths)
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.layout}-len{lengths}-video{self.video_rows}-heads{self.heads}x{self.kv_heads}"
            f"-{self.backend.lower()}-{dtype}"
        )

    @property
    def text_rows(self) -> int:
        """Rows that the text tower returns."""
        return max(self.lengths) + self.spare_rows

    def tensors(self) -> dict[str, torch.Tensor]:
        """Draws q, k, v [B, S, H or H_kv, D] and text_k, text_v [B, T, H_kv, D].

        Text rows past a sample's length hold POISON.
        """
        generator = torch.Generator().manual_seed(self.seed)

        def draw(rows: int, heads: int) -> torch.Tensor:
            shape = (len(self.lengths), rows, heads, self.head_dim)
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        drawn = {
            "q": draw(self.video_rows, self.heads),
            "k": draw(self.video_rows, self.kv_heads),
            "v": draw(self.video_rows, self.kv_heads),
            "text_k": draw(self.text_rows, self.kv_heads),
            "text_v": draw(self.text_rows, self.kv_heads),
        }
        for name in ("text_k", "text_v"):
            for sample, length in enumerate(self.lengths):
                drawn[name][sample, length:] = POISON
        return {name: tensor.to(self.dtype) for name, tensor in drawn.items()}

    def padded_video(self, x: torch.Tensor, fill: float = POISON) -> torch.Tensor:
        """Pads [B, S, ...] on the right to a multiple of the ranks that share the sequence."""
        tail = -x.shape[1] % self.layout.sequence_size
        return torch.cat([x, x.new_full((x.shape[0], tail, *x.shape[2:]), fill)], dim=1)
