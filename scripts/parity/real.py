# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Runs on a checkout's own VisualGen Python: two copies of it, as it was and with the patches.

The copies lie under build/real-<digest>/, "pin" and "patched", and hold only the files that a run
imports, byte for byte. The stand-ins under host/ carry them. A checkout is never written to.

    unfixed side    the checkout's files, or those of the commit below the patches where the
                    checkout has them already (`make apply`, a pull request's branch)
    fixed side      the patches of the base that the checkout's lines are of, applied to a copy of
                    the unfixed side, or the checkout's own files where it has them already
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hostpath import ROOT
from patchset.fit import patched
from patchset.patch import Patch, PatchError
from patchset.project import Base, Project, join_lines, split_lines
from patchset.recognise import Likeness, nearest, recognise
from patchset.report import Misfit, Refusal

from parity.imports import PACKAGE, Read, walk

FOLDER = f"{PACKAGE}/_torch/visual_gen"
# Nothing imports the graph runner; it comes along for whoever captures a forward.
RUNNER = f"{FOLDER}/cuda_graph_runner.py"
# The layout is made before the model is, from here.
MAPPING = f"{FOLDER}/mapping.py"
# Answers requests; what it needs beside Python has a stand-in.
PIPELINE = f"{FOLDER}/models/cosmos3/pipeline_cosmos3.py"
STAND_INS = ROOT / "host" / "standins"
# Commits of the transformer that are looked at to find the one below the patches.
HISTORY = 50


@dataclass(frozen=True)
class Checkout:
    """A checkout, staged.

    Attributes:
        folder: The checkout.
        commit: What it has checked out; None outside of git.
        unfixed: Where the unfixed side comes from, for people.
        fixed: Where the fixed side comes from, for people.
        stages: "unfixed" and "fixed" -> the folder to put on the import path.
        digests: "unfixed" and "fixed" -> path -> sha256 of each staged file.
        padding_bug: Whether the unfixed side attends to padding; newer bases do not.
    """

    folder: Path
    commit: str | None
    unfixed: str
    fixed: str
    stages: dict[str, Path]
    digests: dict[str, dict[str, str]] = field(default_factory=dict)
    padding_bug: bool = True

    def facts(self) -> dict:
        """Returns what a report says about it."""
        both, changed = [], {"unfixed": [], "fixed": []}
        sides = self.digests
        for path in sorted({*sides["unfixed"], *sides["fixed"]}):
            found = {side: sides[side].get(path) for side in ("unfixed", "fixed")}
            if found["unfixed"] == found["fixed"]:
                both.append({"path": path, "sha256": found["fixed"]})
                continue
            for side, digest in found.items():
                if digest is not None:
                    changed[side].append({"path": path, "sha256": digest})
        return {
            "folder": str(self.folder),
            "commit": self.commit,
            "unfixed": self.unfixed,
            "fixed": self.fixed,
            "padding_bug": self.padding_bug,
            "files": {"both": both, **changed},
        }


def prepare(
    folder: Path,
    project: Project | None = None,
    build: Path | None = None,
    pipeline: bool = False,
) -> Checkout:
    """Stages both sides of a checkout.

    Args:
        folder: The checkout's top.
        project: Where the bases, their patches and line hashes are; this project when None.
        build: Where the stages are made; build/ when None.
        pipeline: Whether its pipeline comes along, for whole requests.

    Raises:
        ValueError: The folder is no checkout, lacks a file, holds a transformer of no base or of
            one without patches, or imports what neither it nor the stand-ins have.
    """
    project = project or Project(ROOT)
    what = f"--trtllm-dir {folder}"
    require_alone()
    if not (folder / FOLDER).is_dir():
        raise ValueError(
            f"{what} is no checkout of TensorRT-LLM: it has no {FOLDER}; give its top folder, or "
            "leave the option out to run on the embedded host."
        )
    try:
        commit, described, read, base = _sides(folder.resolve(), project, what)
    except (Misfit, Refusal, PatchError) as error:
        raise ValueError(f"{what}: {error}") from error
    files: dict[str, dict[str, bytes]] = {}
    for side in ("unfixed", "fixed"):
        entries = (project.file, MAPPING, RUNNER, *([PIPELINE] if pipeline else []))
        files[side], missing = walk(entries, read[side], _reader(STAND_INS))
        if missing:
            shown = "\n    ".join(missing[:12])
            raise ValueError(
                f"{what} cannot be run, its {side} side does not hold together:\n    {shown}\n"
                "Use a checkout of a commit in UPSTREAM."
            )
    digests = {
        side: {path: hashlib.sha256(text).hexdigest() for path, text in sorted(found.items())}
        for side, found in files.items()
    }
    stages = _stage(files, digests, build or project.build)
    # A series of a base without the bug has nothing to fix.
    padding_bug = "fixes" in base.facts
    return Checkout(folder.resolve(), commit, *described, stages, digests, padding_bug)


def require_alone() -> None:
    """Refuses an interpreter that has TensorRT-LLM installed.

    Raises:
        ValueError: A regular package wins over the namespace that a checkout and the stand-ins
            share, so that the installed files would run under the checkout's name.
    """
    spec = importlib.machinery.PathFinder.find_spec(PACKAGE, sys.path)
    if spec is not None and spec.origin is not None:
        raise ValueError(
            f"{spec.origin} is installed and would be imported instead of the checkout; set PYTHON "
            "to an interpreter without TensorRT-LLM, or run `make overlay` on the installed one."
        )


def _sides(
    folder: Path, project: Project, what: str
) -> tuple[str | None, tuple[str, str], dict[str, Read], Base]:
    """Returns the commit, where each side comes from, for people, how to read it, and the base."""
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    top = _git(folder, "rev-parse", "--show-toplevel")
    head = commit.decode().strip() if commit else None
    if not top or Path(top.decode().strip()).resolve() != folder:
        # A folder inside some other repository has that one's history, not its own.
        head = None
    tree = _reader(folder)
    text = tree(project.file)
    if text is None:
        raise ValueError(f"{what} lacks {project.file}; Cosmos3 came to TensorRT-LLM later.")
    text = text.decode("utf-8", "replace")
    applied = [base for base in project.bases if _has_patches(tree, base)]
    if applied and nearest(project, text).missing:
        found, below = _below(folder, project) if head else (None, "")
        if found is None:
            raise ValueError(
                f"{what} has the patches applied ({' or '.join(map(str, applied))}) and no commit "
                "below them to compare with; run `make unapply`, or give a git checkout whose "
                "history reaches a base."
            )
        said = f"the checkout's commit {below[:12]}, below the patches; {found.said}"
        sides = {"unfixed": functools.partial(_committed, folder, below), "fixed": tree}
        return head, (said, _applied_text(folder)), sides, found.base
    try:
        found = recognise(project, text, "its transformer")
        patches = found.base.require_patches()
        fixed = _with_series(tree, patches, anywhere=not found.exact)
    except (Misfit, Refusal) as error:
        raise ValueError(
            f"{what}: {error}\n`make check-upstream` tells hunk by hunk what moved; or check out "
            f"{' or '.join(base.commit[:12] for base in project.bases if base.series)}."
        ) from error
    said = (
        f"the checkout's files, {found.said}",
        f"a copy of the unfixed side with its {len(patches)} patches applied",
    )
    return head, said, {"unfixed": tree, "fixed": fixed}, found.base


def _reader(root: Path) -> Read:
    def read(path: str) -> bytes | None:
        try:
            return (root / path).read_bytes()
        except OSError:
            return None

    return read


def _committed(folder: Path, commit: str, path: str) -> bytes | None:
    return _git(folder, "cat-file", "blob", f"{commit}:{path}")


def _has_patches(read: Read, base: Base) -> bool:
    """Whether the base's new modules are all there, whatever they hold."""
    new = [diff.path for patch in base.patches for diff in patch.files if diff.new]
    modules = [path for path in new if path.startswith(f"{base.project.modules}/")]
    return bool(modules) and all(read(path) is not None for path in modules)


def _below(folder: Path, project: Project) -> tuple[Likeness | None, str]:
    """Returns the newest commit whose transformer is a base's to the line, and what it is."""
    args = ("log", f"-n{HISTORY}", "--format=%H", "--", project.file)
    changes = (_git(folder, *args) or b"").decode().split()
    # A commit that changed the file has its parent's text before it.
    candidates = [name for commit in changes for name in (commit, f"{commit}^")]
    for commit in [*candidates, *(base.commit for base in project.bases)]:
        text = _git(folder, "cat-file", "blob", f"{commit}:{project.file}")
        found = nearest(project, text.decode("utf-8", "replace")) if text else None
        if found and found.exact:
            return found, (_git(folder, "rev-parse", commit) or b"").decode().strip()
    return None, ""


def _with_series(tree: Read, patches: list[Patch], anywhere: bool) -> Read:
    """Returns a reader of the tree after the series, all of it in memory."""
    changed: dict[str, str] = {}
    for patch in patches:
        for diff in patch.files:
            if diff.new:
                changed[diff.path] = diff.text
                continue
            text = changed.get(diff.path)
            if text is None:
                source = tree(diff.path)
                if source is None:
                    raise Misfit(f"{patch.name}: the checkout has no {diff.path}")
                text = source.decode("utf-8")
            changed[diff.path] = join_lines(patched(split_lines(text), diff, anywhere))

    def read(path: str) -> bytes | None:
        return changed[path].encode() if path in changed else tree(path)

    return read


def _applied_text(folder: Path) -> str:
    dirty = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", FOLDER)
    return "the checkout's own files, patches applied" + (", edited since" if dirty else "")


def _git(folder: Path, *args: str) -> bytes | None:
    """Returns what git prints, or None where it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            timeout=120,
            env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _stage(files, digests, build: Path) -> dict[str, Path]:
    """Writes both sides to a folder named by their contents, in one step."""
    whole = hashlib.sha256()
    for side in ("unfixed", "fixed"):
        for path, digest in digests[side].items():
            whole.update(f"{side} {path} {digest}\n".encode())
    folder = build / f"real-{whole.hexdigest()[:16]}"
    names = {"unfixed": "pin", "fixed": "patched"}
    stages = {side: folder / name for side, name in names.items()}
    if all(_intact(stages[side], digests[side]) for side in stages):
        return stages
    build.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".real-", dir=build))
    try:
        for side, name in names.items():
            for path, text in files[side].items():
                target = fresh / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return stages


def _intact(stage: Path, digests: dict[str, str]) -> bool:
    there = {
        path.relative_to(stage).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in stage.rglob("*.py")
    }
    return there == digests
