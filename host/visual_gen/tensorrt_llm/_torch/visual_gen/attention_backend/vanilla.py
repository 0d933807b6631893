# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The VANILLA backend: torch's scaled_dot_product_attention, and float32 in blocks for GPUs.

Legend: B batch, S_q query rows, S_kv key rows, H query heads, H_kv key heads, D head width.
"""

import torch
import torch.nn.functional as F

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask

from .interface import AttentionBackend, AttentionTensorLayout


class VanillaAttention(AttentionBackend):
    """Grouped-query attention through SDPA, in HND, without LSE."""

    def __init__(
        self,
        layer_idx: int = 0,
        num_heads: int = 8,
        head_dim: int = 64,
        num_kv_heads: int | None = None,
        **kwargs,
    ) -> None:
        """Remember the head counts of this rank."""
        self.layer_idx = layer_idx
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """HND."""
        return AttentionTensorLayout.HND

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attention_mask: PredefinedAttentionMask = PredefinedAttentionMask.FULL,
        key_padding_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """Attend.

        Args:
            q: [B, H, S_q, D].
            k: [B, H_kv, S_kv, D].
            v: like ``k``.
            attention_mask: CAUSAL (S_q == S_kv) or FULL.
            key_padding_mask: bool [B, S_kv], True for a key that counts; not with CAUSAL.
            **kwargs: ignored.

        Returns:
            [B, H, S_q, D] in q's dtype.

        Raises:
            ValueError: a mask that this backend cannot combine.
        """
        causal = attention_mask == PredefinedAttentionMask.CAUSAL
        if causal and (key_padding_mask is not None or q.shape[2] != k.shape[2]):
            raise ValueError(
                f"CAUSAL with S_q={q.shape[2]}, S_kv={k.shape[2]} and "
                f"key_padding_mask={'given' if key_padding_mask is not None else None}: "
                "VANILLA takes CAUSAL for equal lengths and without a mask only"
            )
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=self.scale, enable_gqa=True
        )


class VanillaInBlocks(VanillaAttention):
    """VANILLA in blocks of query rows, for 32 and 64 bits on a GPU.

    CUDA has no fused kernel with grouped heads for them: PyTorch would hold all scores at once,
    340 GiB for Nano at 37440 rows.
    """

    # Largest block of scores of one head, in bytes. A rank has some of the heads only, and has to
    # round like the one rank that has them all.
    HEAD_SCORE_BYTES = 8 << 20

    def forward(
        self, q, k, v, attention_mask=PredefinedAttentionMask.FULL, **kwargs
    ) -> torch.Tensor:
        """Attend to all keys in blocks, and CAUSAL, to a text, as VANILLA does."""
        if attention_mask == PredefinedAttentionMask.CAUSAL:
            return super().forward(q, k, v, attention_mask, **kwargs)
        batch, heads, query_rows, head_dim = q.shape
        kv_heads, key_rows = k.shape[1:3]
        keys = k.transpose(-1, -2) * self.scale
        out = torch.empty_like(q)
        grouped = (batch, kv_heads, heads // kv_heads, query_rows, head_dim)
        block = max(1, self.HEAD_SCORE_BYTES // (batch * key_rows * q.element_size()))
        for start in range(0, query_rows, block):
            rows = slice(start, start + block)
            # The heads of a group as rows of one product: broadcast keys would be copied for each.
            some = q.view(grouped)[..., rows, :]
            weights = (some.flatten(2, 3) @ keys).softmax(dim=-1)
            out.view(grouped)[..., rows, :] = (weights @ v).view(some.shape)
        return out
