# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Make an overlay for an installed TensorRT-LLM: patched copies, new modules, and the import hook.

The folder that this makes is put on PYTHONPATH; see hook/cosmos3_overlay.py for what happens then.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import drift
from .export import write_atomically
from .fit import patched, require_python
from .project import Project, join_lines, mismatches, sha256, split_lines
from .report import Refusal, Report, note

HOOK = Path(__file__).resolve().parent / "hook"
_FIND = """
import importlib.util, sys
spec = importlib.util.find_spec("tensorrt_llm")
print(next(iter(spec.submodule_search_locations)) if spec else "")
"""


def hook():
    """Return the hook module, for what both sides need."""
    spec = importlib.util.spec_from_file_location("patchset_hook", HOOK / "cosmos3_overlay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_package(python: str) -> Path:
    """Return the folder of the tensorrt_llm that an interpreter would import, without doing so."""
    env = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COSMOS3_TEXT_KV_OVERLAY")
    }
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, env=env)
    except OSError as error:
        raise Refusal(f"cannot run {python!r}: {error}") from None
    place = done.stdout.strip()
    if done.returncode or not place:
        said = done.stderr.strip().rpartition("\n")[2] or "there is none"
        raise Refusal(
            f"{python} finds no tensorrt_llm ({said}); name its interpreter with --python, or the "
            "package's folder with --package"
        )
    return Path(place)


def make(project: Project, args, report: Report) -> int:
    """``overlay``: write build/overlay/ for an installed package."""
    package = (args.package or find_package(args.python or sys.executable)).resolve()
    tools = hook()
    version = tools.installed_version(package)
    versions = project.upstream["overlay"]["versions"]
    known = version in versions or (version is not None and version == args.accept_version)
    report.line(known, "overlay/version", version, " or ".join(versions))
    if not known:
        report.finish()
        raise Refusal(
            f"{package} is version {version}, which nobody has tried; if you have, add "
            f"--accept-version {version}"
        )
    texts, installed = _patched_texts(project, package, args.accept_digest, report)
    target = args.out or project.build / "overlay"
    modules = {}
    # The folder is named by its contents, so that a running process keeps what it has read.
    files = "files-" + sha256("".join(texts.values()).encode())[:12]
    for path, text in texts.items():
        modules[path[: -len(".py")].replace("/", ".")] = {
            "copy": f"{files}/{path}",
            "installed": installed[path],
            "sha256": sha256(text.encode()),
        }
        place = target / files / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, text)
    for source in sorted(HOOK.glob("*.py")):
        write_atomically(target / source.name, source.read_text(encoding="utf-8"))
    manifest = {
        "format": 1,
        "package": str(package),
        "version": version,
        "pin": project.pin,
        "modules": modules,
    }
    write_atomically(target / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    for old in target.glob("files-*"):
        if old.name != files:
            shutil.rmtree(old)
    report.line(True, "overlay/made", f"{len(modules)} modules in {target}", "-")
    note(f"switch it on with COSMOS3_TEXT_KV_OVERLAY=1 PYTHONPATH={target.resolve()}")
    return report.finish()


def _patched_texts(
    project: Project, package: Path, accepted: str | None, report: Report
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return upstream path -> text after the series, and path -> installed digest or None."""
    texts: dict[str, str] = {}
    installed: dict[str, str | None] = {}
    known = True
    base = package.parent
    for patch in project.patches:
        for diff in patch.files:
            if not diff.path.startswith(f"{package.name}/"):
                continue  # upstream's tests are not installed
            if diff.new:
                if (base / diff.path).exists():
                    raise Refusal(f"{base / diff.path} is installed already; nothing to overlay")
                texts[diff.path], installed[diff.path] = diff.text, None
                continue
            if diff.path not in texts:
                text, digest, known = _installed_text(project, base / diff.path, accepted, report)
                texts[diff.path], installed[diff.path] = text, digest
            before = texts[diff.path]
            texts[diff.path] = join_lines(patched(split_lines(before), diff, anywhere=not known))
            require_python(diff.path, before, texts[diff.path])
    return texts, installed


def _installed_text(
    project: Project, path: Path, accepted: str | None, report: Report
) -> tuple[str, str, bool]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(f"cannot read {path}: {error}") from None
    text, digest = data.decode(), sha256(data)
    lines = split_lines(text)
    wrong = mismatches(project.table, lines)
    exact = not wrong
    said = f"{len(wrong)} of {len(project.table)} known lines differ, sha256 {digest[:12]}"
    report.line(exact or accepted == digest, "overlay/digest", said, "0, or one you accept")
    if not exact and accepted != digest:
        drift.against_files({project.file: lines}.get, lambda name: "", project.patches, report)
        report.finish()
        raise Refusal(
            f"{path} is not the file that the patches are for. If every hunk above fits and you "
            f"have read the file, add --accept-digest {digest}"
        )
    return text, digest, exact


def show_status(project: Project, args, report: Report) -> int:
    """``overlay-status``: what is made, for which file and digest, and whether it is on."""
    target = args.out or project.build / "overlay"
    script = target / "cosmos3_overlay.py"
    if not script.exists():
        report.line(False, "overlay/made", f"none in {target}", "run make overlay")
        return report.finish()
    # In a fresh process with the caller's environment, so that it tells what a worker would see.
    code = "import sys; sys.path.append(sys.argv[1]); import runpy; "
    code += "runpy.run_module('cosmos3_overlay', run_name='__main__')"
    return subprocess.run([args.python or sys.executable, "-c", code, str(target)]).returncode
