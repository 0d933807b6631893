# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: JSON, a Markdown table, and one HTML page with pictures."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from parity.checks import FORWARD_LIMIT, SAMPLES, Check, figure, forward_limit
from parity.pictures import Palette, colour_bar, difference, error_plot, log_colours, png

REPORT_FILES = ("parity.json", "parity.md", "report.html")
TEMPLATE = Path(__file__).parent / "report.html.in"
# Frames shown: the first, the middle and the last.
FRAMES = 3


def write_report(
    settings, runs, results: dict[str, Any], checks: list[Check], facts: dict, scratch: Path
) -> None:
    """Writes the report beside its place and then puts it there in one step.

    Args:
        settings: Of the run; settings.out is the report's folder.
        runs: What was run, in order.
        results: Tensors by run name.
        checks: The lines of the result.
        facts: What goes into parity.json beside the checks.
        scratch: A new folder on the same file system as settings.out.

    Raises:
        ValueError: The report could not be put in its place.
    """
    titles = {run.name: run.title for run in runs}
    report = {"format": 1, "checks": [_check_json(check) for check in checks], **facts}
    scratch.mkdir()
    (scratch / "parity.json").write_text(json.dumps(_finite_json(report), indent=1) + "\n")
    (scratch / "parity.md").write_text(markdown(checks, facts))
    (scratch / "report.html").write_text(html(settings, titles, results, checks, facts))
    replace_folder(scratch, settings.out)


def replace_folder(new: Path, out: Path) -> None:
    """Puts a finished folder where another may be; at no moment is there a mixture of both.

    Raises:
        ValueError: The folder cannot be moved; the earlier one is where it was.
    """
    aside = None
    try:
        if out.exists():
            aside = Path(tempfile.mkdtemp(prefix=".parity-old-", dir=out.parent)) / out.name
            os.rename(out, aside)
        os.rename(new, out)
    except OSError as error:
        if aside is not None and aside.exists():
            os.rename(aside, out)
        raise ValueError(f"--out {out} cannot be replaced ({error}); give a new folder.") from error
    finally:
        if aside is not None:
            for path in aside.iterdir() if aside.exists() else ():
                path.unlink()
            for folder in (aside, aside.parent):
                if folder.exists():
                    folder.rmdir()


