# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Attention to the video and the text: the first n_b keys of each sample b, without a loop.

Each compute backend needs the lengths said in its own way, and a backend that does not know the
keyword ignores it silently. So a path is chosen here by the exact class of the backend, and a
backend without one is refused with the reason.

Fields: B batch, S_q query rows, S_kv key rows, H query heads, H_kv K/V heads, D head_dim.
NHD is [B, S, H, D], HND is [B, H, S, D].
"""

from __future__ import annotations

import torch

from ...attention_backend import flash_attn4
from ...attention_backend.flash_attn4 import FlashAttn4Attention
from ...attention_backend.interface import AttentionBackend
from ...attention_backend.vanilla import VanillaAttention
from .fold_text import FoldingChoice, attend_and_fold_text
from .text_kv import TextKVView

# Largest block of attention scores that the blockwise path holds for one head, in bytes. A rank
# has some of the heads only, and has to round like the one rank that has them all.
HEAD_SCORE_BYTES = 8 << 20


def launch_fa4(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_lengths: torch.Tensor,
    scale: float,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """FlashAttention-4 over a key prefix of each sample.

    Args:
        q: [B, S_q, H, D], float16 or bfloat16.
        k: [B, S_kv, H_kv, D]; rows past key_lengths[b] must be finite.
        v: Like k.
        key_lengths: int32 [B], contiguous, in [0, S_kv]; the kernel does not check bounds.
        scale: Factor on the logits.
        return_lse: Whether the LSE is wanted.

    Returns:
        Output like q, and the natural-log LSE, float32 [B, H, S_q], or None if not wanted. A
        sample without keys gives output 0 and LSE -inf.

    Raises:
        ImportError: flash-attn-4 is not installed.
    """
    if flash_attn4._flash_attn_fwd is None:
        raise ImportError(
            "FlashAttention-4 is not available; install flash-attn-4 or use VANILLA. "
            f"Import error: {flash_attn4._flash_attn_fwd_import_error}"
        )
    # One split: a heuristic choice asks for split-KV on short queries, which SM90 refuses.
    out, lse, *_ = flash_attn4._flash_attn_fwd(
        q,
        k,
        v,
        seqused_k=key_lengths,
        softmax_scale=scale,
        causal=False,
        return_lse=return_lse,
        num_splits=1,
    )
    return out, lse if return_lse else None


# FA4 registers no operator of its own: traced naively by torch.compile, its launch is dropped.
# Eager calls do without the operator's dispatch.
@torch.library.custom_op("cosmos3::fa4_key_prefix", mutates_args=())
def fa4_key_prefix(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_lengths: torch.Tensor,
    scale: float,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """launch_fa4 as an operator; an LSE that is not wanted is an empty tensor."""
    out, lse = launch_fa4(q, k, v, key_lengths, scale, return_lse)
    return out, out.new_empty(0, dtype=torch.float32) if lse is None else lse


@fa4_key_prefix.register_fake
def _(q, k, v, key_lengths, scale, return_lse):
    batch, rows, heads, _ = q.shape
    lse_shape = (batch, heads, rows) if return_lse else (0,)
    return torch.empty_like(q), q.new_empty(lse_shape, dtype=torch.float32)


def blockwise_key_prefix(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_lengths: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain attention over a key prefix, in blocks of query rows, on any device.

    Scores and softmax are float32, or float64 for float64 inputs. Memory is bounded by
    HEAD_SCORE_BYTES for each head, whatever S_kv is.

    Args:
        q: [B, H, S_q, D].
        k: [B, H_kv, S_kv, D]; H_kv divides H.
        v: Like k.
        key_lengths: Integers [B] in [0, S_kv].
        scale: Factor on the logits.

    Returns:
        Output like q, and the natural-log LSE [B, H, S_q] in the dtype of the scores. A sample
        without keys gives output 0 and LSE -inf.
    """
    batch, heads, query_rows, head_dim = q.shape
    kv_heads, key_rows = k.shape[1], k.shape[2]
    group = heads // kv_heads
    score_dtype = torch.promote_types(q.dtype, torch.float32)
    keys = k.to(score_dtype).transpose(-1, -2)
    values = v.to(score_dtype)
    past = torch.arange(key_rows, device=k.device) >= key_lengths[:, None]
    past = past[:, None, None, :]
    queries = q.reshape(batch, kv_heads, group, query_rows, head_dim)
    out = torch.empty_like(queries)
    lse = q.new_empty(queries.shape[:-1], dtype=score_dtype)
    row_bytes = batch * max(key_rows, 1) * score_dtype.itemsize
    block = max(1, HEAD_SCORE_BYTES // row_bytes)
    for start in range(0, query_rows, block):
        rows = slice(start, min(start + block, query_rows))
        block_q = queries[..., rows, :]
        # The heads of a group as rows of one product: broadcast keys would be copied for each.
        scores = (block_q.to(score_dtype) * scale).flatten(2, 3) @ keys
        scores = scores.masked_fill_(past, float("-inf"))
        block_lse = torch.logsumexp(scores, dim=-1)
        # Without a valid key the LSE is -inf, and -inf - -inf would be NaN: subtract 0 there.
        shift = torch.where(block_lse.isinf(), torch.zeros_like(block_lse), block_lse)
        block_out = scores.sub_(shift[..., None]).exp_() @ values
        out[..., rows, :] = block_out.to(q.dtype).view(block_q.shape)
        lse[..., rows] = block_lse.view(block_q.shape[:-1])
    return out.reshape(q.shape), lse.reshape(batch, heads, query_rows)


def append_text(
    k: torch.Tensor, v: torch.Tensor, text: TextKVView, sequence_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cuts the rows that pad the video off its keys and puts the text's in their place.

    Args:
        k: Video keys of this rank, NHD (sequence_dim 1) or HND (sequence_dim 2).
        v: Like k.
        text: What to append.
        sequence_dim: 1 or 2.

    Returns:
        Keys and values, of which text.key_lengths[b] are valid in sample b: a prefix.
    """
    text_k, text_v = text.k, text.v
    if sequence_dim == 2:
        text_k, text_v = text_k.transpose(1, 2), text_v.transpose(1, 2)
    if k.size(sequence_dim) != text.video_rows:
        k = k.narrow(sequence_dim, 0, text.video_rows)
        v = v.narrow(sequence_dim, 0, text.video_rows)
    return torch.cat((k, text_k), sequence_dim), torch.cat((v, text_v), sequence_dim)


class FlashAttn4KeyPrefix:
    """Attention to the video and the text on the FA4 backend, through seqused_k, in NHD."""

    def __init__(self, backend: FlashAttn4Attention):
        self.scale = backend.scale

    def forward(self, q, k, v, text: TextKVView) -> torch.Tensor:
        """Returns the output [B, S_q, H, D] in q's dtype."""
        return self._attend(q, k, v, text, return_lse=False)[0]

    def forward_with_lse(self, q, k, v, text: TextKVView) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the output [B, S_q, H, D] in q's dtype and the LSE [B, H, S_q]."""
        return self._attend(q, k, v, text, return_lse=True)

    def _attend(self, q, k, v, text, return_lse):
        k, v = append_text(k, v, text, sequence_dim=1)
        dtype = q.dtype
        # As the backend does: the GPU kernel knows 16-bit types only.
        if q.is_cuda and dtype not in (torch.float16, torch.bfloat16):
            q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
        attend = fa4_key_prefix if torch.compiler.is_compiling() else launch_fa4
        out, lse = attend(q, k, v, text.key_lengths, self.scale, return_lse)
        # At a thousand rows the host is what a GPU waits for: not even an idle call to `to`.
        return out if out.dtype == dtype else out.to(dtype), lse


class VanillaKeyPrefix:
    """Attention to the video and the text on the VANILLA backend, in HND.

    A dense key-padding mask is right everywhere, but costs a third of a launch at video sizes,
    and in float32, for which CUDA has no fused kernel with grouped heads, all scores at once.
    Where cuDNN attention runs, the video's keys need no mask: they are attended to as they are,
    and the text is folded into the result by its LSE.
    """

    def __init__(self, backend: VanillaAttention):
        self.backend = backend
        self.folds_text = FoldingChoice()

    def forward(self, q, k, v, text: TextKVView) -> torch.Tensor:
        """Returns the output [B, H, S_q, D] in q's dtype; every sample needs a valid key."""
        if self.folds_text(q, text):
            return attend_and_fold_text(q, k, v, text, self.backend.scale)
        k, v = append_text(k, v, text, sequence_dim=2)
        # Without a fused kernel, PyTorch holds all scores at once: 340 GiB for Nano at 37k rows.
        if q.is_cuda and q.dtype not in (torch.float16, torch.bfloat16):
            head_scores = q.shape[0] * text.video_rows * k.shape[2] * q.element_size()
            if head_scores > HEAD_SCORE_BYTES:
                return blockwise_key_prefix(q, k, v, text.key_lengths, self.backend.scale)[0]
        mask = torch.arange(k.shape[2], device=k.device) < text.key_lengths[:, None]
        return self.backend.forward(q, k, v, key_padding_mask=mask)

    def forward_with_lse(self, q, k, v, text: TextKVView) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the output [B, H, S_q, D] in q's dtype and the LSE [B, H, S_q]."""
        k, v = append_text(k, v, text, sequence_dim=2)
        return blockwise_key_prefix(q, k, v, text.key_lengths, self.backend.scale)


_PATHS = {FlashAttn4Attention: FlashAttn4KeyPrefix, VanillaAttention: VanillaKeyPrefix}


def key_prefix_attention(backend: AttentionBackend):
    """Returns the attention to video and text for a compute backend.

    Raises:
        ValueError: The backend has no way to be told key lengths. It would drop them silently
            and attend to padding.
    """
    # The exact class: a subclass may override forward and lose the lengths.
    path = _PATHS.get(type(backend))
    if path is None:
        raise ValueError(
            f"attention backend {type(backend).__name__} takes no key lengths, so padded text "
            "would silently count in Cosmos3's softmax; use FA4 or VANILLA."
        )
    return path(backend)
