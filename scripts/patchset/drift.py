# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Hunk by hunk: how the series fits another commit or another file, and what moved."""

from .fit import locate, splice
from .git import Git
from .project import split_lines
from .report import Report, note


def against_commit(git: Git, commit: str, patches, report: Report) -> bool:
    """Report hunk by hunk how the series fits a commit; return whether all of it does."""

    def read(path: str) -> list[str] | None:
        if git.ask("cat-file", "-e", f"{commit}:{path}") is None:
            return None
        return split_lines(git.blob(commit, path))

    def elsewhere(path: str) -> str:
        names = git.text("ls-tree", "-r", "--name-only", commit).split("\n")
        base = path.rpartition("/")[2]
        return ", ".join(n for n in names if n.rpartition("/")[2] == base)

    return against_files(read, elsewhere, patches, report)


def against_files(read, elsewhere, patches, report: Report) -> bool:
    """Report hunk by hunk how the series fits some files.

    Args:
        read: path -> lines, or None where there is no such file.
        elsewhere: path -> where a file of that name is now, or "".
        patches: the series.
        report: takes one line per hunk; what changed goes to stderr.

    Returns:
        Whether every hunk fits. Hunks that do are taken in before the next patch is looked at.
    """
    files: dict[str, list[str] | None] = {}
    good = True
    for patch in patches:
        for diff in patch.files:
            tag = f"{patch.name[:4]}/{diff.path.rpartition('/')[2]}"
            if diff.path not in files:
                files[diff.path] = read(diff.path)
            lines = files[diff.path]
            if diff.new:
                said = "free" if lines is None else "there already"
                good &= report.line(lines is None, tag, said, "new file")
                files[diff.path] = list(diff.hunks[0].post)
                continue
            if lines is None:
                moved = elsewhere(diff.path)
                said = f"gone, now at {moved}" if moved else "gone"
                good &= report.line(False, tag, said, diff.path)
                continue
            fits = locate(lines, diff.hunks)
            for number, fit in enumerate(fits, 1):
                line = fit.hunk.old_start
                if fit.at is None:
                    said = fit.why
                    for text in fit.differences:
                        note(f"{tag} hunk {number}: {text}")
                elif fit.moved:
                    said = f"moved by {fit.moved:+d} to line {line + fit.moved}"
                else:
                    said = "fits"
                name = f"{tag}/hunk-{number}"
                good &= report.line(fit.at is not None, name, said, f"line {line}")
            for fit in reversed(fits):
                if fit.at is not None:
                    splice(lines, fit.hunk, fit.at)
    return good
