# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Attention2D meshes, alone and with Ulysses, against per-sample attention and diffusers.

Each column attends to its own share of the text and of the video, and the combination must count
every key once, whatever a column has no key of. Fields: B batch, S video rows.
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
MESHES = [
    Layout(rows=1, cols=2),
    Layout(rows=2, cols=1),
    Layout(rows=2, cols=2),
    Layout(rows=2, cols=3),
    Layout(rows=2, cols=2, ulysses=2),
]
# Not divisible; divisible by all but the mesh of 6 ranks that it is divisible by too; and so few
# that whole chunks are padding. With one row, columns have a prompt of one token and nothing else.
VIDEO_ROWS = (27, 24, 5, 1)


def _cases() -> list:
    cases = []
    for layout, (name, lengths), rows in itertools.product(MESHES, LENGTHS.items(), VIDEO_ROWS):
        case = AttentionCase(layout=layout, lengths=lengths, video_rows=rows, backend="FA4")
        cases.append(pytest.param(case, id=f"{layout}-{name}-video{rows}"))
    return cases


@pytest.mark.parametrize("case", _cases())
def test_attention2d_attention_output_vs_per_sample(ranks, case):
    for dtype in DTYPES:
        check_attention(ranks.run, dataclasses.replace(case, dtype=dtype))


@pytest.mark.parametrize("video", [(3, 5, 6), (1, 1, 2)], ids=["video27", "video1"])
@pytest.mark.parametrize("layout", MESHES, ids=str)
def test_attention2d_transformer_velocity_vs_one_rank_and_diffusers(ranks, layout, video):
    for dtype in DTYPES:
        case = ModelCase(layout=layout, lengths=(1, 19), video=video, backend="FA4", dtype=dtype)
        check_transformer(ranks.run, case)
