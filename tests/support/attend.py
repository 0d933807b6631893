# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Runs an AttentionCase on one rank: the adapter inside the host's wrappers, or the unfixed path.

Fields: B batch, S video rows, P ranks that share the sequence, H query heads, D head_dim.
"""

from __future__ import annotations

import inspect

import pytest
import torch

from support.cases import POISON, AttentionCase
from support.mappings import mapping
from support.reference import round_up, zero_tail
from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask
from tensorrt_llm._torch.visual_gen.attention_backend import flash_attn4
from tensorrt_llm._torch.visual_gen.attention_backend.interface import (
    AttentionBackend,
    AttentionTensorLayout,
)
from tensorrt_llm._torch.visual_gen.attention_backend.parallel import wrap_parallel_attention
from tensorrt_llm._torch.visual_gen.attention_backend.utils import BACKENDS, create_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import install_text_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout

FULL = PredefinedAttentionMask.FULL


class DenseAttention(AttentionBackend):
    """A backend that nobody here knows: all keys count, and other keywords are ignored.

    Attributes:
        launches: For each launch [B, S_q, S_kv], and the same as the keywords said it.
    """

    layout, lse = AttentionTensorLayout.NHD, False

    def __init__(self, num_heads, head_dim, num_kv_heads=None, **kwargs):
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_dim, self.scale = head_dim, head_dim**-0.5
        self.launches = []

    @property
    def preferred_layout(self):
        return self.layout

    @classmethod
    def support_lse(cls):
        return cls.lse

    def _attend(self, q, k, v, attention_mask=FULL, **ignored):
        nhd = self.layout == AttentionTensorLayout.NHD
        if nhd:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        sizes = [ignored.get(name) for name in ("batch_size", "seq_len", "seq_len_kv")]
        self.launches.append(([q.shape[0], q.shape[2], k.shape[2]], sizes))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * self.scale
        if attention_mask == PredefinedAttentionMask.CAUSAL:
            scores = scores + torch.full_like(scores, float("-inf")).triu(1)
        lse = scores.logsumexp(dim=-1)
        out = (scores - lse[..., None]).exp() @ v
        return (out.transpose(1, 2) if nhd else out), lse

    def forward(self, q, k, v, **kwargs):
        return self._attend(q, k, v, **kwargs)[0]

    def forward_with_lse(self, q, k, v, **kwargs):
        if not self.lse:
            return super().forward_with_lse(q, k, v, **kwargs)
        return self._attend(q, k, v, **kwargs)


DENSE = {
    f"DENSE-{layout.value}{suffix}": type(
        f"Dense{layout.value}", (DenseAttention,), {"layout": layout, "lse": bool(suffix)}
    )
    for layout in AttentionTensorLayout
    for suffix in ("", "-LSE")
}
BACKENDS.update(DENSE)

# A missing CPU kernel fails; only a machine on which the real kernels took its place skips.
_real_fa4 = "cpu_kernels" not in inspect.getfile(flash_attn4._flash_attn_fwd or inspect.getfile)
FA4 = pytest.param(
    "FA4",
    id="fa4",
    marks=pytest.mark.skipif(
        flash_attn4._flash_attn_fwd is not None and _real_fa4,
        reason="flash-attn-4 is installed and serves FA4 here, on GPUs only",
    ),
)
CPU_BACKENDS = [pytest.param("VANILLA", id="vanilla"), FA4]
LSE_BACKENDS = [FA4, *(pytest.param(name, id=name.lower()) for name in DENSE if "LSE" in name)]
ALL_BACKENDS = [CPU_BACKENDS[0], *LSE_BACKENDS]


def compute_backend(case: AttentionCase):
    """The compute backend for the heads that one rank attends with."""
    return create_attention(
        case.backend,
        layer_idx=0,
        num_heads=case.heads // case.layout.head_ways,
        head_dim=case.head_dim,
        num_kv_heads=case.kv_heads // case.layout.head_ways,
    )


def text_of(case: AttentionCase, drawn: dict, layout: TextKVLayout = TextKVLayout()) -> TextKV:
    """The text of one layer, from case.tensors()."""
    return TextKV.build([(drawn["text_k"], drawn["text_v"])], case.lengths, layout)


def call(attn, q, k, v, *, with_lse=False, **kwargs):
    """Calls a backend or wrapper with NHD tensors, as the attention module does; returns NHD."""
    heads_first = attn.preferred_layout == AttentionTensorLayout.HND
    sizes = {"batch_size": q.shape[0], "seq_len": q.shape[1], "seq_len_kv": k.shape[1]}
    if heads_first:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    forward = attn.forward_with_lse if with_lse else attn.forward
    result = forward(q=q, k=k, v=v, attention_mask=FULL, **sizes, **kwargs)
    out, lse = result if with_lse else (result, None)
    out = out.transpose(1, 2) if heads_first else out
    return (out, lse) if with_lse else out


def tp_heads(case: AttentionCase, x: torch.Tensor, tp_rank: int) -> torch.Tensor:
    """The heads of [B, S, H, D] that one tensor-parallel rank has."""
    heads = x.shape[2] // case.layout.tp
    return x[:, :, tp_rank * heads : (tp_rank + 1) * heads]


def exact(rank: int, case: AttentionCase, fill: float = POISON, backend=None) -> torch.Tensor:
    """The fix on one rank. Returns its rows of the output, padding rows included [B, S/P, H, D].

    Args:
        rank: This rank; there must be a process group of case.layout.world_size ranks.
        case: What to attend to.
        fill: What the rows that pad the video hold.
        backend: The compute backend, to look at afterwards; made when None.
    """
    vgm = mapping(case.layout, rank)
    attn = install_text_attention(wrap_parallel_attention(backend or compute_backend(case), vgm))
    drawn = {name: tp_heads(case, x, vgm.tp_rank) for name, x in case.tensors().items()}
    video = (case.padded_video(drawn[name], fill) for name in "qkv")
    q, k, v = (x.chunk(case.layout.sequence_size, dim=1)[vgm.seq_rank] for x in video)
    text = text_of(case, drawn, TextKVLayout.from_mapping(vgm))
    return call(attn, q, k, v, text=iter(text.views(case.video_rows)[0]))


def unfixed(rank: int, case: AttentionCase) -> torch.Tensor:
    """The release's path on one rank: the text is sharded with the video, and nothing is masked."""
    vgm = mapping(case.layout, rank)
    attn = wrap_parallel_attention(compute_backend(case), vgm)
    size = case.layout.sequence_size
    drawn = {name: tp_heads(case, x, vgm.tp_rank) for name, x in case.tensors().items()}
    q, k, v = (
        case.padded_video(drawn[name], 0.0).chunk(size, dim=1)[vgm.seq_rank] for name in "qkv"
    )
    rows = round_up(max(case.lengths), size)
    text_k, text_v = (
        zero_tail(drawn[name], case.lengths, rows).chunk(size, dim=1)[vgm.seq_rank]
        for name in ("text_k", "text_v")
    )
    return call(attn, q, torch.cat([k, text_k], dim=1), torch.cat([v, text_v], dim=1))


def gathered(case: AttentionCase, shards: list[torch.Tensor]) -> torch.Tensor:
    """Puts the ranks' outputs together: [B, S, H, D], padding rows cut off.

    Rank order is cfg, tp, then the sequence. Guidance branches are alike here; the first is taken.
    """
    size = case.layout.sequence_size
    heads = [torch.cat(shards[tp * size : (tp + 1) * size], dim=1) for tp in range(case.layout.tp)]
    return torch.cat(heads, dim=2)[:, : case.video_rows]
