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
