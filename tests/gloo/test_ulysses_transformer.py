# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The whole transformer on P Ulysses ranks, against one rank and against diffusers.

Fields: B batch, S video rows, P ranks.
"""

import dataclasses
import itertools

import pytest
import torch
from support.cases import LENGTHS, Layout
from support.checks import (
    check_branches,
    check_selected,
    check_transformer,
    is_padded,
    sequence_rows,
)
from support.model import ModelCase

pytestmark = pytest.mark.gloo

# Latent shapes by the rows that they make: odd edges are padded to a patch of 2 x 2.
VIDEOS = {27: (3, 5, 6), 28: (7, 4, 3), 63: (7, 6, 5)}
DTYPES = (torch.float32, torch.float64)


def _cases() -> list:
    cases = []
    for size, (name, lengths), rows in itertools.product((2, 4, 8), LENGTHS.items(), VIDEOS):
        case = ModelCase(layout=Layout(ulysses=size), lengths=lengths, video=VIDEOS[rows])
        cases.append(pytest.param(case, id=f"{case.layout}-{name}-video{rows}"))
    return cases


@pytest.mark.parametrize("case", _cases())
def test_ulysses_transformer_velocity_vs_one_rank_and_diffusers(ranks, case):
    assert is_padded(case.layout, case.lengths, sequence_rows(case)), "blind: nothing is padded"
    for dtype in DTYPES:
        check_transformer(ranks.run, dataclasses.replace(case, dtype=dtype))


@pytest.mark.parametrize("heads", [(8, 4), (8, 2), (4, 4)], ids=lambda h: f"heads{h[0]}x{h[1]}")
@pytest.mark.parametrize("backend", ["VANILLA", "FA4", "DENSE-HND"])
def test_ulysses_transformer_grouped_heads_vs_one_rank_and_diffusers(ranks, backend, heads):
    for dtype in DTYPES:
        case = ModelCase(
            overrides=(("num_attention_heads", heads[0]), ("num_key_value_heads", heads[1])),
            layout=Layout(ulysses=2),
            backend=backend,
            dtype=dtype,
        )
        check_transformer(ranks.run, case)


def test_ulysses_transformer_nothing_padded_vs_one_rank_and_diffusers(ranks):
    """The control: here the unfixed path is right too, so what the others see is padding."""
    case = ModelCase(layout=Layout(ulysses=2), lengths=(14, 14), video=VIDEOS[28])
    assert not is_padded(case.layout, case.lengths, sequence_rows(case))
    for dtype in DTYPES:
        check_transformer(ranks.run, dataclasses.replace(case, dtype=dtype))


@pytest.mark.parametrize("size", [2, 4], ids="ulysses{}".format)
def test_ulysses_transformer_branches_vs_diffusers(ranks, size):
    case = ModelCase(layout=Layout(ulysses=size), dtype=torch.float32)
    lengths = ((7, 19), (130, 2), (19, 7))
    check_branches(ranks.run, tuple(dataclasses.replace(case, lengths=x) for x in lengths))


@pytest.mark.parametrize("layout", [Layout(), Layout(ulysses=2), Layout(rows=1, cols=2)], ids=str)
def test_layout_transformer_selected_in_mid_request_vs_diffusers(ranks, layout):
    check_selected(ranks.run, ModelCase(layout=layout, lengths=(130, 2, 7, 19), backend="FA4"))
