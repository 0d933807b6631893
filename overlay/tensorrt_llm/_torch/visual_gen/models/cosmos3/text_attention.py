# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Attention of the generation sequence to itself and to each sample's own text.

The adapter takes the place of the compute backend, inside the parallel wrappers, where the video
keys have been gathered: it cuts off the rows that pad the video to a multiple of the rank count,
appends the text, and attends over the valid prefix of each sample. On one GPU it is all there is.

A backend drops keywords that it does not know, so none is told lengths: FA4 and VANILLA have
kernels here, by their exact class, and any other gets dense launches on exactly the valid keys.

Fields: B batch, S_q query rows, S_kv video key rows as gathered (padding included), T text rows,
H query heads, H_kv K/V heads, D head_dim, all of this rank. NHD is [B, S, H, D].
"""

from __future__ import annotations

from typing import Callable, Iterator, Optional

import torch
import torch.nn.functional as F

from ...attention_backend import flash_attn4
from ...attention_backend.flash_attn4 import FlashAttn4Attention
from ...attention_backend.interface import AttentionBackend, AttentionTensorLayout
from ...attention_backend.vanilla import VanillaAttention
from .text_fold import attend_and_fold_text, can_fold_text
from .text_kv import TextKVView

Result = tuple[torch.Tensor, Optional[torch.Tensor]]


def append_text(video: torch.Tensor, text: torch.Tensor, video_rows: int) -> torch.Tensor:
    """Puts the text [B, T, H_kv, D] in place of the rows that pad the video's keys or values."""
    return torch.cat((video[:, :video_rows], text), dim=1)


def attend_fa4(q, k, v, text_k, text_v, key_lengths, video_rows, scale, with_lse) -> Result:
    """FlashAttention-4 over each sample's key prefix; arguments as KERNELS says.

    A sample without keys gives output 0 and LSE -inf.

    Raises:
        ImportError: flash-attn-4 is not installed.
    """
    if flash_attn4._flash_attn_fwd is None:
        raise ImportError(f"FA4 is not available: {flash_attn4._flash_attn_fwd_import_error}")
    k, v = append_text(k, text_k, video_rows), append_text(v, text_v, video_rows)
    dtype = q.dtype
    # As the backend does: the GPU kernel knows 16-bit types only.
    if q.is_cuda and dtype not in (torch.float16, torch.bfloat16):
        q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
    # One split: a heuristic choice asks for split-KV on short queries, which SM90 refuses.
    how = {"softmax_scale": scale, "causal": False, "return_lse": with_lse, "num_splits": 1}
    out, lse, *_ = flash_attn4._flash_attn_fwd(q, k, v, seqused_k=key_lengths, **how)
    # At a thousand rows the host is what a GPU waits for: not even an idle call to `to`.
    return (out if out.dtype == dtype else out.to(dtype)), (lse if with_lse else None)


def attend_vanilla(q, k, v, text_k, text_v, key_lengths, video_rows, scale, with_lse) -> Result:
    """PyTorch's attention over each sample's key prefix, without an LSE; arguments as KERNELS says.

    Raises:
        NotImplementedError: An LSE is asked for.
    """
    if with_lse:
        raise NotImplementedError("VANILLA returns no LSE; use FA4 under Attention2D or ring.")
    q, video_k, video_v = (x.transpose(1, 2) for x in (q, k, v))
    if can_fold_text(q, video_k, video_rows):
        text = (text_k, text_v, key_lengths, video_rows, scale)
        out = attend_and_fold_text(q, video_k, video_v, *text)
    else:
        k = append_text(k, text_k, video_rows).transpose(1, 2)
        v = append_text(v, text_v, video_rows).transpose(1, 2)
        mask = (torch.arange(k.shape[2], device=k.device) < key_lengths[:, None])[:, None, None]
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2).contiguous(), None


SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor text_k, Tensor text_v, Tensor key_lengths, "
    "SymInt video_rows, float scale, bool with_lse) -> (Tensor, Tensor)"
)


def _operator(name: str, attend: Callable[..., Result]) -> Callable[..., Result]:
    """The function as an operator, which torch.compile keeps whole, choices and launches alike.

    An LSE that is not wanted is an empty tensor.
    """

    def run(*args):
        out, lse = attend(*args)
        return out, out.new_empty(0, dtype=torch.float32) if lse is None else lse

    operator = torch.library.custom_op(f"cosmos3::{name}", run, mutates_args=(), schema=SCHEMA)

    @operator.register_fake
    def _(q, k, v, text_k, text_v, key_lengths, video_rows, scale, with_lse):
        lse_shape = (q.shape[0], q.shape[2], q.shape[1]) if with_lse else (0,)
        return q.new_empty(q.shape), q.new_empty(lse_shape, dtype=torch.float32)

    return operator


# What serves a backend: the function for eager calls, which do without an operator's dispatch,
# and the operator. Arguments:
#     q            [B, S_q, H, D]
#     k, v         [B, S_kv, H_kv, D]; rows from video_rows on are not read
#     text_k, _v   [B, T, H_kv, D]; finite, and not counted past a sample's length
#     key_lengths  int32 [B], contiguous, video_rows + text length; no kernel checks their bounds
#     video_rows   valid rows of k and v
#     scale        factor on the logits
#     with_lse     whether the LSE is wanted
# Returns the output [B, S_q, H, D], contiguous, in q's dtype, and the natural-log LSE, float32
# [B, H, S_q], or None.
KERNELS = {
    FlashAttn4Attention: (attend_fa4, _operator("attend_fa4", attend_fa4)),
    VanillaAttention: (attend_vanilla, _operator("attend_vanilla", attend_vanilla)),
}


