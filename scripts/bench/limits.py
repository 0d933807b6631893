# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the measured times have to hold, as ratios within one run, and the tables that show them.

A result file has a list of records for each part that was run: "attention", "step", "request".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Record = dict[str, Any]
# What timing.summary() says, by variant.
Times = dict[str, dict[str, float]]
KEY = ("size", "backend", "ranks", "video rows")
# A graph of the prompt's bucket is there already, or has to be captured.
KNOWN, NEW = "graph", "graph, new bucket"
REQUEST_VARIANTS = ("unfixed", "loop", "cfg2", "ours", NEW, KNOWN)
REQUEST_COLUMNS = [*KEY, "of", *REQUEST_VARIANTS]


def _ratio(times: Times, ours: str, other: str) -> float:
    return times[ours]["median_ms"] / times[other]["median_ms"]


def _attention_limits(record: Record) -> Iterator[tuple[str, float, float]]:
    """Yields (competitor, ours / competitor, limit) for one attention."""
    rows, unequal = record["video_rows"], len(set(record["lengths"])) > 1
    limits = {}
    if record["backend"] == "FA4":
        limits["unfixed"] = 0.95 if rows <= 1024 else 1.02
        if rows <= 1024:
            limits["loop"] = 0.5
        elif rows >= 16384:
            limits["loop"] = 1.02
        limits["ideal"] = 1.05
    elif unequal:
        if rows >= 4096:
            limits["loop"] = 1.05
        limits["mask"] = 0.80 if rows >= 4096 else 1.02
    for other, limit in limits.items():
        yield f"vs-{other}", _ratio(record["eager"], "ours", other), limit


def _step_limits(record: Record) -> Iterator[tuple[str, float, float]]:
    """Yields the same for one denoising step, and for memory."""
    pairs = []
    if record["video_rows"] >= 16384 and record["size"] == "nano":
        limit = 1.00 if record["backend"] == "FA4" else 1.02
        pairs = [("ours", "unfixed", limit), ("ours", "loop", limit)]
    elif record["video_rows"] <= 1024:
        pairs = [("ours", "loop", 0.8)]
    if "graph" in record["step"]:
        pairs += [("graph", "ours", 0.8), ("graph", "loop", 0.6)]
    if "row-invariant" in record["step"]:
        pairs += [("row-invariant", "ours", 1.02)]
    for ours, other, limit in pairs:
        name = f"vs-{other}" if ours == "ours" else f"{ours}-vs-{other}"
        yield name, _ratio(record["step"], ours, other), limit
    if "peak_bytes" in record and record["size"] == "nano":
        peaks = record["peak_bytes"]
        yield "peak-memory-vs-unfixed", peaks["ours"] / peaks["unfixed"], 1.01


# Limits on ours / unfixed of a whole request on two GPUs, by its steps, at most 1024 rows.
REQUEST = {4: {"ours": 0.70, KNOWN: 0.40}, 35: {"ours": 0.97, KNOWN: 0.50}}


def _request_limits(record: Record) -> Iterator[tuple[str, float, float]]:
    """Yields the same for the text tower and, on several GPUs, for whole requests."""
    yield "tower-vs-unfixed", _ratio(record["tower"], "ours", "unfixed"), 0.25
    for request in record["requests"] if record["ranks"] > 1 else ():
        composed = "-composed" if request["composed"] else ""
        for variant, limit in REQUEST[request["steps"]].items():
            if record["video_rows"] > 1024:
                limit = 1.00
            name = f"steps{request['steps']}{composed}/{variant}-vs-unfixed"
            yield name, _ratio(request["times"], variant, "unfixed"), limit


def _name(part: str, record: Record) -> str:
    if part == "attention":
        heads, lengths = ("x".join(map(str, record[key])) for key in ("heads", "lengths"))
        return f"{part}-{record['backend']}-heads{heads}-video{record['video_rows']}-{lengths}"
    place = f"video{record['video_rows']}-ranks{record['ranks']}"
    return f"{part}-{record['size']}-{record['backend']}-{place}"


LIMITS = {"attention": _attention_limits, "step": _step_limits, "request": _request_limits}


def checks(result: dict[str, list[Record]]) -> list[Record]:
    """Returns one {name, status, measured, limit} for each limit that the records can speak of."""
    found = []
    for part, limits in LIMITS.items():
        for record in result.get(part, ()):
            for name, measured, limit in limits(record):
                found.append(
                    {
                        "name": f"{_name(part, record)}/{name}",
                        "status": "PASS" if measured <= limit else "FAIL",
                        "measured": measured,
                        "limit": limit,
                    }
                )
    return found


