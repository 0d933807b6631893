# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Check the patch set offline: no upstream tree, no torch, a second or two.

What is known of a base's file is a hash for each line of some regions, and where that hash is from.
Every line that a patch removes or anchors on is held against the hash at its number; the file is
then followed through the series as a list whose entries are a line number (a line of the base) or a
text (a line of ours).
"""

import ast
import re
from collections import Counter

from . import patch as mbox
from .fit import splice
from .fragments import Modules, fragment
from .project import Base, Project, join_lines, line_hash, sha256
from .report import Report

COLUMNS = 100
SUBJECT = 75
LABELS = ("Problem:", "Mechanism:", "Cost:")
TRAILERS = ("Link", "Forwarded")
# Where upstream keeps tests for this code; its test lists take multi_gpu/ whole.
TESTS = "tests/unittest/_torch/visual_gen"
SPDX = (
    "# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. "
    "All rights reserved.",
    "# SPDX-License-Identifier: Apache-2.0",
)


def run(project: Project, report: Report) -> int:
    """Run every check on every base and return the exit status."""
    placed: set[str] = set()
    for base in project.bases:
        report.prefix = f"{base.name}/"
        _known(base, report)
        if base.series or any(base.folder.glob("*.patch")) or (base.folder / "series").exists():
            placed |= _patches(base, report)
        else:
            report.line(None, "series", "no patches yet for this base", "a series")
    report.prefix = ""
    found = [f"overlay/{p} is in no patch; run export" for p in project.overlay if p not in placed]
    report.problems("overlay", found, f"{len(project.overlay)} files", "each in a series")
    names = {*project.upstream["base"], "unclear"}
    releases = project.upstream.get("releases", {}).items()
    found = [
        f"{release} is like no base: {name}" for release, name in releases if name not in names
    ]
    report.problems("releases", found, f"{len(releases)} releases", "a base each, or unclear")
    return report.finish()


def _known(base: Base, report: Report) -> None:
    """What is said and known of a base, before any patch."""
    facts = base.facts
    whole = re.fullmatch("[0-9a-f]{40}", base.commit)
    digits = base.commit[:12] if whole else f"{base.commit} (no more digits known)"
    said = f"{facts['date']}, {facts['state']}, commit {digits}"
    said += f"; {facts['caveat']}" if "caveat" in facts else ""
    report.line(bool(re.fullmatch("[0-9a-f]{10,40}", base.commit)), "base", said, "a commit")
    for table in base.tables:
        digest = sha256(table.path.read_bytes())
        said = f"{len(table.lines)} lines {table.origin}, sha256 {digest[:12]}"
        report.line(digest == table.digest, f"table/{table.path.name}", said, table.digest[:12])
    found = [
        f"line {number} is another one in {table.path.name}"
        for table in base.tables
        for number, digest in table.lines.items()
        if base.lines[number][0] != digest
    ]
    report.problems("tables", found, f"{len(base.lines)} lines", "alike in each table")
    marks = facts["marks"].items()
    found = [
        f"{name}: line {number} is not in {base.tables[0].path.name}"
        for name, (first, last) in marks
        for number in range(first, last + 1)
        if number not in base.table
    ]
    report.problems("marks", found, f"{len(marks)} marks", "in the surest table")


def _patches(base: Base, report: Report) -> set[str]:
    """Check a base's series, and return the paths of the files that it makes."""
    _series(base, report)
    patches = []
    for name in base.series:
        try:
            patches.append(mbox.parse(name, base.patch_text(name)))
        except mbox.PatchError as error:
            report.problems(f"parse/{name[:4]}", [str(error)], 0, "a mailbox patch")
    for number, patch in enumerate(patches, 1):
        tag = patch.name[:4]
        report.problems(
            f"form/{tag}", form(base, patch, number), "canonical", "mailbox, -U1, no sign-off"
        )
        report.problems(
            f"message/{tag}",
            message(patch),
            f"subject {len(patch.subject)} chars",
            f"<= {SUBJECT}, body with {' '.join(LABELS)} {' '.join(TRAILERS)}",
        )
        report.problems(f"style/{tag}", style(patch), "added lines", f"ASCII, {COLUMNS} columns")
    if len(patches) < len(base.series):
        report.line(False, "contents", "not checked", "all patches parse")
        return {diff.path for patch in patches for diff in patch.files}
    return _contents(base, patches, report)


