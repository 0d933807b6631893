# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Text in ring attention: it joins the first block, and every block knows its valid video rows.

RingAttention hands its keywords to the compute backend once for each block of video keys that
passes by, and merges the partial outputs by their LSEs. Appended to each block, the text would
count once for every rank; so each call takes the next of the blocks that TextKV laid out, of which
only the rank's own carries the text. That block always has a valid key, which keeps the merge
finite where later blocks hold nothing but padding.
"""

from __future__ import annotations

import torch

from ...attention_backend.interface import AttentionBackend, AttentionTensorLayout
from . import text_attention
from .text_attention import TextAttention
from .text_kv import TextKVView


class RingBlockAttention(TextAttention):
    """The compute backend inside a ring: attends to one block after the other."""

    def forward_with_lse(self, q, k, v, *, text, attention_mask=None, **kwargs):
        """Like TextAttention.forward_with_lse; `text` is an iterator over the blocks' views."""
        return super().forward_with_lse(
            q, k, v, text=next(text), attention_mask=attention_mask, **kwargs
        )


class RingTextAttention(AttentionBackend):
    """Hands a ring the views of its blocks, in the order in which they pass by.

    Args:
        ring: RingAttention around an LSE-capable compute backend.

    Raises:
        ValueError: The compute backend cannot be told key lengths.
    """

    def __init__(self, ring: AttentionBackend):
        self.ring = ring
        ring.inner = RingBlockAttention(ring.inner)
        self.num_heads = ring.num_heads
        self.num_kv_heads = ring.num_kv_heads
        self.head_dim = ring.head_dim

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """The ring's layout."""
        return self.ring.preferred_layout

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, text: TextKVView, **kwargs
    ) -> torch.Tensor:
        """Attends to the valid video rows of all ranks and to the text.

        Args:
            q: [B, rows of this rank, H, D].
            k: Like q with the K/V heads; rows that pad the video included.
            v: Like k.
            text: This layer's text K/V, with the views of the ring's blocks.
            **kwargs: What the ring takes.

        Returns:
            Output like q.
        """
        return self.ring.forward(q, k, v, text=iter((text, *text.ring_blocks)), **kwargs)


def install_text_attention(attn: AttentionBackend) -> AttentionBackend:
    """Like text_attention.install_text_attention, and also where a ring is in the chain."""
    if hasattr(attn, "inner"):
        return RingTextAttention(attn)
    if hasattr(attn, "inner_backend"):
        attn.inner_backend = install_text_attention(attn.inner_backend)
        return attn
    return text_attention.install_text_attention(attn)
