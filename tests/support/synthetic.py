# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Upstream repositories to try the patch set on, without upstream.

The sample is a small series of our own on a pinned file of our own, whose lines stand where the
real ones do. A synthetic upstream for the real series is made from the patches' own pre-images at
their real line numbers, with filler lines between them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from patchset import export
from patchset.check import SPDX, Tree
from patchset.project import Base, Project, join_lines, line_hash, sha256, split_lines
from patchset.recognise import nearest
from patchset.report import Report

ROOT = Path(__file__).resolve().parents[2]
FILE = "tensorrt_llm/_torch/visual_gen/models/cosmos3/transformer_cosmos3.py"
MODULES = FILE.rpartition("/")[0]
TEST_FILE = "tests/unittest/_torch/visual_gen/multi_gpu/test_cosmos3_sample.py"
SHARED = "tensorrt_llm/_torch/visual_gen/attention_backend/parallel.py"
# The worlds that tests run in: the sample, each real series, and a real checkout if one is given.
SERIES = [f"series-{base.name}" for base in Project(ROOT).bases if base.series]
CHECKOUT = os.environ.get("TRTLLM_DIR", "")
WORLDS = ["sample", *SERIES, *(["checkout"] if CHECKOUT else [])]
# Those whose upstream file is a whole one.
COMPILABLE = [name for name in WORLDS if name not in SERIES]
HEADER = "\n".join(SPDX) + "\n"

# What stands where in the sample's pinned file: runs of lines by their first number.
PINNED = {
    640: [
        "class Attention:",
        "    def __init__(self):",
        "        self.attn = 'installed'",
        "        self.kv = None",
        "",
        "    def forward(self, q, lengths=None):",
        "        if lengths is not None:",
        "            outs = []",
        "            for b in range(len(q)):",
        "                outs.append(q[b] * lengths[b])",
        "            out = outs",
        "        else:",
        "            out = list(q)",
        "",
        "        return out",
    ],
    1534: [
        "def longest(mask):",
        "    host = max(mask)",
        "    return host",
        "",
    ],
    1726: [
        "def run(attention, q, mask):",
        "    if mask:",
        "        return attention.forward(",
        "            q,",
        "            lengths=mask,",
        "        )",
        "    else:",
        "        return attention.forward(q)",
        "",
    ],
}
PINNED_LINES = 1760
MARKS = {"loop": (646, 652), "longest": (1535, 1536), "calls": (1727, 1733)}
MODULE = f'''{HEADER}"""The sample's new module."""


class TextKV:
    """Lengths of a prompt."""

    def __init__(self, lengths: list) -> None:
        self.lengths = lengths

    @classmethod
    def build(cls, lengths: list, *, bucket: int = 128) -> "TextKV":
        """Builds it."""
        return cls(lengths)


def install(attn: str) -> str:
    """Installs the adapter."""
    return "patched"
'''
UPSTREAM_TEST = f"""{HEADER}import os

os.environ["TLLM_DISABLE_MPI"] = "1"

import pytest  # noqa: E402

from tensorrt_llm._torch.visual_gen.models.cosmos3 import transformer_cosmos3  # noqa: E402


def _logic_lengths(rank):
    assert transformer_cosmos3


@pytest.mark.cpu_only
def test_gloo_lengths():
    _logic_lengths(0)
"""
BODY = """Problem: padded keys count.

Mechanism: the text stays whole.

Cost: one copy of the text.

Link: https://github.com/NVIDIA/TensorRT-LLM/issues/18687
Fixes: #18687
Forwarded: no
"""
IMPORT = "        from .text_sample import TextKV, install"


def pinned_lines() -> list[str]:
    """Returns the sample's pinned file."""
    lines = [f"# line {n}" for n in range(1, PINNED_LINES + 1)]
    for start, run in PINNED.items():
        lines[start - 1 : start - 1 + len(run)] = run
    return lines


