# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Show: the report of a result file, and of nothing else: a Markdown table and one HTML page.

`python -m parity.show RESULT.json` (`make report RESULT=...`) draws any result again, those of
format 1 without pictures, which they do not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections import Counter
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from hostpath import ROOT

from parity.judge import SAMPLES, Check, figure, limit_text
from parity.pictures import colour_bar, error_plot

REPORT_FILES = ("parity.json", "parity.md", "report.html")
TEMPLATE = Path(__file__).parent / "report.html.in"


def main(argv: list[str] | None = None) -> int:
    """Draws a result file; returns 0, or 2 where it is none or its report cannot be written."""
    parser = argparse.ArgumentParser(prog="report", description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, help="a result file of make parity")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "report", metavar="DIR")
    args = parser.parse_args(argv)
    try:
        check_output(args.out)
        write_report(read_result(args.result), args.out)
    except ValueError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"see {shown_path(args.out / 'report.html')}")
    return 0


def read_result(path: Path) -> dict[str, Any]:
    """Reads a result file.

    Raises:
        ValueError: It is no result of the parity run.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); give a result of make parity."
        ) from error
    if not isinstance(record, dict) or record.get("kind") != "parity":
        raise ValueError(f"{path} is no result of the parity run; give one, such as parity.json.")
    if record.get("format") not in (1, 2):
        raise ValueError(f"{path} has format {record.get('format')!r}; this reads 1 and 2.")
    return record


def check_output(out: Path) -> None:
    """Refuses a report folder that cannot be written, or that holds anything but a report.

    Raises:
        ValueError: The folder would not take a report, or replacing it would lose other files.
    """
    advice = "give a new folder, an empty one, or one with an earlier report"
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; {advice}.")
    try:
        foreign = sorted(p.name for p in out.iterdir() if p.name not in REPORT_FILES)[:3]
    except FileNotFoundError:
        foreign = []
    except OSError as error:
        raise ValueError(f"--out {out} cannot be read ({error}); {advice}.") from error
    if foreign:
        raise ValueError(
            f"--out {out} holds {', '.join(foreign)}, which no report wrote and which replacing "
            f"the folder would lose; {advice}."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".parity-", dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error}); {advice}.") from error


def write_report(record: dict[str, Any], out: Path) -> None:
    """Writes the report beside its place and then puts it there in one step.

    Args:
        record: A result.
        out: The report's folder; an earlier report there is replaced.

    Raises:
        ValueError: The report could not be put in its place.
    """
    with tempfile.TemporaryDirectory(prefix=".parity-", dir=out.parent) as scratch:
        new = Path(scratch) / "report"
        new.mkdir()
        text = json.dumps(_finite_json(record), indent=1)
        (new / "parity.json").write_text(text + "\n", encoding="utf-8")
        (new / "parity.md").write_text(markdown(record), encoding="utf-8")
        (new / "report.html").write_text(html(record), encoding="utf-8")
        replace_folder(new, out)


def replace_folder(new: Path, out: Path) -> None:
    """Puts a finished folder where another may be; at no moment is there a mixture of both.

    Raises:
        ValueError: The folder cannot be moved; the earlier one is where it was.
    """
    with tempfile.TemporaryDirectory(prefix=".parity-old-", dir=out.parent) as folder:
        aside = Path(folder) / out.name
        try:
            if out.exists():
                os.rename(out, aside)
            os.rename(new, out)
        except OSError as error:
            if aside.exists():
                os.rename(aside, out)
            raise ValueError(
                f"--out {out} cannot be replaced ({error}); give a new folder."
            ) from error


def shown_path(path: Path) -> str:
    """Returns a path as seen from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def markdown(record: dict[str, Any]) -> str:
    """Returns the checks and the facts behind them as Markdown tables."""
    lines = [f"# Parity: {headline(record['checks'])}", "", summary(record), ""]
    lines += ["| | check | measured | limit | |", "|---|---|---:|---:|---|"]
    lines += [f"| {' | '.join(_cells(check))} |" for check in record["checks"]]
    lines += ["", "| run | ranks | forward, s | text K/V per rank, bytes | memory |"]
    lines += ["|---|---:|---:|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in run_rows(record)]
    lines += ["", *(f"- {name}: {value}" for name, value in fact_rows(record)), ""]
    return "\n".join(lines)


def headline(checks: list[Check]) -> str:
    """Returns the result in a few words."""
    counts = Counter(check["status"] for check in checks)
    made = counts["PASS"] + counts["FAIL"]
    failed = f"{counts['FAIL']} of {made} checks failed"
    text = failed if counts["FAIL"] else f"all {made} checks passed"
    return text + (f", {counts['SKIP']} skipped" if counts["SKIP"] else "")


def summary(record: dict[str, Any]) -> str:
    """Returns one sentence on what was run."""
    settings, lengths = record["settings"], record["prompts"]["lengths"]
    frames, height, width = settings["video"]
    kind = "this project's" if settings["size"] == "learned" else "random"
    model = settings["checkpoint"] or f"{settings['size']} ({kind} weights)"
    ranks = f"{settings['ranks']} rank" + ("s" if settings["ranks"] != 1 else "")
    if settings["layout"].keys() - {"ulysses_size"}:
        ranks += f" ({', '.join(f'{axis} {size}' for axis, size in settings['layout'].items())})"
    if record.get("checkout"):
        ranks += ", on a TensorRT-LLM checkout's own files"
    if "requests" in settings:
        graphs = " from graphs" if settings["graphs"] else ""
        return (
            f"{model} on {ranks}, {settings['dtype']}, {settings['backend']}, on "
            f"{record['machine']['device_name']}; whole requests{graphs}: "
            f"{', '.join(settings['requests'])}; {settings['steps']} steps, guidance "
            f"{settings['guidance']:g}. The latents drawn are the first request's."
        )
    others = "".join(
        f"; besides, {case['name']}: prompts of {case['prompts']['negative']} and "
        f"{case['prompts']['positive']} tokens, {case['rows']} rows, {case['steps']} steps"
        for case in settings.get("cases", ())[1:]
    )
    return (
        f"{model} on {ranks}, {settings['dtype']}, {settings['backend']}, on "
        f"{record['machine']['device_name']}; prompts of {lengths['negative']} and "
        f"{lengths['positive']} tokens, latents of {frames} x {height} x {width}, "
        f"{settings['video_rows']} video rows, {settings['steps']} steps, guidance "
        f"{settings['guidance']:g}{others}."
    )


def run_rows(record: dict[str, Any]) -> list[list[str]]:
    """Returns one row for each run: title, ranks, time, bytes of text, memory."""
    rows = []
    for run in record["runs"]:
        seconds = run["median_forward_seconds"] or run["first_forward_seconds"]
        held = [value for value in run["text_bytes"] if value is not None]
        device = [value for value in run["device_peak_bytes"] if value is not None]
        memory = f"{run['peak_bytes'] / 2**30:.2f} GiB"
        if device:
            memory = f"{max(device) / 2**30:.2f} GiB per GPU"
        text = f"{max(held):,}" if held else "-"
        rows.append([run["title"], str(run["ranks"]), f"{seconds:.3g}", text, memory])
    return rows


def fact_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns names and values of what the figures depend on."""
    machine, prompts, cost = record["machine"], record["prompts"], record["cost"]
    fixed = _fixed_run(record)
    return [
        ("command", record["command"]),
        ("date", record["date"]),
        ("device", f"{machine['device_name']}, {machine['cores']} cores, {machine['processes']}"),
        ("versions", ", ".join(f"{name} {value}" for name, value in record["versions"].items())),
        ("this project", f"commit {record['commit']}"),
        ("attention", fixed["attention"]),
        ("matrix products", _products(record)),
        *_checkout_rows(record),
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


def _fixed_run(record: dict[str, Any]) -> dict[str, Any]:
    return next((run for run in record["runs"] if run["name"] == "fixed"), record["runs"][0])


def _products(record: dict[str, Any]) -> str:
    found = record.get("matrix_products") or {"settings": [], "uneven": []}
    text = "torch's defaults"
    if found["settings"]:
        text = f"independent of the number of rows, by {' and '.join(found['settings'])}"
    if found["uneven"]:
        text += f"; these depend on the number of rows: {', '.join(found['uneven'])}"
    return text


def _checkout_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns which files were a checkout's own, and what was done to them from outside."""
    checkout = record.get("checkout")
    if not checkout:
        return []

    def listed(side: str) -> str:
        files = (f"{f['path'].partition('visual_gen/')[2]} {f['sha256'][:16]}" for f in side)
        return "; ".join(files) or "none"

    files, fixed = checkout["files"], _fixed_run(record)
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


def html(record: dict[str, Any]) -> str:
    """Returns the page, with its pictures inside."""
    checks, texts = record["checks"], record["prompts"]["text"]
    status = "fail" if any(check["status"] == "FAIL" for check in checks) else "pass"
    panels = _panels(record)
    light, dark = (error_plot(panels, mode) for mode in (False, True))
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        status=status,
        headline=escape(headline(checks)),
        summary=escape(summary(record)),
        pictures=_pictures(record),
        films="\n".join(_film(**film) for film in record.get("films", ())),
        plot_light=light,
        plot_dark=dark,
        checks="\n".join(_row(_cells(check), check["status"].lower()) for check in checks),
        runs="\n".join(_row(row) for row in run_rows(record)),
        facts="\n".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in fact_rows(record)
        ),
        positive=escape(texts["positive"]),
        negative=escape(texts["negative"]),
    )


