# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Runs an AttentionCase on one rank: the adapter inside the host's wrappers, or the unfixed path.

Fields: B batch, S video rows, P ranks that share the sequence, H query heads, D head_dim.
"""

from __future__ import annotations

import inspect

import pytest
import torch

from support.cases import POISON, AttentionCase, Layout
from support.mappings import mapping
from support.reference import round_up, zero_tail
from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask
from tensorrt_llm._torch.visual_gen.attention_backend import flash_attn4
from tensorrt_llm._torch.visual_gen.attention_backend.interface import AttentionTensorLayout
from tensorrt_llm._torch.visual_gen.attention_backend.parallel import wrap_parallel_attention
from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_attention, text_ring
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout

FULL = PredefinedAttentionMask.FULL

# A missing CPU kernel fails; only a machine on which the real kernels took its place skips.
_real_fa4 = "cpu_kernels" not in inspect.getfile(flash_attn4._flash_attn_fwd or inspect.getfile)
CPU_BACKENDS = [
    pytest.param("VANILLA", id="vanilla"),
    pytest.param(
        "FA4",
        id="fa4",
        marks=pytest.mark.skipif(
            flash_attn4._flash_attn_fwd is not None and _real_fa4,
            reason="flash-attn-4 is installed and serves FA4 here, on GPUs only",
        ),
    ),
]


def compute_backend(case: AttentionCase):
    """The compute backend for the heads that one rank attends with."""
    return create_attention(
        case.backend,
        layer_idx=0,
        num_heads=case.heads // case.layout.head_ways,
        head_dim=case.head_dim,
        num_kv_heads=case.kv_heads // case.layout.head_ways,
    )


def install(attn, layout: Layout = Layout()):
    """Puts the adapter into a chain. The ring comes with a module of its own."""
    return (text_ring if layout.ring > 1 else text_attention).install_text_attention(attn)


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


def exact(rank: int, case: AttentionCase, fill: float = POISON) -> torch.Tensor:
    """The fix on one rank. Returns its rows of the output, padding rows included [B, S/P, H, D].

    Args:
        rank: This rank; there must be a process group of case.layout.world_size ranks.
        case: What to attend to.
        fill: What the rows that pad the video hold.
    """
    vgm = mapping(case.layout, rank)
    attn = install(wrap_parallel_attention(compute_backend(case), vgm), case.layout)
    drawn = {name: tp_heads(case, x, vgm.tp_rank) for name, x in case.tensors().items()}
    video = (case.padded_video(drawn[name], fill) for name in "qkv")
    q, k, v = (x.chunk(case.layout.sequence_size, dim=1)[vgm.seq_rank] for x in video)
    text = TextKV.build(
        [(drawn["text_k"], drawn["text_v"])], case.lengths, TextKVLayout.from_mapping(vgm)
    )
    view = text.attach(q.flatten(2), video_rows=case.video_rows)[0]
    return call(attn, q, k, v, text=view)


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
