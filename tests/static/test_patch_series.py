# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The real series, their cover texts and UPSTREAM, without torch and without upstream."""

import pytest
from patchset import check, pr
from patchset.export import exported
from patchset.patch import render
from patchset.project import Project
from patchset.report import Report
from support.synthetic import ROOT

BASES = [base.name for base in Project(ROOT).bases if base.series]


@pytest.fixture(params=BASES)
def base(request):
    return Project(ROOT).base(request.param)


@pytest.fixture
def pin():
    return Project(ROOT).base("pin")


def test_series_checks_pass(capsys):
    status = check.run(Project(ROOT), Report())
    captured = capsys.readouterr()
    assert status == 0, captured.out + captured.err


def test_series_has_no_drift_from_overlay(base):
    for patch in exported(base):
        assert render(patch) == base.patch_text(patch.name)


def test_series_touches_no_shared_file(base):
    """Only Cosmos3's own transformer is changed: no wrapper that other models use."""
    changed = {d.path for p in base.patches for d in p.files if not d.new}
    assert changed <= {base.file, *base.project.overlay}


def test_series_old_names_gone(pin):
    """What the series does away with is not left in a line that it adds."""
    added = [
        line
        for patch in pin.patches
        for diff in patch.files
        if diff.path == pin.file
        for hunk in diff.hunks
        for line in hunk.added
    ]
    assert added
    for name in ("real_text_lens", "max_real_len", "k_und", "v_und", ".item()", ".tolist()"):
        assert not [line for line in added if name in line], name


def test_series_removes_what_the_report_names(pin):
    """The loop, the batched branch, the sharded cache and both layer calls are gone."""
    removed = {}
    diffs = (d for p in pin.patches for d in p.files if d.path == pin.file)
    for hunk in next(diffs).hunks:  # the first is the one whose numbers are the pin's
        number = hunk.old_start
        for tag, text in hunk.lines:
            if tag == "-":
                removed[number] = text
            number += tag != "+"
    marks = pin.facts["marks"]
    names = "per_sample_loop", "batched_branch", "sharded_cache", "single_gpu_call", "sharded_call"
    for name in names:
        first, last = marks[name]
        left = [n for n in range(first, last + 1) if n not in removed]
        assert not left, (name, left)
    reads = [text for text in removed.values() if ".item()" in text or ".tolist()" in text]
    assert len(reads) == 2


def test_upstream_tests_in_multi_gpu(base):
    tests = pr.tests_of(base.patches)
    assert any("/multi_gpu/" in path for path in tests)


def test_cover_has_no_typed_numbers(base):
    for name in base.requests:
        title, text = pr.request(base, name).template
        assert pr.TITLE.fullmatch(f"[#18687][fix] {title}")
        text = text.replace("#18687", "").replace("#18705", "")
        assert not [m[0] for m in pr.TYPED.finditer(text)]
        assert all(f"## {name}" in text for name in pr.SECTIONS)


@pytest.mark.parametrize("name", [base.name for base in Project(ROOT).bases])
def test_line_tables_vs_their_form(name):
    base = Project(ROOT).base(name)
    assert base.tables[-1].lines.keys() == set(range(1, max(base.lines) + 1))
    for table in base.tables:
        assert table.path.read_text().startswith("#")
        assert all(len(digest) == 16 for digest in table.lines.values())
