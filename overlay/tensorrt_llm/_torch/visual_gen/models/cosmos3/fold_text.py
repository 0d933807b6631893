# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Attention to the video without a mask, and the text folded into its result.

The video's keys are the same number in every sample, so a dense kernel takes them as they are and
returns the LSE of each query. One short kernel then continues the online softmax from there over
the few text keys, each sample up to its own length, which it reads on the device: nothing depends
on the lengths' values but its run time, so the pair is safe inside a CUDA graph.

Fields: B batch, S_q query rows, S video rows, T text rows, H query heads, H_kv K/V heads,
D head_dim. HND is [B, H, S, D].
"""

from __future__ import annotations

import functools

import torch

from tensorrt_llm.logger import logger

from .text_kv import TextKVView

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Queries and text keys of one step. Text is short: what counts is to keep the queries' tile.
_BLOCK_Q = 128
_BLOCK_T = 64


if triton is not None:

    @triton.jit
    def _fold_text_kernel(
        q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, key_lengths_ptr,
        q_b, q_h, q_s, k_b, k_t, k_h, v_b, v_t, v_h, out_b, out_h, out_s, lse_b, lse_h, lse_s,
        video_rows, query_rows, scale,
        HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
        BLOCK_Q: tl.constexpr, BLOCK_T: tl.constexpr,
    ):  # fmt: skip
        batch = (tl.program_id(1) // HEADS).to(tl.int64)
        head = tl.program_id(1) % HEADS
        rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
        dims = tl.arange(0, HEAD_DIM)
        in_rows = rows < query_rows
        length = tl.load(key_lengths_ptr + batch) - video_rows
        q_ptr += batch * q_b + head * q_h
        k_ptr += batch * k_b + (head // GROUP) * k_h
        v_ptr += batch * v_b + (head // GROUP) * v_h
        out_ptrs = out_ptr + batch * out_b + head * out_h + rows[:, None] * out_s + dims[None, :]
        lse_ptrs = lse_ptr + batch * lse_b + head * lse_h + rows * lse_s
        query = tl.load(
            q_ptr + rows[:, None] * q_s + dims[None, :], mask=in_rows[:, None], other=0.0
        )
        # The video's result is a softmax of weight 1 at its LSE; go on from there, in base 2.
        top = tl.load(lse_ptrs, mask=in_rows, other=0.0) * 1.4426950408889634
        total = tl.full([BLOCK_Q], 1.0, tl.float32)
        acc = tl.load(out_ptrs, mask=in_rows[:, None], other=0.0).to(tl.float32)
        for start in range(0, length, BLOCK_T):
            cols = start + tl.arange(0, BLOCK_T)
            in_text = cols < length
            key = tl.load(
                k_ptr + cols[None, :] * k_t + dims[:, None], mask=in_text[None, :], other=0.0
            )
            value = tl.load(
                v_ptr + cols[:, None] * v_t + dims[None, :], mask=in_text[:, None], other=0.0
            )
            scores = tl.dot(query, key) * (scale * 1.4426950408889634)
            scores = tl.where(in_text[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            decay = tl.exp2(top - new_top)
            total = total * decay + tl.sum(weights, 1)
            acc = acc * decay[:, None] + tl.dot(weights.to(value.dtype), value)
            top = new_top
        tl.store(
            out_ptrs, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=in_rows[:, None]
        )


@torch.library.custom_op("cosmos3::fold_text", mutates_args=("out",))
def fold_text(
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_lengths: torch.Tensor,
    video_rows: int,
    scale: float,
) -> None:
    """Folds attention to the text into the result of attention to the video, in place.

    Args:
        out: [B, H, S_q, D], attention to the video; becomes attention to both.
        lse: float32 [B, H, S_q], natural log-sum-exp of the video's logits.
        q: [B, H, S_q, D].
        k: [B, T, H_kv, D] text keys; rows past the length are never read.
        v: Like k.
        key_lengths: int32 [B], video_rows + text length.
        video_rows: Keys already in out.
        scale: Factor on the logits.
    """
    batch, heads, query_rows, head_dim = q.shape
    for tensor in (q, k, v, out):
        assert tensor.stride(-1) == 1, "the kernel reads contiguous heads"
    grid = (triton.cdiv(query_rows, _BLOCK_Q), batch * heads)
    _fold_text_kernel[grid](
        q, k, v, out, lse, key_lengths,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *lse.stride(),
        video_rows, query_rows, scale,
        HEADS=heads, GROUP=heads // k.shape[2], HEAD_DIM=head_dim,
        BLOCK_Q=_BLOCK_Q, BLOCK_T=_BLOCK_T, num_warps=8,
    )  # fmt: skip


@fold_text.register_fake
def _(out, lse, q, k, v, key_lengths, video_rows, scale):
    return None


@functools.lru_cache(maxsize=None)
def _log_once(message: str) -> None:
    logger.debug(message)


def folds_text(q: torch.Tensor, text: TextKVView) -> bool:
    """Whether attend_and_fold_text can serve; a key-padding mask does otherwise.

    Reads shapes, types and the device's abilities only, never the contents of a tensor.

    Args:
        q: [B, H, S_q, D].
        text: The text to attend to.
    """
    reason = _reason_not_to_fold(q, text)
    if not torch.compiler.is_compiling():
        path = f"key-padding mask, because {reason}" if reason else "unmasked video, text folded in"
        _log_once(f"Cosmos3 VANILLA attention: {path}")
    return reason is None


def _reason_not_to_fold(q: torch.Tensor, text: TextKVView) -> str | None:
    if not q.is_cuda:
        return f"the device is {q.device.type}"
    if triton is None:
        return "Triton is not installed"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"cuDNN attention does not take {q.dtype}"
    if q.shape[-1] not in (64, 128):
        return f"head_dim {q.shape[-1]} is neither 64 nor 128"
    if not (torch.backends.cudnn.is_available() and torch.backends.cuda.cudnn_sdp_enabled()):
        return "cuDNN attention is not available or switched off"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the GPU is older than SM80"
    if text.video_rows < 1:
        return "this rank has no video rows"
    return None


def attend_and_fold_text(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, text: TextKVView, scale: float
) -> torch.Tensor:
    """Attention to all of the video's keys and to each sample's own text.

    Args:
        q: [B, H, S_q, D], float16 or bfloat16, on CUDA.
        k: [B, H_kv, S, D] video keys, padding cut off.
        v: Like k.
        text: The text, with its lengths.
        scale: Factor on the logits.

    Returns:
        Output like q. The video's part was rounded to q's dtype once before the text joined.
    """
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, False, False, scale=scale
    )
    fold_text(
        out, lse.view(q.shape[:-1]), q, text.k, text.v, text.key_lengths, text.video_rows, scale
    )
    return out
