# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The checker itself: it passes the good series and fails each kind of broken one, by name."""

import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from patchset import check
from patchset.patch import FileDiff, Hunk, new_file, parse, render, slug
from patchset.project import Project
from patchset.report import Refusal, Report
from support.synthetic import FILE, IMPORT, MODULES, ROOT, SHARED, TEST_FILE, statuses


def failures(base, capsys) -> set[str]:
    """Returns the names of the checks that fail."""
    capsys.readouterr()
    status = check.run(Project(base.project.root), Report())
    lines = statuses(capsys.readouterr().out)
    failed = {name.partition("-")[0] for name, said in lines.items() if said == "FAIL"}
    assert status == bool(failed)
    assert lines, "nothing was checked"
    return failed


def texts(base) -> list[str]:
    return [base.patch_text(name) for name in base.series]


def store(base, number: int, text: str) -> None:
    """Writes patch ``number`` (from 1) of the series, under its name."""
    (base.folder / base.series[number - 1]).write_bytes(text.encode())


def edit(base, number: int, **changes) -> None:
    """Rewrites one patch with other fields, and its place in the series."""
    patch = replace(base.patches[number - 1], **changes)
    name = slug(number, patch.subject)
    folder = base.folder
    series = (folder / "series").read_text().replace(patch.name, name)
    (folder / patch.name).unlink()
    (folder / "series").write_text(series)
    (folder / name).write_bytes(render(patch).encode())


def with_hunk(base, old: str, new: str, at: int = 0) -> tuple[FileDiff, ...]:
    """Returns the files of patch 2 with one line of a hunk exchanged."""
    diff = base.patches[1].files[0]
    hunk = diff.hunks[at]
    lines = tuple((t, new if text == old else text) for t, text in hunk.lines)
    assert lines != hunk.lines
    hunks = list(diff.hunks)
    hunks[at] = replace(hunk, lines=lines)
    return (replace(diff, hunks=tuple(hunks)),)


def test_check_good_series_passes_quickly(world, capsys):
    start = time.process_time()
    assert failures(world.base, capsys) == set()
    assert time.process_time() - start < 10


def test_check_runs_without_packages(sample):
    code = "import sys; from patchset.__main__ import main; status = main(sys.argv[1:]); "
    code += "assert not {'torch', 'numpy'} & set(sys.modules); sys.exit(status)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, "--project", str(sample.root), "check"],
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_parse_render_inverse(world):
    for name, text in zip(world.base.series, texts(world.base)):
        assert render(parse(name, text)) == text


# Texts that are no patch.

