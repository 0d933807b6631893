# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The pull request: branch, cover text, and the checks of both, each seen to fail."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from patchset.project import BRANCH
from support.synthetic import COMPILABLE, HEADER, TEST_FILE, git, statuses, write

PR_BRANCH = f"{BRANCH}-pr-fix"
ANN = {
    f"GIT_{side}_{what}": value
    for side in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ann Author"), ("EMAIL", "ann@example.invalid"))
}


def result(world, kind, date="2026-11-30T01:00:00+00:00", measured=0.25, **changes):
    """Writes a result file, as the commands make them."""
    data = {
        "kind": kind,
        "date": date,
        "device": "a test machine",
        "commit": git(world.root, "rev-parse", "HEAD"),
        "command": f"make {kind}",
        "versions": {"torch": "2.13.0"},
        "checks": [{"name": "fixed", "status": "PASS", "measured": measured, "limit": 1.0}],
        "tables": [{"title": "Steps", "columns": ["unfixed", "fixed"], "rows": [[24.5, 1e-7]]}],
    }
    data |= changes
    data = {key: value for key, value in data.items() if value is not None}
    write(world.root / "results" / f"{kind}-{date[:10]}.json", json.dumps(data))


@pytest.fixture(scope="session", params=COMPILABLE)
def once(request, worlds, tmp_path_factory):
    """A project under git with results, a checkout with the series on it, and its pull request."""
    folder = tmp_path_factory.mktemp("pr")
    origin = worlds(request.param)
    shutil.copytree(origin.root, folder / "project", ignore=shutil.ignore_patterns("build"))
    world = replace(origin, root=folder / "project")
    git(world.root, "init", "-q", ".")
    git(world.root, "add", "-A", ".")
    git(world.root, "commit", "-qm", "project")
    for kind in ("parity", "bench"):
        result(world, kind)
    checkout = world.checkout(folder / "checkout")
    assert world.run("apply", "--dir", checkout).returncode == 0
    before = folder / "before"
    shutil.copytree(world.root, before / "project")
    shutil.copytree(checkout, before / "checkout")
    done = world.run("pr", "--dir", checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    return world, before, folder, done.stdout


def copied(once, source, target):
    for name in ("project", "checkout"):
        shutil.copytree(source / name, target / name)
    return replace(once[0], root=target / "project"), target / "checkout"


@pytest.fixture
def ready(once, tmp_path):
    """The project and the checkout before the pull request was prepared."""
    return copied(once, once[1], tmp_path)


@pytest.fixture
def prepared(once, tmp_path):
    """The project and the checkout with the pull request prepared."""
    return copied(once, once[2], tmp_path)


def place(world):
    """Where the text of the pull request is."""
    return world.root / "build" / "pr" / f"{world.base_name}-fix"


def prepare(ready, *args):
    world, checkout = ready
    return world.run("pr", "--dir", checkout, *args)


def test_pr_prepares_branch(once, prepared):
    world, checkout = prepared
    found = statuses(once[3])
    assert {name for name, said in found.items() if said != "PASS"} <= {
        "pr/sign-off",
        "pr/ruff-format",
        "pr/ruff-check",
    }
    assert found["pr/sign-off"] == "SKIP" and "FAIL" not in found.values()
    assert git(checkout, "symbolic-ref", "--short", "HEAD") == BRANCH
    assert git(checkout, "status", "--porcelain") == ""
    tree = git(checkout, "rev-parse", f"{PR_BRANCH}^{{tree}}")
    assert tree == git(checkout, "rev-parse", f"{BRANCH}^{{tree}}")
    log = git(checkout, "log", "--reverse", "--format=%s|%an|%ae", f"{world.pin}..{PR_BRANCH}")
    patches = world.base.patches
    for line, patch in zip(log.split("\n"), patches, strict=True):
        subject, name, mail = line.split("|")
        assert re.fullmatch(rf"\[#18687\]\[(fix|test)\] {re.escape(patch.subject)}", subject)
        assert (name, mail) == ("Ann Author", "ann@example.invalid")
    bodies = git(checkout, "log", "--format=%b", f"{world.pin}..{PR_BRANCH}")
    assert "Forwarded:" not in bodies and "Signed-off-by" not in bodies and "Link:" in bodies


def test_pr_cover_has_measured_tables(ready):
    world, _ = ready
    result(world, "parity", date="2026-12-01T00:00:00+00:00", measured=0.125)
    result(world, "parity", date="2026-10-01T00:00:00+00:00", measured=0.375)
    assert prepare(ready).returncode == 0
    text = (place(world) / "cover.md").read_text()
    assert "| fixed | PASS | 0.125 | 1 |" in text and "0.375" not in text
    assert "| 24.5 | 1e-07 |" in text and "a test machine" in text
    for head in ("## Description", "## Test Coverage", "## PR Checklist", "#18705"):
        assert head in text
    for patch in world.base.patches:
        assert patch.subject in text
    assert "<!--" not in text and "{{" not in text
    title = (place(world) / "title.txt").read_text()
    assert re.fullmatch(r"\[#18687\]\[fix\] [A-Z].*\n", title)


def test_pr_repeated_and_signed(prepared):
    world, checkout = prepared
    first = git(checkout, "rev-parse", PR_BRANCH)
    assert prepare(prepared).returncode == 0
    assert git(checkout, "rev-parse", PR_BRANCH) == first
    git(checkout, "-c", "advice.skippedCherryPicks=false", "rebase", "-q", "--signoff", world.pin,
        PR_BRANCH, **ANN)  # fmt: skip
    git(checkout, "checkout", "-q", BRANCH)
    done = prepare(prepared)
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(done.stdout)["pr/sign-off"] == "PASS"


@pytest.mark.parametrize("kind", ["parity", "bench"])
def test_pr_without_results_says_what_to_run(ready, kind):
    world, checkout = ready
    (world.root / "results" / f"{kind}-2026-11-30.json").unlink()
    done = prepare(ready)
    assert done.returncode == 1 and f"make {kind}" in done.stderr
    assert git(checkout, "branch", "--list", PR_BRANCH) == ""
    result(world, kind, device=None)
    done = prepare(ready)
    assert done.returncode == 1 and "device" in done.stderr


def test_pr_not_applied_refused(ready):
    world, checkout = ready
    world.run("unapply", "--dir", checkout)
    done = prepare(ready)
    assert done.returncode == 2 and "run apply first" in done.stderr
    assert world.run("check-pr", "--dir", checkout).returncode == 2


def test_pr_nobody_refused(ready):
    world, checkout = ready
    git(checkout, "config", "--unset", "user.email")
    nobody = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = world.run("pr", "--dir", checkout, **nobody)
    assert done.returncode == 2 and "user.email" in done.stderr


def test_pr_other_branch_refused(ready):
    _, checkout = ready
    git(checkout, "branch", PR_BRANCH, "work")
    done = prepare(ready)
    assert done.returncode == 2 and "branch -D" in done.stderr


# Each check of the branch and the text, failing.


def checked(prepared) -> set[str]:
    world, checkout = prepared
    done = world.run("check-pr", "--dir", checkout)
    failed = {name for name, said in statuses(done.stdout).items() if said == "FAIL"}
    assert done.returncode == bool(failed), done.stderr
    return failed


def amend(checkout, path=None, text=None, message=None, **env):
    """Changes the last commit of the pull request's branch."""
    git(checkout, "checkout", "-q", PR_BRANCH)
    if path:
        write(checkout / path, text)
        git(checkout, "add", "--sparse", "-f", path)
    said = git(checkout, "log", "-1", "--format=%B")
    git(checkout, "commit", "-q", "--amend", "-F", "-", stdin=message(said) if message else said)
    git(checkout, "checkout", "-q", BRANCH)


BROKEN_COMMIT = {
    "pr/commit-titles": lambda m: m.replace("[test]", "[Test]").replace("[fix]", "[Fix]"),
    "pr/no-dep3": lambda m: f"{m}\nForwarded: no\n",
    "pr/sign-off": lambda m: f"{m}\nSigned-off-by: A Machine <machine@invalid>\n",
}


@pytest.mark.parametrize("name", BROKEN_COMMIT)
def test_check_pr_broken_commit_fails(prepared, name):
    amend(prepared[1], message=BROKEN_COMMIT[name])
    assert checked(prepared) == {name}


LOGIC = "\n\ndef _logic_x():\n    pass\n"
MPI = 'import os\n\nos.environ["TLLM_DISABLE_MPI"] = "1"\n'
MULTI = TEST_FILE.rpartition("/")[0]
BROKEN_FILE = {
    "pr/shared-files": ("tensorrt_llm/_torch/visual_gen/attention_backend/parallel.py", "# mine\n"),
    "pr/spdx": (f"{MULTI}/test_a.py", MPI + LOGIC),
    "pr/tests-place": ("tests/elsewhere/test_a.py", HEADER + MPI),
    "pr/tests-mpi": (f"{MULTI}/test_a.py", HEADER + "import tensorrt_llm\n\n" + MPI + LOGIC),
    "pr/tests-logic": (f"{MULTI}/test_a.py", HEADER + MPI),
    "pr/tests-cpu-only": (f"{MULTI}/test_a.py", HEADER + MPI + "\nBACKEND = 'gloo'\n" + LOGIC),
    "pr/tests-fail": (
        f"{MULTI}/test_a.py",
        HEADER + MPI + '\nimport pytest\n\npytest.importorskip("x")\n' + LOGIC,
    ),
    "pr/ruff-format": (f"{MULTI}/test_a.py", HEADER + MPI + LOGIC + "X = [1,2]\n"),
    "pr/ruff-check": (f"{MULTI}/test_a.py", HEADER + MPI + "import sys\n" + LOGIC),
}


@pytest.mark.parametrize("name", BROKEN_FILE)
def test_check_pr_broken_file_fails(prepared, name):
    if "ruff" in name:
        pytest.importorskip("ruff", reason="ruff is not installed")
    amend(prepared[1], *BROKEN_FILE[name])
    assert name in checked(prepared)


BROKEN_COVER = {
    "pr/cover-sections": ("## Test Coverage", "## Tests"),
    "pr/cover-boxes": ("- [x] The title", "- [ ] The title"),
    "pr/cover-fields": ("The commits:", "The commits: {{more}}"),
    "pr/cover-results": ("24.5", "23.5"),
    "pr/cover-before-after": ("unfixed", "old"),
}


@pytest.mark.parametrize("name", BROKEN_COVER)
def test_check_pr_broken_cover_fails(prepared, name):
    path = place(prepared[0]) / "cover.md"
    text = path.read_text()
    old, new = BROKEN_COVER[name]
    assert old in text
    path.write_text(text.replace(old, new))
    assert name in checked(prepared)


def test_check_pr_title_fails(prepared):
    (place(prepared[0]) / "title.txt").write_text("Attend to keys\n")
    assert checked(prepared) == {"pr/title"}


@pytest.mark.parametrize("typed", ["1.5 ms", "3%", "2x", "at 0.8", "5e-6", "24 GiB"])
def test_pr_typed_number_fails(ready, typed):
    path = ready[0].base.folder / "cover-fix.md"
    path.write_text(path.read_text().replace("**Cost.** ", f"**Cost.** It is {typed}. "))
    assert typed in path.read_text()
    done = prepare(ready)
    assert done.returncode == 1 and statuses(done.stdout)["pr/cover-numbers"] == "FAIL"


@pytest.mark.parametrize("commit", ["HEAD-dirty", "0" * 40])
def test_pr_unknown_results_fail(ready, commit):
    result(ready[0], "bench", date="2026-12-01T00:00:00+00:00", commit=commit)
    done = prepare(ready)
    assert statuses(done.stdout)["pr/cover-results"] == "FAIL"
    assert "run make bench again" in done.stderr


def test_pr_stale_results_fail(ready):
    world, _ = ready
    module = next((world.root / "overlay").rglob("text_*.py"))
    module.write_text(module.read_text() + "# later\n")
    assert world.run("export").returncode == 0
    git(world.root, "commit", "-qam", "later")
    done = prepare((world, ready[1]))
    assert done.returncode == 1
    assert statuses(done.stdout)["pr/cover-results"] == "FAIL"
    assert "has changed since; run make parity again" in done.stderr