def _series(base: Base, report: Report) -> None:
    names, folder = base.series, base.folder
    there = {p.name for p in folder.glob("*.patch")}
    found = [f"{n} is listed twice" for n in sorted({n for n in names if names.count(n) > 1})]
    found += [f"{n} is listed but missing" for n in sorted(set(names) - there)]
    found += [f"{n} is not in series: an orphan" for n in sorted(there - set(names))]
    if not names:
        found.append("the series is empty")
    series = folder / "series"
    text = series.read_text("utf-8") if series.exists() else ""
    stated = re.search(r"^# base-commit: (\w+)$", text, re.M)
    if not stated or stated[1] != base.commit:
        found.append(f"no line '# base-commit: {base.commit}'")
    report.problems("series", found, f"{len(names)} patches", "no orphans, no duplicates")


def form(base: Base, patch: mbox.Patch, number: int) -> list[str]:
    """Problems of one patch's form: writer's own text, name, hunks in order and minimal."""
    found = []
    text = base.patch_text(patch.name)
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
        files: path -> entries; an entry is the number of a line of the base, or our text.
        known: number of a line of the base -> its text, for those that a patch showed rightly.
        hunks: of the last patch, for each hunk in a file that is there: where it stands, how many
            of its lines are from where, and what else it expects to find there.
    """

    def __init__(self, base: Base) -> None:
        self.base = base
        self.files: dict[str, list[int | str]] = {base.file: list(range(1, 100_000))}
        self.known: dict[int, str] = {}
        self.hunks: list[tuple[str, Counter, list[str]]] = []

    def apply(self, patch: mbox.Patch) -> tuple[list[str], list[str]]:
        """Take one patch in.

        Returns:
            Problems with where it writes, and problems with what it expects to find there.
        """
        paths, self.hunks = [], []
        for diff in patch.files:
            where = f"{patch.name}: {diff.path}"
            folder = diff.path.rpartition("/")[0]
            if diff.new:
                modules = self.base.project.modules
                if folder != modules and not f"{folder}/".startswith(f"{TESTS}/"):
                    paths.append(f"{where}: new files go to {modules} or {TESTS}")
                if diff.path in self.files:
                    paths.append(f"{where}: is there already")
                self.files[diff.path] = list(diff.hunks[0].post)
                continue
            if diff.path not in self.files:
                paths.append(f"{where}: its text cannot be verified, so it is not patched")
                continue
            entries = self.files[diff.path]
            ready = []
            for hunk in diff.hunks:
                place = f"{diff.path.rpartition('/')[2]} line {hunk.old_start}"
                self.hunks.append((place, *self._expect(where, entries, hunk)))
                if hunk.first + len(hunk.pre) <= len(entries):
                    ready.append(hunk)
            for hunk in sorted(ready, key=lambda h: -h.first):
                splice(entries, hunk, hunk.first)
        return paths, [problem for _, _, wrong in self.hunks for problem in wrong]

    def text(self, path: str) -> str | None:
        """Return a file that is all ours, or None."""
        entries = self.files[path]
        return None if any(isinstance(e, int) for e in entries) else join_lines(entries)

    def _expect(self, where: str, entries: list[int | str], hunk: mbox.Hunk):
        found, origins = [], Counter()
        for offset, text in enumerate(hunk.pre):
            at = hunk.first + offset
            entry = entries[at] if at < len(entries) else ""
            if isinstance(entry, str):
                origins["ours"] += 1
                if at >= len(entries) or entry != text:
                    found.append(f"{where}:{at + 1}: the series has another line there: {text!r}")
                continue
            digest, origin = self.base.lines.get(entry, ("", "unknown"))
            origins[origin] += 1
            if not digest:
                found.append(f"{where}:{at + 1}: line {entry} of the base is in no known region")
            elif digest != line_hash(text):
                found.append(f"{where}:{at + 1}: line {entry} of the base is not {text!r}")
            else:
                self.known[entry] = text
        return origins, found


def _contents(base: Base, patches: list[mbox.Patch], report: Report) -> set[str]:
    tree, broken = Tree(base), []
    for number, patch in enumerate(patches):
        tag = patch.name[:4]
        limit = base.facts["sizes"][number > 0]
        size = sum(len(hunk.added) for diff in patch.files for hunk in diff.hunks)
        report.line(size <= limit, f"size/{tag}", f"{size} lines added", f"<= {limit}")
        paths, _ = tree.apply(patch)
        report.problems(f"paths/{tag}", paths, f"{len(patch.files)} files", "known or new")
        for count, (place, origins, wrong) in enumerate(tree.hunks, 1):
            said = ", ".join(f"{n} {origin}" for origin, n in sorted(origins.items()))
            report.problems(f"hunk/{tag}-{count}", wrong, f"{place}: {said}", "as hashed")
        for path in (d.path for d in patch.files if d.path in tree.files):
            try:
                if path.endswith(".py") and (text := tree.text(path)) is not None:
                    compile(text, path, "exec")
            except SyntaxError as error:
                broken.append(f"{patch.name}: {path}: {error}")
    new = set(tree.files) - {base.file}
    _new_modules(base, {path: tree.text(path) for path in new}, report)
    _requests(base, patches, report)
    _python(base, patches, new, broken, report)
    return new


def _new_modules(base: Base, new: dict[str, str], report: Report) -> None:
    """The whole series has to leave the new files as overlay/ has them."""
    overlay, modules = base.project.overlay, base.project.modules
    found = [f"{p} is not in overlay/" for p in new if p not in overlay and p.startswith(modules)]
    common = [path for path in new if path in overlay]
    found += [
        f"overlay/{p} and the series differ; run export" for p in common if overlay[p] != new[p]
    ]
    report.problems("overlay", sorted(found), f"{len(common)} files equal", "byte for byte")


def _requests(base: Base, patches: list[mbox.Patch], report: Report) -> None:
    starts = [name for patch in patches for key, name in patch.trailers if key == "Pull-Request"]
    found = [f"{name} begins twice" for name in set(starts) if starts.count(name) > 1]
    for name in base.requests:
        if not (base.folder / f"cover-{name}.md").exists():
            found.append(f"{name} has no cover-{name}.md")
    fixes = base.facts.get("fixes")
    if fixes and ("Fixes", fixes) not in [t for patch in patches for t in patch.trailers]:
        found.append(f"no patch says 'Fixes: {fixes}'")
    said = "; ".join(f"{name}: {len(own)} patches" for name, own in base.requests.items())
    report.problems("requests", found, said, "each with its cover")


def _python(base: Base, patches, new: set[str], broken: list[str], report: Report) -> None:
    possible, hunks = 0, 0
    trees: list[ast.Module] = []
    after = Tree(base)
    for patch in patches:
        after.apply(patch)
        for hunk in (h for d in patch.files if d.path == base.file for h in d.hunks):
            hunks += 1
            tree = fragment(hunk.post)
            if tree is not None:
                possible += 1
                trees.append(tree)
            elif fragment(hunk.pre) is not None:
                where = f"{patch.name}: {base.file} hunk at {hunk.old_start}"
                broken.append(f"{where}: no longer Python")
    report.problems(
        "compile", broken, f"{possible} of {hunks} hunks compile", "all that did before"
    )
    own = {path: text for path, text in base.project.overlay.items() if path in new}
    try:
        modules = Modules(base.project.modules, own)
    except SyntaxError as error:
        report.problems("names", [f"overlay/: {error}"], 0, "in overlay/, with that signature")
        return
    ours = [entry for entry in after.files[base.file] if isinstance(entry, str)]
    found, uses = modules.problems(trees, join_lines(ours))
    report.problems("names", found, f"{uses} uses", "in overlay/, with that signature")
