# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu asks of many requests, here of a graph's double."""

from support.serving import (
    Serving,
    assert_few_captures,
    assert_modes_vs_eager,
    assert_replays_vs_eager,
)


def test_prompts_and_controls_in_turn_vs_eager():
    serving = Serving.host("VANILLA")
    runner = serving.graphs()
    assert_replays_vs_eager(serving, serving.in_turn())
    assert len(runner.graphs) == 5, "three buckets, and one graph for each number of controls"


def test_prompts_captures_vs_buckets():
    assert_few_captures(Serving.host("VANILLA"), prompts=4)


def test_no_grad_and_inference_mode_vs_eager():
    assert_modes_vs_eager(Serving.host("VANILLA"))
