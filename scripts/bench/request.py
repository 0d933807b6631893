# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a user waits for: whole requests, with the text tower, all steps, and captures."""

from __future__ import annotations

import torch

from .limits import KNOWN, NEW, REQUEST_VARIANTS
from .models import LENGTHS, Models
from .ranks import on_ranks, together_ms
from .timing import Marks, in_turn, summary

# A distilled model's steps, measured, and a usual model's, composed of these and of more steps.
MEASURED, COMPOSED = 4, 35


def run(case: dict, ranks: int) -> dict:
    """Measures one case (see Models) on `ranks` processes and returns its record."""
    return on_ranks(_measure, ranks, case)


def _measure(rank, ranks, device, case):
    models = Models(case, rank, ranks, device)
    variants = [v for v in REQUEST_VARIANTS if v != "cfg2" or v in models.transformers]
    towers = [v for v in variants if v not in (KNOWN, NEW)]
    for variant in variants:
        # Twice: the captures and what kernels do when they are first seen are no part of a step.
        for number in range(2):
            video = models.step(variant.partition(",")[0], number)
            assert bool(video.isfinite().all()), f"{variant} is not finite"
    text = {variant: [] for variant in towers}
    whole = {variant: [] for variant in variants}
    steps = {variant: [] for variant in variants if variant != NEW}
    for variant, _ in in_turn(towers, case["repeats"]):
        text[variant].append(together_ms(lambda v=variant: models.text(v), device))
    for variant, _ in in_turn(variants, case["repeats"]):
        total, later = _request(models, variant, device)
        whole[variant].append(total)
        # Behind its capture, a request of a new bucket has the steps of any other.
        steps[KNOWN if variant == NEW else variant] += later
    models.runner.clear()

    def summaries(samples):
        return {variant: summary(values) for variant, values in samples.items()}

    measured, step = summaries(whole), summaries(steps)
    step_of = step | {NEW: step[KNOWN]}
    composed = {variant: _composed(measured[variant], step_of[variant]) for variant in variants}
    return dict(
        case,
        ranks=ranks,
        lengths=LENGTHS,
        tower=summaries(text),
        step=step,
        requests=[
            {"steps": MEASURED, "composed": False, "times": measured},
            {"steps": COMPOSED, "composed": True, "times": composed},
        ],
    )


def _request(models: Models, variant: str, device: torch.device) -> tuple[float, list[float]]:
    """Milliseconds of a request of MEASURED steps, and of each of its steps but the first."""
    name = variant.partition(",")[0]
    if variant == NEW:
        models.runner.clear()
    marks = Marks(device.type)

    def run():
        models.select(name).reset_cache()
        for number in range(MEASURED):
            models.step(name, number)
            marks.add()

    return together_ms(run, device), marks.elapsed_ms()


def _composed(measured: dict, step: dict) -> dict:
    """A request of COMPOSED steps: a measured one, and the median step as often as is missing."""
    more = (COMPOSED - MEASURED) * step["median_ms"]
    return {k: v + more if k.endswith("_ms") else v for k, v in measured.items()}
