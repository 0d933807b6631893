# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Apply and unapply: refusals, repetition, and being killed at every step."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from patchset.checkout import CLONING, PREPARING, SWITCHING
from patchset.project import BRANCH
from support import synthetic
from support.synthetic import FILE, git


def snapshot(folder):
    """Everything of a checkout that a user can see: HEAD, branches, changes, and the files."""
    paths = git(folder, "ls-files", "--others", "--cached", "--", "tensorrt_llm", "tests")
    files = {p: (folder / p).read_bytes() for p in paths.split("\n") if (folder / p).is_file()}
    head = subprocess.run(["git", "symbolic-ref", "-q", "HEAD"], cwd=folder, capture_output=True)
    return (
        head.stdout,
        git(folder, "rev-parse", "HEAD"),
        git(folder, "for-each-ref", "--format=%(refname) %(objectname)"),
        git(folder, "status", "--porcelain", "-uall"),
        files,
    )


def test_apply_series_vs_git_am(world, checkout, tmp_path):
    done = world.run("apply", "--dir", checkout)
    assert done.returncode == 0, done.stderr
    assert git(checkout, "symbolic-ref", "--short", "HEAD") == BRANCH
    assert git(checkout, "status", "--porcelain", "-uall") == ""
    other = world.checkout(tmp_path / "am")
    names = [str(world.base.folder / name) for name in world.base.series]
    git(other, "am", "-q", "--committer-date-is-author-date", *names)
    form = "--format=%T%n%an %ae %ad%n%B"
    span = f"{world.pin}..HEAD"
    assert git(checkout, "log", form, span) == git(other, "log", form, span)


def test_apply_repeated_says_so(world, checkout):
    world.run("apply", "--dir", checkout)
    before = snapshot(checkout)
    done = world.run("apply", "--dir", checkout)
    assert done.returncode == 0 and "0 commits of yours" in done.stdout
    assert snapshot(checkout) == before
    (checkout / FILE).write_text("# mine\n")
    git(checkout, "commit", "-qam", "mine")
    done = world.run("apply", "--dir", checkout)
    assert done.returncode == 0 and "1 commits of yours" in done.stdout


@pytest.mark.parametrize("detached", [False, True], ids=["branch", "detached"])
def test_unapply_restores(world, checkout, detached):
    if detached:
        git(checkout, "checkout", "-q", "--detach")
    before = snapshot(checkout)
    assert world.run("apply", "--dir", checkout).returncode == 0
    assert snapshot(checkout) != before
    done = world.run("unapply", "--dir", checkout)
    assert done.returncode == 0, done.stderr
    assert snapshot(checkout) == before
    done = world.run("unapply", "--dir", checkout)
    assert done.returncode == 0 and "not checked out" in done.stdout
    assert world.run("apply", "--dir", checkout).returncode == 0


def test_apply_clone_sparse(sample):
    url = f"file://{sample.origin}"
    done = sample.run("apply", "--url", url)
    assert done.returncode == 0, done.stderr
    clone = sample.root / "build" / "TensorRT-LLM"
    assert (clone / FILE).exists() and not (clone / "cpp").exists()
    assert git(clone, "rev-list", "--count", "HEAD") == str(len(sample.base.series) + 1)
    missing = git(clone, "rev-list", "--objects", "--all", "--missing=print")
    assert sum(line.startswith("?") for line in missing.split("\n")) == 2  # README and cpp/
    assert sample.run("apply", "--url", url).returncode == 0
    assert sample.run("unapply").returncode == 0
    assert git(clone, "rev-parse", "HEAD") == sample.pin


def test_unapply_without_clone_passes(sample):
    assert sample.run("unapply").returncode == 0


# Refusals. Each exits 2, says what to do, and changes nothing.


def refuse(world, checkout, *args, says, command="apply"):
    before = snapshot(checkout)
    done = world.run(command, "--dir", checkout, *args)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert snapshot(checkout) == before
    assert not list((checkout / ".git").glob("cosmos3*.json"))


def test_apply_other_commit_refused(world, checkout):
    (checkout / FILE).write_text("# other\n" + (checkout / FILE).read_text())
    git(checkout, "commit", "-qam", "other")
    refuse(world, checkout, says="--try")


def test_apply_try_moved_commits(world, checkout):
    (checkout / FILE).write_text("# other\n" + (checkout / FILE).read_text())
    git(checkout, "commit", "-qam", "other")
    before = snapshot(checkout)
    done = world.run("apply", "--dir", checkout, "--try")
    assert done.returncode == 0, done.stderr
    assert "moved by +1" in done.stdout
    assert world.run("apply", "--dir", checkout).returncode == 0
    assert world.run("unapply", "--dir", checkout).returncode == 0
    assert snapshot(checkout) == before


