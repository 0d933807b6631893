# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Write the patches: from overlay/ (export), and from a checkout with commits on it (refresh)."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from . import patch as mbox
from .fit import patched
from .git import Git, as_written, build
from .project import Project, join_lines, line_hash, mismatches, split_lines
from .report import Misfit, Refusal, Report, note


def exported(project: Project) -> list[mbox.Patch]:
    """Return the series with every new file that overlay/ has taken from there.

    A file of overlay/ that no patch has yet joins the first. Headers and messages stay.
    """
    patches = project.patches
    if not patches:
        raise Refusal("the series is empty: make it with python -m patchset refresh")
    placed = {diff.path for p in patches for diff in p.files if diff.new}
    out = []
    for number, patch in enumerate(patches):
        files = []
        for diff in patch.files:
            if not diff.new:
                files.append(diff)
            elif diff.path in project.overlay:
                files.append(mbox.new_file(diff.path, project.overlay[diff.path]))
            elif not diff.path.startswith(f"{project.modules}/"):
                files.append(diff)  # not kept in overlay/; a module that is gone goes here too
        if number == 0:
            files += [mbox.new_file(p, t) for p, t in project.overlay.items() if p not in placed]
        files.sort(key=lambda diff: diff.path)
        out.append(replace(patch, files=tuple(files)))
    return out


def export(project: Project, report: Report, only_check: bool) -> int:
    """``export``: rewrite the patches whose new files differ from overlay/."""
    for patch in exported(project):
        text = mbox.render(patch)
        same = text == project.patch_text(patch.name)
        if not same and not only_check:
            write_atomically(project.root / "patches" / patch.name, text)
        said = "unchanged" if same else "differs" if only_check else "written"
        report.line(same or not only_check, f"export/{patch.name[:4]}", said, "equal to overlay/")
    return report.finish()


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
    os.chmod(name, 0o644)
    os.replace(name, path)


def tree(project: Project, folder: Path, pinned: Path, report: Report) -> int:
    """``tree``: a git checkout of one pinned file with the series on it, to edit and refresh from.

    Args:
        project: this project.
        folder: the checkout to make; must not exist.
        pinned: a copy of the pinned file, or a folder that has it at its upstream path.
        report: takes the checks.
    """
    if folder.exists():
        raise Refusal(f"{folder} exists; name a new folder")
    source = pinned / project.file if pinned.is_dir() else pinned
    if not source.is_file():
        raise Refusal(f"{source} is missing; give the pinned file, or a folder with it")
    wrong = mismatches(project.table, split_lines(source.read_bytes().decode()))
    if not report.line(not wrong, "tree/pin", f"{len(wrong)} lines differ", 0):
        raise Misfit(f"{source} is not the pinned file: line {wrong[0]} is another one")
    target = folder / project.file
    target.parent.mkdir(parents=True)
    shutil.copyfile(source, target)
    git = Git(folder)
    git.run("init", "--quiet", "--initial-branch=series", ".")
    git.run("add", "--", project.file)
    tree_id = git.text("write-tree")
    who = {f"GIT_{w}_NAME": "pin" for w in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{w}_EMAIL": "pin@invalid" for w in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{w}_DATE": "2026-09-04T00:00:00Z" for w in ("AUTHOR", "COMMITTER")}
    base = git.text("commit-tree", tree_id, stdin="The pinned file\n", env=who)
    git.run("tag", "pin", base)
    has_series = (project.root / "patches" / "series").exists()
    patches = project.patches if has_series else []
    tip = build(git, base, patches, as_written)
    git.run("reset", "--quiet", "--hard", tip)
    report.line(True, "tree", f"{len(patches)} commits on tag pin in {folder}", "-")
    return report.finish()


