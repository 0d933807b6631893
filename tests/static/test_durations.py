# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The table of how long each tier takes."""

from types import SimpleNamespace

from support.durations import END, HEAD, START, Durations, rewritten


def test_durations_keep_rows_of_tiers_that_did_not_run(tmp_path):
    page = tmp_path / "page.md"
    old = "| cpu | 9 s | old |\n| gloo | 8 s | kept |\n"
    page.write_text(f"before\n{START}{HEAD}{old}{END}after\n")
    plugin = Durations(page)
    for name, when, seconds, outcome in (
        ("cpu/test_a.py::a", "setup", 100.0, "passed"),
        ("cpu/test_a.py::a", "call", 50.0, "passed"),
        ("cpu/test_a.py::b", "setup", 0.0, "skipped"),
        ("static/test_c.py::c", "call", 2.0, "failed"),
    ):
        plugin.pytest_runtest_logreport(
            SimpleNamespace(nodeid=f"tests/{name}", when=when, duration=seconds, outcome=outcome)
        )
    lines = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert lines == ["tier cpu: 2.5 min, 1 passed, 1 skipped", "tier static: 2 s, 1 failed"]
    text = page.read_text()
    assert text.startswith(f"before\n{START}{HEAD}| static | 2 s | 1 failed | ")
    assert "| cpu | 2.5 min | 1 passed, 1 skipped | " in text and "old" not in text
    assert text.endswith(f"| gloo | 8 s | kept |\n{END}after\n")
    assert rewritten(text, {}) == text