def test_apply_try_conflict_changes_nothing(world, checkout):
    hunk = next(d for p in world.base.patches for d in p.files if not d.new).hunks[-1]
    gone = next(text for tag, text in hunk.lines if tag == "-")
    lines = (checkout / FILE).read_text().split("\n")
    assert lines[hunk.first + hunk.pre.index(gone)] == gone
    lines[hunk.first + hunk.pre.index(gone)] = "# conflict"
    (checkout / FILE).write_text("\n".join(lines))
    git(checkout, "commit", "-qam", "conflict")
    before = snapshot(checkout)
    done = world.run("apply", "--dir", checkout, "--try")
    assert done.returncode == 1
    assert "FAIL" in done.stdout and "# conflict" in done.stderr
    assert snapshot(checkout) == before


@pytest.mark.parametrize("how", ["modified", "staged", "in-the-way", "ignored-in-the-way"])
def test_apply_dirty_refused(world, checkout, how):
    path = FILE
    if "in-the-way" in how:
        path = next(d.path for p in world.base.patches for d in p.files if d.new)
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    (checkout / path).write_text("# mine\n")
    if how == "staged":
        git(checkout, "add", path)
    if how.startswith("ignored"):
        (checkout / ".git" / "info" / "exclude").write_text(f"/{path}\n")
    refuse(world, checkout, says=path)


def test_apply_other_changes_kept(world, checkout):
    own = checkout / "tensorrt_llm" / "_torch" / "visual_gen" / "mine.py"
    own.write_text("# mine\n")
    staged = checkout / "tensorrt_llm" / "_torch" / "visual_gen" / "staged.py"
    staged.write_text("# staged\n")
    git(checkout, "add", str(staged))
    before = git(checkout, "status", "--porcelain")
    for command in ("apply", "unapply"):
        assert world.run(command, "--dir", checkout).returncode == 0
        assert git(checkout, "status", "--porcelain") == before


