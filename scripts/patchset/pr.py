# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Prepare a pull request: a branch as upstream wants it, and the cover text; check both.

A base's series may be several pull requests, one after the other: the branch of one has the commits
of those before it below its own, and only its own are checked.

What upstream wants is listed at the end of the design notes; each rule is one line of output here.
The sign-off is left to the human who submits: nobody else can give it.
"""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from . import patch as mbox
from .check import COLUMNS, SPDX, SUBJECT, TESTS
from .checkout import REF, Checkout, base_below
from .export import write_atomically
from .git import Git, GitError, as_written, build
from .project import BRANCH, Base, Project
from .report import Misfit, Refusal, Report, note
from .results import KINDS, of_kind

TITLE = re.compile(r"\[(?:#\d+|TRTLLM-\d+|None)\]\[[a-z]+\] [A-Z]\S*( \S+)+")
SECTIONS = ("Description", "Test Coverage", "PR Checklist")
# A figure with a unit, a decimal fraction or an exponent: what only a result file may say.
TYPED = re.compile(r"\d[\d.]*\s?(?:%|ms\b|us\b|s\b|[GMK]iB\b|x\b|times\b)|\d\.\d|\d[eE][-+]?\d")


@dataclass(frozen=True)
class Request:
    """One pull request of a base.

    Attributes:
        base: the base.
        name: its name in the series.
        before: the patches of those before it.
        patches: its own.
    """

    base: Base
    name: str
    before: list[mbox.Patch]
    patches: list[mbox.Patch]

    @property
    def branch(self) -> str:
        """Its branch, in the checkout."""
        return f"{BRANCH}-pr-{self.name}"

    @property
    def place(self) -> Path:
        """Where its cover text goes."""
        return self.base.project.build / "pr" / f"{self.base.name}-{self.name}"

    @property
    def template(self) -> tuple[str, str]:
        """The title and the text of its cover, without the comment."""
        path = self.base.folder / f"cover-{self.name}.md"
        head, _, body = path.read_text(encoding="utf-8").partition("\n")
        if not head.startswith("Title: "):
            raise Misfit(f"{path} does not start with 'Title: '")
        return head[len("Title: ") :], re.sub(r"<!--.*?-->\n*", "", body, flags=re.S)


def request(base: Base, name: str | None) -> Request:
    """Return a base's pull request of that name, or its first."""
    base.require_patches()
    names = list(base.requests)
    name = name or names[0]
    if name not in names:
        raise Refusal(f"{base} has no pull request {name!r}; PR={' or PR='.join(names)}")
    before = [p for other in names[: names.index(name)] for p in base.requests[other]]
    return Request(base, name, before, base.requests[name])


def titled(project: Project, patch: mbox.Patch) -> mbox.Patch:
    """Return a patch with upstream's kind of title, and without fields that are not upstream's."""
    kind = "test" if all(diff.path.startswith("tests/") for diff in patch.files) else "fix"
    kept = [f"{key}: {value}" for key, value in patch.trailers if key not in mbox.DEP3]
    body = "\n\n".join([*patch.paragraphs, *(["\n".join(kept)] if kept else [])])
    ticket = project.upstream["upstream"]["issue"]
    return replace(patch, subject=f"[{ticket}][{kind}] {patch.subject}", body=f"{body}\n")


def tests_of(patches: list[mbox.Patch]) -> dict[str, str]:
    """Return path -> text of the test files that the series adds."""
    return {
        diff.path: diff.text
        for patch in patches
        for diff in patch.files
        if diff.new and diff.path.startswith(f"{TESTS}/")
    }


