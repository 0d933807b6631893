# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Run: makes the runs of a plan one after the other, as processes, and collects what they leave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from parity.launch import launch
from parity.machine import resident_bytes
from parity.plan import Plan, Run
from parity.sampling import pad_prompts, starting_latents


def run(plan: Plan, scratch: Path) -> dict[str, dict[str, Any]]:
    """Makes all runs.

    Args:
        plan: What to run.
        scratch: An empty folder for what processes exchange.

    Returns:
        By run name: "cases" (tensors by case), "reports" (what each rank reported), "peak_bytes"
        of main memory in all processes, and "seconds".

    Raises:
        RunFailed: A process died.
    """
    settings, inputs = plan.settings, {}
    for case in plan.cases:
        ids, mask = pad_prompts(case.prompts)
        shape = (settings["config"]["latent_channel"], *case.video)
        latents = starting_latents(shape, settings["seed"], settings["checkpoint"] is None)
        inputs[case.name] = {"text_ids": ids, "text_mask": mask, "latents": latents}
    torch.save(inputs, scratch / "inputs.pt")
    results = {}
    steps = sum(case.steps for case in plan.cases)
    with _Progress(sum(_forwards(run_, steps, len(plan.cases)) for run_ in plan.runs)) as progress:
        for run_ in plan.runs:
            progress.begin(run_.title)
            folder = scratch / run_.name
            done = launch(spec(run_, plan, scratch), folder, progress.update)
            results[run_.name] = {
                "cases": torch.load(folder / "result.pt", weights_only=True),
                "reports": done["ranks"],
                # The driver is part of what the machine has to hold.
                "peak_bytes": done["peak_bytes"] + resident_bytes(),
                "seconds": done["seconds"],
            }
            progress.end(_forwards(run_, steps, len(plan.cases)))
    return results


def spec(run_: Run, plan: Plan, scratch: Path) -> dict[str, Any]:
    """Returns what parity.worker reads for one run."""
    settings, source = plan.settings, plan.sources.get(run_.source)
    kept = ("device", "exchange", "config", "checkpoint", "seed", "guidance", "fps")
    return {
        **{name: settings[name] for name in (*kept, "row_invariant")},
        "name": run_.name,
        "ranks": run_.ranks,
        "dtype": run_.dtype,
        "backend": run_.backend,
        "layout": run_.layout,
        "roots": list(source.roots) if source else [],
        "real": source.real if source else False,
        "transformer_kwargs": source.transformer_kwargs if source else {},
        "oracle": source is None,
        "steps": {case.name: case.steps for case in plan.cases},
        "inputs": str(scratch / "inputs.pt"),
        "recorded": None if run_.name == "one" else str(scratch / "one" / "result.pt"),
        "probe": _probe(run_, plan),
    }


def _probe(run_: Run, plan: Plan) -> list[tuple[int, int, int]]:
    """Returns (prompts, rows, ranks that share them) of each case whose rounding is in question."""
    settings = plan.settings
    if run_.name != "one" or not settings["row_invariant"]:
        return []
    return [(2, case.rows, settings["layout"].get("ulysses_size", 1)) for case in plan.cases]


def _forwards(run_: Run, steps: int, cases: int) -> int:
    """Returns how many forwards a run makes at most."""
    if run_.source is None:
        return cases
    return steps if run_.name == "one" else 2 * steps - cases


class _Progress:
    """A bar of forwards on stderr, with the run at work beside it."""

    def __init__(self, total: int):
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            file=sys.stderr,
            unit="forward",
            # Lines in a log file are wanted now and then, not ten times a second.
            mininterval=0.2 if sys.stderr.isatty() else 10.0,
            bar_format="{desc:24} {bar:24} {n_fmt}/{total_fmt} forwards, {elapsed}",
            ascii=" #",
        )
        self._before = 0

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self._bar.close()

    def begin(self, title: str) -> None:
        self._bar.set_description_str(title, refresh=sys.stderr.isatty())

    def update(self, forwards: int) -> None:
        self._bar.update(self._before + forwards - self._bar.n)

    def end(self, forwards: int) -> None:
        self._before += forwards
        self.update(0)
