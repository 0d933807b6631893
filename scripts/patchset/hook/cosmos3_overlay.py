# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Import hook: patched copies of installed TensorRT-LLM modules win over the installed ones.

This file stands in the folder that ``make overlay`` made, beside ``manifest.json`` and the copies.
Nothing under site-packages is written. Two ways to switch it on:

    COSMOS3_TEXT_KV_OVERLAY=1 PYTHONPATH=that/folder trtllm-serve ...
        for a process and for all workers that inherit its environment
    with cosmos3_overlay.active(): import tensorrt_llm...
        in Python, with that folder on sys.path; workers started inside inherit it

Everything that is not as it was when the overlay was made (another version, another file, a copy
that was edited) makes the import of the module fail. The unpatched module is never taken in its
place. ``python -m cosmos3_overlay`` tells what is active.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

VARIABLE = "COSMOS3_TEXT_KV_OVERLAY"
# Set once the replaced modules were printed, so that workers do not print them again.
_SAID = "COSMOS3_TEXT_KV_OVERLAY_SAID"
HERE = Path(__file__).resolve().parent
PACKAGE = "tensorrt_llm"
# What must not be imported unpatched when the overlay is asked for and broken.
GUARDED = "tensorrt_llm._torch.visual_gen.models.cosmos3"


class OverlayError(RuntimeError):
    """The overlay was asked for and cannot be used; the text says why and what to do.

    No ImportError: code that takes a module as optional must not take this for its absence.
    """


def digest(path: Path) -> str | None:
    """Return the sha256 of a file, or None where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def installed_version(package: Path) -> str | None:
    """Return the version of the package in a folder: its version.py, or else its metadata."""
    try:
        text = (package / "version.py").read_text(encoding="utf-8")
        found = re.search(r"^__version__ *= *[\"']([^\"']+)", text, re.M)
        if found:
            return found[1]
    except FileNotFoundError:
        pass
    places = [str(package.parent)]
    names = importlib.metadata.distributions(name=PACKAGE, path=places)
    return next((d.version for d in names), None)


def read_manifest() -> dict:
    """Return manifest.json.

    Raises:
        OverlayError: it is missing or not one.
    """
    try:
        manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["format"] == 1
        return manifest
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise OverlayError(f"no usable manifest in {HERE} ({error!r}); run make overlay") from None


def problems(manifest: dict, package: Path) -> list[str]:
    """Return what is not as it was when the overlay was made, for the package in a folder."""
    found = []
    version = installed_version(package)
    if version != manifest["version"]:
        found.append(f"{package} is version {version}, the overlay is for {manifest['version']}")
    for name, entry in manifest["modules"].items():
        relative = Path(*name.split(".")).with_suffix(".py")
        there = digest(package.parent / relative)
        if there != entry["installed"]:
            is_now, was = (d[:12] if d else "missing" for d in (there, entry["installed"]))
            found.append(f"{package.parent / relative} is {is_now}, the overlay is for {was}")
        if digest(HERE / entry["copy"]) != entry["sha256"]:
            found.append(f"{HERE / entry['copy']} is not what was written there")
    return found


class _Finder(MetaPathFinder):
    """Finds the modules of the manifest in the overlay; refuses them where anything is off."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.manifest: dict | None = None
        self.checked = False
        try:
            value = os.environ.get(VARIABLE, "1")
            if value != "1":
                raise OverlayError(f"{VARIABLE}={value!r}; expected 1 (on), or 0 or nothing (off)")
            self.manifest = read_manifest()
        except OverlayError as error:
            # Raised at start-up it would be printed and forgotten; raised on import it counts.
            self.error = str(error)

    def find_spec(self, fullname, path=None, target=None):
        if self.error is not None:
            if fullname == GUARDED or fullname.startswith(f"{GUARDED}."):
                raise OverlayError(self.error)
            return None
        entry = self.manifest["modules"].get(fullname)
        if entry is None:
            return None
        if not self.checked:
            self._check(fullname, path)
        return spec_from_file_location(fullname, HERE / entry["copy"])

    def _check(self, fullname: str, path) -> None:
        depth = fullname.count(".") - 1
        package = Path(next(iter(path))).resolve()
        package = package.parents[depth - 1] if depth else package
        found = problems(self.manifest, package)
        if found:
            text = "; ".join(found)
            raise OverlayError(f"{text}; run make overlay again, or unset {VARIABLE}")
        self.checked = True
        if not os.environ.get(_SAID):
            os.environ[_SAID] = "1"
            for line in describe(self.manifest):
                print(f"cosmos3_overlay: {line}", file=sys.stderr, flush=True)


def describe(manifest: dict) -> list[str]:
    """Return one line for each module of the overlay."""
    lines = []
    for name, entry in manifest["modules"].items():
        if entry["installed"]:
            lines.append(f"replaced {name} ({entry['installed'][:12]} -> {entry['sha256'][:12]})")
        else:
            lines.append(f"added {name} ({entry['sha256'][:12]})")
    return lines


def _finder() -> _Finder | None:
    return next((f for f in sys.meta_path if isinstance(f, _Finder)), None)


def activate() -> None:
    """Install the hook in this process; a second call changes nothing.

    Raises:
        OverlayError: one of the modules was imported already.
    """
    if _finder() is not None:
        return
    finder = _Finder()
    late = [n for n in (finder.manifest or {"modules": {}})["modules"] if n in sys.modules]
    if late:
        raise OverlayError(f"{', '.join(late)} imported already; switch the overlay on before")
    sys.meta_path.insert(0, finder)


def deactivate() -> None:
    """Take the hook out. Modules that it brought in stay."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]


@contextmanager
def active() -> Iterator[None]:
    """Have the overlay on inside the block, for this process and the workers started in it.

    Raises:
        OverlayError: the overlay cannot be used, or a module was imported already.
    """
    names = (VARIABLE, "PYTHONPATH")
    before = {name: os.environ.get(name) for name in names}
    installed = _finder() is None
    os.environ[VARIABLE] = "1"
    inherited = before["PYTHONPATH"]
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{inherited}" if inherited else str(HERE)
    try:
        activate()
        if _finder().error:
            raise OverlayError(_finder().error)
        yield
    finally:
        if installed:
            deactivate()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def status(line) -> None:
    """Tell what is active: ``line(ok, name, measured, limit)`` is called for each fact."""
    try:
        manifest = read_manifest()
    except OverlayError as error:
        line(False, "overlay/made", str(error), "a manifest")
        return
    line(True, "overlay/made", f"{len(manifest['modules'])} modules in {HERE}", "a manifest")
    found = problems(manifest, Path(manifest["package"]))
    for text in found:
        print(text, file=sys.stderr)
    said = f"{len(found)} changes in {manifest['package']}"
    line(not found, "overlay/installed", said, f"version {manifest['version']}, same digests")
    for text in describe(manifest):
        line(not found, "overlay/module", text, "-")
    on = _finder() is not None and _finder().error is None
    value = os.environ.get(VARIABLE)
    said = "on in this process" if on else f"off ({VARIABLE}={value})"
    line(True if on else None, "overlay/active", said, f"{VARIABLE}=1 PYTHONPATH={HERE}")


if __name__ == "__main__":
    import cosmos3_overlay  # this file again, under the name that sitecustomize used

    failed = []

    def _line(ok, name, measured, limit):
        word = {True: "PASS", False: "FAIL", None: "SKIP"}[ok]
        failed.extend([name] if ok is False else [])
        print(word, name, measured, limit)

    cosmos3_overlay.status(_line)
    sys.exit(bool(failed))
