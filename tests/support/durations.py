# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""How long each tier of tests takes: told after a run, and kept in CONTRIBUTING.md on demand."""

import os
import re
from collections import Counter
from datetime import date
from pathlib import Path

TIERS = ("static", "cpu", "patchset", "gloo", "gpu")
PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
START = "<!-- durations: made by `make test ARGS=--write-durations`, do not edit -->\n"
END = "<!-- end of durations -->\n"
HEAD = "| tier | took | tests | on | date |\n|---|---|---|---|---|\n"


class Durations:
    """A pytest plugin that adds up the time and the outcomes of each tier.

    Args:
        page: a text with START and END whose table gets the tiers that ran, or None.
    """

    def __init__(self, page: Path | None = None) -> None:
        self.page = page
        self.seconds: Counter = Counter()
        self.outcomes: dict[str, Counter] = {}

    def pytest_runtest_logreport(self, report) -> None:
        tier = re.match(r"(?:tests/)?(\w+)/", report.nodeid)
        if not tier:
            return
        self.seconds[tier[1]] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes.setdefault(tier[1], Counter())[report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for tier, outcomes in self.outcomes.items():
            terminalreporter.write_line(f"tier {tier}: {self.took(tier)}, {told(outcomes)}")
        if self.page:
            rows = {tier: self.row(tier) for tier in self.outcomes}
            text = self.page.read_text(encoding="utf-8")
            self.page.write_text(rewritten(text, rows), encoding="utf-8")

    def took(self, tier: str) -> str:
        seconds = self.seconds[tier]
        return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.0f} s"

    def row(self, tier: str) -> str:
        cells = (tier, self.took(tier), told(self.outcomes[tier]), machine(), date.today())
        return f"| {' | '.join(map(str, cells))} |\n"


def told(outcomes: Counter) -> str:
    return ", ".join(f"{outcomes[name]} {name}" for name in sorted(outcomes))


def machine() -> str:
    cores = f"{os.cpu_count()} cores"
    try:
        import torch

        count = torch.cuda.device_count()
        return f"{cores}, {torch.cuda.get_device_name(0)} x {count}" if count else cores
    except ImportError:
        return cores


def rewritten(text: str, rows: dict[str, str]) -> str:
    """Returns a page with these tiers' rows made anew and the others' kept."""
    before, _, rest = text.partition(START)
    table, _, after = rest.partition(END)
    kept = {line.split(" | ")[0].strip("| "): f"{line}\n" for line in table.splitlines()[2:]}
    rows = kept | rows
    body = "".join(rows[tier] for tier in TIERS if tier in rows)
    return f"{before}{START}{HEAD}{body}{END}{after}"
