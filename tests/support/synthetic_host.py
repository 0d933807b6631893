# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A checkout that can be run, made from the embedded host's own files, and a series for it.

At its pin the host's transformer pads and shards the text; the series adds a module and takes the
default from there, which is to keep the text whole. Its folders have an __init__.py that refuses
to be imported, like TensorRT-LLM's without its compiled parts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from patchset import export
from patchset.project import Project, split_lines
from patchset.report import Report

from support.synthetic import (
    BODY,
    FILE,
    HEADER,
    MODULES,
    ROOT,
    World,
    commit,
    cover,
    git,
    write,
    write_base,
)

NEW = f"{MODULES}/text_choice.py"
OLD_DEFAULT = 'text_kv: str = "exact"'
PINNED_DEFAULT = 'text_kv: str = "padded"'
NEW_DEFAULT = "text_kv: str = TEXT_KV"
HEAVY = 'raise ImportError("needs compiled parts")\n'
NEW_IMPORT = "from .text_choice import TEXT_KV\n"


def make(folder: Path) -> World:
    """Makes the project and the upstream, whose branch "main" is at the pin."""
    root, origin = folder / "project", folder / "upstream"
    ignore = shutil.ignore_patterns("__pycache__", "tests")
    shutil.copytree(ROOT / "host" / "visual_gen", origin, ignore=ignore)
    shutil.copytree(ROOT / "overlay", origin, ignore=ignore, dirs_exist_ok=True)
    for path in [p for p in origin.rglob("*") if p.is_dir()]:
        write(path / "__init__.py", HEAVY)
    text = (origin / FILE).read_text(encoding="utf-8")
    assert text.count(OLD_DEFAULT) == 1, OLD_DEFAULT
    text = text.replace(OLD_DEFAULT, PINNED_DEFAULT)
    write(origin / FILE, text)
    git(origin, "init", "-q", ".")
    pin = commit(origin, "pin")

    lines = split_lines(text)
    default = next(n for n, line in enumerate(lines, 1) if PINNED_DEFAULT in line)
    marks = {"imports": (n := _first_import(lines), n), "default": (default, default)}
    write_base(root, "pin", pin, lines, marks, fixes="#18687")
    write(root / "overlay" / NEW, _module())
    cover(root, "pin", "fix")
    work = folder / "work"
    git(folder, "clone", "-q", str(origin), str(work))
    apply(work)
    export.refresh(Project(root), work, None, Report())
    shutil.rmtree(work)
    return World("host", root, origin)


def apply(checkout: Path) -> None:
    """Commits what the series does, as two commits."""
    write(checkout / NEW, _module())
    commit(checkout, f"Add the choice of text keys\n\n{BODY}")
    lines = (checkout / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    lines.insert(_first_import(lines), NEW_IMPORT)
    write(checkout / FILE, "".join(lines).replace(PINNED_DEFAULT, NEW_DEFAULT))
    commit(checkout, f"Keep the text whole on every rank\n\n{BODY}")


def _first_import(lines: list[str]) -> int:
    """Returns the number of the first line that imports from a neighbouring file."""
    return next(n for n, line in enumerate(lines, 1) if line.startswith("from ."))


def _module() -> str:
    return f'{HEADER}"""How the text keys are kept."""\n\nTEXT_KV = "exact"\n'
