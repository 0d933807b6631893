# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Write the patches: from overlay/ (export), and from a checkout with commits on it (refresh)."""

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from . import patch as mbox
from .fit import patched
from .git import Git, as_written, build
from .project import Base, Project, join_lines, split_lines
from .recognise import recognise
from .report import Misfit, Refusal, Report, note


@dataclass(eq=False)
class _Line:
    """A line that a patch writes: its text, and the numbers of the patches that add and drop it."""

    text: str
    born: int
    died: int | None = None


class _Woven:
    """All lines that a series has ever had in one of its new files, in their order."""

    def __init__(self, patches: list[mbox.Patch], path: str) -> None:
        self.lines: list[_Line] = []
        for number, patch in enumerate(patches):
            for diff in (diff for diff in patch.files if diff.path == path):
                alive = self.alive(number - 1)
                for hunk in diff.hunks:
                    at = hunk.first
                    for tag, text in hunk.lines:
                        if tag == "+":
                            self.insert(alive[at] if at < len(alive) else None, text, number)
                        elif tag == "-":
                            alive[at].died = number
                        at += tag != "+"

    def alive(self, number: int) -> list[_Line]:
        """Return the file's lines after patch ``number``."""
        return [
            line
            for line in self.lines
            if line.born <= number and (line.died is None or line.died > number)
        ]

    def text(self, number: int) -> str:
        """Return the file after patch ``number``."""
        return join_lines([line.text for line in self.alive(number)])

    def insert(self, before: _Line | None, text: str, born: int) -> None:
        at = self.lines.index(before) if before else len(self.lines)
        self.lines.insert(at, _Line(text, born))

    def become(self, number: int, text: str) -> None:
        """Have ``text`` after patch ``number``, each change made by the patch whose lines it is in.

        New lines between the lines of two patches are the later one's.
        """
        now, wanted = self.alive(number), split_lines(text)
        olds = [line.text for line in now]
        for op, a, b, c, d in SequenceMatcher(None, olds, wanted, autojunk=False).get_opcodes():
            if op == "equal":
                continue
            born = max((line.born for line in now[a:b] or now[max(a - 1, 0) : a + 1]), default=0)
            for line in now[a:b]:
                self.lines.remove(line)
            for new in wanted[c:d]:
                self.insert(now[b] if b < len(now) else None, new, born)


def exported(base: Base) -> list[mbox.Patch]:
    """Return the series with every new file that overlay/ has as it is there.

    A change of a file that several patches write goes into the patch whose lines it changes. A
    module that is gone from overlay/ goes here too. Headers and messages stay.
    """
    patches, project = base.require_patches(), base.project
    files = [{diff.path: diff for diff in patch.files} for patch in patches]
    for path in {path for diffs in files for path, diff in diffs.items() if diff.new}:
        if path not in project.overlay:
            if path.startswith(f"{project.modules}/"):
                files = [{p: d for p, d in diffs.items() if p != path} for diffs in files]
            continue
        woven = _Woven(patches, path)
        before = [woven.text(number) for number in range(len(patches))]
        if before[-1] == project.overlay[path]:
            continue
        woven.become(len(patches) - 1, project.overlay[path])
        after = [woven.text(number) for number in range(len(patches))]
        for number, diffs in enumerate(files):
            if path in diffs and diffs[path].new:
                diffs[path] = mbox.new_file(path, after[number])
            elif path in diffs and after[number - 1] == after[number]:
                del diffs[path]
            elif path in diffs and (
                before[number - 1 : number + 1] != after[number - 1 : number + 1]
            ):
                diffs[path] = minimal(path, after[number - 1], after[number])
    return [
        replace(patch, files=tuple(diffs[path] for path in sorted(diffs)))
        for patch, diffs in zip(patches, files)
    ]


def export(project: Project, report: Report, only_check: bool) -> int:
    """``export``: rewrite the patches of all bases whose new files differ from overlay/.

    A file of overlay/ that no patch has yet joins the first patch of the first base.
    """
    bases = [base for base in project.bases if base.series]
    placed = {d.path for base in bases for patch in base.patches for d in patch.files if d.new}
    fresh = tuple(mbox.new_file(p, t) for p, t in project.overlay.items() if p not in placed)
    for base in bases:
        for patch in exported(base):
            files, fresh = sorted((*patch.files, *fresh), key=lambda diff: diff.path), ()
            text = mbox.render(replace(patch, files=tuple(files)))
            same = text == base.patch_text(patch.name)
            if not same and not only_check:
                write_atomically(base.folder / patch.name, text)
            said = "unchanged" if same else "differs" if only_check else "written"
            name = f"{base.name}/export/{patch.name[:4]}"
            report.line(same or not only_check, name, said, "equal to overlay/")
    return report.finish()


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
    os.chmod(name, 0o644)
    os.replace(name, path)


