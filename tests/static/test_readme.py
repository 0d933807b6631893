# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the README says is there, and what its performance section is made from."""

import re

from bench import readme

README = (readme.ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_performance_vs_result_files():
    for path, text in readme.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run make readme"


def write_bench(path, date, medians, missed):
    """A result of the benchmark: ours took `medians` ms by video rows, and one limit was missed."""
    records = []
    for rows, median in medians.items():
        times = {"median_ms": median, "low_ms": median / 2, "high_ms": median * 2}
        case = {"backend": "FA4", "heads": [16, 4], "video_rows": rows, "lengths": [30, 700]}
        records.append({**case, "eager": {"ours": times}})
    check = {"name": "x", "status": "FAIL", "measured": missed, "limit": 1.0}
    result = {
        "device": "d", "date": date, "commit": "0" * 40, "versions": {}, "checks": [check],
        "attention": records, "step": [],
    }  # fmt: skip
    path.write_text(readme.json.dumps(result))


def test_readme_shows_every_number_of_a_changed_result(tmp_path):
    write_bench(tmp_path / "bench-x.json", "2026-01-01", {1024: 0.123456, 37440: 2546.3}, 1.5)
    text = readme.section(tmp_path, whole=True)
    assert "| 0.123 [0.0617, 0.247] |" in text and "| 2546 [1273, 5093] |" in text
    assert "| x | 1.500 | 1.00 |" in text


def test_readme_shows_a_case_that_was_measured_again_once(tmp_path):
    write_bench(tmp_path / "bench-old.json", "2026-01-01", {1024: 1.0, 4096: 2.0}, 1.25)
    write_bench(tmp_path / "bench-new.json", "2026-02-01", {1024: 3.0}, 1.5)
    old, alone, new = "| 1 [0.5, 2] |", "| 2 [1, 4] |", "| 3 [1.5, 6] |"
    text = readme.section(tmp_path, whole=False)
    assert new in text and alone in text and old not in text
    assert text.index("bench-new") < text.index("bench-old")
    assert "| x | 1.500 |" in text and "| x | 1.250 |" not in text
    assert old in readme.section(tmp_path, whole=True)


def test_readme_shows_the_worst_of_a_parity_result(tmp_path):
    checks = [
        {"name": f"fixed-vs-one/{part}", "status": status, "measured": measured}
        for part, status, measured in (("a", "PASS", 1e-6), ("b", "FAIL", 3e-4), ("c", "PASS", 0.0))
    ]
    checks.append({"name": "fixed-vs-oracle/a", "status": "SKIP", "measured": None})
    settings = dict.fromkeys(("size", "dtype", "backend", "ranks", "video_rows"), "s")
    machine = {"processes": "gloo"}
    result = {"device": "d", "machine": machine, "settings": settings, "checks": checks}
    (tmp_path / "parity-x.json").write_text(readme.json.dumps(result))
    text = readme.parity(tmp_path)
    assert "| gloo | s | 0.0003 | - | - | - | 1 FAIL, 2 PASS, 1 SKIP |" in text


def test_readme_targets_and_files_vs_tree():
    makefile = (readme.ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target} is not in the Makefile"
    folders = "overlay|patches|host|scripts|tests|results"
    for path in set(re.findall(rf"`((?:{folders})/[^` ]*)`", README)):
        assert (readme.ROOT / path).exists(), path
    for path in re.findall(r"!\[[^]]*\]\(([^)]*)\)", README):
        assert (readme.ROOT / path).is_file(), path
