# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Apply the series to a checkout, and take it back.

Nothing is visible before all commits exist as objects. Then a journal is written, and one short
step puts the branch, the files, the index and HEAD in place. That step runs in a process of its own
session, so that killing the command (or its whole group) does not stop it; if that process dies,
the command finishes its work from the journal, and if both die, the next command does. Each of its
actions can be done twice.

Journal and memory are one file in the git directory, ``cosmos3-text-kv.json``:
    phase: "switching", or "applied" when all is in place
    goal: "applied" or "unapplied", where a switch is heading
    base, tip: commit ids before and after the series
    origin: what HEAD was: a full ref name, or the commit id of a detached HEAD
"""

import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import drift
from .git import Git, GitError, as_written, build
from .project import BRANCH, Base, Project, split_lines
from .recognise import Likeness, compare, nearest, recognise
from .report import Misfit, Refusal, Report, note

REF = f"refs/heads/{BRANCH}"
STATE = "cosmos3-text-kv.json"
# What git leaves in its directory while an operation is under way.
IN_PROGRESS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "rebase-merge", "rebase-apply", "index.lock")
# The points at which tests kill the command. Those of SWITCHING are in the protected step.
CLONING = ("clone-started", "clone-fetched", "clone-checked-out")
PREPARING = ("locked", "checked", "built", "journal")
SWITCHING = ("branch", "file", "files", "index", "head")


def step(name: str) -> None:
    """Mark a point. Tests name one in COSMOS3_PATCHSET_FAULT to have the process die there.

    "NAME" kills this process with SIGKILL, "NAME:parent" the one that waits for it, "NAME:both"
    the one and then the other; "NAME:error" raises.
    """
    assert name in CLONING + PREPARING + SWITCHING
    wanted, _, how = os.environ.get("COSMOS3_PATCHSET_FAULT", "").partition(":")
    if wanted != name:
        return
    if how == "error":
        raise OSError(f"fault asked for at {name}")
    if how in ("parent", "both"):
        os.kill(os.getppid(), signal.SIGKILL)
    if how != "parent":
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class State:
    """The journal; see the top of this file."""

    phase: str
    goal: str
    base: str
    tip: str
    origin: str


class Checkout:
    """A checkout of upstream that the series goes into."""

    def __init__(self, root: Path) -> None:
        """Open a checkout.

        Raises:
            Refusal: the folder is not the top of a work tree.
        """
        advice = "give the top folder of a TensorRT-LLM checkout (TRTLLM_DIR), or none at all"
        if not root.is_dir():
            raise Refusal(f"{root} is no folder; {advice}")
        self.root = root.resolve()
        self.git = Git(self.root)
        try:
            top = self.git.text("rev-parse", "--show-toplevel")
        except GitError as error:
            raise Refusal(f"{root} is no git checkout ({error}); {advice}") from None
        if not top or Path(top).resolve() != self.root:
            raise Refusal(f"{root} is not the top of a git checkout; {advice}")
        self.state_path = self.git.path(STATE)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands out; the lock goes when the last process that holds it ends."""
        with open(self.git.path("cosmos3-text-kv.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refusal(f"another command is at work in {self.root}; wait for it") from None
            step("locked")
            self.recover()
            yield

    @property
    def state(self) -> State | None:
        """The journal, or None."""
        try:
            return State(**json.loads(self.state_path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise Refusal(f"cannot read {self.state_path}: {error}; move it away") from None

    def write_state(self, state: State) -> None:
        """Replace the journal in one step."""
        fresh = self.state_path.with_suffix(".new")
        with open(fresh, "w") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.state_path)

    @property
    def head(self) -> str:
        """The commit id of HEAD."""
        commit = self.git.commit("HEAD")
        if commit is None:
            raise Refusal(f"{self.root} has no commit checked out; check out the pinned commit")
        return commit

    @property
    def origin(self) -> str:
        """The ref that HEAD names, or the commit id of a detached HEAD."""
        return self.git.ask("symbolic-ref", "--quiet", "HEAD") or self.head

    def changed(self, base: str, tip: str) -> list[tuple[str, bool]]:
        """Return (path, whether it is new) for what the series touches."""
        fields = self.git.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", base, tip)
        words = fields.decode().split("\0")[:-1]
        return [(path, kind == "A") for kind, path in zip(words[::2], words[1::2])]

    def require_clean(self, paths: list[str]) -> None:
        """Refuse where the user has work under way in ``paths``, or an operation in progress."""
        for name in IN_PROGRESS:
            if self.git.path(name).exists():
                raise Refusal(
                    f"{self.root}: {name} is in the git directory: finish or abort what is under "
                    "way there first"
                )
        args = ("status", "--porcelain", "-z", "--ignored", "--no-renames", "-uall", "--", *paths)
        dirty = [entry for entry in self.git.text(*args).split("\0") if entry]
        if dirty:
            listed = ", ".join(entry[3:] for entry in dirty[:5])
            raise Refusal(
                f"{self.root}: uncommitted changes in {listed}; commit or move them away (nothing "
                "was changed)"
            )

    def switch(self, state: State) -> None:
        """Put goal ``state.goal`` in place: journal first, then the protected step."""
        self.write_state(state)
        step("journal")
        status = _protected(lambda: self._switch(state))
        if status == 0:
            return
        if os.WIFSIGNALED(status):
            note("the switching process was killed; finishing its work")
            self._switch(state, faults=False)
            return
        back = State(**asdict(state) | {"goal": _other(state.goal)})
        self.write_state(back)
        self._switch(back, faults=False)
        raise Refusal(f"{self.root}: could not switch (see above); everything is as it was")

    def recover(self) -> None:
        """Finish a switch that was cut off."""
        state = self.state
        if state is None or state.phase != "switching":
            return
        nothing_yet = state.goal == "applied" and self.git.commit(REF) is None
        if nothing_yet or self.head not in (state.base, state.tip):
            # Cut off before anything was visible, or settled by hand since.
            self.state_path.unlink()
            return
        note(f"an interrupted switch was found in {self.root}; finishing it ({state.goal})")
        for path, _ in self.changed(state.base, state.tip):
            file = self.root / path
            there = self.git.text("hash-object", "--", path) if file.exists() else None
            sides = [self.git.ask("rev-parse", f"{c}:{path}") for c in (state.base, state.tip)]
            if there not in (*sides, None):
                raise Refusal(
                    f"{file} was edited after an interrupted switch; move it away and run again"
                )
        self._switch(state, faults=False)

    def _switch(self, state: State, faults: bool = True) -> None:
        mark = step if faults else (lambda name: None)
        applying = state.goal == "applied"
        target = state.tip if applying else state.base
        if applying:
            self.git.run("update-ref", "-m", "patchset: apply", REF, state.tip)
        mark("branch")
        paths = self.changed(state.base, state.tip)
        entries = []
        for path, new in paths:
            if new and not applying:
                self._remove(self.root / path)
                entries.append(f"0 {'0' * 40}\t{path}")
            else:
                self._write(
                    self.root / path, self.git.run("cat-file", "--filters", f"{target}:{path}")
                )
                kind = self.git.text("ls-tree", target, "--", path).split()
                entries.append(f"{kind[0]} {kind[2]}\t{path}")
            mark("file")
        mark("files")
        self.git.run("update-index", "--add", "--index-info", stdin="\n".join(entries) + "\n")
        self.git.ask("update-index", "-q", "--refresh", "--", *(path for path, _ in paths))
        mark("index")
        if applying:
            self.git.run("symbolic-ref", "-m", "patchset: apply", "HEAD", REF)
        elif self.git.commit(state.origin) == state.base and state.origin.startswith("refs/"):
            self.git.run("symbolic-ref", "-m", "patchset: unapply", "HEAD", state.origin)
        else:
            # Detached before, or the branch has moved on since: then its files are another matter.
            self.git.run("update-ref", "--no-deref", "-m", "patchset: unapply", "HEAD", state.base)
        mark("head")
        if applying:
            self.write_state(State(**asdict(state) | {"phase": "applied"}))
        else:
            if self.git.commit(REF):
                self.git.run("update-ref", "-d", REF, state.tip)
            self.state_path.unlink()

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".patchset-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.root or (folder.exists() and any(folder.iterdir())):
                break
            if folder.exists():
                folder.rmdir()


def _other(goal: str) -> str:
    return "unapplied" if goal == "applied" else "applied"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _protected(work) -> int:
    """Run ``work`` in a child of its own session and return its wait status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            work()
            status = 0
        except BaseException as error:
            note(f"switching failed: {error}")
        finally:
            os._exit(status)
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            continue  # the child does not hear it either, and is nearly done


def clone(project: Project, url: str | None = None) -> Path:
    """Return a sparse, blobless, single-commit clone of upstream under build/, made if need be.

    It has the first base's commit.

    Raises:
        Refusal: upstream cannot be reached.
    """
    place = project.build / "TensorRT-LLM"
    url = url or project.upstream["upstream"]["repository"]
    commit = project.bases[0].commit
    project.build.mkdir(exist_ok=True)
    with open(project.build / ".clone.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in project.build.glob(".clone-*"):
            shutil.rmtree(left)
        if place.exists():
            return place
        with tempfile.TemporaryDirectory(dir=project.build, prefix=".clone-") as folder:
            fresh = Path(folder) / "checkout"
            fresh.mkdir()
            git = Git(fresh)
            note(f"cloning {commit[:12]} of {url} into {place} (only the folders needed)")
            step("clone-started")
            git.run("init", "--quiet", ".")
            git.run("remote", "add", "origin", url)
            patterns = "".join(f"/{path}/\n" for path in project.upstream["upstream"]["sparse"])
            git.run("sparse-checkout", "set", "--no-cone", "--stdin", stdin=patterns)
            fetch(git, commit)
            step("clone-fetched")
            git.run("checkout", "--quiet", "--detach", "FETCH_HEAD", progress=True)
            step("clone-checked-out")
            os.rename(fresh, place)
    return place


def fetch(git: Git, ref: str) -> str:
    """Fetch one commit without blobs from origin, showing progress, and return its id."""
    args = ("fetch", "--progress", "--no-tags", "--depth=1", "--filter=blob:none", "origin", ref)
    try:
        git.run(*args, progress=True)
    except GitError as error:
        raise Refusal(
            f"could not fetch {ref} ({error}). Without a network, set TRTLLM_DIR to a checkout "
            "that you have"
        ) from None
    return git.text("rev-parse", "FETCH_HEAD^{commit}")


def _file(project: Project, git: Git, commit: str) -> str:
    """Return the upstream file at a commit, or nothing where it has none."""
    return git.ask("cat-file", "blob", f"{commit}:{project.file}") or ""


def base_below(project: Project, checkout: Checkout) -> tuple[Base, str]:
    """Return the base that an applied series stands on, and its commit.

    Raises:
        Refusal: the commit is missing.
    """
    state, git = checkout.state, checkout.git
    wanted = [state.base] if state else [base.commit for base in reversed(project.bases)]
    commit = git.below_head(wanted)
    if commit is None:
        listed = " or ".join(one[:12] for one in wanted)
        raise Refusal(f"{checkout.root}: the commit {listed} that {BRANCH} stands on is missing")
    return nearest(project, _file(project, git, commit)).base, commit


def apply(project: Project, folder: Path | None, report: Report, anywhere: bool, url=None) -> int:
    """``apply``: put the series of the checkout's base on a branch of its own and check it out."""
    checkout = Checkout(folder or clone(project, url))
    with checkout.locked():
        git, head = checkout.git, checkout.head
        if checkout.origin == REF:
            return _again(project, checkout, report)
        found = _placed(project, checkout, head, anywhere)
        patches = found.base.require_patches()
        report.line(not found.missing or None, "base", found.said, "by its lines")
        touched = sorted({diff.path for patch in patches for diff in patch.files})
        checkout.require_clean(touched)
        step("checked")
        if not found.exact and not drift.against_commit(git, head, patches, report):
            report.finish()
            raise Misfit("the series does not fit this commit; nothing was changed")
        tip = build(git, head, patches, as_written, anywhere)
        step("built")
        there = git.commit(REF)
        if there not in (None, tip):
            raise Refusal(
                f"branch {BRANCH} exists and holds something else ({there[:12]}); rename it with "
                f"git -C {checkout.root} branch -m {BRANCH} NEW"
            )
        # Two work trees on one branch: taking it back in one would take it from the other.
        trees = git.text("worktree", "list", "--porcelain").split("\n\n")
        others = [tree.split("\n")[0] for tree in trees if f"branch {REF}" in tree.split("\n")]
        if others:
            raise Refusal(f"{BRANCH} is checked out in another {others[0]}; unapply it there first")
        checkout.switch(State("switching", "applied", head, tip, checkout.origin))
        where = f"{len(patches)} commits on {BRANCH} in {checkout.root}"
        report.line(True, "applied", where, head[:12])
    return report.finish()


def _placed(project: Project, checkout: Checkout, head: str, anywhere: bool) -> Likeness:
    """Return what the file at HEAD is like; not ``anywhere``: it has to be a base to the line."""
    text, what = _file(project, checkout.git, head), f"{checkout.root} at {head[:12]}"
    if anywhere:
        return nearest(project, text)
    advice = "ask with --try whether the patches fit it all the same (nothing was changed)"
    try:
        found = recognise(project, text, what)
    except Refusal as error:
        raise Refusal(f"{error}\nCheck a base's commit out, or {advice}") from None
    if not found.exact:
        raise Refusal(f"{what} is {found.said}; {advice}")
    return found


def _again(project: Project, checkout: Checkout, report: Report) -> int:
    git = checkout.git
    base, commit = base_below(project, checkout)
    tip = build(git, commit, base.patches, as_written, anywhere=True)
    ours = git.text("rev-list", "--first-parent", f"{commit}..HEAD").split("\n")
    if tip not in ours:
        raise Refusal(
            f"{checkout.root}: {BRANCH} holds another version of the series; unapply it first"
        )
    said = f"already, to {base}, {ours.index(tip)} commits of yours on top"
    report.line(True, "applied", said, tip[:12])
    return report.finish()


def unapply(project: Project, folder: Path | None, report: Report) -> int:
    """``unapply``: go back to what was checked out before, and delete the branch."""
    place = folder or project.build / "TensorRT-LLM"
    if folder is None and not place.exists():
        report.line(True, "unapplied", "no clone under build/", "-")
        return report.finish()
    checkout = Checkout(place)
    with checkout.locked():
        state = checkout.state
        if checkout.origin != REF:
            report.line(True, "unapplied", f"{BRANCH} is not checked out in {place}", "-")
            return report.finish()
        if state is None:
            raise Refusal(f"{place}: {BRANCH} was not made by apply; check out what you want")
        if checkout.head != state.tip:
            raise Refusal(
                f"{place}: {BRANCH} has commits that apply did not make; keep them with git -C "
                f"{place} branch NAME, then git -C {place} reset --hard {state.tip[:12]}"
            )
        checkout.require_clean([path for path, _ in checkout.changed(state.base, state.tip)])
        back = State(**asdict(state) | {"phase": "switching", "goal": "unapplied"})
        checkout.switch(back)
        said = nearest(project, _file(project, checkout.git, checkout.head)).said
        where = f"{place} is at {checkout.head[:12]}, {said}"
        report.line(True, "unapplied", where, state.base[:12])
    return report.finish()


def check_upstream(project: Project, args, report: Report) -> int:
    """``check-upstream``: hold a series against another commit, or a copy of the file.

    It is that of the base that the file is of, or else of the one most like it.
    """
    if (args.ref is None) == (args.file is None):
        raise Refusal("give one of --ref (REF=branch, tag or commit) and --file")
    if args.file is not None:
        text = args.file.read_bytes().decode()
        base = _report_base(project, text, args.base, report)
        read = {project.file: split_lines(text)}.get
        drift.against_files(read, lambda path: "", base.patches, report)
        return report.finish()
    commit = None
    if args.dir is not None:
        git = Checkout(args.dir).git
        commit = git.commit(args.ref)
    if commit is None:
        # Fetched into the clone under build/, so that nothing is added to the user's checkout.
        git = Git(clone(project, args.url))
        commit = git.commit(args.ref) or fetch(git, args.ref)
    note(f"{args.ref} is {commit}")
    base = _report_base(project, _file(project, git, commit), args.base, report)
    drift.against_commit(git, commit, base.patches, report)
    return report.finish()


def _report_base(project: Project, text: str, name: str | None, report: Report) -> Base:
    found = compare(project.base(name), text.split("\n")) if name else nearest(project, text)
    for difference in found.differences():
        note(f"base: {difference}")
    names = " or ".join(base.name for base in project.bases)
    report.line(not found.missing, "base", found.said, names)
    if not found.base.series:
        report.line(None, "hunks", f"{found.base} has no patches yet", "all fit")
    return found.base
