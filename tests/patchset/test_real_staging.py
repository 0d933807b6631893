# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Running on a checkout's own files: what is staged and refused, on a checkout made of the host's.

Nothing here needs TensorRT-LLM; test_real_checkout.py runs the same on a real checkout.
"""

import hashlib
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from parity import real
from parity.imports import Import, imports, names, walk
from patchset.project import Project
from support import synthetic_host
from support.synthetic import FILE, ROOT, SHARED, git
from support.synthetic_host import NEW, NEW_DEFAULT, PINNED_DEFAULT

MODULE = "tensorrt_llm/_torch/visual_gen/modules/attention.py"


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    return synthetic_host.make(tmp_path_factory.mktemp("host"))


@pytest.fixture
def checkout(host, tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(host.origin, folder)
    return folder


def _prepare(host, checkout, tmp_path):
    return real.prepare(checkout, host.project, tmp_path / "build")


def _files(stage):
    return {path.relative_to(stage).as_posix(): path.read_bytes() for path in stage.rglob("*.py")}


def test_unpatched_checkout_stages_vs_its_files(host, checkout, tmp_path):
    staged = _prepare(host, checkout, tmp_path)
    unfixed, fixed = (_files(staged.stages[side]) for side in ("unfixed", "fixed"))
    assert unfixed == {path: (checkout / path).read_bytes() for path in unfixed}
    assert {FILE, MODULE, SHARED, real.MAPPING, real.RUNNER} <= unfixed.keys()
    assert not any(path.endswith("__init__.py") for path in (*unfixed, *fixed))
    assert {p for p in fixed if fixed[p] != unfixed.get(p)} == {FILE, NEW}
    assert PINNED_DEFAULT.encode() in unfixed[FILE] and NEW_DEFAULT.encode() in fixed[FILE]
    for side, files in (("unfixed", unfixed), ("fixed", fixed)):
        assert staged.digests[side] == {
            path: hashlib.sha256(text).hexdigest() for path, text in sorted(files.items())
        }
    stand_ins = {p.relative_to(real.STAND_INS).as_posix() for p in real.STAND_INS.rglob("*.py")}
    assert not stand_ins & fixed.keys()
    assert staged.commit == git(checkout, "rev-parse", "HEAD")
    assert git(checkout, "status", "--porcelain") == ""


def test_facts_of_a_checkout_vs_its_digests(host, checkout, tmp_path):
    staged = _prepare(host, checkout, tmp_path)
    files = staged.facts()["files"]
    assert [f["path"] for f in files["unfixed"]] == [FILE]
    assert [f["path"] for f in files["fixed"]] == sorted([FILE, NEW])
    for side in ("unfixed", "fixed"):
        listed = {f["path"]: f["sha256"] for f in (*files["both"], *files[side])}
        assert listed == staged.digests[side]


def test_staging_twice_vs_once(host, checkout, tmp_path):
    first = _prepare(host, checkout, tmp_path)
    kept = first.stages["fixed"].stat().st_ino
    assert _prepare(host, checkout, tmp_path).stages["fixed"].stat().st_ino == kept
    # A stage that somebody edited is not what its name says.
    (first.stages["fixed"] / FILE).write_text("edited = True\n")
    again = _prepare(host, checkout, tmp_path)
    assert _files(again.stages["fixed"]).keys() == again.digests["fixed"].keys()
    assert "edited" not in (again.stages["fixed"] / FILE).read_text()


@pytest.mark.parametrize("edited", [False, True], ids=["as-applied", "edited-since"])
def test_applied_checkout_vs_unpatched_one(host, checkout, tmp_path, edited):
    expected = _prepare(host, checkout, tmp_path)
    synthetic_host.apply(checkout)
    if edited:
        with open(checkout / FILE, "a") as file:
            file.write("# a reviewer's change\n")
    staged = _prepare(host, checkout, tmp_path)
    assert staged.digests["unfixed"] == expected.digests["unfixed"]
    assert (staged.digests["fixed"] == expected.digests["fixed"]) is not edited
    assert staged.fixed.endswith("edited since") is edited
    assert (staged.stages["fixed"] / FILE).read_bytes() == (checkout / FILE).read_bytes()


def test_applied_below_other_commits_vs_unpatched_one(host, checkout, tmp_path):
    # A pull request's branch after a squash and a merge: no commit has the pin's id.
    expected = _prepare(host, checkout, tmp_path)
    shutil.rmtree(checkout / ".git")
    git(checkout, "init", "-q", ".")
    git(checkout, "add", "-A", ".")
    git(checkout, "commit", "-q", "-m", "base")
    synthetic_host.apply(checkout)
    git(checkout, "commit", "-q", "--allow-empty", "-m", "later")
    assert _prepare(host, checkout, tmp_path).digests == expected.digests


def test_moved_transformer_vs_its_own_lines(host, checkout, tmp_path):
    path = checkout / FILE
    path.write_text("# moved\n" * 3 + path.read_text())
    staged = _prepare(host, checkout, tmp_path)
    assert "base pin (" in staged.unfixed and "moved by +3 lines" in staged.unfixed
    fixed = (staged.stages["fixed"] / FILE).read_text()
    assert fixed.startswith("# moved\n" * 3) and NEW_DEFAULT in fixed


def _no_checkout(checkout):
    shutil.rmtree(checkout / "tensorrt_llm" / "_torch")


def _no_cosmos3(checkout):
    (checkout / FILE).unlink()


def _no_module(checkout):
    (checkout / MODULE).unlink()


def _unknown_name(checkout):
    path = checkout / MODULE
    path.write_text(path.read_text() + "from tensorrt_llm.logger import brand_new\n")


def _own_name_gone(checkout):
    path = checkout / SHARED
    path.write_text(path.read_text().replace("def wrap_parallel_attention", "def wrap_otherwise"))


def _unknown_module(checkout):
    path = checkout / MODULE
    path.write_text("import tensorrt_llm.bindings.brand_new\n" + path.read_text())


def _another_transformer(checkout):
    path = checkout / FILE
    path.write_text(path.read_text().replace(PINNED_DEFAULT, 'text: str = "padded"'))


def _applied_without_history(checkout):
    synthetic_host.apply(checkout)
    shutil.rmtree(checkout / ".git")


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (_no_checkout, ["no checkout of TensorRT-LLM", "visual_gen"]),
        (_no_cosmos3, ["lacks", FILE]),
        (_no_module, ["neither the checkout nor the stand-ins", "modules.attention"]),
        (_unknown_name, [MODULE, "tensorrt_llm.logger (a stand-in) has no brand_new"]),
        (_own_name_gone, ["attention_backend.parallel has no wrap_parallel_attention"]),
        (_unknown_module, [MODULE, "bindings.brand_new"]),
        (_another_transformer, ["no known base", "default (lines", "make check-upstream"]),
        (_applied_without_history, ["no commit below", "make unapply"]),
    ],
    ids=lambda x: x.__name__.strip("_") if callable(x) else "",
)
def test_broken_checkout_refused_vs_reason(host, checkout, tmp_path, break_it, says):
    break_it(checkout)
    with pytest.raises(ValueError) as error:
        _prepare(host, checkout, tmp_path)
    for text in ("--trtllm-dir", str(checkout), *says):
        assert text in str(error.value)
    assert not (tmp_path / "build").exists()


def test_base_without_patches_refused_vs_reason(host, checkout, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(host.root, root, ignore=shutil.ignore_patterns("*.patch", "series"))
    with pytest.raises(ValueError, match=r"base pin \(.*\) has no patches yet"):
        real.prepare(checkout, Project(root), tmp_path / "build")


def test_installed_tensorrt_llm_refused_vs_reason(host, checkout, tmp_path, monkeypatch):
    package = tmp_path / "site" / "tensorrt_llm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(package.parent)])
    importlib.machinery.PathFinder.invalidate_caches()
    with pytest.raises(ValueError, match="is installed and would be imported instead"):
        _prepare(host, checkout, tmp_path)


def test_imports_of_a_file_vs_python():
    source = b"""
