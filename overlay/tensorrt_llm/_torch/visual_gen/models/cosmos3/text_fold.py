# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""VANILLA without a mask: attention to the video as it is, and the text folded into its result.

The video's keys are as many in every sample, so cuDNN takes them without a mask and returns the
LSE of each query. One short kernel continues the online softmax from there over the few text keys,
each sample up to its own length, which it reads on the device. cuDNN is 8% faster on a multiple of
128 keys (H200, 37k rows), so the last video rows go to the second kernel too.

Fields: B batch, S_q query rows, S video rows, T text rows, H query heads, H_kv K/V heads,
D head_dim. HND is [B, H, S, D].
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from tensorrt_llm.logger import logger

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Query rows and keys of one step. The keys are few: what counts is to keep the queries' tile.
_BLOCK_Q = 128
_BLOCK_K = 64
# What cuDNN wants the number of its keys to be a multiple of.
_ALIGNMENT = 128
# The probe's largest error of the result's largest value: bfloat16 rounds by 2^-9, three times.
_PROBE_ERROR = 0.02


if triton is not None:

    @triton.jit
    def _continue_softmax(
        query, acc, total, top, k_ptr, v_ptr, k_s, v_s, length, scale_log2,
        HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    ):  # fmt: skip
        dims = tl.arange(0, HEAD_DIM)
        for start in range(0, length, BLOCK_K):
            cols = start + tl.arange(0, BLOCK_K)
            ok = cols < length
            key = tl.load(k_ptr + cols[None, :] * k_s + dims[:, None], mask=ok[None, :], other=0.0)
            value = tl.load(v_ptr + cols[:, None] * v_s + dims, mask=ok[:, None], other=0.0)
            scores = tl.where(ok[None, :], tl.dot(query, key) * scale_log2, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            decay = tl.exp2(top - new_top)
            total = total * decay + tl.sum(weights, 1)
            acc = acc * decay[:, None] + tl.dot(weights.to(value.dtype), value)
            top = new_top
        return acc, total, top

    @triton.jit
    def _fold_text_kernel(
        q_ptr, out_ptr, lse_ptr, k_ptr, v_ptr, text_k_ptr, text_v_ptr, key_lengths_ptr,
        q_b, q_h, q_s, out_b, out_h, out_s, k_b, k_h, k_s, v_b, v_h, v_s, text_b, text_s, text_h,
        first_rows, video_rows, query_rows, scale,
        HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
        BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ):  # fmt: skip
        LOG2_E: tl.constexpr = 1.4426950408889634
        # Offsets in elements pass 2^31 with 64 heads of 128 and 262,144 rows.
        batch = (tl.program_id(1) // HEADS).to(tl.int64)
        head = (tl.program_id(1) % HEADS).to(tl.int64)
        kv_head = head // GROUP
        rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q).to(tl.int64)
        dims = tl.arange(0, HEAD_DIM)
        in_rows = rows < query_rows
        q_ptrs = q_ptr + batch * q_b + head * q_h + rows[:, None] * q_s + dims[None, :]
        out_ptrs = out_ptr + batch * out_b + head * out_h + rows[:, None] * out_s + dims[None, :]
        query = tl.load(q_ptrs, mask=in_rows[:, None], other=0.0)
        # The result so far is a softmax of weight 1 at its LSE; go on from there, in base 2.
        lse_ptrs = lse_ptr + tl.program_id(1).to(tl.int64) * query_rows + rows
        lse = tl.load(lse_ptrs, mask=in_rows, other=0.0)
        top = lse * LOG2_E
        total = tl.full([BLOCK_Q], 1.0, tl.float32)
        acc = tl.load(out_ptrs, mask=in_rows[:, None], other=0.0).to(tl.float32)
        acc, total, top = _continue_softmax(
            query, acc, total, top,
            k_ptr + batch * k_b + kv_head * k_h + first_rows.to(tl.int64) * k_s,
            v_ptr + batch * v_b + kv_head * v_h + first_rows.to(tl.int64) * v_s,
            k_s, v_s, video_rows - first_rows, scale * LOG2_E, HEAD_DIM, BLOCK_K,
        )  # fmt: skip
        acc, total, top = _continue_softmax(
            query, acc, total, top,
            text_k_ptr + batch * text_b + kv_head * text_h,
            text_v_ptr + batch * text_b + kv_head * text_h,
            text_s, text_s, tl.load(key_lengths_ptr + batch) - video_rows, scale * LOG2_E,
            HEAD_DIM, BLOCK_K,
        )  # fmt: skip
        acc = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptrs, acc, mask=in_rows[:, None])