def _cells(check: Check) -> list[str]:
    limit = limit_text(check).replace("<=", "≤ ").replace(">", "> ")
    return [check["status"], check["name"], figure(check["measured"]), limit, check["note"]]


def _row(cells: list[str], status: str | None = None) -> str:
    shown = [escape(cell) for cell in cells]
    if status is not None:
        shown[0] = f"<b>{shown[0]}</b>"
    row = f'<tr class="{status}">' if status else "<tr>"
    return row + "".join(f"<td>{cell}</td>" for cell in shown) + "</tr>"


def _pictures(record: dict[str, Any]) -> str:
    """Returns the rows of pictures, one for each frame, and the scale below them."""
    drawn = record.get("pictures")
    if not drawn:
        return '<p class="soft">This result holds no pictures of them.</p>'
    columns, frames = drawn["columns"], drawn["frames"]
    lines = [f'<div class="pictures {drawn["shape"]}" style="--columns: {len(columns)}">']
    lines += [f'<div class="head">{escape(column["title"])}</div>' for column in columns]
    for row, frame in enumerate(frames):
        for column in columns:
            label = escape(f"{column['title']}, latent frame {frame}")
            lines.append(f'<img src="{_uri(column["images"][row])}" alt="{label}">')
    feet = [f"latent frames {', '.join(map(str, frames))}", *(c["foot"] for c in columns[1:])]
    lines += [f'<div class="foot">{escape(foot)}</div>' for foot in feet]
    low, high = drawn["range"]
    decades = round(math.log10(high / low))
    ticks = "".join(
        f'<span style="left: {100 * i / decades:.2f}%">{_power(low, i)}</span>'
        for i in range(0, decades + 1, max(1, decades // 8))
    )
    lines.append(
        f'</div><div class="scale"><img src="{_uri(colour_bar())}" alt="from {low:.0e} to '
        f'{high:.0e}"><div class="ticks">{ticks}</div></div>'
    )
    return "\n".join(lines)


def _film(name: str, rows: list[str], strips: list[str], animation: str) -> str:
    """Returns the section of a request: an animation, and a strip of each chunk's frames."""
    pictures = [("moving", _uri(animation, "gif"))]
    pictures += [(f"chunk {number}", _uri(strip)) for number, strip in enumerate(strips)]
    images = "".join(
        f'<p class="foot">{text}</p><img src="{uri}" alt="{name}, {text}">'
        for text, uri in pictures
    )
    order = escape(", ".join(rows))
    return (
        f'<section class="film"><h2>The frames: {name}</h2><p class="soft">From left to right, and '
        f"below from top to bottom: {order}.</p>{images}</section>"
    )


def _uri(data: str, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{data}"


def _power(low: float, decades: int) -> str:
    exponent = round(math.log10(low)) + decades
    return f"1e{exponent}" if exponent < 0 else f"{10**exponent}"


def _panels(record: dict[str, Any]):
    """Returns what error_plot() takes: velocities by forward, and latents by step."""
    errors, lengths = record["errors"], record["prompts"]["lengths"]
    names = record["settings"].get("requests")
    if names:
        keys = [("" if i == 0 else f"{name}/") + "trajectory/" for i, name in enumerate(names)]
        return [
            (
                f"latents after each step, {run['title']}",
                [(n, n, errors[f"{key}{run['name']}-vs-one"]) for n, key in zip(names, keys)],
                None,
            )
            for run in record["runs"][1:]
        ]
    pairs = [
        ("unfixed-vs-one", "unfixed", "unfixed"),
        ("fixed-vs-one", "fixed", "fixed"),
        ("one-vs-float32", "plain", "one rank against float32"),
    ]
    if record["settings"]["ranks"] == 1:
        pairs[1] = ("unfixed-one-vs-one", "fixed", "one rank, unfixed")
    limits = {check["name"]: check["limit"] for check in record["checks"]}
    forward = [
        (f"{label}, {sample} ({lengths[sample]} tokens)", role, errors[key][sample])
        for key, role, label in pairs
        if key in errors
        for sample in SAMPLES
    ]
    titles = {run["name"]: run["title"] for run in record["runs"]}
    trails = [
        (titles[name], role, errors[f"trajectory/{name}-vs-one"])
        for name, role in (("unfixed", "unfixed"), ("fixed", "fixed"), ("float32", "plain"))
        if f"trajectory/{name}-vs-one" in errors
    ]
    limit = limits.get(f"{pairs[1][0]}/batch")
    panels = [("velocity of one forward, from the same latents", forward, limit)]
    if trails:
        panels.append(("latents of a run of its own, after each step", trails, None))
    return panels


def _finite_json(value: Any) -> Any:
    """Returns the value with numbers that JSON does not know as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_json(item) for item in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
