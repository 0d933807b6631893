# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of the parity run: what it computes, and what it takes from the recorded latents."""

import torch
from parity.worker import _evaluate

STEPS = 4


class Model:
    """Answers latents with half of them for both prompts, and counts."""

    device = torch.device("cpu")

    def __init__(self, error: float = 0.0):
        self.error = error
        self.calls = 0

    def forward(self, latents, timestep):
        self.calls += 1
        return (0.5 * latents * (1 + self.error)).expand(2, *latents.shape).clone()


def evaluate(model, recorded=None, oracle=False):
    spec = {"dtype": "float32", "guidance": 3.0, "oracle": oracle}
    start = torch.randn(4, 1, 2, 3, generator=torch.Generator().manual_seed(0))
    return _evaluate(model, spec, STEPS, {"latents": start}, recorded)


def test_run_that_records_makes_one_forward_a_step():
    model = Model()
    results = evaluate(model)
    assert model.calls == STEPS == len(results["velocity"]) == len(results["trajectory"]) - 1


def test_run_that_is_bit_equal_does_not_answer_twice_vs_one_that_differs():
    recorded = evaluate(Model())
    equal, other = Model(), Model(error=1e-3)
    results = evaluate(equal, recorded)
    assert equal.calls == STEPS
    assert torch.equal(results["trajectory"], recorded["trajectory"])
    off = evaluate(other, recorded)
    # Both start from the same latents.
    assert other.calls == 2 * STEPS - 1
    assert not torch.equal(off["trajectory"][-1], recorded["trajectory"][-1])


def test_oracle_answers_the_first_step_alone():
    model = Model()
    results = evaluate(model, evaluate(Model()), oracle=True)
    assert model.calls == 1 and list(results) == ["velocity"]
