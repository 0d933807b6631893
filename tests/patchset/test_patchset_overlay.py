# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The overlay, as a wheel and as a folder, on a fake installed package in a virtual environment."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest
from own_version import VERSION
from support.synthetic import FILE, ROOT, git, statuses, write

TRANSFORMER = FILE[: -len(".py")].replace("/", ".")
SWITCH = "COSMOS3_TEXT_KV_OVERLAY"
ROWS = "COSMOS3_ROW_INVARIANT"
# What a script prints of the module that it got: the patched one, or the installed one.
PROBE = f"""
import importlib, sys
def probe():
    module = importlib.import_module({TRANSFORMER!r})
    return "overlay" if "/patched/" in module.__file__ else "installed"
"""
# What row_invariant() sets, without torch.
TORCH = """
import types
__version__ = "{version}"
def preferred_blas_library(name): print(name)
class _Matmul:
    def __setattr__(self, name, value): print(name, value)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(
    matmul=_Matmul(), preferred_blas_library=preferred_blas_library))
"""


class Installed:
    """A virtual environment with a fake tensorrt_llm that holds the pinned file of a world."""

    def __init__(self, world, folder, form):
        self.world, self.folder, self.form = world, folder, form
        self.python, self.site = venv(folder / "venv")
        self.package = self.site / "tensorrt_llm"
        for depth in range(1, FILE.count("/") + 1):
            write(self.site.joinpath(*FILE.split("/")[:depth], "__init__.py"), "")
        self.release = world.base.versions[-1]
        write(self.package / "version.py", f'__version__ = "{self.release}"\n')
        self.file = self.site / FILE
        write(self.file, git(world.origin, "show", f"{world.pin}:{FILE}") + "\n")
        self.out = folder / "out"

    def make(self, *args):
        """Runs overlay, or wheel and what pip does with it, for this environment."""
        command = "overlay" if self.form == "folder" else "wheel"
        done = self.world.run(command, "--python", self.python, "--out", self.out, *args)
        if self.form == "wheel" and done.returncode == 0:
            zipfile.ZipFile(next(self.out.glob("*.whl"))).extractall(self.site)
        return done

    @property
    def ours(self):
        """The folder with our run-time package."""
        return (self.out if self.form == "folder" else self.site) / "cosmos3_text_kv"

    def env(self, value="1", **more):
        """The environment of a process with the overlay switched to ``value``."""
        drop = ("PYTHONPATH", "COSMOS3_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        env |= {"PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"PYTHONPATH": str(self.out)} if self.form == "folder" else {}
        return env | ({SWITCH: value} if value is not None else {}) | more

    def run(self, code, value="1", flags=(), **more):
        """Runs a script in this environment, from a file so that workers can be spawned."""
        script = self.folder / "script.py"
        script.write_text(PROBE + code)
        return subprocess.run(
            [self.python, *flags, str(script)],
            env=self.env(value, **more),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def status(self, **env):
        """Runs overlay-status for this environment."""
        path = {"PYTHONPATH": f"{self.out}{os.pathsep}{ROOT / 'scripts'}"}
        env = (path if self.form == "folder" else {}) | env
        return self.world.run("overlay-status", "--python", self.python, **env)

    def digests(self):
        """What is under tensorrt_llm."""
        files = sorted(p for p in self.package.rglob("*") if p.is_file())
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def venv(folder):
    """Makes a virtual environment; returns its interpreter and site-packages."""
    args = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(args, check=True)
    (site,) = folder.glob("lib/*/site-packages")
    return str(folder / "bin" / "python"), site


@pytest.fixture(params=["wheel", "folder"])
def installed(request, sample, tmp_path):
    """A fake installation of the sample, for each form."""
    return Installed(sample, tmp_path, request.param)


@pytest.fixture
def made(installed):
    """The same with its overlay made."""
    done = installed.make()
    assert done.returncode == 0, done.stdout + done.stderr
    return installed


@pytest.fixture
def wheel(sample, tmp_path):
    """A fake installation of the sample, with the wheel installed."""
    there = Installed(sample, tmp_path, "wheel")
    done = there.make()
    assert done.returncode == 0, done.stdout + done.stderr
    return there


def said(done):
    """The lines that name this project."""
    return [line for line in done.stderr.split("\n") if line.startswith("cosmos3-text-kv ")]


# What runs.


def test_overlay_text_vs_applied_checkout(world, tmp_path):
    installed = Installed(world, tmp_path, "wheel")
    before = installed.digests()
    assert installed.make().returncode == 0
    checkout = world.checkout(tmp_path / "checkout")
    assert world.run("apply", "--dir", checkout).returncode == 0
    code = (
        "import importlib.util\n"
        f"spec = importlib.util.find_spec({TRANSFORMER!r})\n"
        f"sys.stdout.write(spec.loader.get_source({TRANSFORMER!r}))\n"
    )
    done = installed.run(code)
    assert done.stdout == (checkout / FILE).read_text(), done.stderr
    modules = installed.world.project.modules
    ours = {p: t for p, t in world.project.overlay.items() if p.startswith(f"{modules}/")}
    there = {p.name: p.read_text() for p in installed.ours.glob("files/*/*.py")}
    assert there == {p.rpartition("/")[2]: text for p, text in ours.items()}
    assert installed.digests() == before


def test_overlay_on_replaces_and_says_in_one_line(made):
    before = made.digests()
    done = made.run(
        "print(probe())\n"
        f"from {TRANSFORMER} import Attention\n"
        "print(Attention().attn, Attention().kv.lengths)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["overlay", "patched [1]"]
    (line,) = said(done)
    digest = before[made.file][:12]
    assert line.startswith(f"cosmos3-text-kv {VERSION} active for tensorrt_llm {made.release} in ")
    assert f"base {made.world.base_name}, digest {digest} -> " in line
    assert made.digests() == before


def test_overlay_source_is_the_patched_one(wheel):
    """Tracebacks, inspect and what reads sources to compile them see the text that runs."""
    code = (
        "import inspect, traceback\n"
        f"import {TRANSFORMER} as m\n"
        "print('self.attn = install(' in inspect.getsource(m.Attention))\n"
        "print('patched' in inspect.getsource(m.Attention.forward))\n"
        "try:\n    m.run(None, [1], [])\n"
        "except AttributeError as e:\n    print(traceback.extract_tb(e.__traceback__)[-1].line)\n"
    )
    done = wheel.run(code)
    expected = ["True", "True", "return attention.forward(q)"]
    assert done.stdout.split("\n")[:3] == expected, done.stderr


@pytest.mark.parametrize("value", [None, "", "0"])
def test_overlay_off_leaves_installed(made, value):
    done = made.run("print(probe())", value)
    assert done.returncode == 0 and done.stdout == "installed\n" and done.stderr == ""


def test_overlay_wrong_switch_fails(made):
    done = made.run("print('started'); print(probe())", "yes")
    assert done.returncode != 0 and done.stdout == "started\n"
    assert "COSMOS3_TEXT_KV_OVERLAY='yes'" in done.stderr


# Which processes are reached.


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_overlay_workers_inherit(made, method):
    code = (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    print(probe())\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    with context.Pool(1) as pool:\n"
        "        print(pool.apply(probe))\n"
    )
    done = made.run(code)
    assert done.stdout == "overlay\noverlay\n", done.stderr
    # One line in every process that imports it; a fork has imported it.
    assert len(said(done)) == (1 if method == "fork" else 2)


# A launcher that starts a child without PYTHONPATH, as some do for their workers.
LAUNCH = (
    "import os, subprocess\n"
    "env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}\n"
    f"code = 'import {TRANSFORMER} as m; print(m.__file__)'\n"
    "subprocess.run([sys.executable, '-c', code], env=env, check=True)\n"
)


def test_wheel_survives_reset_path(wheel):
    done = wheel.run(LAUNCH)
    assert "/patched/" in done.stdout and len(said(done)) == 1, done.stderr


@pytest.mark.parametrize("form", ["wheel", "folder"])
def test_overlay_behind_another_sitecustomize(sample, tmp_path, form):
    """The wheel works behind one that runs no other; the folder does not, and status tells."""
    made = Installed(sample, tmp_path, form)
    assert made.make().returncode == 0
    write(tmp_path / "agent" / "sitecustomize.py", "import os; os.environ['AGENT'] = 'ran'\n")
    path = os.pathsep.join([str(tmp_path / "agent"), str(made.out), str(ROOT / "scripts")])
    done = made.run("import os\nprint(os.environ['AGENT'], probe())", PYTHONPATH=path)
    status = made.status(PYTHONPATH=path)
    if form == "wheel":
        assert done.stdout == "ran overlay\n", done.stderr
        assert status.returncode == 0, status.stdout
    else:
        assert done.stdout == "ran installed\n"
        assert statuses(status.stdout)["overlay/fresh"] == "FAIL" and status.returncode == 1


def test_folder_runs_hidden_sitecustomize(sample, tmp_path):
    made = Installed(sample, tmp_path, "folder")
    assert made.make().returncode == 0
    write(tmp_path / "own" / "sitecustomize.py", "import os; os.environ['OWN'] = 'ran'\n")
    path = f"{made.out}{os.pathsep}{tmp_path / 'own'}"
    for value, which in (("1", "overlay"), ("0", "installed")):
        code = "import os, sitecustomize\nprint(os.environ['OWN'], sitecustomize.__file__, probe())"
        done = made.run(code, value, PYTHONPATH=path)
        expected = ["ran", str(tmp_path / "own" / "sitecustomize.py"), which]
        assert done.stdout.split() == expected, done.stderr


# As patches/README.md lists them. -S reads no site-packages, so the script has to add it.
REACH = {"-E": "wheel", "-s": "wheel folder", "-I": "wheel", "-S": ""}


@pytest.mark.parametrize("flag", REACH)
def test_overlay_reach_vs_interpreter_flags(made, flag):
    done = made.run(f"sys.path.append({str(made.site)!r})\nprint(probe())", flags=[flag])
    reached = made.form in REACH[flag].split()
    assert done.stdout == ("overlay\n" if reached else "installed\n"), done.stderr
    listed = (ROOT / "patches" / "README.md").read_text(encoding="utf-8")
    assert reached or f"`{flag}`" in listed


def test_overlay_context_manager(made):
    code = (
        "import os, subprocess, cosmos3_text_kv\n"
        "before = dict(os.environ)\n"
        f"child = [sys.executable, '-c', 'import {TRANSFORMER} as m; print(m.__file__)']\n"
        "with cosmos3_text_kv.active():\n"
        "    print(probe())\n"
        "    print('/patched/' in subprocess.check_output(child, text=True))\n"
        "print('/patched/' in subprocess.check_output(child, text=True))\n"
        "print(dict(os.environ) == before)\n"
    )
    done = made.run(code, None)
    assert done.stdout.split() == ["overlay", "True", "False", "True"], done.stderr


def test_overlay_context_too_late_fails(made):
    code = "import cosmos3_text_kv\nprobe()\nwith cosmos3_text_kv.active():\n    print('inside')\n"
    done = made.run(code, None)
    assert done.returncode != 0 and "imported already" in done.stderr and done.stdout == ""


# What must fail, on import and not silently.

BROKEN = {
    "file-changed": (lambda i: _replace(i.file, "host = max(mask)", "host = 1"), "1535"),
    "file-gone": (lambda i: i.file.unlink(), "cannot read"),
    "version-changed": (lambda i: _version(i, "9"), "--accept-version 9"),
    "copy-edited": (lambda i: _append(_copy(i)), "is not what was written"),
    "copy-gone": (lambda i: _copy(i).unlink(), "is not what was written"),
    "module-appeared": (lambda i: write(i.file.parent / "text_sample.py", ""), "installed already"),
    "series-gone": (lambda i: (i.ours / "series.json").unlink(), "no usable series.json"),
    "series-broken": (lambda i: (i.ours / "series.json").write_text("{"), "no usable series.json"),
    "series-other": (
        lambda i: (i.ours / "series.json").write_text('{"format": 2}'),
        "no usable series.json",
    ),
}


def _append(path):
    path.write_text(path.read_text() + "# edited\n")


def _replace(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def _version(installed, value):
    (installed.package / "version.py").write_text(f'__version__ = "{value}"\n')


def _copy(installed):
    return next(installed.ours.glob("files/*/text_sample.py"))


@pytest.mark.parametrize("kind", BROKEN)
def test_overlay_broken_fails_closed(made, kind):
    damage, reason = BROKEN[kind]
    damage(made)
    # Code that takes a module as optional must not take the refusal for its absence.
    code = "try:\n    print(probe())\nexcept ImportError:\n    print('taken for absent')\n"
    done = made.run(code)
    assert done.returncode != 0 and done.stdout == ""
    assert "OverlayError" in done.stderr and reason in done.stderr
    (line,) = said(done)
    assert "NOT active" in line and reason in line
    if kind != "file-gone":
        assert made.run("print(probe())", "0").stdout == "installed\n"


def test_overlay_other_models_stay_usable(wheel):
    _version(wheel, "9")
    write(wheel.file.parents[1] / "wan.py", "")
    name = TRANSFORMER.rsplit(".", 2)[0] + ".wan"
    done = wheel.run(f"import {name}\nprint('imported')")
    assert done.stdout == "imported\n" and "NOT active" in said(done)[0]


def test_overlay_moved_file_says_that_it_moved(wheel):
    wheel.file.write_text("# newer\n" + wheel.file.read_text())
    done = wheel.run("probe()")
    assert done.returncode != 0 and "known lines are there, but not at their numbers" in done.stderr


def test_overlay_unknown_version_refused(installed):
    _version(installed, "9.9")
    done = installed.make()
    assert done.returncode == 2 and "--accept-version 9.9" in done.stderr
    assert not installed.out.exists()
    assert installed.make("--accept-version", "9.9").returncode == 0
    assert installed.run("print(probe())").stdout == "overlay\n"


def test_overlay_unknown_digest_refused(installed):
    installed.file.write_text("# newer\n" + installed.file.read_text())
    digest = hashlib.sha256(installed.file.read_bytes()).hexdigest()
    done = installed.make()
    assert done.returncode == 2 and f"--accept-digest {digest}" in done.stderr
    assert statuses(done.stdout)["overlay/digest"] == "FAIL" and "moved by +1" in done.stdout
    assert not installed.out.exists()
    assert installed.make("--accept-digest", "0" * 64).returncode == 2
    done = installed.make("--accept-digest", digest)
    assert done.returncode == 0, done.stderr
    done = installed.run(
        f"print(probe())\nfrom {TRANSFORMER} import Attention, longest\nAttention()"
    )
    assert done.returncode == 0 and done.stdout == "overlay\n", done.stderr


def test_overlay_accepted_digest_must_fit(installed):
    _replace(installed.file, "host = max(mask)", "host = 1")
    digest = hashlib.sha256(installed.file.read_bytes()).hexdigest()
    done = installed.make("--accept-digest", digest)
    assert done.returncode == 1 and "lines changed" in done.stderr
    assert not installed.out.exists()


def test_overlay_no_package_refused(sample, tmp_path):
    assert sample.run("overlay", "--python", "/no/python").returncode == 2
    done = sample.run("overlay", "--python", venv(tmp_path / "venv")[0])
    assert done.returncode == 2 and "finds no tensorrt_llm" in done.stderr


def test_overlay_metadata_version_counts(installed):
    (installed.package / "version.py").unlink()
    meta = installed.site / f"tensorrt_llm-{installed.release}.dist-info" / "METADATA"
    write(meta, f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {installed.release}\n")
    assert installed.make().returncode == 0
    assert installed.run("print(probe())").stdout == "overlay\n"


# What is told.


def test_status_vs_forms(made):
    done = made.status()
    found = statuses(done.stdout)
    assert [found[f"overlay/{name}"] for name in ("fresh", "spawned")] == ["PASS"] * 2, done.stdout
    assert found["overlay/switch"] == "SKIP"
    digest = hashlib.sha256(made.file.read_bytes()).hexdigest()[:12]
    assert done.stdout.count(f"digest {digest} -> ") == (3 if made.form == "wheel" else 2)
    assert found["overlay/reset"] == ("PASS" if made.form == "wheel" else "FAIL")
    assert done.returncode == (0 if made.form == "wheel" else 1)
    assert statuses(made.status(COSMOS3_TEXT_KV_OVERLAY="1").stdout)["overlay/switch"] == "PASS"


def test_status_says_why_not(wheel):
    _version(wheel, "9")
    done = wheel.status()
    assert done.returncode == 1 and done.stdout.count("--accept-version 9") == 3
    # The wheel's own command, for where this project is not.
    own = subprocess.run([wheel.python, "-m", "cosmos3_text_kv"], env=wheel.env(), text=True,
                         capture_output=True)  # fmt: skip
    assert statuses(own.stdout)["overlay/reset"] == "FAIL" and own.returncode == 1


def test_status_without_hook(sample, tmp_path):
    done = Installed(sample, tmp_path, "wheel").status()
    assert done.returncode == 1 and done.stdout.count("NOT REACHED") == 3


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("COSMOS3_TEXT_KV_OVERLY", "COSMOS3_TEXT_KV_OVERLAY"),
        ("COSMOS3_TEXT_KV", "COSMOS3_TEXT_KV_OVERLAY"),
        ("COSMOS3_ROW_INVARIENT", "COSMOS3_ROW_INVARIANT"),
        ("COSMOS3_CHECKPOINT", None),
    ],
)
def test_misspelled_variable_is_told(wheel, name, nearest):
    done = wheel.run("print(probe())", None, **{name: "1"})
    assert done.stdout == "installed\n"
    told = [f"cosmos3-text-kv {VERSION} {name} is no variable of cosmos3-text-kv; the nearest is"]
    assert said(done) == ([f"{told[0]} {nearest}"] if nearest else [])


# The wheel.


def test_wheel_is_reproducible_and_needs_nothing(sample, tmp_path):
    for name in ("one", "two"):
        done = sample.run("wheel", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
    one, two = (next((tmp_path / name).glob("*.whl")) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert one.name == f"cosmos3_text_kv-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(one).namelist()
    assert not [n for n in names if not n.startswith("cosmos3_text_kv")]
    assert (
        "Requires-Dist"
        not in zipfile.ZipFile(one).read(f"cosmos3_text_kv-{VERSION}.dist-info/METADATA").decode()
    )


def test_wheel_holds_no_line_of_the_pinned_file(sample, tmp_path):
    assert sample.run("wheel", "--out", tmp_path).returncode == 0
    archive = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    (base,) = json.loads(archive.read("cosmos3_text_kv/series.json"))["bases"]
    kept = "".join(json.dumps(base["edits"]))
    assert "patched" in kept and "host = max(mask)" not in kept and "class Attention" not in kept


def test_wheel_accepts_version_by_name(sample, tmp_path):
    there = Installed(sample, tmp_path, "wheel")
    _version(there, "9.9")
    done = sample.run("wheel", "--out", tmp_path, "--accept-version", "9.9")
    assert done.returncode == 0, done.stderr
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(there.site)
    assert there.run("print(probe())").stdout == "overlay\n"
    done = sample.run("wheel", "--accept-digest", "0" * 64)
    assert done.returncode == 2 and "--package" in done.stderr


def test_wheel_installs_with_pip(sample, tmp_path):
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is missing")
    there = Installed(sample, tmp_path, "wheel")
    assert sample.run("wheel", "--out", tmp_path).returncode == 0
    pip = [sys.executable, "-m", "pip", "--python", there.python, "--disable-pip-version-check"]
    wheel = next(tmp_path.glob("*.whl"))
    done = subprocess.run(
        [*pip, "install", "--no-index", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert there.run("print(probe())").stdout == "overlay\n"
    done = subprocess.run([*pip, "uninstall", "-y", "cosmos3-text-kv"], capture_output=True)
    assert done.returncode == 0 and not list(there.site.glob("cosmos3*"))
    assert there.run("print(probe())").stdout == "installed\n"


# Row-invariant products.

SET = ["cublaslt", "allow_bf16_reduced_precision_reduction (False, False)"]


@pytest.mark.parametrize("overlay", ["1", None])
def test_rows_set_before_cosmos3_in_every_process(wheel, overlay):
    """With the overlay, and without it for a checkout that holds the patches."""
    write(wheel.site / "torch" / "__init__.py", TORCH.format(version="2.11.0+cu130"))
    code = (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    print('torch' in sys.modules, flush=True)\n"
        "    print(probe(), flush=True)\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(probe))\n"
    )
    done = wheel.run(code, overlay, **{ROWS: "1"})
    which = "overlay" if overlay else "installed"
    assert done.stdout.strip().split("\n") == ["False", *SET, which, *SET, which], done.stderr
    lines = [line for line in said(done) if "row-invariant products: " in line]
    assert len(lines) == 2 and all("torch 2.11.0+cu130" in line for line in lines)


def test_rows_in_two_lines_of_python(wheel):
    write(wheel.site / "torch" / "__init__.py", TORCH.format(version="2.10.0a0+nv"))
    done = wheel.run("import cosmos3_text_kv\ncosmos3_text_kv.row_invariant()\n", None)
    assert done.stdout.split("\n")[:2] == SET, done.stderr


@pytest.mark.parametrize("version, value", [("2.9.1", "1"), ("2.11.0", "on")])
def test_rows_impossible_fails_closed(wheel, version, value):
    write(wheel.site / "torch" / "__init__.py", TORCH.format(version=version))
    done = wheel.run("probe()", **{ROWS: value})
    assert done.returncode != 0 and "OverlayError" in done.stderr
    reason = "need torch 2.10 or newer" if value == "1" else f"{ROWS}='on'"
    assert re.search(f"NOT active.*{reason}", done.stderr)


def test_rows_off_sets_nothing(wheel):
    write(wheel.site / "torch" / "__init__.py", TORCH.format(version="2.11.0"))
    done = wheel.run("print(probe())", "1", **{ROWS: "0"})
    assert done.stdout == "overlay\n" and "row-invariant" not in done.stderr