import os, tensorrt_llm.logger
from tensorrt_llm._torch.utils import relu2
from ..a.b import c as d, e
from . import f
if TYPE_CHECKING:
    from .typing_only import g
else:
    from .h import i
try:
    from .maybe import j
except ImportError:
    pass
class K:
    from .l import m
    def n(self):
        from .lazy import o
"""
    found = list(imports(source, "tensorrt_llm/x/y/z.py"))
    required = {(i.module.removeprefix("tensorrt_llm."), i.name) for i in found if i.required}
    assert required == {
        ("logger", None),
        ("_torch.utils", "relu2"),
        ("x.a.b", "c"),
        ("x.a.b", "e"),
        ("x.y", "f"),
        ("x.y.h", "i"),
        ("x.y.l", "m"),
    }
    assert [i for i in found if not i.required] == [
        Import("tensorrt_llm.x.y.maybe", "j", 11, False),
        Import("tensorrt_llm.x.y.lazy", "o", 17, False),
    ]


def test_names_of_a_module_vs_python():
    source = b"""
import os.path as p, sys
from x import y as z
A: int = 1
B, (C, D) = 1, (2, 3)
if A:
    E = 1
try:
    from q import F
except ImportError:
    F = None
class G:
    H = 1
def I():
    J = 1
"""
    assert names(source) == {"p", "sys", "z", "A", "B", "C", "D", "E", "F", "G", "I"}


def test_walk_vs_what_is_reached():
    own = {
        "tensorrt_llm/a.py": b"from .b import x\nfrom . import c\nfrom .heavy import y\n",
        "tensorrt_llm/b.py": b"from tensorrt_llm.c import z\nx = 1\n",
        "tensorrt_llm/c.py": b"z = 1\ndef f():\n    from .nowhere import g\n",
        "tensorrt_llm/heavy.py": b"import compiled\n",
        "tensorrt_llm/unused.py": b"",
    }
    stand_ins = {"tensorrt_llm/heavy/__init__.py": b"y = 1\n"}
    files, missing = walk(("tensorrt_llm/a.py",), own.get, stand_ins.get)
    assert missing == []
    assert sorted(files) == [f"tensorrt_llm/{name}.py" for name in "abc"]


@pytest.mark.parametrize("certain", [False, True])
def test_walk_vs_a_file_that_a_function_imports(certain):
    own = {
        "tensorrt_llm/a.py": b"def f():\n    from .lazy import x\n",
        "tensorrt_llm/lazy.py": b"from .compiled import y\nx = 1\n",
    }
    if certain:
        own["tensorrt_llm/a.py"] += b"from .lazy import x\n"
    files, missing = walk(("tensorrt_llm/a.py",), own.get, {}.get)
    assert sorted(files) == sorted(own)
    problem = "neither the checkout nor the stand-ins have tensorrt_llm.compiled"
    assert missing == ([f"tensorrt_llm/lazy.py:1: {problem}"] if certain else [])


def _parity(*args, project=None):
    """Runs the command as `make parity` does."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
    code = "import sys; from parity.cli import main; sys.exit(main(sys.argv[1:]))"
    if project is not None:
        # The only thing that a user cannot set: whose patches they are.
        code = (
            "from pathlib import Path; from parity import real; from patchset.project import "
            f"Project; real.Project = lambda root: Project(Path({str(project)!r})); {code}"
        )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        env=env,
        timeout=500,
    )


