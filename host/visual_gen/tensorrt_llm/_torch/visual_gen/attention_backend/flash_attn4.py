# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The FA4 backend: FlashAttention-4, or its plain-torch double on the CPU.

Legend: B batch, S_q query rows, S_kv key rows, H query heads, H_kv key heads, D head width.
"""

import os

import torch

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask

from .interface import AttentionBackend, AttentionTensorLayout

# Read when the kernel package is imported, so it has to be set before.
os.environ.setdefault("FA_DISABLE_2CTA", "1")

_flash_attn_fwd_import_error: Exception | None = None
try:
    from flash_attn.cute.interface import _flash_attn_fwd
except Exception as error:  # a broken kernel package raises more than ImportError
    _flash_attn_fwd = None
    _flash_attn_fwd_import_error = error


class FlashAttn4Attention(AttentionBackend):
    """Grouped-query attention through FlashAttention-4, in NHD, with LSE."""

    def __init__(
        self,
        layer_idx: int = 0,
        num_heads: int = 8,
        head_dim: int = 64,
        num_kv_heads: int | None = None,
        **kwargs,
    ) -> None:
        """Remember the head counts of this rank.

        Raises:
            ImportError: the kernel package is missing or broken.
        """
        if _flash_attn_fwd is None:
            raise ImportError(
                "attention backend FA4 needs flash_attn.cute, which did not import "
                f"({_flash_attn_fwd_import_error!r}); install flash-attn-4 or choose VANILLA"
            )
        self.layer_idx = layer_idx
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """NHD."""
        return AttentionTensorLayout.NHD

    @classmethod
    def support_lse(cls) -> bool:
        """FA4 returns the LSE."""
        return True

    @torch.compiler.disable
    def _fwd(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        seqused_k: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The kernel registers no torch operator, so a compiled graph would lose the launch. One
        # split: the heuristic asks for split-KV on short queries, which several GPUs refuse.
        out, lse, *_ = _flash_attn_fwd(
            q,
            k,
            v,
            seqused_k=seqused_k,
            softmax_scale=self.scale,
            causal=causal,
            num_splits=1,
            return_lse=True,
        )
        return out, lse

    def forward_with_lse(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attention_mask: PredefinedAttentionMask = PredefinedAttentionMask.FULL,
        key_padding_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend.

        Args:
            q: [B, S_q, H, D]. On a GPU float16 and bfloat16 run as they are and other dtypes
                through bfloat16; on the CPU every floating dtype runs as it is.
            k: [B, S_kv, H_kv, D].
            v: like ``k``.
            attention_mask: CAUSAL or FULL.
            key_padding_mask: bool [B, S_kv] whose True values are a PREFIX, since only their
                number is used; not with CAUSAL.
            **kwargs: ignored.

        Returns:
            Output [B, S_q, H, D] in q's dtype, and natural-log LSE [B, H, S_q] in float32
            (float64 for float64 inputs on the CPU).

        Raises:
            ValueError: ``key_padding_mask`` with CAUSAL.
        """
        causal = attention_mask == PredefinedAttentionMask.CAUSAL
        seqused_k = None
        if key_padding_mask is not None:
            if causal:
                raise ValueError("FA4 takes key_padding_mask with FULL only, not with CAUSAL")
            seqused_k = key_padding_mask.sum(dim=1).to(torch.int32)
        dtype = q.dtype
        if q.is_cuda and dtype not in (torch.float16, torch.bfloat16):
            q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
        out, lse = self._fwd(q, k, v, causal, seqused_k)
        return out.to(dtype), lse

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs) -> torch.Tensor:
        """Attend as :meth:`forward_with_lse` does, and drop the LSE."""
        return self.forward_with_lse(q, k, v, **kwargs)[0]
