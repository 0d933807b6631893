# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Writing patches: export from overlay/, and refresh from a checkout with commits."""

import shutil

import pytest
from patchset.check import SPDX
from patchset.export import exported
from patchset.patch import PatchError, new_file, render
from patchset.project import read_toml
from support.synthetic import BODY, FILE, MODULES, ROOT, git, pinned_lines, write


def patch_files(root):
    return {p.name: p.read_bytes() for p in sorted((root / "patches").glob("*/*"))}


def test_export_unchanged_writes_nothing(world):
    before = patch_files(world.root)
    assert world.run("export", "--check").returncode == 0
    assert world.run("export").returncode == 0
    assert patch_files(world.root) == before


def test_export_drift_found_and_mended(sample):
    module = sample.root / "overlay" / MODULES / "text_sample.py"
    module.write_text(module.read_text() + "\nLATER = 1\n")
    write(module.parent / "text_more.py", "\n".join(SPDX) + '\n"""More."""\n')
    before = patch_files(sample.root)
    assert sample.run("export", "--check").returncode == 1
    assert sample.run("check").returncode == 1
    assert patch_files(sample.root) == before
    assert sample.run("export").returncode == 0
    assert sample.run("check").returncode == 0
    first = sample.base.patches[0]
    assert [d.path.rpartition("/")[2] for d in first.files] == ["text_more.py", "text_sample.py"]
    assert first.files[1].text == module.read_text()
    (module.parent / "text_more.py").unlink()
    assert sample.run("export").returncode == 0
    assert len(sample.base.patches[0].files) == 1


def test_export_is_deterministic(world):
    once = [render(patch) for patch in exported(world.base)]
    assert once == [render(patch) for patch in exported(world.project.base(world.base_name))]


def test_new_file_odd_text_refused():
    for text in ("no newline", "a\r\nb\n"):
        with pytest.raises(PatchError):
            new_file("x.py", text)


def test_tree_refresh_round_trip(compilable, tmp_path):
    """The series goes into a checkout and comes out of it the same, byte for byte."""
    world = compilable
    if world.name == "sample":
        pinned = tmp_path / "pinned.py"
        write(pinned, "".join(f"{line}\n" for line in pinned_lines()))
    else:
        pinned = world.checkout(tmp_path / "checkout") / FILE
    before = patch_files(world.root)
    tree = tmp_path / "tree"
    done = world.run("tree", tree, "--pinned", pinned)
    assert done.returncode == 0, done.stderr
    assert git(tree, "rev-list", "--count", "base..HEAD") == str(len(world.base.series))
    done = world.run("refresh", "--tree", tree)
    assert done.returncode == 0, done.stderr
    assert patch_files(world.root) == before
    # An amended subject is one patch under another name; the old one goes.
    last = world.base.series[-1]
    message = git(tree, "log", "-1", "--format=%B").partition("\n")
    git(tree, "commit", "-q", "--amend", "-F", "-", stdin="Try it\n" + message[2])
    assert world.run("refresh", "--tree", tree).returncode == 0
    after = patch_files(world.root)
    assert before.keys() - after.keys() == {last}
    assert after.keys() - before.keys() == {f"{last[:4]}-Try-it.patch"}


def test_tree_wrong_pin_refused(sample, tmp_path):
    pinned = tmp_path / "pinned.py"
    lines = pinned_lines()
    lines[640] = "# other"
    write(pinned, "".join(f"{line}\n" for line in lines))
    done = sample.run("tree", tmp_path / "tree", "--pinned", pinned)
    assert done.returncode == 1 and "line 641" in done.stderr
    assert not (tmp_path / "tree").exists()
    assert sample.run("tree", tmp_path, "--pinned", pinned).returncode == 2
    assert sample.run("tree", tmp_path / "t", "--pinned", tmp_path / "no").returncode == 2


def test_refresh_without_commits_refused(sample, tmp_path):
    before = patch_files(sample.root)
    checkout = sample.checkout(tmp_path / "checkout")
    assert sample.run("refresh", "--tree", checkout).returncode == 2
    shutil.rmtree(checkout / ".git")
    git(checkout, "init", "-q", ".")
    assert sample.run("refresh", "--tree", checkout).returncode == 2
    assert patch_files(sample.root) == before


def test_refresh_deletion_refused(sample, tmp_path):
    checkout = sample.checkout(tmp_path / "checkout")
    git(checkout, "rm", "-q", FILE)
    git(checkout, "commit", "-qm", f"Remove it\n\n{BODY}")
    done = sample.run("refresh", "--tree", checkout)
    assert done.returncode == 1 and "only added and modified files" in done.stderr


def test_read_toml_vs_tomllib():
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    text = (ROOT / "UPSTREAM").read_text(encoding="utf-8")
    assert read_toml(text) == tomllib.loads(text)
