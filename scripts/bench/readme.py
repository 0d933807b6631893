# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md and results/README.md: `python -m bench.readme [--check]`.

Both are made from the result files; a test holds them against what this writes, so that no number
is typed by hand. README.md shows parity's results, sizes together, and what a user waits for, one
table each, results/README.md everything, each limit too.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

from . import limits

ROOT = Path(__file__).resolve().parents[2]
START = "<!-- {}: made by `make readme` from results/, do not edit -->"
END = "<!-- end of {} -->"


def parity(folder: Path, brief: bool = False) -> str:
    """Returns one table of all parity results in a folder, by file name.

    Args:
        folder: Holds parity-*.json.
        brief: One row for all sizes of a video that differ in nothing else, with the worst of them.
    """
    groups: dict[tuple, list] = {}
    for path in sorted(folder.glob("parity-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        settings = result["settings"]
        case = (
            *(() if brief else (f"`results/{path.name}`",)),
            result["device"],
            (result.get("checkout") or {}).get("base", "embedded host"),
            *(settings[name] for name in ("size", "dtype", "backend")),
            _layout(settings),
            result["machine"]["processes"],
        )
        groups.setdefault(case, []).append(result)
    rows = []
    for case, results in groups.items():
        checks = [check for result in results for check in result["checks"]]
        counts = Counter(check["status"] for check in checks)
        sizes = sorted(result["settings"]["video_rows"] for result in results)
        rows.append(
            [
                *case,
                ", ".join(map(str, sizes)),
                _worst(checks, "fixed-vs-one/"),
                _worst(checks, "one-vs-float32/", "one-vs-oracle/"),
                _worst(checks, "fixed-vs-float32/", "fixed-vs-oracle/"),
                _worst(checks, "unfixed-seen", "unfixed-vs-one"),
                ", ".join(f"{counts[status]} {status}" for status in sorted(counts)),
            ]
        )
    columns = [
        *(() if brief else ("file",)), "device", "files of", "model", "dtype", "backend", "layout",
        "over", "rows", "fixed, from one rank", "one rank, from exact", "fixed, from exact",
        "unfixed, from one rank", "checks",
    ]  # fmt: skip
    title = "Relative L2 distance of velocities, of the worse prompt"
    return markdown_table({"title": title, "columns": columns, "rows": rows})


def _worst(checks: list[dict], *prefixes: str) -> str:
    found = [check["measured"] for check in checks if check["name"].startswith(prefixes)]
    found = [measured for measured in found if measured is not None]
    return f"{max(found):.2g}" if found else "-"


def _layout(settings: dict) -> str:
    """Returns the axes of a layout as `make parity` takes them; one rank has none."""
    sizes = dict(settings["layout"])
    mesh = [sizes.pop(f"attn2d_{side}_size", 1) for side in ("row", "col")]
    axes = [f"{axis.removesuffix('_size')}={size}" for axis, size in sizes.items()]
    axes += ["attn2d={}x{}".format(*mesh)] if max(mesh) > 1 else []
    return ",".join(axes) or "one rank"


def performance(folder: Path) -> str:
    """Returns what a user feels, one table of all bench results in a folder, newest first.

    Args:
        folder: Holds bench-*.json. Of a case that was measured again the newest is shown.
    """
    rows, sources, results = {}, [], _bench(folder)
    case = limits.REQUEST_COLUMNS.index("of") + 1
    # Steps by themselves only where no request was measured, which has more variants.
    for part, (path, result) in itertools.product(("request", "step"), results):
        for record in result.get(part, ()):
            for row in limits.request_rows(record, limits.median):
                if tuple(row[:case]) not in rows:
                    rows[tuple(row[:case])] = row
                    sources += [] if (path, result) in sources else [(path, result)]
    if not rows:
        return ""
    rows = sorted(rows.values(), key=lambda row: (*row[: case - 1], int(row[case - 1].split()[0])))
    title = "Seconds that a request of two prompts takes, medians"
    table = markdown_table({"title": title, "columns": limits.REQUEST_COLUMNS, "rows": rows})
    listed = "\n".join(f"- {_source(*source)}" for source in sources)
    return f"{table}\n\nFrom these files; results/README.md has all tables and limits:\n\n{listed}"


def section(folder: Path) -> str:
    """Returns all tables of all bench results in a folder, and each limit, the newest first.

    Args:
        folder: Holds bench-*.json.
    """
    parts = []
    for path, result in _bench(folder):
        versions = ", ".join(f"{name} {v}" for name, v in sorted(result["versions"].items()))
        parts.append(f"{_source(path, result)}; {versions}.")
        parts += [markdown_table(table) for table in limits.tables(result)]
        if result["checks"]:
            rows = [
                [c["status"], c["name"], f"{c['measured']:.3f}", f"{c['limit']:.2f}"]
                for c in result["checks"]
            ]
            columns = ["", "ours / other", "measured", "limit"]
            parts.append(markdown_table({"title": "Limits", "columns": columns, "rows": rows}))
    return "\n\n".join(parts)


def _bench(folder: Path) -> list[tuple[Path, dict]]:
    found = [(path, json.loads(path.read_text("utf-8"))) for path in folder.glob("bench-*.json")]
    return sorted(found, key=lambda pair: (pair[1]["date"], pair[0]), reverse=True)


def _source(path: Path, result: dict) -> str:
    checks = result["checks"]
    held = sum(check["status"] == "PASS" for check in checks)
    return (
        f"`results/{path.name}`: {result['device']}, {result['date'][:10]}, commit "
        f"{result['commit'][:12]}, {held} of {len(checks)} limits held"
    )


def markdown_table(table: dict) -> str:
    """Returns {"title", "columns", "rows"} as Markdown; an empty title is left out."""
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
    text = rewritten(readme.read_text(encoding="utf-8"), "parity", parity(folder, brief=True))
    return {
        readme: rewritten(text, "performance", performance(folder)),
        folder / "README.md": f"{head}{parity(folder)}\n\n{section(folder)}\n",
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