def number(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def median(times: Times, variant: str, unit_ms: float = 1.0) -> str:
    """Median of a variant, or a dash where it was not run."""
    return number(times[variant]["median_ms"] / unit_ms) if variant in times else "-"


def spread(times: Times, variant: str, unit_ms: float = 1.0) -> str:
    """Median [quartiles] of a variant, or a dash where it was not run."""
    if variant not in times:
        return "-"
    low, high = (number(times[variant][name] / unit_ms) for name in ("low_ms", "high_ms"))
    return f"{median(times, variant, unit_ms)} [{low}, {high}]"


def _case(record: Record) -> list:
    return [record[name.replace(" ", "_")] for name in KEY]


def tables(result: dict[str, list[Record]]) -> list[dict[str, Any]]:
    """Returns {title, columns, rows} for each question that was asked."""
    found = [
        *_attention_tables(result.get("attention", ())),
        *_step_tables(result.get("step", ())),
        *_request_tables(result.get("request", ())),
    ]
    return [table for table in found if table["rows"]]


def _attention_tables(records) -> Iterator[dict[str, Any]]:
    variants = ["unfixed", "loop", "mask", "ours", "ideal"]
    for mode, how in (("eager", "launched one by one"), ("graph", "replayed from a CUDA graph")):
        rows = [
            [
                record["backend"],
                "/".join(map(str, record["heads"])),
                record["video_rows"],
                ", ".join(map(str, record["lengths"])),
                *(spread(record[mode], variant) for variant in variants),
            ]
            for record in records
            if mode in record
        ]
        columns = ["backend", "heads", "video rows", "text lengths", *variants]
        title = f"One attention, ms, median [quartiles], {how}"
        yield {"title": title, "columns": columns, "rows": rows}


def _step_tables(records) -> Iterator[dict[str, Any]]:
    variants = ["unfixed", "loop", "ours"]
    rows = [[*_case(r), *(spread(r["layer"], v) for v in variants)] for r in records]
    title = "One generation layer under Ulysses, ms, median [quartiles]"
    yield {"title": title, "columns": [*KEY, *variants], "rows": rows}
    rows = [
        [
            *_case(r),
            *(spread(r["step"], v) for v in (*variants, "row-invariant", "graph")),
            number(r["matrix_products_ms"]) if "matrix_products_ms" in r else "-",
        ]
        for r in records
    ]
    columns = [*KEY, *variants, "row-invariant", "graph", "linear layers"]
    title = "One denoising step under Ulysses, ms, median [quartiles]"
    yield {"title": title, "columns": columns, "rows": rows}
    rows = []
    for record in records:
        peaks, sent = record.get("peak_bytes", {}), record["bytes_sent_per_layer"]
        memory = [f"{peaks[v] / 2**30:.2f}" if v in peaks else "-" for v in variants]
        rows.append([*_case(record), *memory, *(f"{sent[v] / 1e6:.2f}" for v in variants)])
    columns = [*KEY, *(f"peak GiB, {v}" for v in variants), *(f"MB sent, {v}" for v in variants)]
    title = "Peak memory per rank, and bytes that one rank sends in one layer"
    yield {"title": title, "columns": columns, "rows": rows}


def _request_tables(records) -> Iterator[dict[str, Any]]:
    variants = ["unfixed", "loop", "cfg2", "ours"]
    rows = [[*_case(r), *(spread(r["tower"], v) for v in variants)] for r in records]
    title = "The text tower and what is kept of it, ms, median [quartiles]"
    yield {"title": title, "columns": [*KEY, *variants], "rows": rows}
    rows = [row for record in records for row in request_rows(record, spread)]
    title = "A whole request of two prompts, and one step of it, s, median [quartiles]"
    yield {"title": title, "columns": REQUEST_COLUMNS, "rows": rows}


def request_rows(record: Record, show: Callable[[Times, str, float], str]) -> list[list]:
    """Returns what a user waits for: one step and, where they were measured, whole requests.

    Args:
        record: Of the request part or of the step part.
        show: Called with times, a variant and the milliseconds of a second.
    """
    parts = [("1 step", record["step"])]
    for request in record.get("requests", ()):
        composed = ", composed" if request["composed"] else ""
        parts.append((f"{request['steps']} steps{composed}", request["times"]))
    return [
        [*_case(record), what, *(show(times, variant, 1e3) for variant in REQUEST_VARIANTS)]
        for what, times in parts
    ]