def test_parity_without_a_checkout_exits_2(tmp_path):
    done = _parity("--trtllm-dir", tmp_path, "--device", "cpu", "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert "no checkout of TensorRT-LLM" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.gloo
def test_parity_of_a_checkout_vs_its_own_bug(host, checkout, tmp_path):
    out = tmp_path / "out"
    done = _parity(
        *("--trtllm-dir", checkout, "--device", "cpu", "--out", out, "--no-oracle"),
        *("--ranks", 2, "--steps", 1, "--prompt-tokens", "7,19", "--video", "3,6,6"),
        project=host.root,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = {line.split()[1]: line.split() for line in done.stdout.splitlines()[:-1]}
    assert lines["fixed-vs-one/batch"][0] == lines["unfixed-seen"][0] == "PASS"
    report = json.loads((out / "parity.json").read_text())
    runs = {run["name"]: run["modules"] for run in report["runs"]}
    files = report["checkout"]["files"]
    module = FILE.removesuffix(".py").replace("/", ".")
    for name, side in (("one", "fixed"), ("fixed", "fixed"), ("unfixed", "unfixed")):
        digests = {f["path"]: f["sha256"] for f in (*files["both"], *files[side])}
        assert runs[name][module] == digests[FILE]
        # Whatever else ran of what was staged ran as staged.
        for path, digest in digests.items():
            found = runs[name].get(path.removesuffix(".py").replace("/", "."), digest)
            assert found == digest, path
    text = (out / "parity.md").read_text()
    for shown in (
        "unfixed side",
        "stand-ins",
        "changed from outside",
        files["fixed"][0]["sha256"][:16],
    ):
        assert shown in text
    assert Path(report["checkout"]["folder"]).resolve() == checkout.resolve()