def test_apply_no_checkout_refused(sample, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    checkout = sample.checkout(tmp_path / "checkout")
    for folder in (empty, tmp_path / "missing", checkout / "tensorrt_llm"):
        done = sample.run("apply", "--dir", folder)
        assert done.returncode == 2 and "TRTLLM_DIR" in done.stderr


def test_apply_no_network_refused(sample):
    done = sample.run("apply", "--url", "file:///nowhere/at/all")
    assert done.returncode == 2 and "TRTLLM_DIR" in done.stderr
    assert not list((sample.root / "build").glob("*TensorRT*"))
    assert not list((sample.root / "build").glob(".clone-*"))


def test_apply_foreign_branch_refused(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    (checkout / FILE).write_text("# other\n")
    git(checkout, "commit", "-qam", "other")
    git(checkout, "branch", BRANCH)
    git(checkout, "checkout", "-q", "-B", "work", sample.pin)
    refuse(sample, checkout, says="branch -m")
    git(checkout, "checkout", "-q", BRANCH)
    refuse(sample, checkout, says="another version")
    refuse(sample, checkout, says="not made by apply", command="unapply")


def test_apply_merge_under_way_refused(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    (checkout / ".git" / "MERGE_HEAD").write_text(f"{sample.pin}\n")
    refuse(sample, checkout, says="MERGE_HEAD")


def test_apply_in_two_work_trees_refused(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    other = tmp_path / "other"
    git(checkout, "worktree", "add", "-q", "--detach", str(other), sample.pin)
    assert sample.run("apply", "--dir", other).returncode == 0
    before = snapshot(checkout)
    done = sample.run("apply", "--dir", checkout)
    assert done.returncode == 2 and f"another worktree {other}" in done.stderr
    assert snapshot(checkout) == before
    assert sample.run("unapply", "--dir", other).returncode == 0
    assert sample.run("apply", "--dir", checkout).returncode == 0


def test_apply_busy_refused(sample, tmp_path):
    import fcntl

    checkout = sample.checkout(tmp_path / "checkout")
    with open(checkout / ".git" / "cosmos3-text-kv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refuse(sample, checkout, says="another command")


def test_unapply_own_commits_refused(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    sample.run("apply", "--dir", checkout)
    (checkout / FILE).write_text("# mine\n")
    done = sample.run("unapply", "--dir", checkout)
    assert done.returncode == 2 and FILE in done.stderr
    git(checkout, "commit", "-qam", "mine")
    done = sample.run("unapply", "--dir", checkout)
    assert done.returncode == 2 and "reset --hard" in done.stderr
    assert (checkout / FILE).read_text() == "# mine\n"


def test_unapply_moved_origin_detaches(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    sample.run("apply", "--dir", checkout)
    other = git(checkout, "rev-parse", "origin/shifted")
    git(checkout, "branch", "-f", "work", other)
    assert sample.run("unapply", "--dir", checkout).returncode == 0
    assert git(checkout, "rev-parse", "HEAD") == sample.pin
    assert git(checkout, "rev-parse", "work") == other
    assert git(checkout, "status", "--porcelain") == ""


# Being killed.


@pytest.fixture
def states(compilable, tmp_path):
    """A checkout, and what it looks like before and after the series."""
    checkout = compilable.checkout(tmp_path / "checkout")
    before = snapshot(checkout)
    assert compilable.run("apply", "--dir", checkout).returncode == 0
    after = snapshot(checkout)
    return compilable, checkout, before, after


def settle(checkout):
    """Waits until no command is at work in a checkout."""
    import fcntl

    with open(checkout / ".git" / "cosmos3-text-kv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def try_fault(states, command, fault):
    """Runs a command with a fault and checks what it leaves."""
    world, checkout, before, after = states
    if command == "apply":
        assert world.run("unapply", "--dir", checkout).returncode == 0
    was, whole = (before, after) if command == "apply" else (after, before)
    done = world.run(command, "--dir", checkout, fault=fault)
    settle(checkout)
    name, _, how = fault.partition(":")
    found = snapshot(checkout)
    if name in PREPARING:
        assert done.returncode == -signal.SIGKILL
        assert found == was
    elif how == "":
        assert done.returncode == 0 and "finishing its work" in done.stderr
        assert found == whole
    elif how == "parent":
        assert done.returncode == -signal.SIGKILL
        assert found == whole
    elif how == "error":
        assert done.returncode == 2 and "everything is as it was" in done.stderr
        assert found == was
    else:
        assert done.returncode == -signal.SIGKILL
    # Whatever is left, the next command puts right.
    done = world.run(command, "--dir", checkout)
    assert done.returncode == 0, done.stderr
    assert snapshot(checkout) == whole
    state = checkout / ".git" / "cosmos3-text-kv.json"
    if command == "apply":
        assert json.loads(state.read_text())["phase"] == "applied"
    else:
        assert not state.exists()
    assert not [p for p in checkout.rglob(".patchset-*")]


@pytest.mark.parametrize("fault", PREPARING)
def test_apply_killed_before_leaves_all(states, fault):
    try_fault(states, "apply", fault)


@pytest.mark.parametrize("how", ["", ":parent", ":both", ":error"])
@pytest.mark.parametrize("step", SWITCHING)
def test_apply_killed_while_switching(states, step, how):
    try_fault(states, "apply", step + how)


@pytest.mark.parametrize("fault", ["locked", "journal"])
def test_unapply_killed_before_leaves_all(states, fault):
    try_fault(states, "unapply", fault)


@pytest.mark.parametrize("how", [":both", ":error"])
@pytest.mark.parametrize("step", SWITCHING)
def test_unapply_killed_while_switching(states, step, how):
    try_fault(states, "unapply", step + how)


@pytest.mark.parametrize("fault", CLONING)
def test_apply_killed_while_cloning(sample, fault):
    url = f"file://{sample.origin}"
    assert sample.run("apply", "--url", url, fault=fault).returncode == -signal.SIGKILL
    assert not (sample.root / "build" / "TensorRT-LLM").exists()
    assert sample.run("apply", "--url", url).returncode == 0
    assert not list((sample.root / "build").glob(".clone-*"))


def test_apply_group_killed_any_time(sample, tmp_path):
    """The whole process group is killed at moments that nobody chose."""
    checkout = sample.checkout(tmp_path / "checkout")
    before = snapshot(checkout)
    sample.run("apply", "--dir", checkout)
    after = snapshot(checkout)
    sample.run("unapply", "--dir", checkout)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env["PYTHONPATH"] = str(synthetic.ROOT / "scripts")
    args = [sys.executable, "-m", "patchset", "--project", str(sample.root)]
    seen = set()
    for delay in (0.08, 0.14, 0.2, 0.23, 0.26, 0.29, 0.32):
        process = subprocess.Popen(
            [*args, "apply", "--dir", str(checkout)],
            env=env,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        settle(checkout)
        found = snapshot(checkout)
        assert found in (before, after)
        seen.add(found == after)
        sample.run("unapply", "--dir", checkout)
        assert snapshot(checkout) == before
    assert False in seen


def test_recover_edited_file_refused(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    sample.run("apply", "--dir", checkout, fault="file:both")
    (checkout / FILE).write_text("# mine\n")
    done = sample.run("apply", "--dir", checkout)
    assert done.returncode == 2 and "edited after an interrupted switch" in done.stderr
    assert (checkout / FILE).read_text() == "# mine\n"


def test_recover_settled_by_hand_forgotten(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    sample.run("apply", "--dir", checkout, fault="index:both")
    git(checkout, "reset", "-q", "--hard", "origin/shifted")
    done = sample.run("apply", "--dir", checkout)
    assert done.returncode == 2 and "--try" in done.stderr
    assert git(checkout, "status", "--porcelain", "-uno") == ""
