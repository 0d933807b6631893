# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A layout repeats itself to the last bit, also where it differs from one rank in the last bit."""

import pytest
import torch
from support.cases import Layout
from support.checks import host, velocities
from support.model import ModelCase

pytestmark = pytest.mark.gloo

REPEATS = 100
LAYOUTS = [
    *(Layout(ulysses=2), Layout(tp=2), Layout(tp=2, ulysses=2)),
    *(Layout(rows=1, cols=2), Layout(rows=2, cols=2), Layout(ring=2), Layout(ring=4)),
]


def _logic_repeats(rank, layout):
    """How many of REPEATS requests equal the first, and whether another prompt's does."""
    fields = {"backend": "FA4", "dtype": torch.bfloat16}
    case = ModelCase(layout=layout, overrides=(("num_hidden_layers", 2),), **fields)
    first = velocities(host(case, rank), case)["video"]
    # From the text on, as a new request: host() drops what was cached.
    again = [velocities(host(case, rank), case)["video"] for _ in range(REPEATS)]
    transformer = host(case, rank)
    inputs = case.inputs()
    inputs["text_mask"][1, 6:] = 0
    other = transformer(**inputs).video
    return sum(torch.equal(x, first) for x in again), torch.equal(other, first)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_requests_repeat_bitwise_on_every_rank(ranks, layout):
    assert ranks.run(layout.world_size, _logic_repeats, layout) == [(REPEATS, False)] * (
        layout.world_size
    )