def rewritten(lines: list[str]) -> list[str]:
    """Returns the pinned file as the sample's second patch leaves it."""
    text = join_lines(lines)
    for old, new in (
        (
            "        self.attn = 'installed'\n        self.kv = None\n",
            f"{IMPORT}\n\n        self.attn = install('installed')\n"
            "        self.kv = TextKV.build([1], bucket=64)\n",
        ),
        (", lengths=None):\n", "):\n"),
        (join_lines(PINNED[640][6:13]), "        out = ['patched', *q]\n"),
        ("    host = max(mask)\n    return host\n", "    return max(mask)\n"),
        (join_lines(PINNED[1726][1:8]), "    return attention.forward(q)\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return split_lines(text)


def git(folder: Path, *args: str, stdin: str = "", **env: str) -> str:
    """Runs git with a fixed identity and date, and returns what it prints."""
    fixed = {f"GIT_{w}_{k}": "sample" for w in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")}
    fixed |= {f"GIT_{w}_DATE": "2026-09-04T12:00:00Z" for w in ("AUTHOR", "COMMITTER")}
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *args],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | fixed | env,
    )
    assert done.returncode == 0, f"git {args}: {done.stderr}"
    return done.stdout.rstrip("\n")


@dataclass
class World:
    """A project, the upstream that its patches are for, and the commands between them.

    Attributes:
        name: "sample", "series-BASE" or "checkout".
        root: The project.
        origin: Upstream, as a local repository.
        base_name: The base that it is about.
    """

    name: str
    root: Path
    origin: Path
    base_name: str = "pin"

    @property
    def project(self) -> Project:
        """The project, read afresh."""
        return Project(self.root)

    @property
    def base(self) -> Base:
        """The base, read afresh."""
        return self.project.base(self.base_name)

    @property
    def pin(self) -> str:
        """The base's commit."""
        return self.base.commit

    def checkout(self, folder: Path) -> Path:
        """Makes a user's checkout of the pin, on branch work."""
        git(
            folder.parent, "clone", "-q", "--shared", "--no-checkout", str(self.origin), str(folder)
        )
        sparse = "".join(f"/{p}/\n" for p in self.project.upstream["upstream"]["sparse"])
        git(folder, "sparse-checkout", "set", "--no-cone", "--stdin", stdin=sparse)
        git(folder, "checkout", "-q", "-B", "work", self.base.commit)
        git(folder, "config", "user.name", "Ann Author")
        git(folder, "config", "user.email", "ann@example.invalid")
        return folder

    def run(self, *args: object, fault: str = "", python: str = sys.executable, **env: str):
        """Runs one command of the package and returns the finished process."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("COSMOS3_", "PYTHONPATH"))}
        base |= {"PYTHONPATH": str(ROOT / "scripts"), "COSMOS3_PATCHSET_FAULT": fault}
        return subprocess.run(
            [python, "-m", "patchset", "--project", str(self.root), *map(str, args)],
            capture_output=True,
            text=True,
            env=base | env,
            timeout=300,
        )


def statuses(output: str) -> dict[str, str]:
    """Returns check name -> PASS, FAIL or SKIP from what a command printed."""
    lines = [line.split(" ") for line in output.splitlines()]
    return {line[1]: line[0] for line in lines if line[0] in ("PASS", "FAIL", "SKIP")}


def make_upstream(folder: Path, lines: list[str]) -> str:
    """Makes a repository with the pinned file, and returns the commit to pin."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", ".")
    for key in ("allowFilter", "allowAnySHA1InWant"):
        git(folder, "config", f"uploadpack.{key}", "true")
    (folder / "README.md").write_text("not needed by the patches\n")
    (folder / "cpp").mkdir()
    (folder / "cpp" / "kernel.cu").write_text("// large\n")
    write(folder / SHARED, "# shared by all models\n")
    write(folder / FILE, join_lines(lines))
    return commit(folder, "pin")