def markdown(checks: list[Check], facts: dict) -> str:
    """Returns the checks and the facts behind them as Markdown tables."""
    lines = [f"# Parity: {headline(checks)}", "", summary(facts), ""]
    lines += ["| | check | measured | limit | |", "|---|---|---:|---:|---|"]
    for check in checks:
        lines.append(
            f"| {check.status} | {check.name} | {figure(check.measured)} "
            f"| {check.limit_text().replace('<=', '≤ ').replace('>', '> ')} | {check.note} |"
        )
    lines += ["", "| run | ranks | forward, s | text K/V per rank, bytes | memory |"]
    lines += ["|---|---:|---:|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in run_rows(facts)]
    lines += ["", *(f"- {name}: {value}" for name, value in fact_rows(facts)), ""]
    return "\n".join(lines)


def headline(checks: list[Check]) -> str:
    """Returns the result in a few words."""
    failed = sum(check.status == "FAIL" for check in checks)
    made = sum(check.status != "SKIP" for check in checks)
    skipped = len(checks) - made
    text = f"{failed} of {made} checks failed" if failed else f"all {made} checks passed"
    return text + (f", {skipped} skipped" if skipped else "")


def summary(facts: dict) -> str:
    """Returns one sentence on what was run."""
    settings, lengths = facts["settings"], facts["prompts"]["lengths"]
    frames, height, width = settings["video"]
    model = settings["checkpoint"] or f"{settings['size']} (random weights)"
    ranks = f"{settings['ranks']} rank" + ("s" if settings["ranks"] != 1 else "")
    if len(settings["layout"]) > 1:
        ranks += f" ({', '.join(f'{axis} {size}' for axis, size in settings['layout'].items())})"
    if facts.get("checkout"):
        ranks += ", on a TensorRT-LLM checkout's own files"
    return (
        f"{model} on {ranks}, {settings['dtype']}, {settings['backend']}, on "
        f"{facts['machine']['device_name']}; prompts of {lengths['negative']} and "
        f"{lengths['positive']} tokens, latents of {frames} x {height} x {width}, "
        f"{settings['video_rows']} video rows, {settings['steps']} steps, guidance "
        f"{settings['guidance']:g}."
    )


def run_rows(facts: dict) -> list[list[str]]:
    """Returns one row for each run: title, ranks, time, bytes of text, memory."""
    rows = []
    for run in facts["runs"]:
        seconds = run["median_forward_seconds"] or run["first_forward_seconds"]
        held = [value for value in run["text_bytes"] if value is not None]
        device = [value for value in run["device_peak_bytes"] if value is not None]
        memory = f"{run['peak_bytes'] / 2**30:.2f} GiB"
        if device:
            memory = f"{max(device) / 2**30:.2f} GiB per GPU"
        rows.append(
            [
                run["title"],
                str(run["ranks"]),
                f"{seconds:.3g}",
                f"{max(held):,}" if held else "-",
                memory,
            ]
        )
    return rows


def fact_rows(facts: dict) -> list[tuple[str, str]]:
    """Returns names and values of what the figures depend on."""
    machine, prompts, project = facts["machine"], facts["prompts"], facts["project"]
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    commit = project["commit"][:12]
    cost = facts["cost"]
    fixed = next((run for run in facts["runs"] if run["name"] == "fixed"), facts["runs"][0])
    return [
        ("command", facts["command"]),
        ("date", facts["date"]),
        ("device", f"{machine['device_name']}, {machine['cores']} cores, {machine['processes']}"),
        ("versions", versions),
        ("this project", f"commit {commit}" + (", modified" if project["modified"] else "")),
        ("attention", f"{fixed['attention']}"),
        *_checkout_rows(facts),
        (
            "code",
            f"{len(fixed['modules'])} modules, sha256 {(fixed['modules_sha256'] or '-')[:16]}; "
            "each file's is in parity.json",
        ),
        (
            "vocabulary",
            f"{prompts['tokenizer_vocabulary']} ids in the tokenizer, "
            f"{prompts['model_vocabulary']} rows in the model",
        ),
        ("cost", f"{cost['seconds']:.0f} s, {cost['peak_bytes'] / 2**30:.2f} GiB at most"),
    ]


def _checkout_rows(facts: dict) -> list[tuple[str, str]]:
    """Returns which files were a checkout's own, and what was done to them from outside."""
    checkout = facts.get("checkout")
    if not checkout:
        return []

    def listed(side: str) -> str:
        files = (f"{f['path'].partition('visual_gen/')[2]} {f['sha256'][:16]}" for f in side)
        return "; ".join(files) or "none"

    files = checkout["files"]
    fixed = next((run for run in facts["runs"] if run["name"] == "fixed"), facts["runs"][0])
    theirs = {f["sha256"] for side in files.values() for f in side}
    others = sorted(
        name.removeprefix("tensorrt_llm.")
        for name, digest in fixed["modules"].items()
        if digest not in theirs
    )
    return [
        ("checkout", f"{checkout['folder']} at {checkout['commit'] or 'no commit'}"),
        ("unfixed side", checkout["unfixed"]),
        ("fixed side", checkout["fixed"]),
        ("its files on both sides, unchanged", listed(files["both"])),
        ("its files on the unfixed side", listed(files["unfixed"])),
        ("files of the fixed side", listed(files["fixed"])),
        ("stand-ins", ", ".join(others)),
        ("changed from outside", "; ".join(fixed["outside"]) or "nothing"),
    ]


def html(settings, titles, results, checks, facts) -> str:
    """Returns the page, with its pictures inside."""
    status = "fail" if any(check.status == "FAIL" for check in checks) else "pass"
    light, dark = (error_plot(_panels(settings, titles, facts), mode) for mode in (False, True))
    pictures, scale = _pictures(settings, titles, results)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        status=status,
        headline=escape(headline(checks)),
        summary=escape(summary(facts)),
        pictures=pictures,
        scale=scale,
        plot_light=light,
        plot_dark=dark,
        checks="\n".join(_check_row(check) for check in checks),
        runs="\n".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in run_rows(facts)
        ),
        facts="\n".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in fact_rows(facts)
        ),
        positive=escape(facts["prompts"]["text"]["positive"]),
        negative=escape(facts["prompts"]["text"]["negative"]),
    )