BROKEN_TEXT = {
    "no-mailbox-line": lambda t: t.partition("\n")[2],
    "no-subject": lambda t: t.replace("Subject: [PATCH] ", "Topic: "),
    "no-prefix": lambda t: t.replace("Subject: [PATCH] ", "Subject: "),
    "header-twice": lambda t: t.replace("Date: ", "Date: x\nDate: "),
    "no-separator": lambda t: t.replace("\n---\n", "\n"),
    "truncated": lambda t: t[: len(t) * 2 // 3].rpartition("\n")[0] + "\n",
    "cut-after-header": lambda t: re.split("(?m)^@@", t)[0],
    "counts": lambda t: re.sub(r"@@ -(\d+),\d+ ", r"@@ -\1,2 ", t, count=1),
    "hunk-header": lambda t: t.replace("@@ -", "@@ ", 1),
    "index-line": lambda t: t.replace("\n--- a/", "\nindex 1234567..89abcde 100644\n--- a/"),
    "mode": lambda t: t.replace("\n--- a/", "\nold mode 100644\nnew mode 100755\n--- a/"),
    "rename": lambda t: t.replace(f" b/{FILE}\n", " b/other.py\n", 1),
    "outside": lambda t: t.replace(FILE, "../outside.py"),
    "absolute": lambda t: t.replace(f"a/{FILE}", "a//etc/x").replace(f"b/{FILE}", "b//etc/x"),
    "binary": lambda t: t.replace("\n--- a/", "\nGIT binary patch\n--- a/"),
    "no-newline-mark": lambda t: t.replace("\n-- \n", "\n\\ No newline at end of file\n-- \n"),
    "crlf": lambda t: t.replace("\n", "\r\n"),
    "two-in-one": lambda t: t.replace("-- \n", t),
}


def failures_with(sample, capsys, change) -> set[str]:
    """Returns what fails once the text of the second patch is changed."""
    text = texts(sample.base)[1]
    broken = change(text)
    assert broken != text
    store(sample.base, 2, broken)
    return failures(sample.base, capsys)


@pytest.mark.parametrize("kind", BROKEN_TEXT)
def test_check_broken_text_fails(sample, capsys, kind):
    assert failures_with(sample, capsys, BROKEN_TEXT[kind]) & {"pin/parse/0002", "pin/form/0002"}


def test_check_not_utf8_fails(sample, capsys):
    base = sample.base
    path = base.folder / base.series[1]
    path.write_bytes(path.read_bytes().replace(b"padded", b"padd\xff"))
    assert "pin/parse/0002" in failures(base, capsys)


# Parsed, but not in the form that is asked for.

BROKEN_FORM = {
    "function-name": lambda t: re.sub(r"(?m)^(@@ .* @@)$", r"\1 def upstream():", t, count=1),
    "diffstat": lambda t: t.replace("\n---\n", "\n---\n file.py | 2 +-\n", 1),
    "trailing-text": lambda t: t + "more\n",
    "commit-id": lambda t: t.replace("0" * 40, "1" * 40),
    "new-side": lambda t: re.sub(r"(@@ -\S+ \+)(\d)", r"\g<1>1\2", t, count=1),
}


@pytest.mark.parametrize("kind", BROKEN_FORM)
def test_check_broken_form_fails(sample, capsys, kind):
    assert "pin/form/0002" in failures_with(sample, capsys, BROKEN_FORM[kind])


def test_check_hunk_order_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    edit(sample.base, 2, files=(replace(diff, hunks=diff.hunks[::-1]),))
    assert "pin/form/0002" in failures(sample.base, capsys)


def test_check_hunk_overlap_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    edit(sample.base, 2, files=(replace(diff, hunks=(diff.hunks[0], *diff.hunks)),))
    assert "pin/form/0002" in failures(sample.base, capsys)


def test_check_file_twice_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    edit(sample.base, 2, files=(diff, diff))
    assert "pin/form/0002" in failures(sample.base, capsys)


def test_check_more_context_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    hunk = diff.hunks[1]
    more = Hunk(hunk.old_start - 1, hunk.new_start - 1, ((" ", "# line 1532"), *hunk.lines))
    edit(sample.base, 2, files=(replace(diff, hunks=(diff.hunks[0], more, diff.hunks[2])),))
    assert "pin/form/0002" in failures(sample.base, capsys)


def test_check_empty_hunk_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    idle = Hunk(diff.hunks[1].old_start, diff.hunks[1].new_start, (diff.hunks[1].lines[0],))
    edit(sample.base, 2, files=(replace(diff, hunks=(diff.hunks[0], idle)),))
    assert "pin/form/0002" in failures(sample.base, capsys)


def test_check_name_and_subject_fails(sample, capsys):
    base = sample.base
    store(base, 2, texts(base)[1].replace("[PATCH] Attend", "[PATCH] Listen"))
    assert failures(base, capsys) == {"pin/form/0002"}


# The series.


@pytest.mark.parametrize("kind", ["orphan", "twice", "missing", "empty", "base-commit"])
def test_check_broken_series_fails(sample, capsys, kind):
    base = sample.base
    series = base.folder / "series"
    text, name = series.read_text(), base.series[2]
    if kind == "orphan":
        series.write_text(text.replace(f"{name}\n", ""))
    elif kind == "twice":
        series.write_text(f"{text}{name}\n")
    elif kind == "missing":
        (base.folder / name).unlink()
    elif kind == "empty":
        series.write_text(text.partition("\n0001")[0] + "\n")
    else:
        series.write_text(text.replace(base.commit, "0" * 40))
    assert "pin/series" in failures(base, capsys)


# Messages.

BROKEN_MESSAGE = {
    "long-subject": {"subject": "Attend " + "x" * 80},
    "past-tense": {"subject": "Attended to keys"},
    "third-person": {"subject": "Attends to keys"},
    "gerund": {"subject": "Attending to keys"},
    "lower-case": {"subject": "attend to keys"},
    "bracket": {"subject": "[fix] Attend to keys"},
    "full-stop": {"subject": "Attend to keys."},
    "no-body": {"body": ""},
    "no-problem": lambda b: b.replace("Problem:", "It is so that"),
    "no-cost": lambda b: b.replace("Cost: one copy of the text.\n\n", ""),
    "two-costs": lambda b: b.replace("Cost:", "Cost: none.\n\nCost:"),
    "no-link": lambda b: re.sub("Link: .*\n", "", b),
    "no-forwarded": lambda b: re.sub("Forwarded: .*\n", "", b),
    "signed": lambda b: b + "Signed-off-by: A Machine <a@invalid>\n",
    "not-ascii": lambda b: b.replace("whole", "wh\u00f6le"),
    "long-line": lambda b: b.replace("whole", "whole " * 20),
    "diff-line": lambda b: b.replace("Mechanism", "diff of it\nMechanism"),
    "from-line": lambda b: b.replace("Mechanism", "From here\nMechanism"),
}


@pytest.mark.parametrize("kind", BROKEN_MESSAGE)
def test_check_broken_message_fails(sample, capsys, kind):
    change = BROKEN_MESSAGE[kind]
    body = sample.base.patches[1].body
    edit(sample.base, 2, **(change if isinstance(change, dict) else {"body": change(body)}))
    assert "pin/message/0002" in failures(sample.base, capsys)


@pytest.mark.parametrize("first", ["Feed", "Embed", "Bring", "Pass", "Keep", "De-duplicate"])
def test_check_imperatives_pass(sample, first):
    patch = replace(sample.base.patches[1], subject=f"{first} keys")
    assert check.message(patch) == []


# Lines that are added.


@pytest.mark.parametrize(
    "line", ["        x = 1 ", "\tx = 1", "        x = '" + "x" * 90 + "'", "        # \u00e9"]
)
def test_check_broken_style_fails(sample, capsys, line):
    files = with_hunk(sample.base, "        self.attn = install('installed')", line)
    edit(sample.base, 2, files=files)
    assert "pin/style/0002" in failures(sample.base, capsys)


def test_check_no_spdx_fails(sample, capsys):
    files = (new_file(TEST_FILE, '"""No header."""\n'),)
    edit(sample.base, 3, files=files)
    assert failures(sample.base, capsys) == {"pin/style/0003"}


# What the patches expect of the pin.


@pytest.mark.parametrize(
    "old",
    ["    def __init__(self):", "        self.kv = None", "            for b in range(len(q)):"],
)
def test_check_wrong_preimage_fails(sample, capsys, old):
    edit(sample.base, 2, files=with_hunk(sample.base, old, f"{old}  # no"))
    assert "pin/hunk/0002" in failures(sample.base, capsys)


def test_check_wrong_line_number_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    hunks = tuple(Hunk(h.old_start + 1, h.new_start + 1, h.lines) for h in diff.hunks)
    edit(sample.base, 2, files=(replace(diff, hunks=hunks),))
    assert failures(sample.base, capsys) == {"pin/hunk/0002"}


def test_check_unknown_region_fails(sample, capsys):
    diff = sample.base.patches[1].files[0]
    lines = ((" ", "# line 20"), ("+", "x = 1"), (" ", "# line 21"))
    hunks = [Hunk(20, 20, lines)]
    hunks += [replace(h, new_start=h.new_start + 1) for h in diff.hunks]
    edit(sample.base, 2, files=(replace(diff, hunks=tuple(hunks)),))
    assert failures(sample.base, capsys) == {"pin/hunk/0002"}


def test_check_later_patch_sees_earlier(sample, capsys):
    """A third patch on the second one's lines passes, and fails on the pin's."""
    base = sample.base
    lines = ((" ", "        out = ['patched', *q]"), ("-", ""), ("+", "        # out"), ("+", ""))
    first = base.patches[1].files[0].hunks[0]
    start = first.new_start + first.post.index(lines[0][1])
    lines += ((" ", "        return out"),)
    diff = FileDiff(FILE, False, (Hunk(start, start, lines),))
    edit(base, 3, files=(*base.patches[2].files, diff))
    assert failures(base, capsys) == set()
    lines = ((" ", "            out = list(q)"), *lines[1:])
    diff = FileDiff(FILE, False, (Hunk(start, start, lines),))
    edit(sample.base, 3, files=(sample.base.patches[2].files[0], diff))
    assert failures(base, capsys) == {"pin/hunk/0003"}


def test_check_line_table_tampered_fails(sample, capsys):
    path = sample.base.tables[0].path
    path.write_text(path.read_text().replace("\t", "\t0", 1))
    assert "pin/table/lines.tsv" in failures(sample.base, capsys)


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("pin/marks", "[646, 652]", "[646, 656]"),
        ("pin/size/0001", "[950, 500]", "[2, 500]"),
        ("pin/size/0003", "[950, 500]", "[950, 13]"),
        ("pin/requests", '"fixes" = "#18687"', '"fixes" = "#1"'),
        ("releases", '"1.3.0rc26" = "pin"', '"1.3.0rc26" = "other"'),
    ],
)
def test_check_broken_facts_fail(sample, capsys, name, old, new):
    path = sample.root / "UPSTREAM"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert failures(sample.base, capsys) == {name}


