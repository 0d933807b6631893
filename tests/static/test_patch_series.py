# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The real series, its cover text and UPSTREAM, without torch and without upstream."""

import pytest
from patchset import check, pr
from patchset.export import exported
from patchset.patch import render
from patchset.project import Project, split_lines
from patchset.report import Report
from support.synthetic import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "patches" / "series").exists(), reason="patches/series does not exist yet"
)


@pytest.fixture
def project():
    return Project(ROOT)


def test_series_checks_pass(project, capsys):
    status = check.run(project, Report())
    captured = capsys.readouterr()
    assert status == 0, captured.out + captured.err


def test_series_has_no_drift_from_overlay(project):
    for patch in exported(project):
        assert render(patch) == project.patch_text(patch.name)


def test_series_touches_no_shared_file(project):
    """Only Cosmos3's own transformer is changed: no wrapper that other models use."""
    changed = {d.path for p in project.patches for d in p.files if not d.new}
    assert changed <= {project.file}


def test_series_old_names_gone(project):
    """What the series does away with is not left in a line that it adds."""
    added = [
        line
        for patch in project.patches
        for diff in patch.files
        if not diff.new
        for hunk in diff.hunks
        for line in hunk.added
    ]
    assert added
    for name in ("real_text_lens", "max_real_len", "k_und", "v_und", ".item()", ".tolist()"):
        assert not [line for line in added if name in line], name


def test_series_removes_what_the_report_names(project):
    """The loop, the batched branch, the sharded cache and both layer calls are gone."""
    removed = {}
    for diff in (d for d in project.patches[1].files if not d.new):
        for hunk in diff.hunks:
            number = hunk.old_start
            for tag, text in hunk.lines:
                if tag == "-":
                    removed[number] = text
                number += tag != "+"
    anchors = project.upstream["anchors"]
    names = "per_sample_loop", "batched_branch", "sharded_cache", "single_gpu_call", "sharded_call"
    for name in names:
        first, last = anchors[name]
        left = [n for n in range(first, last + 1) if n not in removed]
        assert not left, (name, left)
    reads = [text for text in removed.values() if ".item()" in text or ".tolist()" in text]
    assert len(reads) == 2


def test_upstream_tests_in_multi_gpu(project):
    tests = pr.tests_of(project.patches)
    assert any("/multi_gpu/" in path for path in tests)


def test_cover_has_no_typed_numbers(project):
    title, text = pr.template(project)
    assert pr.TITLE.fullmatch(f"[#18687][fix] {title}")
    assert not [m[0] for m in pr.TYPED.finditer(text.replace("#18687", "").replace("#18705", ""))]
    assert all(f"## {name}" in text for name in pr.SECTIONS)


def test_line_table_regions(project):
    assert split_lines(project.table_path.read_text())[0].startswith("#")
    assert all(len(digest) == 16 for digest in project.table.values())
