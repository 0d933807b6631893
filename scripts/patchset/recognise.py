# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Which base a copy of the upstream file is of. Its lines decide: no version, date or commit id."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .fit import Fit, locate
from .patch import Hunk
from .project import Base, Project, line_hash, mismatches
from .report import Refusal

_BLANK = line_hash("")


@dataclass(frozen=True)
class Likeness:
    """How a file is like a base.

    Attributes:
        base: the base.
        lines: the file's lines.
        marks: where each of the base's marks stands in the file, by name.
        share: how much of the base's known lines the file has, wherever.
        different: numbers of the base's surest lines where the file has another line.
    """

    base: Base
    lines: list[str]
    marks: dict[str, Fit]
    share: float
    different: list[int]

    @property
    def missing(self) -> dict[str, Fit]:
        """The marks that the file lacks."""
        return {name: fit for name, fit in self.marks.items() if fit.at is None}

    @property
    def exact(self) -> bool:
        """Whether the base's surest lines all stand at their numbers."""
        return not self.missing and not self.different

    @property
    def said(self) -> str:
        """What the file is, in one line."""
        surest = self.base.tables[0]
        count = len(surest.lines)
        if self.missing:
            return (
                f"not {self.base}: {len(self.missing)} of its {len(self.marks)} marks are missing, "
                f"{self.share:.0%} of its lines are there"
            )
        if self.exact:
            return f"{self.base}: all {count} lines {surest.origin} are at their numbers"
        moves = sorted({fit.moved for fit in self.marks.values()})
        moved = " to ".join(f"{move:+d}" for move in dict.fromkeys((moves[0], moves[-1])))
        return (
            f"{self.base}: all {len(self.marks)} marks are there, moved by {moved} lines; "
            f"{len(self.different)} of {count} lines {surest.origin} are not at their numbers"
        )

    def differences(self) -> Iterator[str]:
        """Say what is in the way of each missing mark, where most of it is left."""
        for name, fit in self.missing.items():
            first, last = self.base.facts["marks"][name]
            gone = sum(": - " in text for text in fit.differences)
            left = 2 * gone < last - first + 1
            yield f"{name} (lines {first}-{last}): {fit.why if left else 'not in the file'}"
            for number, sign, _ in (text.split(" ", 2) for text in fit.differences if left):
                if sign == "+":
                    yield f"{name}: {number} {self.lines[int(number[:-1]) - 1]}"


def compare(base: Base, lines: list[str]) -> Likeness:
    """Hold a file's lines against a base's hashes."""
    hashes = [line_hash(line) for line in lines]
    marks = sorted(base.facts["marks"].items(), key=lambda mark: mark[1])
    runs = [[base.lines[n][0] for n in range(a, b + 1)] for _, (a, b) in marks]
    hunks = tuple(
        Hunk(first, first, tuple((" ", digest) for digest in map(_seen, run)))
        for (_, (first, _)), run in zip(marks, runs)
    )
    known = Counter(digest for digest, _ in base.lines.values())
    share = (known & Counter(hashes)).total() / known.total()
    fits = dict(zip(dict(marks), locate(list(map(_seen, hashes)), hunks)))
    return Likeness(base, lines, fits, share, mismatches(base.table, lines))


def _seen(digest: str) -> str:
    """Return a hash, but nothing for a blank line, which says nothing of where it is from."""
    return "" if digest == _BLANK else digest


def nearest(project: Project, text: str) -> Likeness:
    """Return the likeness to the base that a text is of, or else to the one most like it."""
    found = [compare(base, text.split("\n")) for base in project.bases]
    return min(found, key=lambda one: (len(one.missing) / len(one.marks), -one.share))


def recognise(project: Project, text: str, what: str) -> Likeness:
    """Return the base that a text of the upstream file is of.

    Args:
        project: this project.
        text: the file.
        what: where it is from, for the message.

    Raises:
        Refusal: it is of none; the message says what differs from the nearest.
    """
    found = nearest(project, text)
    if found.missing:
        names = "; ".join(map(str, project.bases))
        lines = "\n  ".join(found.differences())
        raise Refusal(f"{what} is of no known base ({names}).\nIt is {found.said}:\n  {lines}")
    return found


def by_date(project: Project, version: str | None) -> str:
    """Say what a release is likely to hold, by its date."""
    name = project.upstream.get("releases", {}).get(version)
    if name is None:
        return f"release {version} is not listed in UPSTREAM"
    base = "no base for sure" if name == "unclear" else project.base(name)
    return f"release {version} is like {base} by its date"