def from_commits(project: Project, git: Git, base: str) -> list[mbox.Patch]:
    """Return the commits ``base..HEAD`` as patches, new files as overlay/ has them."""
    commits = git.text("rev-list", "--reverse", "--first-parent", f"{base}..HEAD").split()
    if not commits:
        raise Refusal(f"{git.root}: no commits on top of {base}")
    patches = []
    for number, commit in enumerate(commits, 1):
        date, _, message = git.text("show", "-s", "--format=%aD%n%B", commit).partition("\n")
        diffs = []
        args = ("-r", "-z", "--no-renames", "--name-status", f"{commit}^", commit)
        words = git.text("diff-tree", *args).split("\0")[:-1]
        for kind, path in zip(words[::2], words[1::2]):
            if kind == "A":
                text = project.overlay.get(path, git.blob(commit, path))
                diffs.append(mbox.new_file(path, text))
            elif kind == "M":
                diffs.append(_minimal(project, git, commit, path))
            else:
                raise Misfit(
                    f"{commit[:12]}: {path} was {kind}; only added and modified files work"
                )
        patch = mbox.Patch("", mbox.AUTHOR, date, "", "", tuple(diffs)).with_message(message)
        patches.append(replace(patch, name=mbox.slug(number, patch.subject)))
    return patches


def _minimal(project: Project, git: Git, commit: str, path: str) -> mbox.FileDiff:
    """Return git's own diff of one file, parsed, without index line and function names."""
    args = (f"-U{mbox.CONTEXT}", "--no-ext-diff", "--no-color", "--no-renames", "--patience")
    text = git.run("diff-tree", "-p", *args, f"{commit}^", commit, "--", path).decode()
    lines = [line for line in text.split("\n") if not line.startswith("index ")]
    frame = f"From x\nFrom: x\nDate: x\nSubject: [PATCH] x\n\n---\n{chr(10).join(lines)}-- \n"
    diff = mbox.parse(commit[:12], frame).files[0]
    before = split_lines(git.blob(f"{commit}^", path))
    return replace(diff, hunks=tuple(_slid(project, before, hunk) for hunk in diff.hunks))


def _slid(project: Project, before: list[str], hunk: mbox.Hunk) -> mbox.Hunk:
    """Return an insertion moved up as long as it is anchored on lines that are not known.

    Where a block could be inserted at several places to the same effect, git takes the lowest or
    the prettiest. Context is known by its hash only where the line table reaches.
    """
    (above, *block, below), hunk = hunk.lines, replace(hunk, section="")
    if above[0] != " " or below[0] != " " or any(tag != "+" for tag, _ in block):
        return hunk
    hashes = set(project.table.values())
    lines = [above, *block, below]
    start = hunk.old_start
    while start > 1 and line_hash(lines[-1][1]) not in hashes and lines[-2][1] == lines[0][1]:
        start -= 1
        added = [("+", text) for _, text in lines[:-2]]
        lines = [(" ", before[start - 1]), *added, (" ", lines[-2][1])]
    moved = start - hunk.old_start
    return mbox.Hunk(start, hunk.new_start + moved, tuple(lines))


def refresh(project: Project, folder: Path, base: str | None, report: Report) -> int:
    """``refresh``: rewrite patches/ and its series from the commits of a checkout.

    The commits on top of ``base`` (tag ``pin``, or the pinned commit) become the patches, one each.
    """
    git = Git(folder)
    start = next((c for n in (base, "pin", project.pin) if n and (c := git.commit(n))), None)
    if start is None:
        raise Refusal(f"{folder} has neither a tag 'pin' nor the pinned commit; give --base")
    patches = from_commits(project, git, start)
    lines = split_lines(git.blob(start, project.file))
    for patch in patches:  # what is written must give what was read
        for diff in patch.files:
            if diff.path == project.file:
                lines = patched(lines, diff)
    if join_lines(lines) != git.blob("HEAD", project.file):
        raise Misfit("the patches do not give the file that the checkout has")
    place = project.root / "patches"
    place.mkdir(exist_ok=True)
    for patch in patches:
        write_atomically(place / patch.name, mbox.render(patch))
        report.line(True, f"refresh/{patch.name[:4]}", patch.name, "-")
    names = [patch.name for patch in patches]
    head = f"# The patches in order, written by refresh.\n# base-commit: {project.pin}\n"
    write_atomically(place / "series", head + "".join(f"{name}\n" for name in names))
    for stale in sorted(p for p in place.glob("*.patch") if p.name not in names):
        stale.unlink()
        note(f"removed {stale.name}: no commit makes it any more")
    return report.finish()
