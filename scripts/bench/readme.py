# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The README's performance section, made from the result files: `python -m bench.readme [--check]`.

No number is typed into the README; a test holds the section against what this writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = "<!-- performance: made by `make readme` from results/, do not edit -->"
END = "<!-- end of performance -->"


def section(folder: Path) -> str:
    """Returns the Markdown of all bench results in a folder, oldest name first."""
    parts = []
    for path in sorted(folder.glob("bench-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        versions = ", ".join(f"{name} {v}" for name, v in sorted(result["versions"].items()))
        held = [check for check in result["checks"] if check["status"] == "PASS"]
        parts.append(
            f"`results/{path.name}`: {result['device']}, {result['date'][:10]}, commit "
            f"{result['commit'][:12]}, {versions}; {len(held)} of {len(result['checks'])} limits "
            "held."
        )
        parts += [_table(table) for table in result["tables"]]
        missed = [check for check in result["checks"] if check["status"] != "PASS"]
        if missed:
            rows = [[c["name"], f"{c['measured']:.3f}", f"{c['limit']:.2f}"] for c in missed]
            columns = ["not held, ours / other", "measured", "limit"]
            parts.append(_table({"title": "", "columns": columns, "rows": rows}))
    return "\n\n".join(parts)


def _table(table: dict) -> str:
    head = f"| {' | '.join(table['columns'])} |\n|{'---|' * len(table['columns'])}"
    rows = "\n".join(f"| {' | '.join(map(str, row))} |" for row in table["rows"])
    title = f"**{table['title']}**\n\n" if table["title"] else ""
    return f"{title}{head}\n{rows}"


def rewritten(readme: str, folder: Path) -> str:
    """Returns the README with its performance section made anew.

    Raises:
        ValueError: A marker is missing or stands twice.
    """
    if readme.count(START) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md needs the lines {START!r} and {END!r} once each")
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{section(folder)}\n\n{END}{after}"


def main(argv: list[str]) -> int:
    """Rewrites the README; with --check only says whether it would change (exit 1)."""
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = rewritten(old, ROOT / "results")
    if argv == ["--check"]:
        print("PASS readme" if new == old else "FAIL readme differs from results/: make readme")
        return int(new != old)
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
