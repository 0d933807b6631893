# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Record: what a result file holds beside checks, to read the figures and to get them again."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import provenance
import row_products
from cosmos3_components import make_scheduler
from cosmos3_requests import first_chunk
from cosmos3_sizes import VOCABULARY

from parity import prompts as prompts_module
from parity.machine import machine_facts, usable_cores
from parity.pictures import draw, film
from parity.plan import Plan, Run
from parity.show import shown_path

# Differences that are black in pictures: far below what a run is held to.
BLACK = {"float32": 1e-8, "float64": 1e-14, "bfloat16": 1e-6}


def describe(plan: Plan, results: dict[str, Any], command: str, commit: str | None) -> dict:
    """Returns the record of a run, without its checks and errors.

    Args:
        plan: What was run.
        results: What run() returned.
        command: What to type for the same figures.
        commit: Of this project, where git cannot tell.
    """
    settings = plan.settings
    machine = machine_facts(settings["device"], settings["exchange"], settings["ranks"])
    main = plan.cases[0]
    scheduler = make_scheduler(main.steps)
    return {
        "format": 2,
        # What `make pr` looks for in a result file.
        "kind": "parity",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine["device_name"],
        "commit": provenance.commit(commit),
        "command": command,
        "settings": settings,
        "prompts": {
            "tokenizer": prompts_module.TOKENIZER,
            "tokenizer_vocabulary": prompts_module.vocabulary_size(),
            "model_vocabulary": settings["config"]["vocab_size"],
            "expected_vocabulary": VOCABULARY,
            "lengths": {prompt.role: len(prompt.ids) for prompt in main.prompts},
            "words": {prompt.role: len(prompt.text.split()) for prompt in main.prompts},
            "text": {prompt.role: prompt.text for prompt in main.prompts},
        },
        "schedule": {
            "scheduler": type(scheduler).__name__,
            "sigmas": [round(float(sigma), 6) for sigma in scheduler.sigmas],
            "timesteps": scheduler.timesteps.tolist(),
        },
        "matrix_products": {
            "settings": list(row_products.SETTINGS) if settings["row_invariant"] else [],
            "uneven": results["one"]["reports"][0]["uneven"],
        },
        "runs": [_run_facts(run, plan, results[run.name]) for run in plan.runs],
        "checkout": plan.checkout
        and plan.checkout | {"folder": shown_path(Path(plan.checkout["folder"]))},
        "files": _files(results),
        "pictures": draw(
            {
                run.name: (run.title, results[run.name]["cases"][main.name]["trajectory"][-1])
                for run in plan.runs
                if "trajectory" in results[run.name]["cases"][main.name]
            },
            settings["config"]["latent_patch_size"],
            BLACK[settings["dtype"]],
        ),
        **({"films": _films(plan, results)} if "requests" in settings else {}),
        "machine": machine,
        "versions": provenance.versions(),
        "cost": {
            "peak_bytes": max(run["peak_bytes"] for run in results.values()),
            "cores": usable_cores(),
        },
    }


def _films(plan: Plan, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the frames of each request by run, as a result file keeps them."""
    shown = [run for run in plan.runs if run.name in ("one", "unfixed-one", "unfixed", "fixed")]
    films = []
    for case in plan.cases:
        frames = {
            run.title: results[run.name]["cases"][case.name]["frames"].numpy() for run in shown
        }
        films.append({"name": case.name, **film(frames, first_chunk(case.request))})
    return films


def _run_facts(run: Run, plan: Plan, result: dict[str, Any]) -> dict[str, Any]:
    reports = result["reports"]
    first, *others = reports[0]["forward_seconds"]
    modules = {name: entry["sha256"] for name, entry in reports[0]["files"].items()}
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(modules.items()))
    return {
        "name": run.name,
        "title": run.title,
        "ranks": run.ranks,
        "dtype": run.dtype,
        "backend": run.backend or None,
        "attention": reports[0]["attention"],
        "code": plan.sources[run.source].description if run.source else "diffusers",
        "outside": reports[0]["outside"],
        "modules": modules,
        "modules_sha256": hashlib.sha256(lines.encode()).hexdigest() if modules else None,
        "text_bytes": [report["text_bytes"].get(plan.cases[0].name) for report in reports],
        "first_forward_seconds": first,
        "median_forward_seconds": sorted(others)[len(others) // 2] if others else None,
        "device_peak_bytes": [report["device_peak_bytes"] for report in reports],
        "peak_bytes": result["peak_bytes"],
        "seconds": result["seconds"],
        "observed": [report["observed"] for report in reports],
    }


def _files(results: dict[str, Any]) -> list[dict[str, str]]:
    """Returns each file of TensorRT-LLM's name that a rank 0 imported, once."""
    found = {
        entry["sha256"]: {"module": name, "path": shown_path(Path(entry["path"]))}
        for run in reversed(results.values())
        for name, entry in run["reports"][0]["files"].items()
    }
    entries = ({"sha256": digest, **entry} for digest, entry in found.items())
    return sorted(entries, key=lambda entry: entry["module"])