def test_check_cover_missing_fails(sample, capsys):
    (sample.base.folder / "cover-fix.md").unlink()
    assert failures(sample.base, capsys) == {"pin/requests"}


# Where the patches write.


@pytest.mark.parametrize("path", [SHARED, "docs/source/parallelism.md"])
def test_check_other_file_changed_fails(sample, capsys, path):
    lines = (("-", "# shared by all models"), ("+", "# mine"))
    diff = FileDiff(path, False, (Hunk(1, 1, lines),))
    edit(sample.base, 3, files=(*sample.base.patches[2].files, diff))
    assert failures(sample.base, capsys) == {"pin/paths/0003"}


@pytest.mark.parametrize(
    "path", [f"{MODULES}/deeper/new.py", "tensorrt_llm/new.py", "tests/unittest/new.py"]
)
def test_check_new_file_elsewhere_fails(sample, capsys, path):
    text = sample.base.patches[2].files[0].text
    edit(sample.base, 3, files=(new_file(path, text),))
    assert "pin/paths/0003" in failures(sample.base, capsys)


def test_check_added_again_fails(sample, capsys):
    base = sample.base
    edit(base, 3, files=(*base.patches[0].files, *base.patches[2].files))
    assert failures(base, capsys) == {"pin/paths/0003"}


