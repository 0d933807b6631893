# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Check the patch set offline: no upstream tree, no torch, a second or two.

What is known of the pinned file is a hash for each line of some regions. Every line that a patch
removes or anchors on is held against the hash at its number; the file is then followed through the
series as a list whose entries are a line number (a line of the pin) or a text (a line of ours).
"""

import ast
import re

from . import patch as mbox
from .fit import splice
from .fragments import Modules, fragment
from .project import Project, line_hash, sha256
from .report import Report

COLUMNS = 100
SUBJECT = 75
LABELS = ("Problem:", "Mechanism:", "Cost:")
TRAILERS = ("Link", "Fixes", "Forwarded")
# Where upstream keeps tests for this code; its test lists take multi_gpu/ whole.
TESTS = "tests/unittest/_torch/visual_gen"
SPDX = (
    "# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. "
    "All rights reserved.",
    "# SPDX-License-Identifier: Apache-2.0",
)


def run(project: Project, report: Report) -> int:
    """Run every check and return the exit status."""
    _pin(project, report)
    _series(project, report)
    patches = []
    for name in project.series:
        try:
            patches.append(mbox.parse(name, project.patch_text(name)))
        except mbox.PatchError as error:
            report.problems(f"parse/{name[:4]}", [str(error)], 0, "a mailbox patch")
    for number, patch in enumerate(patches, 1):
        tag = patch.name[:4]
        report.problems(
            f"form/{tag}", form(project, patch, number), "canonical", "mailbox, -U1, no sign-off"
        )
        report.problems(
            f"message/{tag}",
            message(patch),
            f"subject {len(patch.subject)} chars",
            f"<= {SUBJECT}, body with {' '.join(LABELS)} {' '.join(TRAILERS)}",
        )
        report.problems(f"style/{tag}", style(patch), "added lines", f"ASCII, {COLUMNS} columns")
    if len(patches) == len(project.series):
        _contents(project, patches, report)
    else:
        report.line(False, "contents", "not checked", "all patches parse")
    return report.finish()


def _pin(project: Project, report: Report) -> None:
    data = project.table_path.read_bytes()
    digest = sha256(data)
    wanted = project.upstream["digests"]["lines"]
    report.line(digest == wanted, "pin/line-table", digest[:12], f"{wanted[:12]} in UPSTREAM")
    anchors = project.upstream.get("anchors", {}).values()
    missing = [n for a, b in anchors for n in range(a, b + 1) if n not in project.table]
    report.line(
        not missing, "pin/anchors", f"{len(missing)} lines of {len(project.table)} missing", 0
    )


def _series(project: Project, report: Report) -> None:
    names = project.series
    folder = project.root / "patches"
    there = {p.name for p in folder.glob("*.patch")}
    found = [f"{n} is listed twice" for n in sorted({n for n in names if names.count(n) > 1})]
    found += [f"{n} is listed but missing" for n in sorted(set(names) - there)]
    found += [f"{n} is not in series: an orphan" for n in sorted(there - set(names))]
    if not names:
        found.append("the series is empty")
    base = re.search(r"^# base-commit: (\w+)$", (folder / "series").read_text("utf-8"), re.M)
    if not base or base[1] != project.pin:
        found.append(f"no line '# base-commit: {project.pin}'")
    report.problems("series", found, f"{len(names)} patches", "no orphans, no duplicates")


def form(project: Project, patch: mbox.Patch, number: int) -> list[str]:
    """Problems of one patch's form: writer's own text, name, hunks in order and minimal."""
    found = []
    text = project.patch_text(patch.name)
    canonical = mbox.render(patch)
    if text != canonical:
        pairs = zip(text.split("\n"), canonical.split("\n"))
        at = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), canonical.count("\n") + 1)
        found.append(f"{patch.name}:{at}: not as this package writes it; run refresh or export")
    if patch.name != mbox.slug(number, patch.subject):
        found.append(f"{patch.name}: expected the name {mbox.slug(number, patch.subject)}")
    if not patch.files:
        found.append(f"{patch.name}: changes nothing")
    paths = [diff.path for diff in patch.files]
    found += [f"{p} is in it twice" for p in sorted({p for p in paths if paths.count(p) > 1})]
    for diff in patch.files:
        end, shift = 0, 0
        for hunk in diff.hunks:
            where = f"{patch.name}: {diff.path} hunk at {hunk.old_start}"
            if hunk.first < end:
                found.append(f"{where}: overlaps or precedes the hunk before it")
            end = hunk.first + len(hunk.pre)
            # The header counts from 1, and from 0 for an empty side.
            wanted = hunk.first + shift + bool(hunk.post)
            if hunk.new_start != wanted:
                found.append(f"{where}: new side at {hunk.new_start}, expected {wanted}")
            shift += len(hunk.post) - len(hunk.pre)
            tags = "".join(tag for tag, _ in hunk.lines)
            runs = [len(run) for run in re.findall(" +", tags.strip(" "))]
            outer = max(len(tags) - len(tags.lstrip()), len(tags) - len(tags.rstrip()))
            if not tags.strip(" "):
                found.append(f"{where}: changes nothing")
            elif outer > mbox.CONTEXT or max(runs, default=0) > 2 * mbox.CONTEXT:
                found.append(f"{where}: more context than -U{mbox.CONTEXT} gives")
            if hunk.section:
                found.append(f"{where}: text behind the header (upstream's, and not needed)")
    return found


def message(patch: mbox.Patch) -> list[str]:
    """Problems of one patch's subject and body."""
    found = []
    subject = patch.subject
    if len(subject) > SUBJECT:
        found.append(f"{patch.name}: subject of {len(subject)} characters")
    first = subject.split(" ")[0]
    if not re.fullmatch(r"[A-Z][a-z-]+", first) or re.search(
        r"((?<!b)(?<!e)ed|(?<!Br)ing|[^s]s)$", first
    ):
        found.append(f"{patch.name}: subject starts with {first!r}, not an imperative")
    if subject.endswith("."):
        found.append(f"{patch.name}: subject ends with a full stop")
    for label in LABELS:
        if sum(p.startswith(label) for p in patch.paragraphs) != 1:
            found.append(f"{patch.name}: not one paragraph that starts with {label!r}")
    keys = [key for key, _ in patch.trailers]
    for key in TRAILERS:
        if key not in keys:
            found.append(f"{patch.name}: no {key}: line in the last paragraph")
    if "Signed-off-by" in patch.body:
        found.append(f"{patch.name}: signed off; that is for the human who submits it")
    if not (patch.body + subject + patch.author).isascii():
        found.append(f"{patch.name}: message is not ASCII")
    for line in patch.body.split("\n"):
        if len(line) > SUBJECT and not re.match(r"\S+: https?://\S+$", line):
            found.append(f"{patch.name}: line of {len(line)} characters in the body")
        if re.match(r"diff |Index: |---|From |>", line):
            found.append(f"{patch.name}: git am stumbles over the line {line!r}")
    return found


