# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Generation layers compiled as upstream compiles them: one by one, `dynamic` at its default."""

import pytest
import torch
from support.attend import CPU_BACKENDS
from support.serving import Serving, assert_bounded_compilation
from support.tiers import assert_bitwise

# One of them has as many rows as a text bucket: equal sizes must not become one symbol.
VIDEOS = [(1, 8, 8), (1, 32, 32), (1, 16, 16), (3, 10, 6), (1, 24, 8), (2, 16, 16)]


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_compiled_layers_graphs_over_shapes_and_prompts(backend):
    # With what a compiler asks of the operators besides a trace: their fakes.
    assert_bounded_compilation(Serving.host(backend), "aot_eager", assert_bitwise, VIDEOS)


def test_compiled_layers_graphs_over_prompts_of_other_backends():
    """Their launches are cut to the lengths, outside of compiled code, which knows none."""
    serving = Serving.host("DENSE-NHD")
    assert_bounded_compilation(serving, "eager", assert_bitwise, VIDEOS[:3], breaks=True)


def test_compilation_check_sees_unmarked_text(monkeypatch):
    monkeypatch.setattr(torch._dynamo, "maybe_mark_dynamic", lambda tensor, dim: None)
    with pytest.raises(AssertionError, match="made a graph"):
        assert_bounded_compilation(Serving.host("VANILLA"), "eager", assert_bitwise, VIDEOS[:2])