# overlay/.


def test_check_overlay_drift_fails(sample, capsys):
    path = sample.root / "overlay" / MODULES / "text_sample.py"
    text = path.read_text()
    path.write_text(text + "\n# later\n")
    assert failures(sample.base, capsys) == {"pin/overlay"}
    path.write_text(text)
    (path.parent / "text_more.py").write_text(text)
    assert failures(sample.base, capsys) == {"overlay"}
    (path.parent / "text_more.py").unlink()
    path.unlink()
    assert "pin/overlay" in failures(sample.base, capsys)


def test_check_module_patched_later_vs_overlay(sample, capsys):
    """A later patch may change a new module: overlay/ is what the whole series leaves."""
    base = sample.base
    module = base.patches[0].files[0]
    lines = module.text.split("\n")
    hunk = Hunk(1, 1, (("-", lines[0]), ("+", lines[0]), ("+", "#"), (" ", lines[1])))
    diff = FileDiff(module.path, False, (hunk,))
    edit(base, 3, files=(diff, *base.patches[2].files))
    assert failures(base, capsys) == {"pin/overlay"}
    path = sample.root / "overlay" / module.path
    path.write_text("\n".join([lines[0], "#", *lines[1:]]))
    assert failures(base, capsys) == set()
    broken = replace(hunk, lines=(*hunk.lines[:2], ("+", "def ("), hunk.lines[3]))
    edit(sample.base, 3, files=(replace(diff, hunks=(broken,)), *base.patches[2].files))
    assert "pin/compile" in failures(base, capsys)


# Python.


def test_check_hunk_no_python_fails(sample, capsys):
    files = with_hunk(sample.base, "        self.attn = install('installed')", "        x = (")
    edit(sample.base, 2, files=files)
    assert "pin/compile" in failures(sample.base, capsys)


def test_check_new_file_no_python_fails(sample, capsys):
    text = sample.base.patches[2].files[0].text + "def broken(:\n"
    edit(sample.base, 3, files=(new_file(TEST_FILE, text),))
    assert failures(sample.base, capsys) == {"pin/compile"}


BUILD = "        self.kv = TextKV.build([1], bucket=64)"
BROKEN_NAMES = {
    "missing-name": (IMPORT, IMPORT.replace("install", "setup as install")),
    "missing-module": (IMPORT, IMPORT.replace("text_sample", "text_other")),
    "not-imported": (IMPORT, IMPORT.replace(", install", "")),
    "keyword": (BUILD, BUILD.replace("bucket", "size")),
    "missing-argument": (BUILD, BUILD.replace("[1], ", "")),
    "too-many": (BUILD, BUILD.replace("[1], bucket=", "[1], ")),
    "no-method": (BUILD, BUILD.replace("build", "make")),
    "constructor": (BUILD, "        self.kv = TextKV([1], 2)"),
    "attribute": (BUILD, f"{BUILD}.rows"),
}


@pytest.mark.parametrize("kind", BROKEN_NAMES)
def test_check_broken_names_fails(sample, capsys, kind):
    old, new = BROKEN_NAMES[kind]
    if kind == "attribute":
        # On the name that the result is bound to, as users of the class write it.
        old, new = "        out = ['patched', *q]", "        out = ['patched', *self.kv.rows]"
    edit(sample.base, 2, files=with_hunk(sample.base, old, new))
    assert failures(sample.base, capsys) == {"pin/names"}


# UPSTREAM.


@pytest.mark.parametrize("line", ['"commit', "[base.pin.tables]", "file", '"state'])
def test_upstream_incomplete_refused(sample, line):
    path = sample.root / "UPSTREAM"
    kept = [t for t in path.read_text().split("\n") if not t.startswith(line)]
    path.write_text("\n".join(kept))
    with pytest.raises(Refusal, match="has no"):
        check.run(Project(sample.root), Report())


def test_upstream_not_toml_refused(sample):
    path = sample.root / "UPSTREAM"
    path.write_text(path.read_text() + "not toml\n")
    with pytest.raises(Refusal, match="neither"):
        check.run(Project(sample.root), Report())
