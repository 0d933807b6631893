# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Where a hunk fits in a file, and the file after it. Exact by default; never fuzzy."""

from dataclasses import dataclass, field
from difflib import SequenceMatcher

from .patch import FileDiff, Hunk
from .report import Misfit


@dataclass
class Fit:
    """Where one hunk landed.

    Attributes:
        hunk: the hunk.
        at: 0-based index of its first pre-image line in the file before any hunk, None if it
            does not fit.
        why: for a hunk that does not fit, the reason.
        differences: for one whose lines changed, ``number: - wanted`` and ``number: + there``.
    """

    hunk: Hunk
    at: int | None
    why: str = ""
    differences: list[str] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """By how many lines it moved."""
        return 0 if self.at is None else self.at - self.hunk.first


def splice(entries: list, hunk: Hunk, at: int) -> None:
    """Replace the pre-image at index ``at`` by the post-image, in place.

    Context keeps its entry, so that entries may be anything that stands for a line.
    """
    out, old = [], at
    for tag, text in hunk.lines:
        if tag == "+":
            out.append(text)
            continue
        if tag == " ":
            out.append(entries[old])
        old += 1
    entries[at:old] = out


def locate(lines: list[str], hunks: tuple[Hunk, ...]) -> list[Fit]:
    """Find the one place of each hunk in ``lines``, in order.

    A hunk fits at its own line number, shifted like the hunk before it, or else at the only other
    place that has its pre-image; with several such places it fits nowhere.
    """
    fits, shift, floor = [], 0, 0
    for hunk in hunks:
        pre = hunk.pre
        wanted = hunk.first + shift
        places = [
            i for i in range(floor, len(lines) - len(pre) + 1) if lines[i : i + len(pre)] == pre
        ]
        if wanted in places:
            at = wanted
        elif len(places) == 1:
            at = places[0]
        else:
            fits.append(_misfit(lines, hunk, wanted, places))
            continue
        fits.append(Fit(hunk, at))
        shift, floor = at - hunk.first, at + len(pre)
    return fits


def _misfit(lines: list[str], hunk: Hunk, wanted: int, places: list[int]) -> Fit:
    if places:
        spots = ", ".join(str(i + 1) for i in places[:6])
        return Fit(
            hunk, None, f"its lines stand at {len(places)} places ({spots}), none of them its own"
        )
    pre = hunk.pre
    blocks = SequenceMatcher(None, pre, lines, autojunk=False).get_matching_blocks()

    def told(block) -> int:
        return sum(bool(line.strip()) for line in pre[block.a : block.a + block.size])

    # The longest run that is left of the hunk says where it went; blank lines say nothing.
    best = max(blocks, key=lambda b: (told(b), -abs(b.b - b.a - wanted)))
    start = max(0, best.b - best.a) if told(best) else wanted
    window = lines[start : start + len(pre)]
    differences = []
    for op, a, b, c, d in SequenceMatcher(None, pre, window, autojunk=False).get_opcodes():
        if op != "equal":
            differences += [f"{start + a + i + 1}: - {t}" for i, t in enumerate(pre[a:b])]
            differences += [f"{start + c + i + 1}: + {t}" for i, t in enumerate(window[c:d])]
    gone = sum(": - " in text for text in differences)
    why = f"{gone} of {len(pre)} lines changed" if gone else "new lines stand between its own"
    why += f" near line {start + 1}"
    return Fit(hunk, None, why, differences)


def patched(lines: list[str], diff: FileDiff, anywhere: bool = False) -> list[str]:
    """Return the lines of a file after ``diff``.

    Args:
        lines: the file before; left alone.
        diff: its hunks.
        anywhere: take a hunk that moved, where there is only one place for it.

    Raises:
        Misfit: a hunk does not fit (or moved, without ``anywhere``).
    """
    out = list(lines)
    fits = locate(lines, diff.hunks)
    for number, fit in enumerate(fits, 1):
        if fit.at is None or (fit.moved and not anywhere):
            why = fit.why or f"it moved by {fit.moved:+d} lines"
            raise Misfit(f"{diff.path}, hunk {number} (line {fit.hunk.old_start}): {why}")
    for fit in reversed(fits):
        splice(out, fit.hunk, fit.at)
    return out


def require_python(path: str, old: str, new: str) -> None:
    """Raise Misfit where a Python file compiled before and does not any more."""
    if not path.endswith(".py"):
        return
    try:
        compile(old, path, "exec", dont_inherit=True)
    except SyntaxError:
        return  # not a whole module, or for another Python
    try:
        compile(new, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Misfit(f"{path} does not compile after the patch: {error}") from None
