# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The files that the commands work from: UPSTREAM, patches/ with its bases, overlay/."""

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import patch as mbox
from .report import Misfit, Refusal

BRANCH = "cosmos3-exact-text-kv"


def sha256(data: bytes) -> str:
    """Return the hex digest of ``data``."""
    return hashlib.sha256(data).hexdigest()


def line_hash(line: str) -> str:
    """Return the hash that the line table holds of a line without its newline."""
    return sha256(line.encode())[:16]


def read_toml(text: str, where: str = "UPSTREAM") -> dict:
    """Read the part of TOML that UPSTREAM uses: tables, and one-line strings, numbers and lists.

    (``tomllib`` came with Python 3.11.)

    Raises:
        Refusal: anything else, naming the line.
    """
    tables: dict = {}
    table = tables
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        head = re.fullmatch(r"\[([A-Za-z0-9_.-]+)\]", line)
        item = re.fullmatch(r'("[^"]+"|[A-Za-z0-9_-]+) *= *(.+)', line)
        try:
            if head:
                table = tables
                for key in head[1].split("."):
                    table = table.setdefault(key, {})
            elif item:
                table[item[1].strip('"')] = ast.literal_eval(item[2])
            else:
                raise SyntaxError
        except (SyntaxError, ValueError):
            raise Refusal(f"{where}:{number}: neither [table] nor key = value: {line!r}") from None
    return tables


