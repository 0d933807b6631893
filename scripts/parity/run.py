# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Run: makes the runs of a plan one after the other, as processes, and collects what they leave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from cosmos3_sizes import LEARNED

from parity.launch import launch
from parity.machine import resident_bytes
from parity.plan import Plan, Run, observed_runs
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
    requests = {case.name: case.request for case in plan.cases if case.request}
    torch.save(requests, scratch / "requests.pt")
    for case in plan.cases if not requests else ():
        ids, mask = pad_prompts(case.prompts)
        shape = (settings["config"]["latent_channel"], *case.video)
        latents = starting_latents(shape, settings["seed"], _weights(settings) is None)
        inputs[case.name] = {"text_ids": ids, "text_mask": mask, "latents": latents}
    torch.save(inputs, scratch / "inputs.pt")
    results, done = {}, 0
    # A transfer has three branches.
    branches = [3 * case.facts()["chunks"] if case.name == "transfer" else 1 for case in plan.cases]
    steps = sum(case.steps * number for case, number in zip(plan.cases, branches))
    forwards = {
        run_.name: _forwards(run_, steps, len(plan.cases), bool(requests)) for run_ in plan.runs
    }
    with _bar(sum(forwards.values())) as bar:
        for run_ in plan.runs:
            bar.set_description_str(run_.title, refresh=sys.stderr.isatty())
            folder = scratch / run_.name
            found = launch(
                spec(run_, plan, scratch), folder, lambda now: bar.update(done + now - bar.n)
            )
            results[run_.name] = {
                "cases": torch.load(folder / "result.pt", weights_only=True),
                "reports": found["ranks"],
                # The driver is part of what the machine has to hold.
                "peak_bytes": found["peak_bytes"] + resident_bytes(),
                "seconds": found["seconds"],
            }
            done += forwards[run_.name]
            bar.update(done - bar.n)
    return results


def _weights(settings: dict[str, Any]) -> str | None:
    """Returns the folder of trained weights; None where they are random."""
    return str(LEARNED) if settings["size"] == "learned" else settings["checkpoint"]


def _bar(total: int):
    """Returns a bar of forwards on stderr, with the run at work beside it."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        file=sys.stderr,
        unit="forward",
        # Lines in a log file are wanted now and then, not ten times a second.
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
        bar_format="{desc:24} {bar:24} {n_fmt}/{total_fmt} forwards, {elapsed}",
        ascii=" #",
    )


def spec(run_: Run, plan: Plan, scratch: Path) -> dict[str, Any]:
    """Returns what parity.worker reads for one run."""
    settings, source = plan.settings, plan.sources.get(run_.source)
    kept = ("device", "exchange", "config", "seed", "guidance", "fps")
    return {
        **{name: settings[name] for name in (*kept, "row_invariant")},
        "checkpoint": _weights(settings),
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
        "requests": str(scratch / "requests.pt") if "requests" in settings else None,
        # Held against a run without graphs, which nothing can make stale.
        "graphs": settings.get("graphs", False) and run_.name == "fixed",
        "recorded": None if run_.name == "one" else str(scratch / "one" / "result.pt"),
        "probe": _probe(run_, plan),
        # The last request is the smallest.
        "observe": plan.cases[-1].name if run_.name in observed_runs(settings) else None,
    }


def _probe(run_: Run, plan: Plan) -> list[tuple[int, int, int, int]]:
    """Returns what row_products.uneven() looks at: all rows that some rank has a part of."""
    settings = plan.settings
    by_default = settings["device"] == "cuda" and not settings["row_invariant"]
    if run_.name != "one" or settings["dtype"] != "bfloat16" or by_default:
        return []
    ulysses, branches = (settings["layout"].get(axis, 1) for axis in ("ulysses_size", "cfg_size"))
    found = [(2, case.rows, ulysses, branches) for case in plan.cases]
    if branches > 1:
        # The text is whole on every rank, but of one prompt.
        found += [(2, pad_prompts(case.prompts)[0].shape[1], 1, branches) for case in plan.cases]
    return found


def _forwards(run_: Run, steps: int, cases: int, requests: bool) -> int:
    """Returns how many forwards a run makes at most."""
    if run_.source is None:
        return cases
    return steps if run_.name == "one" or requests else 2 * steps - cases
