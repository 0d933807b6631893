# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One attention on P Ulysses ranks, against one rank and against float64 per-sample attention.

Fields: B batch, S video rows, P ranks, H query heads, H_kv K/V heads, D head_dim.
"""

import dataclasses
import itertools

import pytest
import torch
from support import attend
from support.cases import LENGTHS, POISON, AttentionCase, Layout
from support.checks import attention_reference, check_attention, is_padded
from support.tiers import (
    REDUCTION_ORDER,
    assert_bitwise,
    assert_within,
)

pytestmark = pytest.mark.gloo

# Nothing, one row and almost a whole rank of padding, whatever the rank count.
VIDEO_ROWS = (27, 28, 63)
# Grouped-query and plain heads; those fit whose K/V heads P divides.
HEADS = ((8, 4), (8, 2), (16, 8), (8, 8))


def _cases() -> list:
    cases = []
    for size, (name, lengths), rows in itertools.product((2, 4, 8), LENGTHS.items(), VIDEO_ROWS):
        for heads, kv_heads in HEADS:
            if kv_heads % size == 0:
                case = AttentionCase(
                    layout=Layout(ulysses=size),
                    lengths=lengths,
                    video_rows=rows,
                    heads=heads,
                    kv_heads=kv_heads,
                )
                name_of = f"{case.layout}-{name}-video{rows}-heads{heads}x{kv_heads}"
                cases.append(pytest.param(case, id=name_of))
    return cases


def _variants(case: AttentionCase) -> list[AttentionCase]:
    return [
        dataclasses.replace(case, backend=backend, dtype=dtype)
        for backend in ("VANILLA", "FA4")
        for dtype in (torch.float32, torch.float64)
    ]


def _logic_exact(rank: int, case: AttentionCase, fill: float) -> torch.Tensor:
    return attend.exact(rank, case, fill)


@pytest.mark.parametrize("case", _cases())
def test_ulysses_attention_output_vs_per_sample(ranks, case):
    assert is_padded(case.layout, case.lengths, case.video_rows), "blind: nothing is padded"
    for variant in _variants(case):
        check_attention(ranks.run, variant)


def _logic_launches(rank: int, case: AttentionCase) -> list:
    backend = attend.compute_backend(case)
    attend.exact(rank, case, backend=backend)
    return backend.launches


@pytest.mark.parametrize("backend", ["DENSE-NHD", "DENSE-HND"])
@pytest.mark.parametrize(
    "lengths", [(7,), (13, 13), (7, 19), (7, 19, 7)], ids=lambda x: "x".join(map(str, x))
)
def test_ulysses_attention_any_backend_vs_a_launch_for_each_length(ranks, lengths, backend):
    """A backend that knows no lengths is launched on exactly the keys that count."""
    case = AttentionCase(layout=Layout(ulysses=2), lengths=lengths, backend=backend)
    for dtype in (torch.float32, torch.float64):
        check_attention(ranks.run, dataclasses.replace(case, dtype=dtype))
    # Queries are as the exchange leaves them: the video with its padding.
    sizes = [[lengths.count(n), 28, case.video_rows + n] for n in dict.fromkeys(lengths)]
    for launches in ranks.run(2, _logic_launches, case):
        assert launches == [(size, size) for size in sizes]


@pytest.mark.parametrize("size", [2, 4, 8], ids="ulysses{}".format)
@pytest.mark.parametrize("backend", ["VANILLA", "FA4"], ids=["vanilla", "fa4"])
def test_ulysses_attention_poisoned_video_tail_vs_zeros(ranks, backend, size):
    """From the second layer on the rows that pad the video are not zero: they must not matter."""
    case = AttentionCase(
        layout=Layout(ulysses=size), heads=8, kv_heads=8, backend=backend, dtype=torch.float32
    )
    clean, poisoned = (
        attend.gathered(case, ranks.run(size, _logic_exact, case, fill)) for fill in (0.0, POISON)
    )
    assert_bitwise(poisoned, clean, "poisoned video tail")


def test_ulysses_attention_nothing_padded_vs_per_sample(ranks):
    """The control: here the unfixed path is right too, so what the others see is padding."""
    case = AttentionCase(layout=Layout(ulysses=2), lengths=(14, 14), video_rows=28)
    assert not is_padded(case.layout, case.lengths, case.video_rows)
    for variant in _variants(case):
        check_attention(ranks.run, variant)


@pytest.mark.parametrize("rows", [1, 5, 8, 9])
def test_ulysses_attention_few_rows_vs_per_sample(ranks, rows):
    """Fewer rows than ranks: most ranks hold nothing but padding before the exchange."""
    case = AttentionCase(layout=Layout(ulysses=8), video_rows=rows, heads=8, kv_heads=8)
    found = attend.gathered(case, ranks.run(8, _logic_exact, case, POISON))
    assert_within(found, attention_reference(case), REDUCTION_ORDER[case.dtype], f"{rows} rows")


@pytest.mark.parametrize("size", [2, 4, 8], ids="ulysses{}".format)
def test_ulysses_attention_prompt_at_the_maximum_vs_per_sample(ranks, size):
    """The longest prompt fills the rows of the text tower, which end in the middle of a bucket."""
    case = AttentionCase(layout=Layout(ulysses=size), kv_heads=8, lengths=(3, 150), spare_rows=0)
    for variant in _variants(case):
        check_attention(ranks.run, variant)
