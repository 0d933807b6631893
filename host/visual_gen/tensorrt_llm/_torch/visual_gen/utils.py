# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Cutting a sequence over ranks, and checking that heads can be.

Legend: B batch, S sequence rows of all ranks, P ranks that share the sequence.
"""

import math

import torch
import torch.distributed as dist

from tensorrt_llm._torch.distributed import all_gather_dim


def check_head_layout(heads: dict[str, int], tp_size: int, ulysses_size: int) -> None:
    """Refuse head counts that tensor parallelism times Ulysses does not divide.

    Args:
        heads: name of each head count and its value over all ranks.
        tp_size: tensor-parallel size.
        ulysses_size: Ulysses size.

    Raises:
        ValueError: names every count that fails and the products that would work. It communicates
            nothing, so every rank raises alike.
    """
    product = tp_size * ulysses_size
    failing = [f"{name}={count}" for name, count in heads.items() if count % product]
    if failing:
        common = math.gcd(*heads.values())
        works = [n for n in range(1, common + 1) if common % n == 0]
        raise ValueError(
            f"tp_size={tp_size} x ulysses_size={ulysses_size} = {product} does not divide "
            f"{', '.join(failing)}; tp_size x ulysses_size must be one of {works}"
        )


class SequenceSharder:
    """Gives each rank a contiguous block of the sequence, and puts the blocks together again."""

    def __init__(self, size: int, rank: int, group: dist.ProcessGroup | None) -> None:
        """Remember the group of ``size`` ranks in which this one is ``rank``."""
        self.size = size
        self.rank = rank
        self.group = group

    @classmethod
    def from_vgm(cls, vgm, num_attention_heads: int, num_kv_heads: int) -> "SequenceSharder":
        """Make the sharder of a ``VisualGenMapping``; None means one process.

        Args:
            vgm: the mapping or None.
            num_attention_heads: query heads of the model.
            num_kv_heads: key and value heads of the model.

        Raises:
            ValueError: the layout does not divide a head count.
        """
        if vgm is None:
            return cls(1, 0, None)
        heads = {"num_attention_heads": num_attention_heads, "num_key_value_heads": num_kv_heads}
        check_head_layout(heads, vgm.tp_size, vgm.ulysses_size)
        group = vgm.seq_group() if vgm.seq_size > 1 else None
        return cls(vgm.seq_size, vgm.seq_rank, group)

    @property
    def is_active(self) -> bool:
        """Whether there is more than one rank."""
        return self.size > 1

    def shard(self, x: torch.Tensor, dim: int, pad_to_multiple: bool = False) -> torch.Tensor:
        """Return this rank's block of ``x`` along ``dim``.

        Args:
            x: the same tensor on every rank.
            dim: the axis of S rows.
            pad_to_multiple: put zero rows behind the last one until P divides the length.

        Raises:
            ValueError: P does not divide the length and ``pad_to_multiple`` is False.
        """
        if not self.is_active:
            return x
        rows = x.shape[dim]
        padding = -rows % self.size
        if padding and not pad_to_multiple:
            raise ValueError(
                f"{rows} rows cannot be cut into {self.size} equal blocks; pass "
                "pad_to_multiple=True or a multiple"
            )
        block = (rows + padding) // self.size
        start = self.rank * block
        kept = min(max(rows - start, 0), block)
        local = x.narrow(dim, min(start, rows), kept)
        if kept < block:
            shape = list(x.shape)
            shape[dim] = block - kept
            local = torch.cat([local, x.new_zeros(shape)], dim=dim)
        return local.contiguous()

    def gather(self, x: torch.Tensor, dim: int, unpad_to: int | None = None) -> torch.Tensor:
        """Put the blocks of all ranks together along ``dim``.

        Args:
            x: this rank's block, of the same shape on every rank.
            dim: the axis of S/P rows.
            unpad_to: rows to keep, from the front.
        """
        if self.is_active:
            x = all_gather_dim(x, dim, self.group)
        return x if unpad_to is None else x.narrow(dim, 0, unpad_to)
