# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What every command of this package prints, and how it fails."""

import sys


class Refusal(Exception):
    """The command cannot work here: usage or environment (exit status 2). Nothing was changed."""


class Misfit(Exception):
    """A check or a patch failed (exit status 1). Nothing was changed."""


class Report:
    """Collects one ``PASS|FAIL|SKIP name measured limit`` line per check, and a summary."""

    def __init__(self) -> None:
        self.counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
        self.prefix = ""  # of the names of checks

    def line(self, ok: bool | None, name: str, measured: object = "-", limit: object = "-") -> bool:
        """Print one line.

        Args:
            ok: True for PASS, False for FAIL, None for SKIP.
            name: the check, without spaces.
            measured: what was found; for a SKIP, what is missing.
            limit: what was asked for.

        Returns:
            Whether the check passed.
        """
        status = {True: "PASS", False: "FAIL", None: "SKIP"}[ok]
        self.counts[status] += 1
        print(f"{status} {self.prefix}{name} {measured} {limit}", flush=True)
        return ok is True

    def problems(self, name: str, found: list[str], measured: object, limit: object) -> bool:
        """Print one line for a check that collects problems; they go to stderr, one a line."""
        for text in found:
            note(f"{self.prefix}{name}: {text}")
        return self.line(not found, name, f"{len(found)} problems" if found else measured, limit)

    def finish(self) -> int:
        """Print the summary and return the exit status."""
        passed, failed, skipped = (self.counts[k] for k in ("PASS", "FAIL", "SKIP"))
        print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
        return 1 if failed else 0


def note(text: str) -> None:
    """Print a diagnostic on stderr."""
    print(text, file=sys.stderr, flush=True)
