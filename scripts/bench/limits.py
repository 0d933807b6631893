# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the measured times have to hold, as ratios within one run, and the tables that show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def _ratio(times: dict[str, dict[str, float]], ours: str, other: str) -> float:
    return times[ours]["median_ms"] / times[other]["median_ms"]


def _attention_limits(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields (competitor, limit on ours / competitor) for one attention."""
    rows, unequal = record["video_rows"], len(set(record["lengths"])) > 1
    if record["backend"] == "FA4":
        yield "unfixed", 0.95 if rows <= 1024 else 1.02
        if rows <= 1024:
            yield "loop", 0.5
        elif rows >= 16384:
            yield "loop", 1.02
        yield "ideal", 1.05
    elif unequal:
        if rows >= 4096:
            yield "loop", 1.05
        yield "mask", 0.80 if rows >= 4096 else 1.02


def _step_limits(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields (competitor, limit on ours / competitor) for one denoising step."""
    if record["video_rows"] >= 16384 and record["size"] == "nano":
        limit = 1.00 if record["backend"] == "FA4" else 1.02
        yield "unfixed", limit
        yield "loop", limit
    elif record["video_rows"] <= 1024:
        yield "loop", 0.8


def checks(attention: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one {name, status, measured, limit} for each limit that the records can speak of."""
    found = []

    def add(name, measured, limit):
        status = "PASS" if measured <= limit else "FAIL"
        found.append({"name": name, "status": status, "measured": measured, "limit": limit})

    for record in attention:
        heads = "x".join(map(str, record["heads"]))
        lengths = "x".join(map(str, record["lengths"]))
        name = f"attention-{record['backend']}-heads{heads}-video{record['video_rows']}-{lengths}"
        for other, limit in _attention_limits(record):
            add(f"{name}/vs-{other}", _ratio(record["eager"], "ours", other), limit)
    for record in steps:
        name = f"step-{record['size']}-{record['backend']}-video{record['video_rows']}"
        name += f"-ranks{record['ranks']}"
        for other, limit in _step_limits(record):
            add(f"{name}/vs-{other}", _ratio(record["step"], "ours", other), limit)
        if "graph" in record["step"]:
            for other, limit in (("ours", 0.8), ("loop", 0.6)):
                add(f"{name}/graph-vs-{other}", _ratio(record["step"], "graph", other), limit)
        if "peak_bytes" in record and record["size"] == "nano":
            peaks = record["peak_bytes"]
            add(f"{name}/peak-memory-vs-unfixed", peaks["ours"] / peaks["unfixed"], 1.01)
    return found


def _time(times: dict[str, dict[str, float]], variant: str) -> str:
    if variant not in times:
        return "-"
    entry = times[variant]
    median, low, high = (_ms(entry[name]) for name in ("median_ms", "low_ms", "high_ms"))
    return f"{median} [{low}, {high}]"


def _ms(time: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{time:.0f}" if time >= 100 else f"{time:.3g}"


def tables(attention: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns {title, columns, rows} for each question."""
    found = []
    variants = ["unfixed", "loop", "mask", "ours", "ideal"]
    for mode, how in (("eager", "launched one by one"), ("graph", "replayed from a CUDA graph")):
        rows = []
        for record in attention:
            if mode in record:
                rows.append(
                    [
                        record["backend"],
                        "/".join(map(str, record["heads"])),
                        record["video_rows"],
                        ", ".join(map(str, record["lengths"])),
                        *(_time(record[mode], variant) for variant in variants),
                    ]
                )
        if rows:
            columns = ["backend", "heads", "video rows", "text lengths", *variants]
            title = f"One attention, ms, median [quartiles], {how}"
            found.append({"title": title, "columns": columns, "rows": rows})
    if not steps:
        return found
    variants = ["unfixed", "loop", "ours", "graph"]
    key = ["size", "backend", "ranks", "video rows"]
    for part, title in (("layer", "One generation layer"), ("step", "One denoising step")):
        rows = [
            [
                *(r[name.replace(" ", "_")] for name in key),
                *(_time(r[part], v) for v in variants),
            ]
            for r in steps
        ]
        columns = [*key, *variants]
        if part == "step":
            columns.append("linear layers")
            for row, r in zip(rows, steps):
                row.append(_ms(r["matrix_products_ms"]) if "matrix_products_ms" in r else "-")
        title = f"{title} under Ulysses, ms, median [quartiles]"
        found.append({"title": title, "columns": columns, "rows": rows})
    rows, variants = [], variants[:3]
    for record in steps:
        peaks, sent = record.get("peak_bytes", {}), record["bytes_sent_per_layer"]
        memory = [f"{peaks[v] / 2**30:.2f}" if v in peaks else "-" for v in variants]
        megabytes = [f"{sent[v] / 1e6:.2f}" for v in variants]
        rows.append([*(record[name.replace(" ", "_")] for name in key), *memory, *megabytes])
    columns = list(key)
    columns += [f"peak GiB, {v}" for v in variants] + [f"MB sent, {v}" for v in variants]
    title = "Peak memory per rank, and bytes that one rank sends in one layer"
    found.append({"title": title, "columns": columns, "rows": rows})
    return found
