# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the README says is there, and what its performance section is made from."""

import re

from bench import readme

README = (readme.ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_performance_vs_result_files():
    for path, text in readme.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run make readme"


def write_bench(path, date, medians, part="step"):
    """A result of the benchmark: of each number of video rows one median, and a missed limit."""
    records = []
    for rows, median in medians.items():
        times = {"unfixed": {"median_ms": median, "low_ms": median / 2, "high_ms": median * 2}}
        case = {"size": "nano", "backend": "FA4", "ranks": 2, "video_rows": rows, "layer": times}
        case |= {"step": times, "tower": times, "bytes_sent_per_layer": dict.fromkeys(SENT, 0)}
        if part == "request":
            case["requests"] = [{"steps": n, "composed": n > 9, "times": times} for n in (35, 4)]
        records.append(case)
    check = {"name": "x", "status": "FAIL", "measured": 1.5, "limit": 1.0}
    result = {
        "device": "d", "date": date, "commit": "0" * 40, "versions": {}, "checks": [check],
        part: records,
    }  # fmt: skip
    path.write_text(readme.json.dumps(result))


SENT = ("unfixed", "loop", "ours")


def test_readme_shows_every_number_and_limit_of_a_result(tmp_path):
    write_bench(tmp_path / "bench-x.json", "2026-01-01", {1024: 0.123456, 37440: 2546.3})
    text = readme.section(tmp_path)
    assert "| 0.123 [0.0617, 0.247] |" in text and "| 2546 [1273, 5093] |" in text
    assert "0 of 1 limits held" in text and "| FAIL | x | 1.500 | 1.00 |" in text


def test_readme_shows_a_case_that_was_measured_again_once(tmp_path):
    write_bench(tmp_path / "bench-old.json", "2026-01-01", {1024: 1e3, 37440: 2e3}, "request")
    write_bench(tmp_path / "bench-new.json", "2026-02-01", {1024: 3e3}, "request")
    write_bench(tmp_path / "bench-step.json", "2026-03-01", {1024: 4e3, 37440: 5e3})
    text = readme.performance(tmp_path)
    assert [line.split("| ")[4:7] for line in text.splitlines() if "| FA4 |" in line] == [
        [f"{rows} ", f"{what} ", f"{seconds} "]
        for rows, seconds in ((1024, 3), (37440, 2))
        for what in ("1 step", "4 steps", "35 steps, composed")
    ]
    assert "bench-old" in text and "bench-new" in text and "bench-step" not in text
    assert "| x |" not in text


def test_readme_leaves_out_what_was_not_measured(tmp_path):
    assert readme.performance(tmp_path) == readme.section(tmp_path) == ""
    write_bench(tmp_path / "bench-step.json", "2026-03-01", {1024: 4e3})
    text = readme.performance(tmp_path)
    assert "| 1 step | 4 | - | - | - | - | - |" in text and "4 steps" not in text


def test_readme_shows_the_worst_of_a_parity_result(tmp_path):
    checks = [
        {"name": f"fixed-vs-one/{part}", "status": status, "measured": measured}
        for part, status, measured in (("a", "PASS", 1e-6), ("b", "FAIL", 3e-4), ("c", "PASS", 0.0))
    ]
    checks.append({"name": "fixed-vs-oracle/a", "status": "SKIP", "measured": None})
    settings = dict.fromkeys(("size", "dtype", "backend", "video_rows"), "s")
    settings["layout"] = {"tp_size": 2, "attn2d_col_size": 2}
    machine = {"processes": "gloo"}
    result = {"device": "d", "machine": machine, "settings": settings, "checks": checks}
    (tmp_path / "parity-x.json").write_text(readme.json.dumps(result))
    checks = [{"name": "unfixed-vs-one", "status": "PASS", "measured": 2e-6}]
    result |= {"checks": checks, "checkout": {"base": "main"}}
    (tmp_path / "parity-y.json").write_text(readme.json.dumps(result))
    text = readme.parity(tmp_path)
    assert "| d | main | s |" in text and "| 2e-06 | 1 PASS |" in text
    assert "| d | embedded host | s |" in text
    assert "| tp=2,attn2d=1x2 | gloo | s | 0.0003 | - | - | - | 1 FAIL, 2 PASS, 1 SKIP |" in text
    # Another size of the same: one row, and of both the worse.
    result |= {"checks": [{"name": "fixed-vs-one/a", "status": "PASS", "measured": 2e-3}]}
    settings["video_rows"] = "r"
    (tmp_path / "parity-z.json").write_text(readme.json.dumps(result))
    assert "| gloo | r, s | 0.002 | - | - | 2e-06 | 2 PASS |" in readme.parity(tmp_path, brief=True)


def test_readme_targets_and_files_vs_tree():
    makefile = (readme.ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target} is not in the Makefile"
    folders = "overlay|patches|host|scripts|tests|results"
    for path in set(re.findall(rf"`((?:{folders})/[^` ]*)`", README)):
        assert (readme.ROOT / path).exists(), path
    for path in re.findall(r"!\[[^]]*\]\(([^)]*)\)", README):
        assert (readme.ROOT / path).is_file(), path
