# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The import overlay against a fake installed package in a virtual environment."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest
from support.synthetic import FILE, ROOT, git, statuses, write

TRANSFORMER = FILE[: -len(".py")].replace("/", ".")
VERSION = "1.3.0rc26"
# What a script prints of the module that it got: where from, and whether it is the patched one.
PROBE = f"""
import importlib, sys
def probe():
    module = importlib.import_module({TRANSFORMER!r})
    return "overlay" if "/files-" in module.__file__ else "installed"
"""


class Installed:
    """A virtual environment with a fake tensorrt_llm that holds the pinned file of a world."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        self.venv = folder / "venv"
        args = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(self.venv)]
        subprocess.run(args, check=True)
        self.python = str(self.venv / "bin" / "python")
        (self.site,) = self.venv.glob("lib/*/site-packages")
        self.package = self.site / "tensorrt_llm"
        for depth in range(1, FILE.count("/") + 1):
            write(self.site.joinpath(*FILE.split("/")[:depth], "__init__.py"), "")
        write(self.package / "version.py", f'__version__ = "{VERSION}"\n')
        self.file = self.site / FILE
        write(self.file, git(world.origin, "show", f"{world.pin}:{FILE}") + "\n")
        self.out = folder / "overlay"

    def make(self, *args):
        """Runs overlay for this environment."""
        return self.world.run("overlay", "--python", self.python, "--out", self.out, *args)

    def env(self, value="1", **more):
        """The environment of a process with the overlay switched to ``value``."""
        drop = ("PYTHONPATH", "COSMOS3_TEXT_KV_OVERLAY")
        env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        env |= {"PYTHONPATH": str(self.out), "PYTHONDONTWRITEBYTECODE": "1"}
        return env | ({"COSMOS3_TEXT_KV_OVERLAY": value} if value is not None else {}) | more

    def run(self, code, value="1", **more):
        """Runs a script in this environment, from a file so that workers can be spawned."""
        script = self.folder / "script.py"
        script.write_text(PROBE + code)
        return subprocess.run(
            [self.python, str(script)],
            env=self.env(value, **more),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def digests(self):
        """What is under site-packages."""
        files = sorted(p for p in self.site.rglob("*") if p.is_file())
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def installed(sample, tmp_path):
    """A fake installation of the sample."""
    return Installed(sample, tmp_path)


@pytest.fixture
def made(installed):
    """The same with its overlay made."""
    done = installed.make()
    assert done.returncode == 0, done.stdout + done.stderr
    return installed


def test_overlay_make_writes_no_site_packages(world, tmp_path):
    installed = Installed(world, tmp_path)
    before = installed.digests()
    done = installed.make()
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed.digests() == before
    (copy,) = installed.out.glob(f"files-*/{FILE}")
    checkout = world.checkout(tmp_path / "checkout")
    assert world.run("apply", "--dir", checkout).returncode == 0
    assert copy.read_bytes() == (checkout / FILE).read_bytes()
    # Once more: the same files, nothing left over.
    assert installed.make().returncode == 0
    assert len(list(installed.out.glob("files-*"))) == 1


def test_overlay_on_replaces_and_says_once(made):
    before = made.digests()
    done = made.run(
        "import tensorrt_llm\n"
        "print(probe())\n"
        f"from {TRANSFORMER} import Attention\n"
        "print(Attention().attn, Attention().kv.lengths)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["overlay", "patched [1]"]
    said = [line for line in done.stderr.split("\n") if line.startswith("cosmos3_overlay:")]
    assert len(said) == 2
    assert sum(f"replaced {TRANSFORMER} (" in line for line in said) == 1
    assert sum(".text_sample (" in line and "added" in line for line in said) == 1
    assert made.digests() == before


@pytest.mark.parametrize("value", [None, "", "0"])
def test_overlay_off_leaves_installed(made, value):
    done = made.run("print(probe())", value)
    assert done.returncode == 0 and done.stdout == "installed\n" and done.stderr == ""


def test_overlay_wrong_switch_fails(made):
    done = made.run("print('started'); print(probe())", "yes")
    assert done.returncode != 0 and done.stdout == "started\n"
    assert "COSMOS3_TEXT_KV_OVERLAY='yes'" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_overlay_workers_inherit(made, method, when):
    """Workers get the patched module, whether their parent has imported it yet or not."""
    code = (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        f"    {'probe()' if when == 'after' else 'pass'}\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    with context.Pool(2) as pool:\n"
        "        print(pool.apply(probe), pool.apply(probe))\n"
    )
    done = made.run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "overlay overlay\n"
    if when == "after":
        assert done.stderr.count("replaced") == 1


def test_overlay_subprocess_inherits(made):
    code = "import subprocess\nsubprocess.run([sys.executable, '-c', "
    code += f"'import {TRANSFORMER} as m; print(m.__file__)'], check=True)"
    done = made.run(code)
    assert "/files-" in done.stdout, done.stderr


def test_overlay_context_manager(made):
    code = (
        "import os, subprocess, cosmos3_overlay\n"
        "before = dict(os.environ)\n"
        f"child = [sys.executable, '-c', 'import {TRANSFORMER} as m; print(m.__file__)']\n"
        "with cosmos3_overlay.active():\n"
        "    print(probe())\n"
        "    print('/files-' in subprocess.check_output(child, text=True))\n"
        "print('/files-' in subprocess.check_output(child, text=True))\n"
        "del os.environ['COSMOS3_TEXT_KV_OVERLAY_SAID']\n"
        "print(dict(os.environ) == before)\n"
    )
    done = made.run(code, None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["overlay", "True", "False", "True"]


def test_overlay_context_too_late_fails(made):
    code = "import cosmos3_overlay\nprobe()\nwith cosmos3_overlay.active():\n    print('inside')\n"
    done = made.run(code, None)
    assert done.returncode != 0 and "imported already" in done.stderr and done.stdout == ""


def test_overlay_runs_hidden_sitecustomize(made, tmp_path):
    write(tmp_path / "own" / "sitecustomize.py", "import os; os.environ['OWN'] = 'ran'\n")
    path = f"{made.out}{os.pathsep}{tmp_path / 'own'}"
    for value, which in (("1", "overlay"), ("0", "installed")):
        code = "import os, sitecustomize\nprint(os.environ['OWN'], sitecustomize.__file__, probe())"
        done = made.run(code, value, PYTHONPATH=path)
        expected = ["ran", str(tmp_path / "own" / "sitecustomize.py"), which]
        assert done.stdout.split() == expected, done.stderr


# What must fail, on import and not silently.

BROKEN = {
    "file-changed": lambda i: i.file.write_text(i.file.read_text() + "# newer\n"),
    "version-changed": lambda i: (i.package / "version.py").write_text('__version__ = "9"\n'),
    "copy-edited": lambda i: _append(next(i.out.glob(f"files-*/{FILE}"))),
    "copy-gone": lambda i: next(i.out.glob(f"files-*/{FILE}")).unlink(),
    "module-appeared": lambda i: write(i.file.parent / "text_sample.py", "# upstream's own\n"),
    "manifest-gone": lambda i: (i.out / "manifest.json").unlink(),
    "manifest-broken": lambda i: (i.out / "manifest.json").write_text("{"),
    "manifest-other": lambda i: (i.out / "manifest.json").write_text('{"format": 2}'),
}


def _append(path):
    path.write_text(path.read_text() + "# edited\n")


@pytest.mark.parametrize("kind", BROKEN)
def test_overlay_broken_fails_closed(made, kind):
    BROKEN[kind](made)
    code = "try:\n    print(probe())\nexcept ImportError:\n    print('taken for absent')\n"
    done = made.run(code)
    assert done.returncode != 0 and done.stdout == ""
    assert "OverlayError" in done.stderr and "make overlay" in done.stderr
    status = made.world.run("overlay-status", "--python", made.python, "--out", made.out)
    assert status.returncode == 1, status.stdout
    assert made.run("print(probe())", "0").stdout == "installed\n"


def test_overlay_unknown_version_refused(installed):
    (installed.package / "version.py").write_text('__version__ = "9.9"\n')
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
    assert installed.run("print(probe())").stdout == "overlay\n"


def test_overlay_accepted_digest_must_fit(installed):
    text = installed.file.read_text().replace("host = max(mask)", "host = 1")
    installed.file.write_text(text)
    digest = hashlib.sha256(installed.file.read_bytes()).hexdigest()
    done = installed.make("--accept-digest", digest)
    assert done.returncode == 1 and "lines changed" in done.stderr
    assert not installed.out.exists()


def test_overlay_no_package_refused(sample, tmp_path):
    assert sample.run("overlay", "--python", "/no/python").returncode == 2
    python = tmp_path / "venv" / "bin" / "python"
    args = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(tmp_path / "venv")]
    subprocess.run(args, check=True)
    done = sample.run("overlay", "--python", python)
    assert done.returncode == 2 and "finds no tensorrt_llm" in done.stderr


def test_overlay_metadata_version_counts(installed):
    (installed.package / "version.py").unlink()
    meta = installed.site / f"tensorrt_llm-{VERSION}.dist-info" / "METADATA"
    write(meta, f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {VERSION}\n")
    assert installed.make().returncode == 0
    assert installed.run("print(probe())").stdout == "overlay\n"


def test_overlay_status_tells(made):
    args = ("overlay-status", "--python", made.python, "--out", made.out)
    done = made.world.run(*args)
    assert done.returncode == 0
    assert statuses(done.stdout)["overlay/active"] == "SKIP"
    on = {"PYTHONPATH": f"{made.out}{os.pathsep}{ROOT / 'scripts'}"}
    done = made.world.run(*args, COSMOS3_TEXT_KV_OVERLAY="1", **on)
    assert statuses(done.stdout)["overlay/active"] == "PASS"
    digest = hashlib.sha256(made.file.read_bytes()).hexdigest()[:12]
    assert digest in done.stdout and VERSION in done.stdout
    shutil.rmtree(made.out)
    assert made.world.run(*args).returncode == 1
