# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The other axes and their mixes: ring, tensor parallelism, guidance branches on own ranks.

Fields: B batch, S video rows.
"""

import dataclasses
import itertools

import pytest
import torch
from support.cases import LENGTHS, AttentionCase, Layout
from support.checks import check_attention, check_transformer
from support.model import ModelCase

from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_graph

pytestmark = pytest.mark.gloo

DTYPES = (torch.float32, torch.float64)
RINGS = [Layout(ring=2), Layout(ring=4), Layout(ring=2, ulysses=2)]
# With 5 rows the last of four blocks is all padding.
RING_VIDEO_ROWS = (27, 28, 5)


def _ring_cases() -> list:
    cases = []
    for layout, (name, lengths), rows in itertools.product(RINGS, LENGTHS.items(), RING_VIDEO_ROWS):
        case = AttentionCase(layout=layout, lengths=lengths, video_rows=rows, backend="FA4")
        cases.append(pytest.param(case, id=f"{layout}-{name}-video{rows}"))
    return cases


@pytest.mark.parametrize("case", _ring_cases())
def test_ring_attention_output_vs_per_sample(ranks, case):
    for dtype in DTYPES:
        check_attention(ranks.run, dataclasses.replace(case, dtype=dtype))


@pytest.mark.parametrize("backend", ["DENSE-NHD-LSE", "DENSE-HND-LSE"])
@pytest.mark.parametrize("layout", [Layout(rows=2, cols=2), Layout(ring=2)], ids=str)
def test_layout_attention_any_backend_with_lse_vs_per_sample(ranks, layout, backend):
    for lengths, rows in itertools.product(((1, 19), (7, 19, 7), (13, 13)), (27, 1)):
        fields = {"lengths": lengths, "video_rows": rows, "backend": backend}
        check_attention(ranks.run, AttentionCase(layout=layout, **fields))


@pytest.mark.parametrize("backend", ["VANILLA", "FA4"], ids=["vanilla", "fa4"])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2),
        Layout(tp=2, ulysses=2),
        Layout(tp=2, ulysses=4),
        Layout(cfg=2),
        Layout(cfg=2, ulysses=2),
        Layout(cfg=2, tp=2, ulysses=2),
    ],
    ids=str,
)
def test_layout_transformer_velocity_vs_one_rank_and_diffusers(ranks, layout, backend):
    for dtype in DTYPES:
        check_transformer(ranks.run, ModelCase(layout=layout, backend=backend, dtype=dtype))


def _logic_default_bytes(rank: int) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(text_graph.BYTES_VARIABLE, raising=False)
        patch.setattr(torch.cuda, "mem_get_info", lambda: (5000 - 1000 * rank, 9000))
        patch.setattr(text_graph.torch, "tensor", lambda x, device: torch.as_tensor(x))
        return text_graph._default_bytes()


def test_graph_input_bytes_by_default_vs_fullest_rank(ranks):
    """Ranks that drop different graphs would wait for each other."""
    assert ranks.run(3, _logic_default_bytes) == [300] * 3
