# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Mailbox patches: one parser and one writer, which are each other's inverse.

The form is that of ``git format-patch -U1`` without what cannot be vouched for or is not needed: no
index lines (they would name blobs of files that are known in part only), no function names behind
the hunk headers (they are upstream's text), no diffstat, a zero commit id. ``git am`` takes it.
"""

import re
from dataclasses import dataclass, field, replace

ZERO = "0" * 40
CONTEXT = 1
AUTHOR = "cosmos3-text-kv authors <authors@cosmos3-text-kv.invalid>"

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_TRAILER = re.compile(r"[A-Z][A-Za-z-]*: \S")
# What DEP-3 and this project call for and upstream's history has no use for.
DEP3 = (
    "Pull-Request",
    "Forwarded",
    "Origin",
    "Bug",
    "Applied-Upstream",
    "Last-Update",
    "Reviewed-By",
)


class PatchError(ValueError):
    """A patch that cannot be parsed; the text says where and why."""


@dataclass(frozen=True)
class Hunk:
    """One hunk. ``lines`` are (tag, text) with tag ' ', '-' or '+'; numbers count from 1."""

    old_start: int
    new_start: int
    lines: tuple[tuple[str, str], ...]
    section: str = ""

    @property
    def pre(self) -> list[str]:
        """The lines that have to be there before."""
        return [text for tag, text in self.lines if tag != "+"]

    @property
    def post(self) -> list[str]:
        """The lines that are there afterwards."""
        return [text for tag, text in self.lines if tag != "-"]

    @property
    def added(self) -> list[str]:
        """The new lines."""
        return [text for tag, text in self.lines if tag == "+"]

    @property
    def first(self) -> int:
        """The 0-based index of the first pre-image line (of the insertion, if there is none)."""
        return self.old_start - 1 if self.pre else self.old_start


@dataclass(frozen=True)
class FileDiff:
    """The hunks of one file. ``new`` files have one hunk that holds the whole text."""

    path: str
    new: bool
    hunks: tuple[Hunk, ...]

    @property
    def text(self) -> str:
        """The whole text of a new file."""
        assert self.new
        return "".join(f"{line}\n" for hunk in self.hunks for line in hunk.added)


@dataclass(frozen=True)
class Patch:
    """One mailbox patch. ``body`` is the message below the subject, trailers included."""

    name: str
    author: str
    date: str
    subject: str
    body: str
    files: tuple[FileDiff, ...] = field(default=())

    @property
    def trailers(self) -> list[tuple[str, str]]:
        """The (key, value) pairs of the last paragraph, if it is made of trailers only."""
        last = self.body.rstrip("\n").split("\n\n")[-1].split("\n")
        if not all(_TRAILER.match(line) for line in last):
            return []
        return [(key, value) for key, _, value in (line.partition(": ") for line in last)]

    @property
    def paragraphs(self) -> list[str]:
        """The paragraphs of the body without the trailers."""
        blocks = self.body.rstrip("\n").split("\n\n")
        return blocks[:-1] if self.trailers else blocks

    def message(self) -> str:
        """Return the commit message that ``git am`` makes of this patch."""
        return f"{self.subject}\n\n{self.body}" if self.body else f"{self.subject}\n"

    def with_message(self, message: str) -> "Patch":
        """Return a copy with the subject and body of a commit message."""
        subject, _, body = message.strip("\n").partition("\n")
        body = body.strip("\n")
        return replace(self, subject=subject, body=f"{body}\n" if body else "")


def slug(number: int, subject: str) -> str:
    """Return the file name of patch ``number``, as git format-patch would name it."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", subject).strip("-.")
    return f"{number:04d}-{words[:52].rstrip('-.')}.patch"


def new_file(path: str, text: str) -> FileDiff:
    """Return the diff that creates ``path`` with ``text`` (UTF-8, newline at the end)."""
    if not text.endswith("\n") or "\r" in text:
        raise PatchError(f"{path}: a new file has to end with a newline and to have no CR")
    lines = tuple(("+", line) for line in text[:-1].split("\n"))
    return FileDiff(path, True, (Hunk(0, 1, lines),))


