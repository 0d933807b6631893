# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Puts the prompt's K/V behind the video's, where the compute backend attends.

The adapter takes the place of the compute backend, inside the parallel wrappers, which hand the
keyword `text` through untouched. There the video keys have been gathered already: it cuts off
the zero rows that pad the video to a multiple of the rank count, appends the text, and attends
over the valid prefix of each sample. On one GPU it is all there is.

Fields: B batch, S_q query rows, S_kv video key rows as gathered (padding included), H query heads,
H_kv K/V heads, D head_dim, all of this rank.
"""

from __future__ import annotations

import torch

from ...attention_backend.interface import AttentionBackend, AttentionTensorLayout
from .key_prefix import key_prefix_attention
from .text_kv import TextKVView


class TextAttention(AttentionBackend):
    """Attention of the generation sequence over itself and over the text of its own sample.

    Args:
        backend: The compute backend to replace.

    Raises:
        ValueError: The backend cannot be told key lengths.
    """

    def __init__(self, backend: AttentionBackend):
        self.backend = backend
        self.key_prefix = key_prefix_attention(backend)
        # The wrappers read these off whatever they hold.
        self.num_heads = backend.num_heads
        self.num_kv_heads = backend.num_kv_heads
        self.head_dim = backend.head_dim
        self.scale = backend.scale

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """The layout of the backend that it stands for."""
        return self.backend.preferred_layout

    @classmethod
    def support_lse(cls) -> bool:
        """Every key-prefix path returns an LSE."""
        return True

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        text: TextKVView,
        attention_mask=None,
        **kwargs,
    ) -> torch.Tensor:
        """Attends to the valid video rows and to the text.

        Args:
            q: [B, S_q, H, D], or [B, H, S_q, D] where the backend prefers HND.
            k: Video keys, S_kv rows and H_kv heads in the same layout.
            v: Like k.
            text: This layer's text K/V, from TextKV.attach().
            attention_mask: Must not be causal.
            **kwargs: What the wrappers add; the shapes of the tensors say the same.

        Returns:
            Output like q. Rows that pad the video get finite values that nobody reads.
        """
        self._require_full(attention_mask)
        return self.key_prefix.forward(q, k, v, text)

    def forward_with_lse(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        text: TextKVView,
        attention_mask=None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like forward, and returns the natural-log LSE [B, H, S_q] too."""
        self._require_full(attention_mask)
        return self.key_prefix.forward_with_lse(q, k, v, text)

    @staticmethod
    def _require_full(attention_mask) -> None:
        # The mask enum's module moves between revisions, its value names do not.
        if getattr(attention_mask, "name", "FULL") != "FULL":
            raise ValueError(
                f"attention_mask {attention_mask} with appended text; generation attends to all "
                "of its keys, so pass FULL."
            )


def install_text_attention(attn: AttentionBackend) -> AttentionBackend:
    """Puts a TextAttention where the compute backend sits in a chain of parallel wrappers.

    Args:
        attn: A compute backend, or UlyssesAttention and Attention2DAttention around one.

    Returns:
        The head of the chain: attn itself, or the adapter where nothing wraps the backend.

    Raises:
        ValueError: The compute backend cannot be told key lengths, or a wrapper in the chain
            does not hand keywords through once.
    """
    if hasattr(attn, "inner"):
        raise ValueError(
            f"{type(attn).__name__} attends block by block, so appended text would count once for "
            "each block; use Ulysses or Attention2D."
        )
    if not hasattr(attn, "inner_backend"):
        return TextAttention(attn)
    attn.inner_backend = install_text_attention(attn.inner_backend)
    return attn