@dataclass(frozen=True)
class Project:
    """A folder with UPSTREAM, patches/ and overlay/. Everything is read when first asked for."""

    root: Path

    @cached_property
    def upstream(self) -> dict:
        """UPSTREAM as nested dicts."""
        path = self.root / "UPSTREAM"
        try:
            tables = read_toml(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            raise Refusal(f"{path} is missing; run this in the project's folder") from None
        required = [
            ("upstream", tables.get("upstream", {}), ("repository", "issue", "file", "sparse"))
        ]
        keys = ("commit", "date", "state", "sizes", "tables", "marks")
        required += [
            (f"base.{name}", facts, keys) for name, facts in tables.get("base", {}).items()
        ]
        for table, facts, keys in required:
            for key in keys:
                if not facts.get(key):
                    raise Refusal(f"{path} has no [{table}] {key}")
        if "base" not in tables:
            raise Refusal(f"{path} has no [base.NAME]")
        return tables

    @cached_property
    def bases(self) -> list["Base"]:
        """The bases, in the order of UPSTREAM; the first is the one that is cloned."""
        return [Base(self, name) for name in self.upstream["base"]]

    def base(self, name: str) -> "Base":
        """Return the base of that name."""
        if name not in self.upstream["base"]:
            raise Refusal(f"no base {name!r}; UPSTREAM has {', '.join(self.upstream['base'])}")
        return Base(self, name)

    @property
    def file(self) -> str:
        """The one upstream file that patches may change."""
        return self.upstream["upstream"]["file"]

    @property
    def modules(self) -> str:
        """The upstream folder of that file, where the new modules go."""
        return self.file.rpartition("/")[0]

    @property
    def build(self) -> Path:
        """Where clones, overlays and pull request texts are made; not tracked."""
        return self.root / "build"

    @cached_property
    def overlay(self) -> dict[str, str]:
        """Upstream path -> text, for every file in overlay/, sorted by path."""
        top = self.root / "overlay"
        return {
            path.relative_to(top).as_posix(): path.read_bytes().decode("utf-8")
            for path in sorted(top.rglob("*.py"))
            if "__pycache__" not in path.parts
        }


@dataclass(frozen=True)
class Table:
    """Hashes of lines of a base's file.

    Attributes:
        path: where they are stored.
        digest: the sha256 that UPSTREAM has of that file.
        origin: what the lines are, in a word or two: "vouched for", "reconstructed".
        lines: number -> hash.
    """

    path: Path
    digest: str
    origin: str
    lines: dict[int, str]


@dataclass(frozen=True)
class Base:
    """An upstream commit that patches are made for: [base.NAME] in UPSTREAM and patches/NAME/."""

    project: Project
    name: str

    def __str__(self) -> str:
        return f"base {self.name} ({self.facts['date']}, {self.facts['state']})"

    @property
    def facts(self) -> dict:
        """Its part of UPSTREAM."""
        return self.project.upstream["base"][self.name]

    @property
    def folder(self) -> Path:
        """Where its tables, series, patches and cover texts are."""
        return self.project.root / "patches" / self.name

    @property
    def commit(self) -> str:
        """The id of its commit, or the digits of it that are known."""
        return self.facts["commit"]

    @property
    def file(self) -> str:
        """The one upstream file that its patches may change."""
        return self.project.file

    @property
    def padding_bug(self) -> bool:
        """Whether it attends to padding: a series of a base without that has nothing to fix."""
        return "fixes" in self.facts

    @property
    def versions(self) -> list[str]:
        """The releases that are like it by their dates, or may be: nobody has seen their files."""
        return self._released(self.name) + self._released("unclear")

    @property
    def dated(self) -> str:
        """The same in words."""
        unclear = "".join(f", {version} unclear" for version in self._released("unclear"))
        return f"by their dates: {', '.join(self._released(self.name)) or 'none'}{unclear}"

    def _released(self, as_what: str) -> list[str]:
        releases = self.project.upstream.get("releases", {})
        return [version for version, name in releases.items() if name == as_what]

    @cached_property
    def tables(self) -> list[Table]:
        """Its line tables, the surest first."""
        return [
            Table(path, digest, origin, read_table(path.read_text(encoding="utf-8")))
            for name, (digest, origin) in self.facts["tables"].items()
            for path in [self.folder / name]
        ]

    @property
    def table(self) -> dict[int, str]:
        """Line number -> hash, as the surest table has them."""
        return self.tables[0].lines

    @cached_property
    def lines(self) -> dict[int, tuple[str, str]]:
        """Line number -> hash and origin, from the surest table that has the line."""
        known: dict[int, tuple[str, str]] = {}
        for table in reversed(self.tables):
            known |= {number: (digest, table.origin) for number, digest in table.lines.items()}
        return known

    @cached_property
    def series(self) -> list[str]:
        """The names in its series, in order; none where the series is still to be made."""
        path = self.folder / "series"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [name for line in text.split("\n") if (name := line.split("#")[0].strip())]

    @cached_property
    def patches(self) -> list[mbox.Patch]:
        """The patches of the series, parsed.

        Raises:
            PatchError: the first that is missing or cannot be parsed.
        """
        return [mbox.parse(name, self.patch_text(name)) for name in self.series]

    def require_patches(self) -> list[mbox.Patch]:
        """Return the patches, or refuse where there are none yet."""
        if not self.patches:
            raise Refusal(f"{self} has no patches yet; patches/README.md tells how they are made")
        return self.patches

    @property
    def requests(self) -> dict[str, list[mbox.Patch]]:
        """Pull request -> its patches; one that names none belongs to that of the patch before."""
        found: dict[str, list[mbox.Patch]] = {}
        name = "fix"
        for patch in self.patches:
            name = dict(patch.trailers).get("Pull-Request", name)
            found.setdefault(name, []).append(patch)
        return found

    def patch_text(self, name: str) -> str:
        """Return the text of one patch, newlines as they are."""
        try:
            return (self.folder / name).read_bytes().decode("utf-8")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise mbox.PatchError(f"{name}: {error}") from None


def read_table(text: str) -> dict[int, str]:
    """Parse a line table: ``number<TAB>hash`` a line, comments after ``#``."""
    rows = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return {int(number): digest for number, digest in rows}


def line_table(text: str) -> str:
    """Return the line table of a file."""
    rows = (f"{n}\t{line_hash(line)}\n" for n, line in enumerate(split_lines(text), 1))
    return "# line\tsha256[:16] of the line without its newline\n" + "".join(rows)


def mismatches(table: dict[int, str], lines: list[str]) -> list[int]:
    """Return the numbers in a line table whose line in ``lines`` is another one."""
    return [n for n, h in table.items() if n > len(lines) or line_hash(lines[n - 1]) != h]


def split_lines(text: str) -> list[str]:
    """Split at newlines only, as the patches and the line table do.

    Raises:
        Misfit: the last line has no newline, so that writing it back would change it.
    """
    lines = text.split("\n")
    if lines.pop() != "":
        raise Misfit("the file does not end with a newline")
    return lines


def join_lines(lines: list[str]) -> str:
    """Inverse of :func:`split_lines` for a text that ends with a newline."""
    return "".join(f"{line}\n" for line in lines)