def parse(name: str, text: str) -> Patch:
    """Parse one mailbox patch.

    Args:
        name: the file's name, for messages.
        text: the whole file.

    Raises:
        PatchError: the text is not a patch of the form above; the message has the line number.
    """
    lines = text.split("\n")

    def fail(at: int, why: str) -> PatchError:
        return PatchError(f"{name}:{at + 1}: {why}")

    if not lines[0].startswith("From "):
        raise fail(0, "no mailbox line 'From <id> <date>'")
    headers: dict[str, str] = {}
    at = 1
    while at < len(lines) and lines[at]:
        key, colon, value = lines[at].partition(": ")
        if not colon or key in headers:
            raise fail(at, f"not a header, or a second one: {lines[at]!r}")
        headers[key] = value
        at += 1
    for key in ("From", "Date", "Subject"):
        if key not in headers:
            raise fail(0, f"no header {key!r}")
    if not headers["Subject"].startswith("[PATCH] "):
        raise fail(0, "the subject does not start with '[PATCH] '")
    try:
        end = lines.index("---", at)
    except ValueError:
        raise fail(at, "no line '---' below the message") from None
    body = "\n".join(lines[at + 1 : end]).strip("\n")
    at = end + 1
    while at < len(lines) and not lines[at].startswith("diff --git "):
        at += 1
    files = []
    while at < len(lines) and lines[at].startswith("diff --git "):
        diff, at = _parse_file(lines, at, fail)
        files.append(diff)
    if lines[at : at + 1] != ["-- "]:
        raise fail(min(at, len(lines) - 1), "expected a hunk, a file, or the closing line '-- '")
    return Patch(
        name=name,
        author=headers["From"],
        date=headers["Date"],
        subject=headers["Subject"][len("[PATCH] ") :],
        body=f"{body}\n" if body else "",
        files=tuple(files),
    )


def _parse_file(lines, at, fail) -> tuple[FileDiff, int]:
    head = re.fullmatch(r"diff --git a/(\S+) b/(\S+)", lines[at])
    if not head or head[1] != head[2]:
        raise fail(at, "not 'diff --git a/PATH b/PATH' with one path (no renames)")
    path = head[1]
    if path.startswith("/") or ".." in path.split("/"):
        raise fail(at, f"path {path!r} leaves the tree")
    at += 1
    new = lines[at] == "new file mode 100644"
    at += new
    old = "/dev/null" if new else f"a/{path}"
    if lines[at : at + 2] != [f"--- {old}", f"+++ b/{path}"]:
        raise fail(at, f"expected '--- {old}' and '+++ b/{path}', plain files of mode 100644 only")
    at += 2
    hunks = []
    while at < len(lines) and lines[at].startswith("@@ "):
        hunk, at = _parse_hunk(lines, at, fail)
        hunks.append(hunk)
    if not hunks:
        raise fail(at, f"no hunks for {path}")
    if new and (len(hunks) > 1 or hunks[0].pre):
        raise fail(at - 1, f"new file {path} has other than one hunk of added lines")
    return FileDiff(path, new, tuple(hunks)), at


def _parse_hunk(lines, at, fail) -> tuple[Hunk, int]:
    start = at
    head = _HUNK.fullmatch(lines[at])
    if not head:
        raise fail(at, f"not a hunk header: {lines[at]!r}")
    old_start, new_start = int(head[1]), int(head[3])
    old, new = (int(n) if n is not None else 1 for n in (head[2], head[4]))
    body: list[tuple[str, str]] = []
    at += 1
    while old > 0 or new > 0:
        line = lines[at] if at < len(lines) else ""
        tag = line[:1]
        if tag not in (" ", "-", "+"):
            raise fail(at, f"{old} old and {new} new lines of the hunk at {start + 1} are missing")
        old -= tag != "+"
        new -= tag != "-"
        body.append((tag, line[1:]))
        at += 1
    if old < 0 or new < 0:
        raise fail(start, "the counts in the hunk header do not fit its lines")
    return Hunk(old_start, new_start, tuple(body), head[5]), at


def render(patch: Patch) -> str:
    """Return the one text of a patch, which :func:`parse` turns into an equal patch."""
    out = [
        f"From {ZERO} Mon Sep 17 00:00:00 2001",
        f"From: {patch.author}",
        f"Date: {patch.date}",
        f"Subject: [PATCH] {patch.subject}",
        "",
        f"{patch.body}---",
        "",
    ]
    for diff in patch.files:
        out.append(f"diff --git a/{diff.path} b/{diff.path}")
        if diff.new:
            out.append("new file mode 100644")
        out.append("--- /dev/null" if diff.new else f"--- a/{diff.path}")
        out.append(f"+++ b/{diff.path}")
        for hunk in diff.hunks:
            old, new = (
                str(start) if count == 1 else f"{start},{count}"
                for start, count in (
                    (hunk.old_start, len(hunk.pre)),
                    (hunk.new_start, len(hunk.post)),
                )
            )
            out.append(f"@@ -{old} +{new} @@{hunk.section}")
            out.extend(tag + text for tag, text in hunk.lines)
    out.append("-- ")
    return "\n".join(out) + "\n"