def _pictures(settings, titles, results) -> tuple[str, str]:
    """Returns the rows of pictures, one for each frame, and the scale below them."""
    shown = [name for name in ("one", "unfixed", "fixed") if name in results]
    if len(shown) == 1:
        shown.append("unfixed-one")
    final = {name: results[name]["trajectory"][-1].float().numpy() for name in shown}
    patch = settings.config["latent_patch_size"]
    palette = Palette(final["one"], patch)
    others = shown[1:]
    maps = {name: difference(final[name], final["one"]) for name in others}
    low, high = _scale(maps, settings.dtype)

    columns: list[tuple[str, Callable[[], np.ndarray]]] = [
        (titles[name], palette.colours(final[name])) for name in shown
    ]
    # Cut to whole patches, as the pictures of latents are, so that places lie side by side.
    height, width = (max(n // patch * patch, 1) for n in final["one"].shape[2:])
    columns += [
        (
            f"difference: {titles[name]}",
            log_colours(maps[name][:, :height, :width], low, high),
        )
        for name in others
    ]
    frames = final["one"].shape[1]
    chosen = sorted({round(i * (frames - 1) / (FRAMES - 1)) for i in range(FRAMES)})
    shape = "wide" if width > 1.2 * height else "tall"
    lines = [f'<div class="pictures {shape}" style="--columns: {len(columns)}">']
    lines += [f'<div class="head">{escape(title)}</div>' for title, _ in columns]
    for frame in chosen:
        for title, pixels in columns:
            label = f"{title}, latent frame {frame}"
            lines.append(f'<img src="{png(pixels[frame])}" alt="{escape(label)}">')
    for name in shown:
        if name == "one":
            lines.append(f'<div class="foot">latent frames {", ".join(map(str, chosen))}</div>')
            continue
        lines.append('<div class="foot"></div>')
    for name in others:
        whole = math.sqrt(float((maps[name] ** 2).mean()))
        text = "equal to the last bit" if whole == 0 else f"{whole:.1e} over all frames"
        lines.append(f'<div class="foot">{text}</div>')
    lines.append("</div>")
    decades = round(math.log10(high / low))
    every = max(1, decades // 8)
    ticks = "".join(
        f'<span style="left: {100 * i / decades:.2f}%">{_power(low, i)}</span>'
        for i in range(0, decades + 1, every)
    )
    scale = (
        f'<img src="{png(colour_bar())}" alt="from {low:.0e} to {high:.0e}">'
        f'<div class="ticks">{ticks}</div>'
    )
    return "\n".join(lines), scale


def _scale(maps: dict[str, np.ndarray], dtype: str) -> tuple[float, float]:
    """Returns one range, in whole decades, for all difference maps."""
    largest = max((float(values.max()) for values in maps.values()), default=0.0)
    low = 10.0 ** math.floor(math.log10(FORWARD_LIMIT[dtype]) - 2)
    high = 10.0 ** math.ceil(math.log10(largest)) if 0 < largest < math.inf else 1.0
    return low, max(high, low * 100)


def _power(low: float, decades: int) -> str:
    exponent = round(math.log10(low)) + decades
    return f"1e{exponent}" if exponent < 0 else f"{10**exponent}"


def _panels(settings, titles, facts):
    errors, limit = facts["errors"], forward_limit(settings)
    pairs = [
        ("unfixed-vs-one", "unfixed", "unfixed"),
        ("fixed-vs-one", "fixed", "fixed"),
        ("one-vs-float32", "plain", "one rank against float32"),
    ]
    if settings.ranks == 1:
        pairs[1] = ("unfixed-one-vs-one", "fixed", "one rank, unfixed")
    lengths = facts["prompts"]["lengths"]
    forward = [
        (f"{label}, {sample} ({lengths[sample]} tokens)", role, errors[key][sample])
        for key, role, label in pairs
        if key in errors
        for sample in SAMPLES
    ]
    trails = [
        (titles[name], role, errors[f"trajectory/{name}-vs-one"])
        for name, role in (("unfixed", "unfixed"), ("fixed", "fixed"), ("float32", "plain"))
        if f"trajectory/{name}-vs-one" in errors
    ]
    panels = [("velocity of one forward, from the same latents", forward, limit)]
    if trails:
        panels.append(("latents of a run of its own, after each step", trails, None))
    return panels


def _check_row(check: Check) -> str:
    limit = check.limit_text().replace("<=", "≤ ").replace(">", "> ")
    cells = (check.name, figure(check.measured), limit, check.note)
    return (
        f'<tr class="{check.status.lower()}"><td><b>{check.status}</b></td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "status": check.status,
        "measured": check.measured,
        "limit": check.limit,
        "direction": "above" if check.above else "at most",
        "note": check.note,
    }


def _finite_json(value: Any) -> Any:
    """Returns the value with numbers that JSON does not know as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_json(item) for item in value]
    return value