def cover(wanted: Request) -> str:
    """Return the text of a pull request.

    Raises:
        Misfit: there are no results to take the tables from.
    """
    _, text = wanted.template
    tests = []
    for path, source in tests_of(wanted.patches).items():
        names = re.findall(r"^ *def (test_\w+)", source, re.M)
        tests.append(f"- `{path}`: {', '.join(f'`{name}`' for name in names)}")
    fields = {
        "patches": "\n".join(f"- {patch.subject}" for patch in wanted.patches),
        "tests": "\n".join(tests) or "- none",
        "releases": wanted.base.dated,
    }
    for kind in KINDS:
        results = of_kind(wanted.base.project.root / "results", kind, wanted.base.name)
        fields[kind] = "\n\n".join(result.markdown() for result in results)
    for name, value in fields.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def prepare(project: Project, folder: Path | None, name: str | None, report: Report) -> int:
    """``pr``: make the branch and the cover text, then check both."""
    checkout = Checkout(folder or project.build / "TensorRT-LLM")
    git, state = checkout.git, checkout.state
    if checkout.origin != REF or state is None or state.phase != "applied":
        raise Refusal(f"{checkout.root}: the series is not applied there; run apply first")
    try:
        who = {
            f"GIT_{side}_{what}": git.text("config", f"user.{what.lower()}")
            for side in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
    except GitError:
        raise Refusal(
            "git does not know who you are; set user.name and user.email, the pull request's "
            "commits are yours"
        ) from None
    wanted = request(base_below(project, checkout)[0], name)
    text = cover(wanted)  # before anything is made, since it may have nothing to stand on
    patches = [titled(project, patch) for patch in (*wanted.before, *wanted.patches)]
    ref = f"refs/heads/{wanted.branch}"
    messages = [patch.message().rstrip("\n") for patch in patches]
    tip = build(git, state.base, patches, lambda patch: who | _dates(patch), anywhere=True)
    there = git.commit(ref)
    if there is None:
        git.run("update-ref", "-m", "patchset: pr", ref, tip, "0" * 40)
    elif not _same(git, state.base, there, tip, messages):
        raise Refusal(
            f"{checkout.root}: branch {wanted.branch} exists with other commits; rename or delete "
            f"it (git branch -D {wanted.branch})"
        )
    wanted.place.mkdir(parents=True, exist_ok=True)
    write_atomically(wanted.place / "cover.md", text)
    title = f"[{project.upstream['upstream']['issue']}][fix] {wanted.template[0]}"
    write_atomically(wanted.place / "title.txt", f"{title}\n")
    said = f"branch {wanted.branch} on {wanted.base}, {wanted.place / 'cover.md'}"
    report.line(True, "pr/made", said, "-")
    status = check_branch(project, folder, wanted.name, report)
    note(f"sign off: git -C {checkout.root} rebase --signoff {state.base[:12]} {wanted.branch}")
    return status


def _dates(patch: mbox.Patch) -> dict[str, str]:
    return {"GIT_AUTHOR_DATE": patch.date, "GIT_COMMITTER_DATE": patch.date}


def _messages(git: Git, base: str, tip: str) -> list[str]:
    text = git.text("log", "--reverse", "--format=%B%x00", f"{base}..{tip}")
    return [message.strip("\n") for message in text.split("\0") if message.strip("\n")]


def _same(git: Git, base: str, there: str, tip: str, wanted: list[str]) -> bool:
    """Return whether a branch is the prepared one, signed off or not."""
    unsigned = [
        re.sub(r"\n*^Signed-off-by: .*$", "", message, flags=re.M)
        for message in _messages(git, base, there)
    ]
    tree = [git.text("rev-parse", f"{commit}^{{tree}}") for commit in (there, tip)]
    return unsigned == wanted and tree[0] == tree[1]


def check_branch(project: Project, folder: Path | None, name: str | None, report: Report) -> int:
    """``check-pr``: hold the branch and the cover text against upstream's rules."""
    checkout = Checkout(folder or project.build / "TensorRT-LLM")
    git, state = checkout.git, checkout.state
    if state is None:
        raise Refusal(f"{checkout.root}: the series is not applied there; run apply first")
    wanted = request(base_below(project, checkout)[0], name)
    tip = git.commit(f"refs/heads/{wanted.branch}")
    if tip is None or not (wanted.place / "cover.md").exists():
        raise Refusal(f"{checkout.root}: no branch {wanted.branch} or no cover text; run pr first")
    same = git.text("merge-base", state.base, tip) == state.base
    said = f"{state.base[:12]}, {len(wanted.before)} patches of other requests below"
    base = wanted.base.commit
    report.line(same and state.base.startswith(base), "pr/base", said, f"{base[:12]}, as listed")
    below = _below(git, state.base, tip, wanted)
    log = git.text("log", "--reverse", "--format=%H%x00%an <%ae>%x00%B%x01", f"{below}..{tip}")
    commits = [entry.strip("\n").split("\0") for entry in log.split("\1") if entry.strip("\n")]
    count = f"{len(commits)} commits"
    titles = [message.split("\n")[0] for _, _, message in commits]
    found = [t for t in titles if not TITLE.fullmatch(t)]
    found += [t for t in titles if len(t.partition("] ")[2]) > SUBJECT]
    report.problems("pr/commit-titles", found, count, f"[ticket][type] and <= {SUBJECT} characters")
    fields = "|".join(mbox.DEP3)
    found = [m for _, _, m in commits if re.search(rf"^(?:{fields}): ", m, re.M)]
    report.problems("pr/no-dep3", found, count, "no DEP-3 field")
    _sign_off(commits, report)
    _files(project, git, below, tip, report)
    _cover_text(wanted, (wanted.place / "cover.md").read_text("utf-8"), report)
    title = (wanted.place / "title.txt").read_text("utf-8").strip()
    report.line(bool(TITLE.fullmatch(title)), "pr/title", title, "[ticket][type] Subject")
    return report.finish()


def _below(git: Git, base: str, tip: str, wanted: Request) -> str:
    """Return the commit of a branch that has what the requests before it leave."""
    tree = git.text("rev-parse", f"{build(git, base, wanted.before, as_written, True)}^{{tree}}")
    for commit in [*git.text("rev-list", f"{base}..{tip}").split(), base]:
        if git.text("rev-parse", f"{commit}^{{tree}}") == tree:
            return commit
    raise Misfit(f"{wanted.branch} does not stand on the requests before it; run pr again")


def _sign_off(commits: list[list[str]], report: Report) -> None:
    signers = [re.findall(r"^Signed-off-by: (.+)$", message, re.M) for _, _, message in commits]
    if not any(signers):
        report.line(None, "pr/sign-off", "left to you: git rebase --signoff", "author's, on each")
        return
    found = [
        f"{commit[:12]} by {author} is signed off by {names or 'nobody'}"
        for (commit, author, _), names in zip(commits, signers)
        if names != [author]
    ]
    report.problems("pr/sign-off", found, f"{len(commits)} commits", "author's, on each")


def _files(project: Project, git: Git, base: str, tip: str, report: Report) -> None:
    words = git.text("diff-tree", "-r", "-z", "--no-renames", "--name-status", base, tip)
    fields = words.split("\0")[:-1]
    kinds = dict(zip(fields[1::2], fields[::2]))
    own = {p for p, kind in kinds.items() if kind == "A" or p in project.overlay}
    others = [p for p in kinds if p not in own and p != project.file]
    report.problems("pr/shared-files", others, f"{len(kinds)} files", "only Cosmos3's own changed")
    new = {p: git.blob(tip, p) for p in sorted(own)}
    found = [p for p, text in new.items() if tuple(text.split("\n")[:2]) != SPDX]
    report.problems("pr/spdx", found, f"{len(new)} new files", "SPDX header first")
    _ruff(project, git, base, tip, new, report)
    tests = {p: text for p, text in new.items() if p.startswith("tests/")}
    multi = {p: text for p, text in tests.items() if p.startswith(f"{TESTS}/multi_gpu/")}
    found = [f"{p} is not in {TESTS}" for p in tests if not p.startswith(f"{TESTS}/")]
    found += [] if multi else ["none in multi_gpu/, which test lists take whole"]
    report.problems("pr/tests-place", found, f"{len(tests)} files", f"{TESTS}, one in multi_gpu/")
    found = [p for p, text in multi.items() if not _disables_mpi_first(text)]
    report.problems("pr/tests-mpi", found, f"{len(multi)} files", "TLLM_DISABLE_MPI=1 first")
    found = [p for p, text in multi.items() if not re.search(r"^def _logic_\w+\(", text, re.M)]
    report.problems(
        "pr/tests-logic", found, f"{len(multi)} files", "module-level _logic_ functions"
    )
    gloo = {p: text for p, text in tests.items() if "gloo" in text}
    found = [p for p, text in gloo.items() if "cpu_only" not in text]
    report.problems("pr/tests-cpu-only", found, f"{len(gloo)} files", "gloo tests are cpu_only")
    hiding = re.compile(r"importorskip|except \(?.*(?:ImportError|ModuleNotFoundError)")
    found = [p for p, text in tests.items() if hiding.search(text)]
    report.problems("pr/tests-fail", found, f"{len(tests)} files", "a missing module fails")


def _disables_mpi_first(text: str) -> bool:
    for node in ast.parse(text).body:
        source = ast.unparse(node)
        if "TLLM_DISABLE_MPI" in source:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "tensorrt_llm" in source:
            return False
    return False


def _ruff(project, git: Git, base: str, tip: str, new: dict[str, str], report: Report) -> None:
    """Format and lint new files; the changed file only where it was clean before."""
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True).returncode:
        report.line(None, "pr/ruff-format", "ruff is missing: pip install ruff", "clean")
        report.line(None, "pr/ruff-check", "ruff is missing: pip install ruff", "clean")
        return
    options = ["--isolated", "--line-length", str(COLUMNS), "--target-version", "py310"]
    rules = [
        *("--select", "D,E,F,I,PLE,W"),
        *("--config", 'lint.pydocstyle.convention="google"'),
        *("--config", 'lint.isort.known-first-party=["tensorrt_llm"]'),
        *("--ignore", "D105,D107"),
    ]

    def clean(command: str, path: str, text: str) -> bool:
        extra = ["--check"] if command == "format" else [*rules, "--quiet"]
        if command == "check" and path.startswith("tests/"):
            extra += ["--extend-ignore", "D"]
        args = [*ruff, command, *options, *extra, "--stdin-filename", path, "-"]
        done = subprocess.run(args, input=text, capture_output=True, text=True)
        if done.returncode and path in new:
            note(f"pr/ruff-{command}: {path}\n{done.stdout}{done.stderr}".rstrip())
        return done.returncode == 0

    for command in ("format", "check"):
        found = [p for p, text in new.items() if p.endswith(".py") and not clean(command, p, text)]
        old, after = (git.blob(commit, project.file) for commit in (base, tip))
        if clean(command, project.file, old) and not clean(command, project.file, after):
            found.append(f"{project.file} was clean before")
        report.problems(f"pr/ruff-{command}", found, f"{len(new)} new files", "clean")


