# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""No host reads, few captures, no recompilation: what holds over many requests on a GPU."""

import warnings

import pytest
import torch
from support.serving import (
    assert_bounded_compilation,
    assert_few_captures,
    assert_modes_vs_eager,
    assert_replays_vs_eager,
)
from support.tiers import assert_within

from . import serve

pytestmark = pytest.mark.gpu(1)

backends = pytest.mark.parametrize("backend", ["FA4", "VANILLA"])


@backends
def test_steps_after_the_first_read_nothing_back(backend):
    serving = serve(backend)
    steps = [serving.request((30, 700), step=n) for n in range(3)]
    serving.transformer(**steps[0])
    serving.transformer(**steps[1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        serving.transformer(**steps[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # The unfixed forward reads lengths back in every step; the check above can see it.
    padded = serve(backend, text_kv="padded").transformer
    padded(**steps[0])
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            padded(**steps[1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [w for w in caught if "synchronizing" in str(w.message)], "the check is blind"


@backends
def test_prompts_and_controls_in_turn_vs_eager(backend):
    serving = serve(backend)
    runner = serving.graphs()
    assert_replays_vs_eager(serving, serving.in_turn())
    assert len(runner.graphs) == 8, "three buckets of two videos, and two numbers of controls"


@backends
def test_hundred_prompts_captures_vs_buckets(backend):
    assert_few_captures(serve(backend), prompts=100)


@backends
def test_no_grad_and_inference_mode_vs_eager(backend):
    assert_modes_vs_eager(serve(backend))


def test_dropped_graphs_and_captures_in_their_place_vs_eager():
    serving = serve("VANILLA")
    runner, inputs = serving.graphs(), serving.transformer.graph_inputs
    buckets = [serving.request((5, longest), longest) for longest in (100, 300, 600)]
    assert_replays_vs_eager(serving, buckets)
    needed = inputs.nbytes
    runner.clear()
    inputs.max_bytes = needed - 1
    assert_replays_vs_eager(serving, [*buckets, *buckets])
    assert inputs.nbytes < needed and len(runner.graphs) < 3, "nothing had to go"


@backends
def test_compiled_layers_graphs_over_shapes_and_prompts(backend):
    def compare(found, expected, what):
        # Fused pointwise operations round less often than eager bf16 ones.
        assert_within(found, expected, 2e-2, what)

    assert_bounded_compilation(serve(backend), "inductor", compare)
