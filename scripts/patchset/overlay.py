# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The overlay for an installed TensorRT-LLM: as a wheel to install, or as a folder for PYTHONPATH.

Both hold hook/cosmos3_text_kv, which says what happens at run time, with the series as data: new
modules whole, changes of the upstream file as numbers of lines and what replaces them. Of the file
itself they hold hashes only.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from own_version import NAME, ROOT, VERSION

from . import drift, pr
from .check import Tree
from .export import write_atomically
from .fit import locate, patched, require_python, splice
from .project import Base, Project, join_lines, line_hash, sha256, split_lines
from .recognise import by_date, nearest
from .report import Misfit, Refusal, Report, note
from .wheel import write_wheel

HOOK = Path(__file__).resolve().parent / "hook"
MODULE = "cosmos3_text_kv"
PACKAGE = "tensorrt_llm"
_FIND = f"""
import importlib.util
spec = importlib.util.find_spec({PACKAGE!r})
print(next(iter(spec.submodule_search_locations)) if spec else "")
"""


def run_time():
    """Return the module that holds a series against an installed package at run time.

    By its path, because a hook that is on in this very process may be of another version.
    """
    spec = importlib.util.spec_from_file_location("patchset_run_time", HOOK / MODULE / "series.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_package(python: str) -> Path:
    """Return the folder of the tensorrt_llm that an interpreter would import, without doing so."""
    ours = ("PYTHONPATH", "COSMOS3_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, env=env)
    except OSError as error:
        raise Refusal(f"cannot run {python!r}: {error}") from None
    place = done.stdout.strip()
    if done.returncode or not place:
        said = done.stderr.strip().rpartition("\n")[2] or "there is none"
        raise Refusal(
            f"{python} finds no {PACKAGE} ({said}); name its interpreter with --python, or the "
            "package's folder with --package"
        )
    return Path(place)


def make(project: Project, args, report: Report) -> int:
    """``overlay``: write the folder, for the package that is installed."""
    package = (args.package or find_package(args.python or sys.executable)).resolve()
    bases = [base for base in project.bases if base.series]
    series, files = _bundle(bases)
    _hold(series, bases, package, args, report)
    target = args.out or project.build / "overlay"
    files["sitecustomize.py"] = (HOOK / "sitecustomize.py").read_text(encoding="utf-8")
    # The series is written last: until then, what is there is refused.
    files[f"{MODULE}/series.json"] = json.dumps(series)
    shutil.rmtree(target / MODULE, ignore_errors=True)
    for name, text in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target / name, text)
    report.line(True, "overlay/made", f"{NAME} {VERSION} in {target}", "-")
    note(f"switch it on with COSMOS3_TEXT_KV_OVERLAY=1 PYTHONPATH={target.resolve()}")
    return report.finish()


def make_wheel(project: Project, args, report: Report) -> int:
    """``wheel``: write the wheel; held against an installed package only if one is named."""
    bases = [base for base in project.bases if base.series]
    series, files = _bundle(bases)
    if args.package or args.python:
        package = (args.package or find_package(args.python)).resolve()
        _hold(series, bases, package, args, report)
    elif args.accept_digest:
        raise Refusal("--accept-digest needs the file: add --python or --package")
    elif args.accept_version:
        for base in series["bases"]:
            base["versions"].append(args.accept_version)
    for text in [text for base in bases for text in _adds(base)]:
        note(f"wheel/base: {text}")
    files[f"{MODULE}/series.json"] = json.dumps(series)
    files[f"{MODULE}.pth"] = (HOOK / f"{MODULE}.pth").read_text(encoding="utf-8")
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    path = write_wheel(args.out or project.build, MODULE, NAME, VERSION, files, licence)
    report.line(True, "wheel/made", path, f"{len(series['bases'])} bases, no dependency")
    note(f"pip install --force-reinstall {path}, then COSMOS3_TEXT_KV_OVERLAY=1")
    return report.finish()


def _bundle(bases: list[Base]) -> tuple[dict, dict[str, str]]:
    """Return series.json's contents, and path -> text of the other files."""
    series = {"format": 1, "version": VERSION, "bases": []}
    files = {
        f"{MODULE}/{path.name}": path.read_text("utf-8")
        for path in sorted((HOOK / MODULE).glob("*.py"))
    }
    for base in bases:
        tree = Tree(base)
        for patch in base.patches:
            if wrong := sum(tree.apply(patch), []):
                raise Misfit(f"{wrong[0]}; run check")
        modules = {}
        for path, entries in tree.files.items():
            if path.startswith(f"{PACKAGE}/") and path != base.file:
                text = join_lines(entries)
                digest = sha256(text.encode())
                place = f"{digest[:12]}/{path.rpartition('/')[2]}"
                files[f"{MODULE}/files/{place}"] = text
                modules[path] = [place, digest]
        series["bases"].append(
            {
                "name": base.name,
                "versions": list(base.versions),
                "file": base.file,
                # Every line that the edits stand on, whatever the table holds.
                "lines": base.table | {n: line_hash(text) for n, text in tree.known.items()},
                "edits": list(edits(tree.files[base.file])),
                "modules": modules,
            }
        )
    return series, files


def edits(entries: list[int | str]) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (first, last, new lines) for a file whose entries are line numbers or new lines."""
    after, new = 0, []
    for entry in entries:
        if isinstance(entry, str):
            new.append(entry)
            continue
        if new or entry != after + 1:
            yield after + 1, entry - 1, new
        after, new = entry, []
    if new:
        yield after + 1, after, new


def _hold(series: dict, bases: list[Base], package: Path, args, report: Report) -> None:
    """Hold a series against an installed package; what the user accepts goes into it.

    Raises:
        Refusal: it is for another version or file.
        Misfit: hunks do not fit an accepted file.
    """
    hook, project = run_time(), bases[0].project
    version = hook.installed_version(package)
    file = package.parent / project.file
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Refusal(f"cannot read {file}: {error}") from None
    found = nearest(project, data.decode("utf-8", "replace"))
    dated = by_date(project, version)
    report.line(not found.missing, "overlay/base", found.said, "by its lines")
    for text in (*found.differences(), dated, *([] if found.missing else _adds(found.base))):
        note(f"overlay/base: {text}")
    for entry in series["bases"]:
        entry["versions"] += [version] * (version == args.accept_version)
    listed = [base for base in bases if found.missing or base == found.base]
    known = [each for base in listed for each in base.versions]
    good = version in known or (version is not None and version == args.accept_version)
    report.line(good, "overlay/version", version, " or ".join(dict.fromkeys(known)))
    if not good:
        report.finish()
        raise Refusal(
            f"{package} is version {version}, which nobody has tried with {found.base}; {dated}. "
            f"If you have, add --accept-version {version}"
        )
    if args.accept_digest == sha256(data):
        series["bases"].append(_accepted(series, bases, data, version))
    try:
        entry, _, _ = hook.Series(series).match(package)
    except hook.OverlayError as error:
        report.line(False, "overlay/digest", sha256(data)[:12], "of a known base")

        def read(name: str) -> list[str] | None:
            there = package.parent / name
            return split_lines(there.read_bytes().decode()) if there.exists() else None

        drift.against_files(read, lambda name: "", found.base.require_patches(), report)
        report.finish()
        raise Refusal(
            f"{error}. If every hunk above fits and you have read the file, add --accept-digest "
            f"{sha256(data)}"
        ) from None
    report.line(True, "overlay/digest", sha256(data)[:12], f"base {entry['name']}")
    require_python(str(file), data.decode(), hook.after(entry, data))


def _adds(base: Base) -> Iterator[str]:
    """Say whether a base has the padding bug, and what each pull request of its series adds."""
    yield f"{base}: the padding bug is {'there' if base.padding_bug else 'gone'}; added here is"
    for name in base.requests:
        yield f"{name}: {pr.request(base, name).template[0]}"


def _accepted(series: dict, bases: list[Base], data: bytes, version: str) -> dict:
    """Return an entry for a file that the hunks of a base fit, if not at their own lines."""
    misfits = []
    for entry, base in zip(series["bases"], bases):
        try:
            moved = list(edits(_moved(base, split_lines(data.decode()))))
        except Misfit as misfit:
            misfits.append(misfit)
            continue
        kept = {key: value for key, value in entry.items() if key != "lines"}
        changes = {"versions": [version], "sha256": sha256(data), "edits": moved}
        return kept | changes | {"name": f"{entry['name']} as accepted"}
    raise misfits[0]


def _moved(base: Base, lines: list[str]) -> list[int | str]:
    """Follow a file through the series, each hunk where its lines stand."""
    entries: list[int | str] = list(range(1, len(lines) + 1))
    for patch in base.patches:
        for diff in patch.files:
            if diff.path == base.file:
                after = patched(lines, diff, anywhere=True)
                for fit in reversed(locate(lines, diff.hunks)):
                    splice(entries, fit.hunk, fit.at)
                lines = after
    return entries


def show_status(args) -> int:
    """``overlay-status``: whether it would be active in three kinds of process."""
    script = HOOK / MODULE / "__main__.py"
    try:
        return subprocess.run([args.python or sys.executable, str(script)]).returncode
    except OSError as error:
        raise Refusal(f"cannot run {args.python!r}: {error}") from None