def attend_and_fold_text(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    text_k: torch.Tensor,
    text_v: torch.Tensor,
    key_lengths: torch.Tensor,
    video_rows: int,
    scale: float,
) -> torch.Tensor:
    """Attention to all of the video's keys and to each sample's own text.

    Args:
        q: [B, H, S_q, D], float16 or bfloat16, on CUDA.
        k: [B, H_kv, S or more, D] video keys; rows from video_rows on are not read.
        v: Like k.
        text_k: [B, T, H_kv, D]; rows past the length are never read.
        text_v: Like text_k, strides included.
        key_lengths: int32 [B], video_rows + text length.
        video_rows: S, at least 128.
        scale: Factor on the logits.

    Returns:
        Output like q. The video's part was rounded to q's dtype once before the text joined.
    """
    batch, heads, query_rows, head_dim = q.shape
    first = video_rows // _ALIGNMENT * _ALIGNMENT
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        q, k[:, :, :first], v[:, :, :first], None, True, scale=scale
    )
    assert lse.is_contiguous() and all(x.stride(3) == 1 for x in (q, out, k, v, text_k, text_v))
    _fold_text_kernel[triton.cdiv(query_rows, _BLOCK_Q), batch * heads](
        q, out, lse, k, v, text_k, text_v, key_lengths,
        *q.stride()[:3], *out.stride()[:3], *k.stride()[:3], *v.stride()[:3], *text_k.stride()[:3],
        first, video_rows, query_rows, scale,
        HEADS=heads, GROUP=heads // text_k.shape[2], HEAD_DIM=head_dim,
        BLOCK_Q=_BLOCK_Q, BLOCK_K=_BLOCK_K, num_warps=8,
    )  # fmt: skip
    return out


def can_fold_text(q: torch.Tensor, k: torch.Tensor, video_rows: int) -> bool:
    """Whether attend_and_fold_text serves these q, k and video_rows; else a mask has to.

    Depends on shapes, types and the machine, never on the contents of a tensor. Nor on how many
    heads a rank has: one that chose otherwise than a single rank would round otherwise.
    """
    return (
        q.is_cuda
        and triton is not None
        and torch.backends.cuda.cudnn_sdp_enabled()
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[3] in (64, 128)
        and video_rows >= _ALIGNMENT
        and _probe(q.device, q.dtype, q.shape[1], k.shape[1], q.shape[3])
    )


@functools.lru_cache(maxsize=None)
def _probe(device, dtype, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether folding a small case gives what float32 does; says once what is wrong if not."""
    assert not torch.cuda.is_current_stream_capturing(), "run it once before a capture"
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((heads, 192), (kv_heads, 192), (kv_heads, 192), (kv_heads, 96), (kv_heads, 96))
    q, k, v, text_k, text_v = (
        torch.randn(2, rows, n, head_dim, generator=generator, device=device).to(dtype)
        for n, rows in shapes
    )
    lengths = torch.tensor([193, 250], dtype=torch.int32, device=device)
    mask = torch.arange(288, device=device) < lengths[:, None]
    keys, values = torch.cat((k, text_k), 1), torch.cat((v, text_v), 1)
    expected = F.scaled_dot_product_attention(
        *(x.float().transpose(1, 2) for x in (q, keys, values)),
        attn_mask=mask[:, None, None],
        enable_gqa=True,
    )
    try:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        found = attend_and_fold_text(q, k, v, text_k, text_v, lengths, 192, head_dim**-0.5)
        error = ((found - expected).abs().max() / expected.abs().max()).item()
        if error <= _PROBE_ERROR:
            return True
        reason = f"is {error:.2g} off float32"
    except Exception as error:  # Whatever cuDNN, Triton or the driver say: the mask serves.
        reason = f"raises {type(error).__name__}: {error}"
    logger.warning(
        "Cosmos3 VANILLA attention masks padded text, which is slower: text folded into cuDNN "
        f"attention ({dtype}, {heads}/{kv_heads} heads of {head_dim}, {device}) {reason}."
    )
    return False
