# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Attention to the video without a mask, and the text folded into its result.

The video's keys are the same number in every sample, so a dense kernel takes them as they are and
returns the LSE of each query. One short kernel then continues the online softmax from there over
the few text keys, each sample up to its own length, which it reads on the device: nothing depends
on the lengths' values but its run time, so the pair is safe inside a CUDA graph.

cuDNN runs 8% faster on a key count that is a multiple of 128 than on one that is not (H200, 37k
rows), so the last video rows go to the second kernel too.

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

# Query rows and keys of one step. The keys are few: what counts is to keep the queries' tile.
_BLOCK_Q = 128
_BLOCK_K = 64
# What cuDNN wants the number of its keys to be a multiple of.
_ALIGNMENT = 128


if triton is not None:

    @triton.jit
    def _continue_softmax(
        query, acc, total, top, k_ptr, v_ptr, k_s, v_s, length, scale_log2,
        HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    ):  # fmt: skip
        dims = tl.arange(0, HEAD_DIM)
        for start in range(0, length, BLOCK_K):
            cols = start + tl.arange(0, BLOCK_K)
            valid = cols < length
            key = tl.load(
                k_ptr + cols[None, :] * k_s + dims[:, None], mask=valid[None, :], other=0.0
            )
            value = tl.load(
                v_ptr + cols[:, None] * v_s + dims[None, :], mask=valid[:, None], other=0.0
            )
            scores = tl.where(valid[None, :], tl.dot(query, key) * scale_log2, float("-inf"))
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
        batch = (tl.program_id(1) // HEADS).to(tl.int64)
        head = tl.program_id(1) % HEADS
        kv_head = head // GROUP
        rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
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


def _fold_text(
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    text_k: torch.Tensor,
    text_v: torch.Tensor,
    key_lengths: torch.Tensor,
    first_rows: int,
    video_rows: int,
    scale: float,
) -> None:
    """Folds attention to the rest of the video and to the text into `out`, in place.

    Args:
        out: [B, H, S_q, D], attention to the first video rows; becomes attention to all keys.
        lse: float32 [B, H, S_q], contiguous, natural log-sum-exp of the first video rows' logits.
        q: [B, H, S_q, D].
        k: [B, H_kv, S or more, D] video keys; rows [first_rows, video_rows) are read.
        v: Like k.
        text_k: [B, T, H_kv, D]; rows past the length are never read.
        text_v: Like text_k, strides included.
        key_lengths: int32 [B], video_rows + text length.
        first_rows: Video rows that are in `out`.
        video_rows: All video rows.
        scale: Factor on the logits.
    """
    batch, heads, query_rows, head_dim = q.shape
    for tensor in (q, out, k, v, text_k):
        assert tensor.stride(3) == 1, "the kernel reads whole heads"
    assert lse.is_contiguous() and text_k.stride() == text_v.stride()
    _fold_text_kernel[triton.cdiv(query_rows, _BLOCK_Q), batch * heads](
        q, out, lse, k, v, text_k, text_v, key_lengths,
        *q.stride()[:3], *out.stride()[:3], *k.stride()[:3], *v.stride()[:3], *text_k.stride()[:3],
        first_rows, video_rows, query_rows, scale,
        HEADS=heads, GROUP=heads // text_k.shape[2], HEAD_DIM=head_dim,
        BLOCK_Q=_BLOCK_Q, BLOCK_K=_BLOCK_K, num_warps=8,
    )  # fmt: skip


# torch.compile keeps an operator as it is; eager calls do without its dispatch.
fold_text = torch.library.custom_op("cosmos3::fold_text", _fold_text, mutates_args=("out",))


@fold_text.register_fake
def _(out, lse, q, k, v, text_k, text_v, key_lengths, first_rows, video_rows, scale):
    return None


@functools.lru_cache(maxsize=None)
def _log_once(path: str) -> None:
    logger.debug(f"Cosmos3 VANILLA attention to video and text: {path}")


@functools.lru_cache(maxsize=None)
def _missing() -> str | None:
    """What this machine lacks for folding, or None. Asked before anything is compiled."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if triton is None:
        return "Triton is not installed"
    if not (torch.backends.cudnn.is_available() and torch.backends.cuda.cudnn_sdp_enabled()):
        return "cuDNN attention is not available or switched off"
    if torch.cuda.get_device_capability() < (8, 0):
        return "the GPU is older than SM80"
    return None


def reason_not_to_fold(q: torch.Tensor, text: TextKVView, missing: str | None) -> str | None:
    """Why attend_and_fold_text cannot or should not serve, or None where it should.

    Depends on shapes, types and the machine only, never on the contents of a tensor. Nor on the
    number of heads: ranks that choose otherwise than one rank would round otherwise too.

    Args:
        q: [B, H, S_q, D].
        text: The text to attend to.
        missing: What this machine lacks.
    """
    head_dim = q.shape[-1]
    if missing is not None:
        return missing
    if not q.is_cuda:
        return "the tensors are not on a CUDA device"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"cuDNN attention does not take {q.dtype}"
    if head_dim not in (64, 128):
        return f"head_dim {head_dim} is neither 64 nor 128"
    if text.video_rows < _ALIGNMENT:
        return f"{text.video_rows} video rows are fewer than {_ALIGNMENT}"
    return None


class FoldingChoice:
    """Chooses between folding and a mask, and says why in the debug log, once for each reason."""

    def __init__(self):
        self.missing = _missing()

    def __call__(self, q: torch.Tensor, text: TextKVView) -> bool:
        """Whether to fold; the arguments are those of reason_not_to_fold."""
        reason = reason_not_to_fold(q, text, self.missing)
        # A log call would break a compiled graph.
        if not torch.compiler.is_compiling():
            _log_once(f"key-padding mask, because {reason}" if reason else "text folded in")
        return reason is None


def attend_and_fold_text(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, text: TextKVView, scale: float
) -> torch.Tensor:
    """Attention to all of the video's keys and to each sample's own text.

    Args:
        q: [B, H, S_q, D], float16 or bfloat16, on CUDA.
        k: [B, H_kv, S or more, D] video keys; rows past text.video_rows are not read.
        v: Like k.
        text: The text, with its lengths.
        scale: Factor on the logits.

    Returns:
        Output like q. The video's part was rounded to q's dtype once before the text joined.
    """
    first = text.video_rows // _ALIGNMENT * _ALIGNMENT
    keys, values = k, v
    if k.shape[2] != first:
        keys, values = k.narrow(2, 0, first), v.narrow(2, 0, first)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        q, keys, values, None, True, scale=scale
    )
    fold = fold_text if torch.compiler.is_compiling() else _fold_text
    lse = lse.view(q.shape[:-1])
    rows = text.video_rows
    fold(out, lse, q, k, v, text.k, text.v, text.key_lengths, first, rows, scale)
    return out