def style(patch: mbox.Patch) -> list[str]:
    """Problems of the added lines that git, ruff or a reader would stumble over."""
    found = []
    for diff in patch.files:
        for hunk in diff.hunks:
            number = hunk.new_start
            for tag, text in hunk.lines:
                where = f"{patch.name}: {diff.path}:{number}"
                if tag == "+":
                    if text != text.rstrip() or "\t" in text:
                        found.append(f"{where}: white space at the end, or a tab")
                    if len(text) > COLUMNS:
                        found.append(f"{where}: {len(text)} columns")
                    if not text.isascii():
                        found.append(f"{where}: not ASCII")
                number += tag != "-"
        if diff.new and diff.path.endswith(".py"):
            if tuple(diff.text.split("\n")[:2]) != SPDX:
                found.append(f"{patch.name}: {diff.path} does not start with the SPDX header")
    return found


class Tree:
    """What is known of the files after some patches of the series.

    Attributes:
        files: path -> entries; an entry is the number of a line of the pin, or our text.
        known: number of a line of the pin -> its text, for those that a patch showed rightly.
        checked: how many lines of the pin were held against their hash.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.files: dict[str, list[int | str]] = {project.file: list(range(1, 100_000))}
        self.known: dict[int, str] = {}
        self.checked = 0

    def apply(self, patch: mbox.Patch) -> tuple[list[str], list[str]]:
        """Take one patch in.

        Returns:
            Problems with where it writes, and problems with what it expects to find there.
        """
        paths, lines = [], []
        for diff in patch.files:
            where = f"{patch.name}: {diff.path}"
            folder = diff.path.rpartition("/")[0]
            if diff.new:
                ours = folder == self.project.modules or f"{folder}/".startswith(f"{TESTS}/")
                if not ours:
                    paths.append(f"{where}: new files go to {self.project.modules} or {TESTS}")
                if diff.path in self.files:
                    paths.append(f"{where}: is there already")
                self.files[diff.path] = list(diff.hunks[0].post)
                continue
            if diff.path not in self.files:
                paths.append(
                    f"{where}: its text at the pin cannot be verified, so it is not patched"
                )
                continue
            entries = self.files[diff.path]
            ready = []
            for hunk in diff.hunks:
                wrong = self._expect(where, entries, hunk)
                lines += wrong
                if hunk.first + len(hunk.pre) <= len(entries):
                    ready.append(hunk)
            for hunk in sorted(ready, key=lambda h: -h.first):
                splice(entries, hunk, hunk.first)
        return paths, lines

    def _expect(self, where: str, entries: list[int | str], hunk: mbox.Hunk) -> list[str]:
        found = []
        for offset, text in enumerate(hunk.pre):
            at = hunk.first + offset
            entry = entries[at] if at < len(entries) else ""
            if isinstance(entry, str):
                if at >= len(entries) or entry != text:
                    found.append(f"{where}:{at + 1}: the series has another line there: {text!r}")
                continue
            self.checked += 1
            digest = self.project.table.get(entry)
            if digest is None:
                found.append(f"{where}:{at + 1}: line {entry} of the pin is in no known region")
            elif digest != line_hash(text):
                found.append(f"{where}:{at + 1}: line {entry} of the pin is not {text!r}")
            else:
                self.known[entry] = text
        return found


def _contents(project: Project, patches: list[mbox.Patch], report: Report) -> None:
    tree = Tree(project)
    for patch in patches:
        tag = patch.name[:4]
        before = tree.checked
        paths, lines = tree.apply(patch)
        report.problems(f"paths/{tag}", paths, f"{len(patch.files)} files", "known or new")
        seen = tree.checked - before
        report.problems(f"preimage/{tag}", lines, f"{seen} lines of the pin match", "all")
    _new_modules(project, patches, tree, report)
    _python(project, patches, report)


def _new_modules(project, patches, tree: Tree, report: Report) -> None:
    found = []
    for path, text in project.overlay.items():
        entries = tree.files.get(path)
        if entries is None:
            found.append(f"overlay/{path} is in no patch; run export")
        elif "".join(f"{line}\n" for line in entries) != text:
            found.append(f"overlay/{path} and the series differ; run export")
    for patch in patches:
        for diff in patch.files:
            inside = diff.path.startswith(f"{project.modules}/")
            if diff.new and inside and diff.path not in project.overlay:
                found.append(f"{patch.name}: {diff.path} is not in overlay/")
            if not diff.new and diff.path in project.overlay:
                found.append(f"{patch.name}: changes {diff.path}, which overlay/ holds whole")
    report.problems("overlay", found, f"{len(project.overlay)} files equal", "byte for byte")
    first = [diff for patch in patches[:1] for diff in patch.files]
    others = [diff.path for diff in first if not diff.new or diff.path not in project.overlay]
    report.line(not others, "overlay/first", f"{len(others)} other files in the first patch", 0)


def _python(project, patches, report: Report) -> None:
    broken, possible, hunks = [], 0, 0
    trees: list[ast.Module] = []
    added: list[str] = []
    for patch in patches:
        for diff in patch.files:
            if not diff.path.endswith(".py"):
                continue
            if diff.new:
                try:
                    compile(diff.text, diff.path, "exec")
                except SyntaxError as error:
                    broken.append(f"{patch.name}: {diff.path}: {error}")
                continue
            for hunk in diff.hunks:
                hunks += 1
                tree = fragment(hunk.post)
                added += hunk.added
                if tree is not None:
                    possible += 1
                    trees.append(tree)
                elif fragment(hunk.pre) is not None:
                    where = f"{patch.name}: {diff.path} hunk at {hunk.old_start}"
                    broken.append(f"{where}: no longer Python")
    report.problems(
        "compile", broken, f"{possible} of {hunks} hunks compile", "all that did before"
    )
    try:
        modules = Modules(project.modules, project.overlay)
    except SyntaxError as error:
        report.problems("names", [f"overlay/: {error}"], 0, "in overlay/, with that signature")
        return
    found, uses = modules.problems(trees, added)
    report.problems("names", found, f"{uses} uses", "in overlay/, with that signature")
