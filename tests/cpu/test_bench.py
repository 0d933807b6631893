# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark at its smallest, and its limits on times that are made up."""

import json

import pytest
from bench import __main__ as command
from bench import limits
from bench.limits import KNOWN, NEW
from bench.limits import REQUEST_VARIANTS as VARIANTS
from bench.request import COMPOSED, MEASURED


def bench(tmp_path, *options):
    out = tmp_path / "bench.json"
    command_line = ["--device", "cpu", "--sizes", "tiny", "--repeats", "2", "--out", str(out)]
    assert command.main([*command_line, *options]) == 0
    return json.loads(out.read_text())


def test_bench_request_on_two_ranks_vs_its_steps(tmp_path):
    result = bench(tmp_path, "--parts", "request", "--backends", "FA4", "--ranks", "2")
    (record,) = result["request"]
    assert record["ranks"] == 2 and result["kind"] == "bench-smoke" and not result["checks"]
    measured, composed = record["requests"]
    assert (measured["steps"], composed["steps"]) == (MEASURED, COMPOSED)
    assert composed["composed"] and not measured["composed"]
    assert set(measured["times"]) == set(composed["times"]) == set(VARIANTS)
    assert set(record["tower"]) == set(VARIANTS) - {KNOWN, NEW}
    for variant in VARIANTS:
        step = record["step"][KNOWN if variant == NEW else variant]["median_ms"]
        whole = measured["times"][variant]["median_ms"]
        assert whole > (MEASURED - 1) * step / 2, "steps took longer than the request"
        expected = whole + (COMPOSED - MEASURED) * step
        assert composed["times"][variant]["median_ms"] == pytest.approx(expected)
    titles = [table["title"] for table in result["tables"]]
    assert any("text tower" in t for t in titles) and any("whole request" in t for t in titles)
    (row,) = [row for table in result["tables"] for row in table["rows"] if "composed" in str(row)]
    assert "-" not in row and row[4] == "35 steps, composed"
    # The limits speak of a real size; what they read is there.
    assert len(limits.checks(result)) == 5


def test_bench_attention_and_step_on_one_rank(tmp_path):
    result = bench(tmp_path, "--parts", "attention,step", "--backends", "VANILLA", "--ranks", "1")
    (attention,), (step,) = result["attention"], result["step"]
    for variant in ("loop", "ours", "mask"):
        assert attention["error"][variant] < 1e-5 < attention["error"]["unfixed"]
    assert step["graph_bit_equal"] and max(step["relative_to_loop"]["ours"]) < 1e-5
    assert set(step["step"]) == {"unfixed", "loop", "ours", "graph"}
    assert set(step["bytes_sent_per_layer"].values()) == {0}
    assert "request" not in result and all(table["rows"] for table in result["tables"])


def record(ranks, rows, **medians):
    """A request's record in which each variant takes so many milliseconds, whatever it does."""
    times = {name: {"median_ms": value} for name, value in medians.items()}
    requests = [{"steps": n, "composed": n > 4, "times": times} for n in (4, 35)]
    case = {"size": "nano", "backend": "FA4", "ranks": ranks, "video_rows": rows}
    return case | {"tower": times, "step": times, "requests": requests}


@pytest.mark.parametrize("ranks, rows", [(1, 1024), (1, 37440), (2, 1024), (2, 37440)])
def test_request_limits_vs_ranks_and_rows(ranks, rows):
    found = limits.checks({"request": [record(ranks, rows, unfixed=100, ours=90, graph=45)]})
    name = f"request-nano-FA4-video{rows}-ranks{ranks}/"
    expected = {"tower-vs-unfixed": (0.9, 0.25)}
    if ranks == 2:
        image = rows == 1024
        expected |= {
            "steps4/ours-vs-unfixed": (0.9, 0.70 if image else 1.0),
            "steps4/graph-vs-unfixed": (0.45, 0.40 if image else 1.0),
            "steps35-composed/ours-vs-unfixed": (0.9, 0.97 if image else 1.0),
            "steps35-composed/graph-vs-unfixed": (0.45, 0.50 if image else 1.0),
        }
    assert {c["name"]: (c["measured"], c["limit"]) for c in found} == {
        name + key: value for key, value in expected.items()
    }
    assert all((c["status"] == "PASS") == (c["measured"] <= c["limit"]) for c in found)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--parts", "steps"], "expected some of attention,step,request"),
        (["--repeats", "1"], "at least 2"),
        (["--parts", "step", "--video-rows", "4096"], "expected some of 37440,1024,256,16"),
    ],
)
def test_bench_misuse_vs_usage_error(options, said, capsys):
    try:
        status = command.main(["--device", "cpu", *options])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2 and said in capsys.readouterr().err
