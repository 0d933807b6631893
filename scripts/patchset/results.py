# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Result files, as the cover text takes them in: the newest of each command, as Markdown.

A result file is results/**/*.json with:
    kind: "parity" or "bench"
    date: ISO 8601
    device, commit, command: text; commit is this project's
    versions: name -> text
    checks: list of {name, status, measured, limit}, and/or
    tables: list of {title, columns, rows}, rows being lists of numbers or text
    checkout: none, or of a run on a checkout's own files {base}: whose cover texts it is for
"""

import json
from dataclasses import dataclass
from pathlib import Path

from .report import Misfit

KINDS = {"parity": "make parity", "bench": "make bench"}


@dataclass(frozen=True)
class Result:
    """One result file."""

    path: Path
    data: dict

    @property
    def commit(self) -> str:
        """The commit of this project that it was measured at."""
        return str(self.data["commit"])

    def markdown(self) -> str:
        """Return its tables with a line that says where and with what they were measured."""
        data = self.data
        versions = ", ".join(f"{name} {v}" for name, v in sorted(data["versions"].items()))
        parts = [
            f"Measured on {data['device']}, {data['date'][:10]}, {versions}. To reproduce:",
            f"```\n{data['command']}\n```",
        ]
        tables = list(data.get("tables", []))
        if data.get("checks"):
            columns = ["name", "status", "measured", "limit"]
            rows = [[check.get(c) for c in columns] for check in data["checks"]]
            tables.insert(0, {"title": "Checks", "columns": columns, "rows": rows})
        for table in tables:
            head = f"| {' | '.join(map(_cell, table['columns']))} |"
            rule = "|" + "---|" * len(table["columns"])
            body = [f"| {' | '.join(map(_cell, row))} |" for row in table["rows"]]
            parts.append("\n".join([f"{table['title']}:", "", head, rule, *body]))
        return "\n\n".join(parts)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def of_kind(folder: Path, kind: str, base: str) -> list[Result]:
    """Return the results of a kind, newest first; of several runs of a command the newest counts.

    Args:
        folder: the result files.
        kind: one of KINDS.
        base: the name of a base: results on another's files are left out.

    Raises:
        Misfit: there is none; the text says what to run.
    """
    found = []
    for path in sorted(folder.rglob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(data, dict) and data.get("kind") == kind:
            missing = {"date", "device", "commit", "command", "versions"} - set(data)
            if missing or not (data.get("checks") or data.get("tables")):
                lacks = ", ".join(sorted(missing)) or "checks or tables"
                raise Misfit(f"{path} has no {lacks}; make it again with {KINDS[kind]}")
            if (data.get("checkout") or {}).get("base") in (None, base):
                found.append(Result(path, data))
    if not found:
        raise Misfit(f"no result of kind {kind!r} in {folder}; run {KINDS[kind]} first")
    found.sort(key=lambda result: result.data["date"])
    return list({result.data["command"]: result for result in found}.values())[::-1]