def write(path: Path, text: str) -> None:
    """Writes a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def commit(folder: Path, message: str) -> str:
    """Commits everything and returns the id."""
    git(folder, "add", "-A", ".")
    git(folder, "commit", "-q", "-F", "-", stdin=message)
    return git(folder, "rev-parse", "HEAD")


def write_base(
    root: Path, name: str, commit: str, lines: list[str], marks: dict, known=(), **facts
) -> None:
    """Writes a base into a project: its part of UPSTREAM, and its line table.

    Args:
        root: The project.
        name: The base.
        commit: Its commit.
        lines: The file there.
        marks: Name -> first and last line.
        known: First and last line of each region in the table; the marks and a line around each
            where not given.
        facts: What [base.NAME] has besides.
    """
    path = root / "UPSTREAM"
    if not path.exists():
        text = (ROOT / "UPSTREAM").read_text(encoding="utf-8")
        write(path, re.sub(r"(?ms)^\[(base\.|releases).*?(?=^\[(?!base|releases))", "", text))
    release = {"pin": "1.3.0rc26", "main": "1.4.0rc1"}.get(name)
    if release:
        write(path, f'{path.read_text()}\n[releases]\n"{release}" = "{name}"\n')
    known = known or [(a - 1, b + 1) for a, b in marks.values()]
    numbers = sorted({n for a, b in known for n in range(a, b + 1)})
    rows = [f"{n}\t{line_hash(lines[n - 1])}\n" for n in numbers]
    table = root / "patches" / name / "lines.tsv"
    write(table, "# line\thash\n" + "".join(rows))
    facts = {"commit": commit, "date": "2026-09-04", "state": f"{name} is so"} | facts
    facts = {"sizes": [950, 500]} | facts
    tables = {"lines.tsv": [sha256(table.read_bytes()), "vouched for"]}
    for head, values in (("", facts), (".tables", tables), (".marks", marks)):
        items = "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in values.items())
        write(path, f"{path.read_text()}\n[base.{name}{head}]\n{items}")


def cover(root: Path, name: str, request: str) -> None:
    """Gives a pull request of a base a cover text."""
    source = ROOT / "patches" / "pin" / "cover-fix.md"
    shutil.copyfile(source, root / "patches" / name / f"cover-{request}.md")


def make_sample(folder: Path) -> World:
    """Makes the sample: project, upstream, and upstream commits that moved on."""
    root, origin = folder / "project", folder / "upstream"
    lines = pinned_lines()
    pin = make_upstream(origin, lines)
    known = [(start - 1, start + len(run) - 1) for start, run in PINNED.items()]
    write_base(root, "pin", pin, lines, MARKS, known, fixes="#18687")
    write(root / "overlay" / MODULES / "text_sample.py", MODULE)
    cover(root, "pin", "fix")

    work = folder / "work"
    git(folder, "clone", "-q", str(origin), str(work))
    write(work / MODULES / "text_sample.py", MODULE)
    commit(work, f"Add the sample's new module\n\n{BODY}")
    write(work / FILE, join_lines(rewritten(lines)))
    commit(work, f"Attend to exact sample keys\n\n{BODY}")
    write(work / TEST_FILE, UPSTREAM_TEST)
    commit(work, f"Test the sample on several ranks\n\n{BODY}")
    export.refresh(Project(root), work, None, Report())
    shutil.rmtree(work)

    git(origin, "checkout", "-q", "-B", "shifted", pin)
    write(origin / FILE, join_lines(lines[:100] + ["# new above"] * 7 + lines[100:]))
    commit(origin, "shifted")
    git(origin, "checkout", "-q", "-B", "moved", pin)
    target = origin / FILE.replace("cosmos3/transformer", "cosmos/transformer")
    target.parent.mkdir()
    (origin / FILE).rename(target)
    write(origin / MODULES / "text_sample.py", "# upstream's own\n")
    commit(origin, "moved")
    git(origin, "checkout", "-q", "main")
    return World("sample", root, origin)


def add_later(world: World) -> World:
    """Gives the sample a second base, on branch "later" of its upstream.

    Its series is two pull requests, of which the second extends the module that the first adds.
    """
    root, origin = world.root, world.origin
    lines = ["# later"] * 3 + pinned_lines()
    lines[648:655] = ["        out = [one(q, n) for n in lengths]"]
    git(origin, "checkout", "-q", "-B", "later", world.pin)
    write(origin / FILE, join_lines(lines))
    commit_id = commit(origin, "later")
    git(origin, "checkout", "-q", "main")
    marks = {"head": (1, 3), "one_by_one": (648, 654)}
    write_base(root, "later", commit_id, lines, marks, [(1, len(lines))], date="2026-10-03")
    work = root.parent / "later"
    git(root.parent, "clone", "-q", "-b", "later", str(origin), str(work))
    first, whole = MODULE.partition("\n\ndef install")[0], MODULE
    for request, subject, module, old, new in (
        ("graphs", "Keep graphs fresh", first, lines[647], f"{lines[647]}  # fresh"),
        ("one-launch", "Launch once", whole, lines[648], "        out = launch(q, lengths)"),
    ):
        cover(root, "later", request)
        write(work / MODULES / "text_sample.py", module)
        write(work / TEST_FILE.replace("sample", request.replace("-", "_")), UPSTREAM_TEST)
        text = (work / FILE).read_text(encoding="utf-8")
        assert text.count(f"{old}\n") == 1, old
        write(work / FILE, text.replace(f"{old}\n", f"{new}\n"))
        commit(work, f"{subject}\n\n{BODY}Pull-Request: {request}\n")
    export.refresh(world.project, work, None, Report())
    shutil.rmtree(work)
    return replace(world, base_name="later")


def preimage(base: Base) -> list[str]:
    """Returns a stand-in for a base's file: what the patches show of it, and filler lines."""
    tree = Tree(base)
    for patch in base.patches:
        tree.apply(patch)
    return [tree.known.get(n, f"# line {n}") for n in range(1, max(base.lines) + 1)]


def make_from_series(folder: Path, name: str) -> World:
    """Makes a synthetic upstream for a real series, and a project with that series."""
    real = Project(ROOT).base(name)
    root, origin = folder / "project", folder / "upstream"
    lines = preimage(real)
    commit = make_upstream(origin, lines)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "overlay", root / "overlay", ignore=ignore)
    shutil.copytree(real.folder, root / "patches" / name, ignore=shutil.ignore_patterns("*.tsv"))
    keys = ("date", "state", "sizes", "fixes")
    facts = {key: real.facts[key] for key in keys if key in real.facts}
    write_base(root, name, commit, lines, real.facts["marks"], [(1, len(lines))], **facts)
    series = root / "patches" / name / "series"
    series.write_text(series.read_text(encoding="utf-8").replace(real.commit, commit))
    return World(f"series-{name}", root, origin, name)


def on_checkout(folder: Path, checkout: Path) -> World:
    """Takes a real checkout as upstream; it is cloned from, never written to."""
    root = folder / "project"
    for name in ("patches", "overlay"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "UPSTREAM", root / "UPSTREAM")
    base = nearest(Project(ROOT), (checkout / FILE).read_text(encoding="utf-8")).base
    return World("checkout", root, checkout, base.name)
