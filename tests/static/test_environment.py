# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Names of environment variables, the version, and make's variables with spaces in them."""

import importlib.util
import os
import re
import subprocess
import sys

import own_version
import pytest
from bench.__main__ import versions
from own_version import ROOT

TABLE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
ROWS = {
    name
    for line in TABLE.splitlines()
    if line.startswith("| `")
    for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", line.split("|")[1])
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def sources():
    """All text that reads or sets variables outside of tests."""
    folders = [ROOT / name for name in ("scripts", "host", "overlay")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files) + MAKEFILE


def variables():
    """The hook's own list of names."""
    path = ROOT / "scripts" / "patchset" / "hook" / "cosmos3_text_kv" / "variables.py"
    spec = importlib.util.spec_from_file_location("variables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_environment_table_vs_sources():
    text = sources()
    ours = set(re.findall(r"\bCOSMOS3_[A-Z][A-Z0-9_]*\b", text))
    of_make = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.M))
    read = set(re.findall(r"environ(?:\.\w+\(|\[)\"([A-Z][A-Z0-9_]+)\"", text))
    assert {"COSMOS3_TEXT_KV_OVERLAY", "TRTLLM_DIR", "TLLM_DISABLE_MPI"} <= ours | of_make | read
    assert ours | of_make | read <= ROWS, "missing in docs/environment.md"
    gone = {name for name in ROWS if not re.search(rf"\b{name}\b", text)}
    assert not gone, f"docs/environment.md lists what nothing reads: {gone}"
    assert set(variables().KNOWN) == {name for name in ROWS if name.startswith("COSMOS3_")}


def test_version_stands_in_one_place():
    assert versions()[own_version.NAME] == own_version.VERSION
    assert f"\n## {own_version.VERSION}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    other = [
        path
        for path in (ROOT / "scripts").rglob("*.py")
        if f'"{own_version.VERSION}"' in path.read_text(encoding="utf-8")
    ]
    assert not other


@pytest.mark.parametrize("target", ["apply", "unapply", "check-upstream REF=main", "pr"])
def test_make_takes_a_folder_with_spaces(target, tmp_path):
    folder = tmp_path / "no such checkout"
    command = ["make", "--no-print-directory", *target.split(), f"TRTLLM_DIR={folder}"]
    command += [f"PYTHON={sys.executable}", f"BOOTSTRAP_PYTHON={sys.executable}"]
    # What an outer make was given is none of this one's.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    env.pop("ARGS", None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and f"refused: {folder} " in done.stderr, done.stderr
