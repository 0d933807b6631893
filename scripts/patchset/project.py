# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The files that the commands work from: UPSTREAM, patches/ with its series, overlay/."""

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
        head = re.fullmatch(r"\[([A-Za-z0-9_-]+)\]", line)
        item = re.fullmatch(r'("[^"]+"|[A-Za-z0-9_-]+) *= *(.+)', line)
        try:
            if head:
                table = tables.setdefault(head[1], {})
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
        for table, key in (
            ("upstream", "repository"),
            ("upstream", "commit"),
            ("upstream", "file"),
            ("upstream", "issue"),
            ("upstream", "sparse"),
            ("digests", "lines"),
            ("overlay", "versions"),
        ):
            if key not in tables.get(table, {}):
                raise Refusal(f"{path} has no [{table}] {key}")
        return tables

    @property
    def pin(self) -> str:
        """The id of the pinned commit."""
        return self.upstream["upstream"]["commit"]

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

    @property
    def table_path(self) -> Path:
        """The file with the hashes of the pinned file's lines."""
        return self.root / "patches" / "pin" / f"{Path(self.file).stem}.lines.tsv"

    @cached_property
    def table(self) -> dict[int, str]:
        """Line number -> hash of that line at the pin."""
        return read_table(self.table_path.read_text(encoding="utf-8"))

    @cached_property
    def series(self) -> list[str]:
        """The names in patches/series, in order."""
        path = self.root / "patches" / "series"
        if not path.exists():
            raise Refusal(f"{path} is missing; patches/README.md tells how refresh makes it")
        lines = (
            line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").split("\n")
        )
        return [line for line in lines if line]

    @cached_property
    def patches(self) -> list[mbox.Patch]:
        """The patches of the series, parsed.

        Raises:
            PatchError: the first that is missing or cannot be parsed.
        """
        return [mbox.parse(name, self.patch_text(name)) for name in self.series]

    def patch_text(self, name: str) -> str:
        """Return the text of one patch, newlines as they are."""
        try:
            return (self.root / "patches" / name).read_bytes().decode("utf-8")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise mbox.PatchError(f"{name}: {error}") from None

    @cached_property
    def overlay(self) -> dict[str, str]:
        """Upstream path -> text, for every file in overlay/, sorted by path."""
        top = self.root / "overlay"
        return {
            path.relative_to(top).as_posix(): path.read_bytes().decode("utf-8")
            for path in sorted(top.rglob("*.py"))
            if "__pycache__" not in path.parts
        }


def read_table(text: str) -> dict[int, str]:
    """Parse a line table: ``number<TAB>hash`` a line, comments after ``#``."""
    rows = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return {int(number): digest for number, digest in rows}


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
