# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Attention backends whose kernels are compiled: they can be named and refused, never run."""

from .interface import AttentionBackend, AttentionTensorLayout


class AbsentAttention(AttentionBackend):
    """Base of the backends that exist upstream and not here."""

    def __init__(
        self,
        layer_idx: int = 0,
        num_heads: int = 8,
        head_dim: int = 64,
        num_kv_heads: int | None = None,
        **kwargs,
    ) -> None:
        """Keep the sizes that wrappers read; ``kwargs`` are for kernels."""
        self.layer_idx = layer_idx
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """NHD, as all of them prefer."""
        return AttentionTensorLayout.NHD

    def forward(self, q, k, v, **kwargs):
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{type(self).__name__} is not part of the stand-in host; use VANILLA or FA4"
        )
