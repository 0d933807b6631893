# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The host's parallel wrappers without text, against one attention over the whole sequence.

Fields: B batch, S rows of all ranks, H query heads, H_kv K/V heads, D head_dim.
"""

import pytest
import torch
from support.cases import Layout
from support.model import ModelCase, mapping
from support.tiers import REDUCTION_ORDER, assert_within, reduction_order

pytestmark = pytest.mark.gloo

LAYOUTS = [
    Layout(ulysses=2),
    Layout(ulysses=4),
    Layout(rows=1, cols=2),
    Layout(rows=2, cols=1),
    Layout(rows=2, cols=2),
    Layout(rows=2, cols=3),
    Layout(cols=2, ulysses=2),
    Layout(ring=2),
    Layout(ring=3),
    Layout(ring=4),
    Layout(ring=2, ulysses=2),
]


def _tensors(dtype, rows, kv_rows=None, heads=8, kv_heads=4):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, rows, heads, 16)] + [(2, kv_rows or rows, kv_heads, 16)] * 2
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def _attention(layout, rank, heads=8, kv_heads=4):
    from tensorrt_llm._torch.visual_gen.attention_backend.parallel import wrap_parallel_attention
    from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention

    vgm = mapping(ModelCase(layout=layout), rank)
    u = layout.ulysses
    backend = create_attention("FA4", 0, heads // u, 16, kv_heads // u)
    return wrap_parallel_attention(backend, vgm), vgm


def _shard_and_attend(rank, layout, dtype):
    from tensorrt_llm._torch.visual_gen.utils import SequenceSharder

    attention, vgm = _attention(layout, rank)
    sharder = SequenceSharder.from_vgm(vgm, 8, 4)
    q, k, v = (sharder.shard(x, 1) for x in _tensors(dtype, 24))
    seen = {}
    leaf = attention
    while hasattr(leaf, "inner_backend") or hasattr(leaf, "inner"):
        leaf = getattr(leaf, "inner_backend", None) or leaf.inner
    inner = leaf.forward_with_lse

    def spy(*args, **kwargs):
        seen.update(kwargs)
        return inner(*args, **kwargs)

    leaf.forward_with_lse = spy
    token = object()
    out = attention.forward(q=q, k=k, v=v, text=token)
    assert seen["text"] is token, "the keyword was not handed through unchanged"
    if layout.ulysses > 1:
        assert seen["batch_size"] == 2
        assert seen["seq_len"] == seen["seq_len_kv"] == 24 // layout.sequence_size * layout.ulysses
    return sharder.gather(out, 1)


@pytest.mark.parametrize("dtype", REDUCTION_ORDER, ids=["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_wrapper_output_vs_whole_attention(ranks, layout, dtype):
    q, k, v = _tensors(dtype, 24)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True
    ).transpose(1, 2)
    limit = reduction_order(layout, dtype)
    for found in ranks.run(layout.world_size, _shard_and_attend, layout, dtype):
        assert found.dtype == dtype
        assert_within(found, expected, limit, str(layout))


def _ring_with_other_keys(rank):
    attention, _ = _attention(Layout(ring=2), rank)
    q, k, v = _tensors(torch.float64, 6, kv_rows=9)
    # Each rank has keys of its own, so that an exchange would show.
    return attention.forward(q=q, k=k + rank, v=v), (q, k + rank, v)


def test_ring_with_other_key_length_attends_locally(ranks):
    for found, tensors in ranks.run(2, _ring_with_other_keys):
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in tensors), enable_gqa=True
        ).transpose(1, 2)
        assert_within(found, expected, 1e-12, "local ring")


def _ulysses_with_heads(rank, heads, kv_heads):
    attention, _ = _attention(Layout(ulysses=2), rank, heads + heads % 2, kv_heads + kv_heads % 2)
    attention.forward(*_tensors(torch.float32, 4, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("heads, kv_heads, which", [(6, 3, "3 key"), (9, 3, "9 query")])
def test_ulysses_refuses_heads_on_every_rank(ranks, heads, kv_heads, which):
    for outcome in ranks.outcomes(2, _ulysses_with_heads, heads, kv_heads):
        assert outcome.error == "ValueError"
        assert f"{which} heads" in outcome.message and "ulysses_size=2" in outcome.message


def _vanilla_under(rank, layout):
    from tensorrt_llm._torch.visual_gen.attention_backend.parallel import wrap_parallel_attention
    from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention

    vgm = mapping(ModelCase(layout=layout), rank)
    wrap_parallel_attention(create_attention("VANILLA", 0, 8, 16, 4), vgm)


@pytest.mark.parametrize("layout", [Layout(cols=2), Layout(ring=2)], ids=str)
def test_wrapper_refuses_backend_without_lse_on_every_rank(ranks, layout):
    for outcome in ranks.outcomes(2, _vanilla_under, layout):
        assert outcome.error == "ValueError" and "VanillaAttention" in outcome.message