def _cover_text(wanted: Request, text: str, report: Report) -> None:
    heads = re.findall(r"^## (.+)$", text, re.M)
    missing = [name for name in SECTIONS if name not in heads]
    report.problems("pr/cover-sections", missing, ", ".join(heads), ", ".join(SECTIONS))
    boxes = re.findall(r"^- \[(.)\] (.*)$", text.partition("## PR Checklist")[2], re.M)
    found = [said for mark, said in boxes if mark != "x" and not said.startswith("~~")]
    found += [] if boxes else ["there are none"]
    report.problems("pr/cover-boxes", found, f"{len(boxes)} boxes", "ticked or struck")
    found = re.findall(r"\{\{\w+\}\}", text)
    report.problems("pr/cover-fields", found, "all filled", "none left")
    _, own = wanted.template
    project = wanted.base.project
    found = [match[0] for match in TYPED.finditer(re.sub(r"#\d+", "", own))]
    report.problems("pr/cover-numbers", found, "none typed", "measured ones from results/ only")
    found = []
    for kind in KINDS:
        for result in of_kind(project.root / "results", kind, wanted.base.name):
            if result.markdown() not in text:
                found.append(f"{result.path.name} is newer than the cover text; run pr again")
            why = _outdated(project, result.commit)
            if why:
                found.append(f"{result.path.name}: {why}; run {KINDS[kind]} again")
    report.problems("pr/cover-results", found, f"{len(KINDS)} kinds", "at this overlay/")
    words = [w for w in ("unfixed", "fixed") if not re.search(rf"\b{w}", text)]
    report.problems("pr/cover-before-after", words, "both", "before and after numbers")


def _outdated(project: Project, commit: str) -> str:
    """Return why a result of that commit does not speak for overlay/ as it is."""
    git = Git(project.root)
    if commit.endswith("-dirty"):
        return f"measured with changes that are not in commit {commit[: -len('-dirty')]}"
    if git.commit(commit) is None:
        return f"its commit {commit[:12]} is not in this project's history"
    changed = git.text("diff", "--name-only", commit, "--", "overlay")
    return f"{changed.split()[0]} has changed since" if changed else ""
