# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Reference attention in float64, one sample and one head at a time, over exactly the valid keys.

Shares no code with what it judges, and knows no padding, mask or length tensor: what is not valid
is not there. Fields: B batch, S video rows, T text rows, H query heads, H_kv K/V heads, D head_dim.
"""

from typing import Optional, Sequence

import torch


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: Optional[float] = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one sample over all of its keys.

    Args:
        q: [S_q, H, D].
        k: [S_kv, H_kv, D]; S_kv may be 0.
        v: Like k.
        scale: Factor on the logits; D ** -0.5 by default.

    Returns:
        Output [S_q, H, D] and natural-log LSE [H, S_q], float64. Without keys: 0 and -inf.
    """
    q, k, v = q.double(), k.double(), v.double()
    query_rows, heads, head_dim = q.shape
    group = heads // k.shape[1]
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros_like(q)
    lse = torch.full((heads, query_rows), float("-inf"), dtype=torch.float64)
    if k.shape[0] == 0:
        return out, lse
    for head in range(heads):
        keys, values = k[:, head // group], v[:, head // group]
        logits = q[:, head] @ keys.T * scale
        top = logits.max(dim=1, keepdim=True).values
        weights = torch.exp(logits - top)
        total = weights.sum(dim=1, keepdim=True)
        out[:, head] = (weights / total) @ values
        lse[head] = (top + torch.log(total))[:, 0]
    return out, lse


def per_sample_attention(
    q: torch.Tensor,
    video_k: torch.Tensor,
    video_v: torch.Tensor,
    text_k: torch.Tensor,
    text_v: torch.Tensor,
    lengths: Sequence[int],
    scale: Optional[float] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The truth: each sample attends to its video rows and to its own text, and to nothing else.

    Args:
        q: [B, S, H, D], without padding rows.
        video_k: [B, S, H_kv, D], without padding rows.
        video_v: Like video_k.
        text_k: [B, T, H_kv, D]; rows past a sample's length are not read.
        text_v: Like text_k.
        lengths: B text lengths; 0 means no text.
        scale: Factor on the logits; D ** -0.5 by default.

    Returns:
        Output [B, S, H, D] and natural-log LSE [B, H, S], float64.
    """
    outputs, lses = [], []
    for sample, length in enumerate(lengths):
        k = torch.cat([video_k[sample], text_k[sample, :length]])
        v = torch.cat([video_v[sample], text_v[sample, :length]])
        out, lse = attention(q[sample], k, v, scale)
        outputs.append(out)
        lses.append(lse)
    return torch.stack(outputs), torch.stack(lses)


def zero_tail(x: torch.Tensor, lengths: Sequence[int], rows: int) -> torch.Tensor:
    """Cuts [B, T, ...] to rows, or pads it, with zeros past each sample's length."""
    out = x.new_zeros(x.shape[0], rows, *x.shape[2:])
    for sample, length in enumerate(lengths):
        out[sample, :length] = x[sample, :length]
    return out


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below value."""
    return -(-value // multiple) * multiple


def padded_attention(
    q: torch.Tensor,
    video_k: torch.Tensor,
    video_v: torch.Tensor,
    text_k: torch.Tensor,
    text_v: torch.Tensor,
    lengths: Sequence[int],
    ranks: int = 1,
    scale: Optional[float] = None,
) -> torch.Tensor:
    """The bug: what the unfixed release computes on `ranks` ranks, in float64 on one.

    The text is cut to the longest prompt, rounded up to the rank count, zeros past each length;
    the video gets zero rows up to a multiple of the rank count; all of it counts in the softmax.
    Arguments are those of per_sample_attention. Returns the output [B, S, H, D].
    """
    text_rows = round_up(max(lengths), ranks)
    video_rows = round_up(video_k.shape[1], ranks)
    whole = [video_k.shape[1]] * len(lengths)
    k = torch.cat(
        [zero_tail(video_k, whole, video_rows), zero_tail(text_k, lengths, text_rows)], dim=1
    )
    v = torch.cat(
        [zero_tail(video_v, whole, video_rows), zero_tail(text_v, lengths, text_rows)], dim=1
    )
    return torch.stack([attention(q[b], k[b], v[b], scale)[0] for b in range(len(lengths))])