def _launch(backend: AttentionBackend, q, k, v, with_lse: bool, **kwargs) -> Result:
    """One dense launch of any backend on NHD tensors; without keys, output 0 and LSE -inf."""
    if k.shape[1] == 0:
        lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"), dtype=torch.float32)
        return torch.zeros_like(q), lse
    kwargs |= {"batch_size": q.shape[0], "seq_len": q.shape[1], "seq_len_kv": k.shape[1]}
    heads_first = backend.preferred_layout == AttentionTensorLayout.HND
    if heads_first:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if with_lse:
        out, lse = backend.forward_with_lse(q, k, v, **kwargs)
    else:
        out, lse = backend.forward(q, k, v, **kwargs), None
    return (out.transpose(1, 2) if heads_first else out), lse


@torch.compiler.disable
def attend_by_length(
    backend: AttentionBackend, q, k, v, text: TextKVView, with_lse: bool, **kwargs
) -> Result:
    """Any backend: one dense launch on exactly the valid keys for each distinct text length.

    Takes and returns what KERNELS says; kwargs are handed to the backend.
    """
    groups: dict[int, list[int]] = {}
    for sample, length in enumerate(text.text_lengths):
        groups.setdefault(length, []).append(sample)
    results: list = [None] * q.shape[0]
    for length, samples in groups.items():
        parts = [q, k, v, text.k[:, :length], text.v[:, :length]]
        if len(groups) > 1:
            parts = [torch.cat([x[i : i + 1] for i in samples]) for x in parts]
        keys = append_text(parts[1], parts[3], text.video_rows)
        values = append_text(parts[2], parts[4], text.video_rows)
        out, lse = _launch(backend, parts[0], keys, values, with_lse, **kwargs)
        if len(groups) == 1:
            return out, lse
        for i, sample in enumerate(samples):
            results[sample] = (out[i : i + 1], lse[i : i + 1] if with_lse else None)
    outs, lses = zip(*results)
    return torch.cat(outs), torch.cat(lses) if with_lse else None


class TextAttention(AttentionBackend):
    """A compute backend that also attends to the text of each sample.

    Args:
        backend: The compute backend to replace.
    """

    def __init__(self, backend: AttentionBackend):
        self.backend = backend
        self.kernels = KERNELS.get(type(backend))
        # The wrappers read these off whatever they hold.
        self.num_heads = backend.num_heads
        self.num_kv_heads = backend.num_kv_heads
        self.head_dim = backend.head_dim
        self.scale = backend.scale

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """The layout of the backend that it stands for."""
        return self.backend.preferred_layout

    def forward(self, q, k, v, *, text: Iterator[TextKVView], **kwargs) -> torch.Tensor:
        """Attends to the valid video rows of one block of keys and to its text.

        Args:
            q: [B, S_q, H, D], or [B, H, S_q, D] where the backend prefers HND.
            k: Video keys, S_kv rows and H_kv heads in the same layout.
            v: Like k.
            text: Yields the view of each block of keys, in the order in which they are attended
                to; each call takes the next. Only a ring calls more than once.
            **kwargs: What the wrappers add.

        Returns:
            Output like q. Rows that pad the video get finite values that nobody reads.
        """
        return self._attend(q, k, v, next(text), False, **kwargs)[0]

    def forward_with_lse(self, q, k, v, *, text: Iterator[TextKVView], **kwargs) -> Result:
        """Like forward, and returns the natural-log LSE [B, H, S_q] too."""
        return self._attend(q, k, v, next(text), True, **kwargs)

    def _attend(self, q, k, v, text, with_lse, **kwargs) -> Result:
        # By name: the enum's module moves between revisions.
        assert getattr(kwargs.get("attention_mask"), "name", "FULL") == "FULL", kwargs
        heads_first = self.preferred_layout == AttentionTensorLayout.HND
        if heads_first:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.kernels is None:
            out, lse = attend_by_length(self.backend, q, k, v, text, with_lse, **kwargs)
        else:
            attend = self.kernels[1] if torch.compiler.is_compiling() else self.kernels[0]
            sizes = (text.key_lengths, text.video_rows, self.scale, with_lse)
            out, lse = attend(q, k, v, text.k, text.v, *sizes)
        return (out.transpose(1, 2) if heads_first else out), lse


def _inner(attn: AttentionBackend) -> Optional[str]:
    """The name under which a parallel wrapper keeps what it wraps; None for a backend."""
    return next((name for name in ("inner_backend", "inner") if name in vars(attn)), None)


def install_text_attention(attn: AttentionBackend) -> AttentionBackend:
    """Puts a TextAttention in place of the backend in a chain of wrappers; returns its head."""
    name = _inner(attn)
    if name is None:
        return TextAttention(attn)
    setattr(attn, name, install_text_attention(getattr(attn, name)))
    return attn


def lengths_in_shapes(attn: AttentionBackend) -> bool:
    """Whether what such a chain launches depends on the lengths in its shapes."""
    while name := _inner(attn):
        attn = getattr(attn, name)
    return attn.kernels is None
