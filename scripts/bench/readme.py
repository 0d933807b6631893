# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md and results/README.md: `python -m bench.readme [--check]`.

Both are made from the result files; a test holds them against what this writes, so that no number
is typed by hand. README.md shows the questions that a reader has first, results/README.md all.
Parity's results are one table, those of the benchmark a few for each file.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from . import limits

ROOT = Path(__file__).resolve().parents[2]
START = "<!-- {}: made by `make readme` from results/, do not edit -->"
END = "<!-- end of {} -->"


# What README.md takes: the start of a table's title, and what its rows have to hold.
FIRST = {
    "One attention, ms, median [quartiles], launched one by one": {"text lengths": "30, 700"},
    "One denoising step": {},
}


def parity(folder: Path) -> str:
    """Returns one table of all parity results in a folder, by file name.

    Args:
        folder: Holds parity-*.json.
    """
    rows = []
    for path in sorted(folder.glob("parity-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        settings, checks = result["settings"], result["checks"]

        def worst(*prefixes, checks=checks):
            found = [c["measured"] for c in checks if c["name"].startswith(prefixes)]
            found = [measured for measured in found if measured is not None]
            return f"{max(found):.2g}" if found else "-"

        counts = Counter(check["status"] for check in checks)
        rows.append(
            [
                f"`results/{path.name}`",
                result["device"],
                *(settings[name] for name in ("size", "dtype", "backend", "ranks")),
                result["machine"]["processes"],
                settings["video_rows"],
                worst("fixed-vs-one/"),
                worst("one-vs-float32/", "one-vs-oracle/"),
                worst("fixed-vs-float32/", "fixed-vs-oracle/"),
                worst("unfixed-seen"),
                ", ".join(f"{counts[status]} {status}" for status in sorted(counts)),
            ]
        )
    columns = [
        "file", "device", "model", "dtype", "backend", "ranks", "over", "rows",
        "fixed, from one rank", "one rank, from exact", "fixed, from exact",
        "unfixed, from one rank", "checks",
    ]  # fmt: skip
    title = "Relative L2 distance of velocities, of the worse prompt"
    return _table({"title": title, "columns": columns, "rows": rows})


def section(folder: Path, whole: bool) -> str:
    """Returns the Markdown of all bench results in a folder, the newest first.

    Args:
        folder: Holds bench-*.json.
        whole: Whether to show every table and row, or the tables of FIRST, and of cases that were
            measured again the newest only.
    """
    found = [(path, json.loads(path.read_text("utf-8"))) for path in folder.glob("bench-*.json")]
    parts, shown = [], set()
    for path, result in sorted(found, key=lambda pair: pair[1]["date"], reverse=True):
        missed = [check for check in result["checks"] if check["status"] != "PASS"]
        versions = ", ".join(f"{name} {v}" for name, v in sorted(result["versions"].items()))
        parts.append(
            f"`results/{path.name}`: {result['device']}, {result['date'][:10]}, commit "
            f"{result['commit'][:12]}, {versions}; {len(result['checks']) - len(missed)} of "
            f"{len(result['checks'])} limits held."
        )
        for table in limits.tables(result["attention"], result["step"]):
            if whole:
                parts.append(_table(table))
                continue
            for title, wanted in FIRST.items():
                if table["title"].startswith(title):
                    table = _unseen(_filtered(table, wanted), shown)
                    parts += [_table(table)] if table["rows"] else []
        if not whole:
            missed = [check for check in missed if check["name"] not in shown]
            shown.update(check["name"] for check in result["checks"])
        if missed:
            rows = [[c["name"], f"{c['measured']:.3f}", f"{c['limit']:.2f}"] for c in missed]
            columns = ["not held: ours / other", "measured", "limit"]
            parts.append(_table({"title": "", "columns": columns, "rows": rows}))
    return "\n\n".join(parts)


def _unseen(table: dict, shown: set) -> dict:
    """Leaves out the cases that a newer table of that title has shown; what follows is measured."""
    case = table["columns"].index("unfixed")
    rows = [row for row in table["rows"] if (table["title"], *row[:case]) not in shown]
    shown.update((table["title"], *row[:case]) for row in rows)
    return dict(table, rows=rows)


def _filtered(table: dict, wanted: dict[str, str]) -> dict:
    rows = [
        row
        for row in table["rows"]
        if all(row[table["columns"].index(name)] == value for name, value in wanted.items())
    ]
    return dict(table, rows=rows)


def _table(table: dict) -> str:
    head = f"| {' | '.join(table['columns'])} |\n|{'---|' * len(table['columns'])}"
    rows = "\n".join(f"| {' | '.join(map(str, row))} |" for row in table["rows"])
    title = f"**{table['title']}**\n\n" if table["title"] else ""
    return f"{title}{head}\n{rows}"


def rewritten(readme: str, name: str, text: str) -> str:
    """Returns the README with one of its generated sections made anew.

    Raises:
        ValueError: A marker is missing or stands twice.
    """
    start, end = START.format(name), END.format(name)
    if readme.count(start) != 1 or readme.count(end) != 1:
        raise ValueError(f"README.md needs the lines {start!r} and {end!r} once each")
    before, _, rest = readme.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n\n{text}\n\n{end}{after}"


def files() -> dict[Path, str]:
    """Returns what each generated file has to hold."""
    readme, folder = ROOT / "README.md", ROOT / "results"
    head = "# Results\n\nMade by `make readme` from the files beside this one; do not edit.\n\n"
    text = rewritten(readme.read_text(encoding="utf-8"), "parity", parity(folder))
    return {
        readme: rewritten(text, "performance", section(folder, whole=False)),
        folder / "README.md": f"{head}{parity(folder)}\n\n{section(folder, whole=True)}\n",
    }


def main(argv: list[str]) -> int:
    """Rewrites both files; with --check only says whether one would change (exit 1)."""
    stale = 0
    for path, text in files().items():
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        if argv == ["--check"]:
            stale += not same
            print(f"{'PASS' if same else 'FAIL'} {path.relative_to(ROOT)} {same} equal to results/")
        elif not same:
            path.write_text(text, encoding="utf-8")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