def tree(project: Project, folder: Path, pinned: Path, report: Report) -> int:
    """``tree``: a git checkout of a base's file with its series on it, to edit and refresh from.

    Args:
        project: this project.
        folder: the checkout to make; must not exist.
        pinned: a copy of the file, or a folder that has it at its upstream path.
        report: takes the checks.
    """
    if folder.exists():
        raise Refusal(f"{folder} exists; name a new folder")
    source = pinned / project.file if pinned.is_dir() else pinned
    if not source.is_file():
        raise Refusal(f"{source} is missing; give a base's file, or a folder with it")
    found = recognise(project, source.read_bytes().decode(), str(source))
    if not report.line(found.exact, "tree/base", found.said, "to the line"):
        raise Misfit(f"{source}: line {found.different[0]} is another one")
    base = found.base
    target = folder / project.file
    target.parent.mkdir(parents=True)
    shutil.copyfile(source, target)
    git = Git(folder)
    git.run("init", "--quiet", "--initial-branch=series", ".")
    git.run("add", "--", project.file)
    tree_id = git.text("write-tree")
    who = {f"GIT_{w}_NAME": "pin" for w in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{w}_EMAIL": "pin@invalid" for w in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{w}_DATE": f"{base.facts['date']}T00:00:00Z" for w in ("AUTHOR", "COMMITTER")}
    start = git.text("commit-tree", tree_id, stdin="The base's file\n", env=who)
    git.run("tag", "base", start)
    tip = build(git, start, base.patches, as_written)
    git.run("reset", "--quiet", "--hard", tip)
    report.line(True, "tree", f"{len(base.patches)} commits on tag base in {folder}", "-")
    return report.finish()


def from_commits(git: Git, start: str) -> list[mbox.Patch]:
    """Return the commits ``start..HEAD`` as patches."""
    commits = git.text("rev-list", "--reverse", "--first-parent", f"{start}..HEAD").split()
    if not commits:
        raise Refusal(f"{git.root}: no commits on top of {start}")
    patches = []
    for number, commit in enumerate(commits, 1):
        date, _, message = git.text("show", "-s", "--format=%aD%n%B", commit).partition("\n")
        diffs = []
        args = ("-r", "-z", "--no-renames", "--name-status", f"{commit}^", commit)
        words = git.text("diff-tree", *args).split("\0")[:-1]
        for kind, path in zip(words[::2], words[1::2]):
            if kind == "A":
                diffs.append(mbox.new_file(path, git.blob(commit, path)))
            elif kind == "M":
                diffs.append(minimal(path, git.blob(f"{commit}^", path), git.blob(commit, path)))
            else:
                raise Misfit(
                    f"{commit[:12]}: {path} was {kind}; only added and modified files work"
                )
        patch = mbox.Patch("", mbox.AUTHOR, date, "", "", tuple(diffs)).with_message(message)
        patches.append(replace(patch, name=mbox.slug(number, patch.subject)))
    return patches


def minimal(path: str, before: str, after: str) -> mbox.FileDiff:
    """Return git's own diff of two texts, parsed, without index line and function names."""
    with tempfile.TemporaryDirectory(prefix="patchset-") as folder:
        for side, text in (("a", before), ("b", after)):
            place = Path(folder, side, path)
            place.parent.mkdir(parents=True)
            place.write_bytes(text.encode())
        args = ("--no-index", "--no-ext-diff", "--no-color", "--no-renames", "--patience")
        words = ("diff", *args, "--no-prefix", f"-U{mbox.CONTEXT}", f"a/{path}", f"b/{path}")
        text = Git(Path(folder)).run(*words, differs=True).decode()
    lines = [line for line in text.split("\n") if not line.startswith("index ")]
    frame = f"From x\nFrom: x\nDate: x\nSubject: [PATCH] x\n\n---\n{chr(10).join(lines)}-- \n"
    diff = mbox.parse(path, frame).files[0]
    return replace(diff, hunks=tuple(replace(hunk, section="") for hunk in diff.hunks))


def refresh(project: Project, folder: Path, onto: str | None, report: Report) -> int:
    """``refresh``: rewrite the patches and the series of a base from the commits of a checkout.

    The commits on top of ``onto`` (tag ``base``, or a base's commit) become the patches, one each.
    """
    git = Git(folder)
    names = (onto, "base", *(base.commit for base in reversed(project.bases)))
    start = git.below_head([name for name in names if name])
    if start is None:
        raise Refusal(
            f"{folder} has neither a tag 'base' nor a base's commit below it; give --base"
        )
    what = f"{folder} at {start[:12]}"
    base = recognise(project, git.blob(start, project.file), what).base
    patches = from_commits(git, start)
    texts: dict[str, list[str]] = {project.file: split_lines(git.blob(start, project.file))}
    for patch in patches:  # what is written must give what was read
        for diff in patch.files:
            texts[diff.path] = patched(texts.get(diff.path, []), diff)
    for path, lines in texts.items():
        if join_lines(lines) != git.blob("HEAD", path):
            raise Misfit(f"the patches do not give the {path} that the checkout has")
    place = base.folder
    for patch in patches:
        write_atomically(place / patch.name, mbox.render(patch))
        report.line(True, f"{base.name}/refresh/{patch.name[:4]}", patch.name, "-")
    names = [patch.name for patch in patches]
    head = f"# The patches in order, written by refresh.\n# base-commit: {base.commit}\n"
    write_atomically(place / "series", head + "".join(f"{name}\n" for name in names))
    for stale in sorted(p for p in place.glob("*.patch") if p.name not in names):
        stale.unlink()
        note(f"removed {stale.name}: no commit makes it any more")
    return report.finish()
