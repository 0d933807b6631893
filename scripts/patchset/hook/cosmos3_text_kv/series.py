# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The patches as data: which installed files they are for, and those files' text after them.

series.json has ``version`` and a list ``bases``. Each base has

    name, versions     what it is called, and the releases that it was tried with
    file               path of the one module that is changed, from site-packages
    lines or sha256    number -> hash of every line that matters, or the digest of the whole file
    edits              [first, last, [new lines]]: what replaces these lines of that file
    modules            path of a new module -> [where it is under files/, sha256]
"""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHOWN = 8
AGAIN = "install the wheel again, or run make overlay"


class OverlayError(RuntimeError):
    """What was switched on cannot be had; the text says why and what would help.

    No ImportError: code that takes a module as optional must not take this for its absence.
    """


def digest(data: bytes) -> str:
    """Return the sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def line_hash(line: str) -> str:
    """Return the hash that a base holds of a line without its newline."""
    return digest(line.encode())[:16]


def installed_version(package: Path) -> str | None:
    """Return the version of the package in a folder: its version.py, or else its metadata."""
    from importlib import metadata  # slow to import, and this module is in every process

    try:
        text = (package / "version.py").read_text(encoding="utf-8")
        found = re.search(r"^__version__ *= *[\"']([^\"']+)", text, re.M)
        if found:
            return found[1]
    except FileNotFoundError:
        pass
    found = metadata.distributions(name=package.name, path=[str(package.parent)])
    return next((each.version for each in found), None)


class _Patched(SourceFileLoader):
    """Loads a text in place of a file.

    Its name is that of no file, so that tracebacks, ``inspect`` and bytecode caches cannot take
    the installed text for it.
    """

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.data = text.encode()

    def get_data(self, path: str) -> bytes:
        return self.data

    def path_stats(self, path: str):
        # Without these the import system looks for no bytecode, and writes none.
        raise OSError(f"{path} is no file")


@dataclass(frozen=True)
class Patched:
    """What runs in place of, and beside, an installed file.

    Attributes:
        said: for a log: which package, base and digests.
        specs: name of a module -> a function that makes its spec.
    """

    said: str
    specs: dict

    def spec(self, name: str) -> ModuleSpec | None:
        """Return the spec of a module, or None for one that the patches leave alone."""
        make = self.specs.get(name)
        return make(name) if make else None


class Series:
    """The contents of series.json, and of the folder files/ beside it."""

    def __init__(self, data: dict, folder: Path = HERE) -> None:
        self.data, self.folder = data, folder

    @classmethod
    def read(cls, folder: Path = HERE) -> "Series":
        """Read a folder's.

        Raises:
            OverlayError: there is none, or it is of another form.
        """
        try:
            data = json.loads((folder / "series.json").read_text(encoding="utf-8"))
            if data["format"] != 1:
                raise ValueError(f"format {data['format']}")
            return cls(data, folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OverlayError(f"no usable series.json in {folder} ({error!r}); {AGAIN}") from None

    def match(self, package: Path) -> tuple[dict, bytes, str]:
        """Return the base of the package in a folder, its file before the patches, and its version.

        Raises:
            OverlayError: its file or version is of no known base, or a module is in the way.
        """
        version = installed_version(package)
        tried, wrong = [], []
        for base in self.data["bases"]:
            path = package.parent / base["file"]
            try:
                data = path.read_bytes()
                found = _unlike(base, data)
            except (OSError, UnicodeDecodeError) as error:
                found = f"cannot read {path}: {error}"
            there = [each for each in base["modules"] if (package.parent / each).exists()]
            if there:
                found = f"{package.parent / there[0]} is installed already"
            if found:
                wrong.append(f"base {base['name']}: {found}")
            elif version in base["versions"]:
                return base, data, version
            else:
                tried += base["versions"]
        if tried:
            raise OverlayError(
                f"{package} is version {version}, these patches are for {' or '.join(tried)}. If "
                f"you have tried that one, make them with --accept-version {version}"
            )
        raise OverlayError(
            f"the file in {package}, version {version}, is that of no known base: "
            f"{'; '.join(wrong)}. make overlay tells hunk by hunk"
        )

    def apply(self, package: Path) -> Patched:
        """Return what runs in place of the modules of the package in a folder.

        Raises:
            OverlayError: as match does, or one of our files is not what was written.
        """
        base, data, version = self.match(package)
        text = after(base, data)
        virtual = str(self.folder / "patched" / base["file"])
        specs = {
            _module(base["file"]): lambda name: spec_from_file_location(
                name, virtual, loader=_Patched(name, virtual, text)
            )
        }
        digests = [digest(text.encode())]
        for path, (place, wanted) in sorted(base["modules"].items()):
            file = self.folder / "files" / place
            if not file.exists() or digest(file.read_bytes()) != wanted:
                raise OverlayError(f"{file} is not what was written there; {AGAIN}")
            specs[_module(path)] = partial(spec_from_file_location, location=file)
            digests.append(wanted)
        runs = digest("".join(digests).encode())
        said = f"{package.name} {version} in {package}, base {base['name']}"
        return Patched(f"{said}, digest {digest(data)[:12]} -> {runs[:12]}", specs)


def after(base: dict, data: bytes) -> str:
    """Return the text of a base's file after the patches."""
    lines = data.decode().split("\n")
    for first, last, new in reversed(base["edits"]):
        lines[first - 1 : last] = new
    return "\n".join(lines)


def _unlike(base: dict, data: bytes) -> str:
    """Say how a file differs from the one of a base; nothing if it does not."""
    found = digest(data)
    if "sha256" in base:
        same = found == base["sha256"]
        return "" if same else f"sha256 {found[:12]} is not {base['sha256'][:12]}"
    table = {int(number): value for number, value in base["lines"].items()}
    lines = data.decode().split("\n")
    if all(n <= len(lines) and line_hash(lines[n - 1]) == h for n, h in table.items()):
        return ""
    return f"{differences(table, lines)}, sha256 {found[:12]}"


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def differences(table: dict[int, str], lines: list[str]) -> str:
    """Say which known lines are not in a file, or that all are, but elsewhere."""
    from difflib import SequenceMatcher

    numbers = sorted(table)
    there = [line_hash(line) for line in lines]
    matcher = SequenceMatcher(None, [table[n] for n in numbers], there, autojunk=False)
    gone = [
        (numbers[a], numbers[b - 1])
        for tag, a, b, _, _ in matcher.get_opcodes()
        if tag in ("replace", "delete")
    ]
    if not gone:
        return f"all {len(numbers)} known lines are there, but not at their numbers"
    shown = ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in gone[:SHOWN])
    more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
    return f"of {len(numbers)} known lines these are not there: {shown}{more}"
