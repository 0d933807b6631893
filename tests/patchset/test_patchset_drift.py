# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Hunk by hunk against another commit: same place, moved, changed, gone."""

import re

from patchset.fit import locate
from patchset.patch import Hunk
from patchset.project import split_lines
from support.synthetic import FILE, git, statuses, write

URL = "--url"


def hunks_of(world):
    return [h for p in world.base.patches for d in p.files if d.path == FILE for h in d.hunks]


def on_branch(checkout, name, lines):
    git(checkout, "checkout", "-q", "-b", name)
    write(checkout / FILE, "".join(f"{line}\n" for line in lines))
    git(checkout, "commit", "-qam", name)
    git(checkout, "checkout", "-q", "work")


def moves(output):
    return [int(n) for n in re.findall(r"moved by ([-+]\d+) to line", output)]


def test_check_upstream_pin_fits(world, checkout):
    done = world.run("check-upstream", "--dir", checkout, "--ref", world.pin)
    assert done.returncode == 0, done.stdout
    assert set(statuses(done.stdout).values()) == {"PASS"}
    assert "moved" not in done.stdout


def test_check_upstream_shifted_says_where(world, checkout):
    lines = split_lines((checkout / FILE).read_text())
    hunks = hunks_of(world)
    middle = hunks[0].first + len(hunks[0].pre)
    shifted = ["# above"] * 7 + lines[:middle] + ["# between"] * 2 + lines[middle:]
    on_branch(checkout, "shifted", shifted)
    done = world.run("check-upstream", "--dir", checkout, "--ref", "shifted")
    assert done.returncode == 0, done.stdout
    found = moves(done.stdout)
    # Later patches have a first hunk as well, which may stand above the line that was inserted.
    assert len(found) == len(hunks) and found[0] == 7 and found[1] == 9 and set(found) == {7, 9}


def test_check_upstream_changed_says_what(world, checkout):
    lines = split_lines((checkout / FILE).read_text())
    # Of the first patch that changes the file: the numbers of later ones count its new lines.
    changes = [d.hunks for p in world.base.patches for d in p.files if d.path == FILE]
    hunk = max(changes[0], key=lambda h: len(h.pre))
    at = hunk.first + len(hunk.pre) // 2
    old, lines[at] = lines[at], "# changed upstream"
    on_branch(checkout, "changed", ["# above", *lines])
    done = world.run("check-upstream", "--dir", checkout, "--ref", "changed")
    assert done.returncode == 1
    failed = [name for name, said in statuses(done.stdout).items() if said == "FAIL"]
    failed = [name for name in failed if name != "base"]  # where it changed a mark
    assert len(failed) >= 1 and failed[0].endswith(tuple("123456789"))
    assert f"{at + 2}: - {old}" in done.stderr
    assert f"{at + 2}: + # changed upstream" in done.stderr


def test_check_upstream_file_vs_ref(world, checkout, tmp_path):
    copy = tmp_path / "copy.py"
    write(copy, "# above\n" + (checkout / FILE).read_text())
    done = world.run("check-upstream", "--file", copy)
    assert done.returncode == 0 and set(moves(done.stdout)) == {1}


def test_check_upstream_fetches_refs(sample):
    url = f"file://{sample.origin}"
    done = sample.run("check-upstream", "--ref", "shifted", URL, url)
    assert done.returncode == 0 and set(moves(done.stdout)) == {7}
    done = sample.run("check-upstream", "--ref", "moved", URL, url)
    assert done.returncode == 1
    assert "gone, now at" in done.stdout and "cosmos/transformer_cosmos3.py" in done.stdout
    assert "there already" in done.stdout
    done = sample.run("check-upstream", "--ref", "no-such-branch", URL, url)
    assert done.returncode == 2 and "could not fetch" in done.stderr
    assert sample.run("check-upstream").returncode == 2


def test_locate_ambiguous_refused():
    hunk = Hunk(10, 10, ((" ", "a"), ("+", "x"), (" ", "b")))
    lines = ["-"] * 30
    lines[3:5] = lines[20:22] = ["a", "b"]
    (fit,) = locate(lines, (hunk,))
    assert fit.at is None and "2 places (4, 21)" in fit.why
    lines[9:11] = ["a", "b"]
    (fit,) = locate(lines, (hunk,))
    assert fit.at == 9


def test_locate_keeps_order():
    """A hunk does not go above the one before it, even where only that place has its lines."""
    first = Hunk(10, 10, (("-", "one"), ("+", "x")))
    second = Hunk(12, 12, (("-", "two"), ("+", "y")))
    lines = ["two"] + ["-"] * 20
    lines[9] = "one"
    assert [fit.at for fit in locate(lines, (first, second))] == [9, None]
