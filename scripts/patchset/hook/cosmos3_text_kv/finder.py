# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The import hook: acts when VisualGen is imported, and stands in the way where it cannot."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path

from .rows import row_invariant
from .series import HERE, OverlayError, Patched, Series
from .variables import OVERLAY, ROW_INVARIANT, misspelled

PACKAGE = "tensorrt_llm"
VISUAL_GEN = f"{PACKAGE}._torch.visual_gen"
# What must not be imported as it is when something is switched on and cannot be had.
GUARDED = f"{VISUAL_GEN}.models.cosmos3"


def _overlay(package: Path) -> tuple[str, Patched | None]:
    patched = Series.read().apply(package)
    return f"active for {patched.said}", patched


def _rows(package: Path) -> tuple[str, Patched | None]:
    return row_invariant(), None


SWITCHES = {OVERLAY: _overlay, ROW_INVARIANT: _rows}


def say(text: str) -> None:
    """Print one line on stderr, with this project's name and version."""
    try:
        version = Series.read().data["version"]
    except OverlayError:
        version = "(broken)"
    print(f"cosmos3-text-kv {version} {text}", file=sys.stderr, flush=True)


class Finder(MetaPathFinder):
    """Serves one switch. Before VisualGen is imported it has done nothing.

    Raised at start-up, an error would be printed and forgotten; so it is raised on import.
    """

    def __init__(self, switch: str, value: str = "1") -> None:
        self.switch, self.value = switch, value
        self.begun, self.error = False, None
        self.patched: Patched | None = None

    def find_spec(self, fullname, path=None, target=None):
        """Return the spec of a module that the patches change or add; see importlib.abc."""
        if not _inside(fullname, VISUAL_GEN):
            return None
        if not self.begun:
            self._begin(_top(fullname, path))
        if self.error and _inside(fullname, GUARDED):
            raise OverlayError(self.error)
        return self.patched.spec(fullname) if self.patched else None

    def ask(self, package: Path) -> tuple[str, Patched | None]:
        """Return what to say and what to serve for the package in a folder.

        Raises:
            OverlayError: it cannot be had.
        """
        if self.value != "1":
            raise OverlayError(f"{self.switch}={self.value!r}; expected 1, or 0 or nothing (off)")
        return SWITCHES[self.switch](package)

    def _begin(self, package: Path) -> None:
        try:
            said, self.patched = self.ask(package)
            say(f"{said}, pid {os.getpid()}")
        except OverlayError as error:
            self.error = f"{error}. Unset {self.switch} to run without"
            say(f"NOT active, pid {os.getpid()}: {self.error}")
        self.begun = True


def _inside(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def _top(name: str, path) -> Path:
    """Return the top package's folder, from the search path of one of its modules."""
    folder = Path(next(iter(path))).resolve()
    return [folder, *folder.parents][name.count(".") - 1]


def _installed(switch: str) -> Finder | None:
    found = (f for f in sys.meta_path if isinstance(f, Finder) and f.switch == switch)
    return next(found, None)


@cache
def start() -> None:
    """Install what the environment switches on, once.

    Called at the start of every process, and twice in a virtual environment, where Python runs
    .pth files again.
    """
    for text in misspelled(os.environ):
        say(text)
    for switch in SWITCHES:
        value = os.environ.get(switch, "0")
        if value not in ("", "0"):
            sys.meta_path.insert(0, Finder(switch, value))


@contextmanager
def active() -> Iterator[None]:
    """Have the fix in what is imported inside the block, also by processes started in it.

    Modules that came in stay. Inside, OverlayError is raised on import where it cannot be had.

    Raises:
        OverlayError: Cosmos3's modules were imported already, without it.
    """
    there = _installed(OVERLAY)
    late = [name for name in sys.modules if _inside(name, GUARDED)]
    if late and not (there and there.patched):
        raise OverlayError(f"{late[0]} is imported already; switch the overlay on before")
    finder = there or Finder(OVERLAY)
    changes = {OVERLAY: "1"}
    top = str(HERE.parent)
    if not (HERE.parent / "cosmos3_text_kv.pth").exists():
        # The folder form: processes find it by this path.
        changes["PYTHONPATH"] = os.pathsep.join([top, *filter(None, [os.getenv("PYTHONPATH")])])
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    if there is None:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if there is None:
            sys.meta_path.remove(finder)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def standing() -> tuple[bool, str]:
    """Return whether the fix would be active in this process, and for what, or why not."""
    finder = _installed(OVERLAY)
    if finder is None:
        return False, f"the hook is there, but {OVERLAY} is not set"
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return False, f"there is no {PACKAGE}"
    try:
        return True, finder.ask(Path(next(iter(spec.submodule_search_locations))).resolve())[0]
    except OverlayError as error:
        return False, str(error)
