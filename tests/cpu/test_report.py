# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity run's checks on made-up results, and the report that is written of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hostpath import ROOT
from parity import judge as judging
from parity import show
from parity.cli import parser
from parity.judge import at_most, judge, line, per_part, relative, skip
from parity.pictures import Palette, difference, draw, log_levels
from parity.plan import make_plan
from parity.record import describe
from parity.run import spec
from parity.show import REPORT_FILES, headline, markdown, replace_folder, write_report
from support.report_page import check_report

STEPS = 3
SHAPE = (48, 3, 9, 14)
PARTS = ("batch", "negative", "positive")
OBSERVED = {
    "fixed": {"launches": 1.0, "host_reads": 0, "prompts": 0.0, "controls": 0.0, "refused": ""},
    "loop": {"launches": 2.0, "host_reads": 0, "prompts": 0.4, "controls": 0.9, "refused": ""},
}
OBSERVED["padded"] = OBSERVED["fixed"] | {"host_reads": 2, "refused": "2 host reads a step"}
GPU = {"device": "cuda", "row_invariant": True}


def plan_of(*options, **settings):
    """What the options ask for, on a small video unless they say so, as if for other settings."""
    video = () if "--default-run" in options else ("--video", "3,9,14")
    options = [option for option in options if option != "--default-run"]
    made = make_plan(
        parser().parse_args(["--device", "cpu", "--steps", str(STEPS), *video, *options])
    )
    return replace(made, settings={**made.settings, **settings})


def results_of(plan, fixed=1e-7, unfixed=0.3, oracle=5e-7, digest="a", uneven=()):
    """Results whose runs differ from `one` by given relative errors."""
    generator = torch.Generator().manual_seed(3)

    def off(tensor, error):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        dims = tuple(range(2, tensor.dim()))
        norm = torch.linalg.vector_norm
        size = norm(tensor, dim=dims, keepdim=True) / norm(noise, dim=dims, keepdim=True)
        return tensor + error * size * noise

    errors = {"unfixed-one": 8e-7, "unfixed": unfixed, "fixed": fixed, "float32": 1e-2}
    names = [case.name for case in plan.cases]
    results = {}
    for run in plan.runs:
        report = {
            "digest": digest,
            "files": {},
            "outside": [],
            "forward_seconds": [0.2, 0.1],
            "attention": "A > B",
            "text_bytes": dict.fromkeys(names, 1000),
            "device_peak_bytes": None,
            "uneven": list(uneven),
            "observed": OBSERVED["fixed"],
        }
        if run.name.startswith("unfixed"):
            report["observed"] = OBSERVED["padded" if plan.settings["padding_bug"] else "loop"]
        results[run.name] = {
            "cases": {},
            "reports": [json.loads(json.dumps(report)) for _ in range(run.ranks)],
            "peak_bytes": 1 << 30,
            "seconds": 1.0,
        }
    for case in plan.cases:
        shape, make = (48, *case.video), {"generator": generator, "dtype": torch.float64}
        velocity = torch.randn(case.steps, 2, *shape, **make)
        trajectory = torch.randn(case.steps + 1, *shape, **make)
        found = {
            run.name: {
                "velocity": off(velocity, errors.get(run.name, 0.0)),
                "trajectory": off(trajectory, errors.get(run.name, 0.0)),
            }
            for run in plan.runs
        }
        if "oracle" in found:
            exact = found["float32" if "float32" in found else "one"]["velocity"]
            found["oracle"] = {"velocity": off(exact, oracle)[:1]}
        for name, tensors in found.items():
            results[name]["cases"][case.name] = tensors
    return results


def velocities(results, case="video"):
    return {name: run["cases"][case]["velocity"] for name, run in results.items()}


def statuses(checks) -> dict[str, str]:
    return {check["name"]: check["status"] for check in checks}


def judged(plan, results) -> dict[str, str]:
    return statuses(judge(results, plan.settings)[0])


def record_of(plan, results):
    record = describe(plan, results, "make parity", "ab12")
    record["checks"], record["errors"] = judge(results, plan.settings)
    record["cost"]["seconds"] = 1.0
    return record


def test_relative_error_is_that_of_the_norms():
    expected = torch.tensor([3.0, 4.0])
    assert relative(expected + torch.tensor([0.0, 0.5]), expected) == pytest.approx(0.1)
    assert relative(expected, expected) == 0.0


def test_errors_are_per_sample_too():
    expected = torch.ones(1, 2, 1, 1, 1, 4)
    found = expected.clone()
    found[0, 1] *= 1.2
    errors = per_part(found, expected)
    assert errors["negative"] == [0.0]
    assert errors["positive"] == [pytest.approx(0.2)]
    assert errors["batch"] == [pytest.approx(0.2 / 2**0.5)]


def test_good_results_pass_every_check():
    plan = plan_of()
    checks, errors = judge(results_of(plan), plan.settings)
    assert {check["status"] for check in checks} == {"PASS"}
    assert len(errors["fixed-vs-one"]["negative"]) == STEPS
    names = statuses(checks)
    for part in PARTS:
        assert f"fixed-vs-one/{part}" in names and f"unfixed-one-vs-one/{part}" in names
    for sample in PARTS[1:]:
        assert f"fixed-vs-oracle/{sample}" in names and f"one-vs-oracle/{sample}" in names


def test_each_request_is_judged_by_itself():
    plan = plan_of("--default-run")
    assert [case.name for case in plan.cases] == ["video", "image"]
    # A chat turn around nothing.
    assert [len(case.prompts[0].ids) < 12 for case in plan.cases] == [False, True]
    results = results_of(plan)
    results["fixed"]["cases"]["image"]["velocity"] *= 1 + 1e-4
    results["unfixed"]["cases"]["image"]["velocity"] = velocities(results, "image")["one"]
    names = judged(plan, results)
    assert names["image/fixed-vs-one/batch"] == names["image/unfixed-seen"] == "FAIL"
    assert names["fixed-vs-one/batch"] == names["unfixed-seen"] == "PASS"
    assert names["image/one-vs-oracle/positive"] == "PASS"


def checks_of(plan, results, key):
    checks, _ = judge(results, plan.settings)
    return [check for check in checks if check["name"].startswith(key)]


@pytest.mark.parametrize("layout", ["ulysses=2", "cfg=2", "cfg=2,ulysses=2"])
@pytest.mark.parametrize("error, status", [(0.0, "PASS"), (1e-9, "FAIL")])
def test_bfloat16_on_gpus_is_held_to_the_last_bit(layout, error, status):
    plan = plan_of("--dtype", "bfloat16", "--layout", layout, **GPU)
    for check in checks_of(plan, results_of(plan, fixed=error), ("fixed-vs-one", "final-latents")):
        assert check["status"] == status and check["limit"] == 0.0, check
        assert "to the last bit" in check["note"]


@pytest.mark.parametrize(
    "dtype, settings, run",
    [
        ("bfloat16", GPU, "one"),
        ("bfloat16", GPU | {"row_invariant": False}, None),
        ("bfloat16", {}, "one"),
        ("float32", {}, None),
    ],
)
def test_probe_looks_at_all_rows_of_bfloat16(dtype, settings, run, tmp_path):
    plan = plan_of("--dtype", dtype, **settings)
    probes = {run.name: spec(run, plan, tmp_path)["probe"] for run in plan.runs}
    found = {name: [request[1] for request in probe] for name, probe in probes.items() if probe}
    assert found == ({run: [case.rows for case in plan.cases]} if run else {})


@pytest.mark.parametrize(
    "options, settings, uneven, reason",
    [
        ((), {"row_invariant": False}, (), "torch's default matrix products"),
        ((), {}, ["qkv 8x4 at 256 rows"], "qkv 8x4 at 256 rows"),
        ((), {"device": "cpu", "row_invariant": False}, ["out 8x4 at 9 rows"], "out 8x4 at 9 rows"),
        (("--layout", "tp=2"), {}, (), "tensor parallelism"),
        (("--layout", "tp=2,ulysses=2"), {}, (), "tensor parallelism"),
        (("--layout", "ring=2"), {}, (), "a ring combines partial softmaxes"),
        (("--layout", "attn2d=1x2,ulysses=2"), {}, (), "Attention2D combines"),
    ],
)
def test_bfloat16_that_cannot_be_bit_equal_is_held_to_its_own_error(
    options, settings, uneven, reason
):
    plan = plan_of("--dtype", "bfloat16", *options, **{**GPU, **settings})
    for error, status in ((1e-2, "PASS"), (3e-2, "FAIL")):
        results = results_of(plan, fixed=error, uneven=uneven)
        found = checks_of(plan, results, "fixed-vs-one")
        assert {check["status"] for check in found} == {status}
        assert all(reason in check["note"] and check["limit"] > 1e-2 for check in found)


@pytest.mark.parametrize(
    "layout, dtype, error",
    [
        ("ulysses=2", "float32", 6e-6),
        ("tp=2", "float32", 6e-6),
        ("ulysses=2", "float64", 2e-12),
        # What merges partial softmaxes works in float32 there.
        ("attn2d=1x2", "float64", 6e-6),
    ],
)
def test_error_over_the_limit_fails(layout, dtype, error):
    plan = plan_of("--dtype", dtype, "--layout", layout)
    results = results_of(plan, fixed=error)
    # The per-sample loop of old is made to differ by less than float64's limit.
    results["unfixed-one"]["cases"]["video"]["velocity"] = velocities(results)["one"]
    names = judged(plan, results)
    assert {names[f"fixed-vs-one/{part}"] for part in PARTS} == {"FAIL"}
    assert names["unfixed-one-vs-one/batch"] == "PASS"
    results["fixed"] = results_of(plan, fixed=error / 3)["fixed"]
    assert {judged(plan, results)[f"fixed-vs-one/{part}"] for part in PARTS} == {"PASS"}


def test_one_bad_sample_fails_although_the_batch_passes():
    plan = plan_of()
    results = results_of(plan, fixed=0.0)
    found = {name: tensor.clone() for name, tensor in velocities(results).items()}
    found["fixed"] = found["one"].clone()
    # Positive is a tiny part of the batch here.
    for velocity in found.values():
        velocity[:, 1] *= 1e-3
    found["fixed"][:, 1] *= 1 + 1e-4
    for name, velocity in found.items():
        results[name]["cases"]["video"]["velocity"] = velocity
    names = judged(plan, results)
    assert names["fixed-vs-one/batch"] == "PASS"
    assert names["fixed-vs-one/positive"] == "FAIL"


def test_unfixed_run_that_is_right_fails_as_blind():
    plan = plan_of()
    checks, _ = judge(results_of(plan, unfixed=1e-7), plan.settings)
    (failed,) = [check for check in checks if check["status"] == "FAIL"]
    assert failed["name"] == "unfixed-seen" and "blind" in failed["note"]


@pytest.mark.parametrize(
    "layout, lengths, video, pads",
    [
        ("ulysses=2", "12,12", "4,4,4", False),
        ("ulysses=2", "12,14", "4,4,4", True),
        ("ulysses=2", "13,13", "4,4,4", True),
        ("ulysses=2", "12,12", "3,6,6", True),
        # Each guidance branch has one prompt, as long as the longest of one.
        ("cfg=2,ulysses=2", "12,14", "4,4,4", False),
        ("cfg=2,ulysses=2", "12,14", "3,6,6", True),
        # Nothing is split along the sequence.
        ("tp=2", "7,19", "3,6,6", False),
        ("cfg=2", "7,19", "3,6,6", False),
    ],
)
def test_bug_has_to_be_seen_where_something_is_padded(layout, lengths, video, pads):
    plan = plan_of("--layout", layout, "--prompt-tokens", lengths, "--video", video)
    names = judged(plan, results_of(plan, unfixed=1e-7))
    assert names.get("unfixed-seen") == ("FAIL" if pads else None)
    assert names.get("unfixed-vs-one") == (None if pads else "PASS")


def test_unfixed_side_of_a_ring_is_a_mesh_that_cuts_alike():
    runs = {run.name: run for run in plan_of("--layout", "ring=2,ulysses=2").runs}
    old, new = runs["unfixed"].layout, runs["fixed"].layout
    assert (old["ring_size"], old["attn2d_row_size"], old["attn2d_col_size"]) == (1, 1, 2)
    assert (new["ring_size"], new["attn2d_col_size"]) == (2, 1)
    assert old["ulysses_size"] == new["ulysses_size"] == 2 and runs["fixed"].backend == "FA4"
    assert "Attention2D 1x2 for the ring" in runs["unfixed"].title


def test_not_a_number_never_passes():
    assert at_most("x", float("nan"), 1.0)["status"] == "FAIL"
    plan = plan_of()
    results = results_of(plan)
    velocities(results)["fixed"][1, 0, 0, 0, 0, 0] = float("nan")
    names = judged(plan, results)
    assert names["healthy-size"] == "FAIL" and names["fixed-vs-one/negative"] == "FAIL"


def test_ranks_that_disagree_fail():
    plan = plan_of()
    results = results_of(plan)
    results["fixed"]["reports"][1]["digest"] = "b"
    assert judged(plan, results)["ranks-agree"] == "FAIL"


@pytest.mark.parametrize("layout, copies", [("ulysses=2", 1), ("attn2d=1x2,ulysses=2", 2)])
def test_text_over_share_and_bucket_fails(layout, copies):
    plan = plan_of("--layout", layout)
    results = results_of(plan)
    held = results["fixed"]["reports"][1]["text_bytes"]
    held["video"] = 1000 * copies + 256 * plan.settings["text_row_bytes"]
    assert judged(plan, results)["text-bytes"] == "PASS"
    held["video"] += 1
    assert judged(plan, results)["text-bytes"] == "FAIL"


def test_bfloat16_on_a_cpu_is_held_to_a_flipped_rounding():
    plan = plan_of("--dtype", "bfloat16")
    results = results_of(plan, fixed=5e-5)
    found = velocities(results)
    results["float32"]["cases"]["video"]["velocity"] = found["one"] + 0.01 * found["float32"]
    names = judged(plan, results)
    assert names["fixed-vs-one/batch"] == names["fixed-vs-float32/batch"] == "PASS"
    assert names["one-vs-float32/positive"] == "PASS"
    assert not any(name.startswith("unfixed-one-vs-one") for name in names)
    assert judged(plan, results_of(plan, fixed=2e-4))["fixed-vs-one/batch"] == "FAIL"


def test_one_rank_skips_what_needs_several_and_says_why():
    plan = plan_of("--ranks", "1")
    checks, _ = judge(results_of(plan), plan.settings)
    skipped = {check["name"]: check["note"] for check in checks if check["status"] == "SKIP"}
    assert "unfixed-seen" in skipped and "fixed-vs-one/batch" in skipped
    assert all("--ranks 1" in note for note in skipped.values())
    assert statuses(checks)["one-vs-oracle/negative"] == "PASS"
    assert "skipped" in headline(checks)


def test_lines_are_status_name_measured_limit():
    assert line(at_most("a/b", 1.25e-7, 5e-6)) == "PASS a/b 1.25e-07 <=5.00e-06"
    assert line(judging.above("b", 2.0, 1.0)) == "PASS b 2 >1"
    assert line(skip("c", "")) == "SKIP c - -"


def write(plan, results, out):
    write_report(record_of(plan, results), out)
    assert [path.name for path in out.parent.iterdir() if "parity-" in path.name] == []


@pytest.mark.parametrize(
    "options", [(), ("--default-run",), ("--ranks", "1"), ("--dtype", "bfloat16"), ("--no-oracle",)]
)
def test_report_can_be_opened_and_read(tmp_path, options):
    plan = plan_of(*options)
    write(plan, results_of(plan), tmp_path / "report")
    facts = check_report(tmp_path / "report")
    assert facts["settings"]["video_rows"] == (245 if "--default-run" in options else 3 * 5 * 7)
    assert facts["prompts"]["tokenizer_vocabulary"] <= facts["prompts"]["model_vocabulary"]
    assert facts["prompts"]["model_vocabulary"] == 151936
    assert facts["versions"]["torch"] == torch.__version__
    assert "fixed-vs-one" in facts["errors"] or "1" in options
    page = (tmp_path / "report" / "report.html").read_text()
    assert ("besides, image" in page) == ("--default-run" in options)


def test_report_of_a_result_file_is_the_one_that_was_written_with_it(tmp_path):
    plan = plan_of()
    results = results_of(plan)
    velocities(results)["fixed"][1, 0] = float("inf")
    write(plan, results, tmp_path / "report")
    written = {name: (tmp_path / "report" / name).read_text() for name in REPORT_FILES}
    again = tmp_path / "again"
    assert show.main([str(tmp_path / "report" / "parity.json"), "--out", str(again)]) == 0
    assert {name: (again / name).read_text() for name in REPORT_FILES} == written


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("parity-*.json")), ids=str)
def test_report_of_a_committed_result_can_be_read(tmp_path, path):
    assert show.main([str(path), "--out", str(tmp_path / "report")]) == 0
    facts = check_report(tmp_path / "report", pictures="pictures" in json.loads(path.read_text()))
    assert facts["command"] == json.loads(path.read_text())["command"]


@pytest.mark.parametrize(
    "content, part",
    [
        ("{", "cannot be read"),
        ("[]", "no result"),
        ('{"kind": "bench"}', "no result"),
        ('{"kind": "parity", "format": 9}', "format 9"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, capsys, content, part):
    (tmp_path / "x.json").write_text(content)
    assert show.main([str(tmp_path / "x.json"), "--out", str(tmp_path / "out")]) == 2
    assert part in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_report_is_a_result_file_that_the_pull_request_takes(tmp_path):
    from patchset.results import of_kind

    plan = plan_of()
    write(plan, results_of(plan), tmp_path / "report")
    (result,) = of_kind(tmp_path / "report", "parity", "pin")
    assert result.commit == "ab12"
    text = result.markdown()
    assert "| unfixed-seen | PASS |" in text and "fixed-vs-one/batch" in text


@pytest.mark.parametrize(
    "settings, uneven, said",
    [
        ({"row_invariant": False}, [], "torch&#x27;s defaults"),
        ({}, [], "independent of the number of rows, by torch.backends"),
        ({}, ["qkv 8x4 at 16 rows"], "these depend on the number of rows: qkv 8x4 at 16 rows"),
    ],
)
def test_report_says_which_matrix_products_were_used(tmp_path, settings, uneven, said):
    plan = plan_of("--dtype", "bfloat16", **{**GPU, **settings})
    record = record_of(replace(plan, settings={**plan.settings, "device": "cpu"}),
                       results_of(plan, uneven=uneven))  # fmt: skip
    write_report(record, tmp_path / "report")
    assert said in (tmp_path / "report" / "report.html").read_text()


def test_report_of_failed_run_says_so_and_stays_valid_json(tmp_path):
    plan = plan_of()
    results = results_of(plan)
    velocities(results)["fixed"][1, 0] = float("inf")
    results["unfixed"]["cases"]["video"]["trajectory"][-1] = float("nan")
    write(plan, results, tmp_path / "report")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    json.loads((tmp_path / "report" / "parity.json").read_text(), parse_constant=refuse)
    check_report(tmp_path / "report")
    assert "checks failed" in (tmp_path / "report" / "report.html").read_text()


def test_prompts_are_escaped_in_the_page(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"positive": "<script>x</script> & $pictures", "negative": "y"}))
    plan = plan_of("--prompts", str(path))
    write(plan, results_of(plan), tmp_path / "report")
    text = (tmp_path / "report" / "report.html").read_text()
    assert "<script" not in text and "&lt;script&gt;x&lt;/script&gt; &amp; $pictures" in text


def test_earlier_report_is_replaced_whole(tmp_path):
    out, plan = tmp_path / "report", plan_of()
    out.mkdir()
    for name in REPORT_FILES:
        (out / name).write_text("old")
    write(plan, results_of(plan), out)
    check_report(out)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_failed_replacement_leaves_the_earlier_report(tmp_path):
    out = tmp_path / "report"
    out.mkdir()
    (out / "parity.json").write_text("old")
    with pytest.raises(ValueError, match="cannot be replaced"):
        replace_folder(tmp_path / "never-written", out)
    assert (out / "parity.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_markdown_has_a_row_for_each_run_and_check():
    plan = plan_of()
    text = markdown(record_of(plan, results_of(plan)))
    for run in plan.runs:
        assert f"| {run.title} | {run.ranks} |" in text


@pytest.mark.parametrize("shape", [(48, 3, 33, 57), (48, 1, 2, 2), (48, 2, 1, 5)])
def test_palette_gives_equal_latents_equal_colours(shape):
    latents = np.random.default_rng(0).normal(size=shape)
    palette = Palette(latents, 2)
    colours = palette.colours(latents)
    assert colours.shape == (shape[1], max(shape[2] // 2, 1), max(shape[3] // 2, 1), 3)
    assert np.array_equal(colours, palette.colours(latents.copy()))
    if colours.size > 12:
        assert not np.array_equal(colours, palette.colours(latents[:, :, ::-1, ::-1] + 1.0))


def test_difference_map_scale_runs_from_black_to_bright():
    latents = np.random.default_rng(0).normal(size=(48, 1, 4, 6))
    zero = difference(latents, latents)
    assert zero.shape == (1, 4, 6) and not zero.any()
    levels = log_levels(np.array([0.0, 1e-8, 1e-4, 1.0, 50.0, np.inf, np.nan]), 1e-8, 1.0)
    assert levels[0] == levels[1] == 0 < levels[2] < levels[3] == 255
    assert len(set(levels[3:])) == 1


def test_drawn_range_holds_the_largest_difference():
    one = torch.randn(48, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    final = {"one": ("one", one), "unfixed": ("old", one * 1.4), "fixed": ("new", one)}
    drawn = draw(final, 2, 1e-8)
    assert drawn["range"][0] == 1e-8 and 0.4 < drawn["range"][1] <= 10
    assert [column["foot"] for column in drawn["columns"][3:]] == [
        "4.0e-01 over all frames", "equal to the last bit",
    ]  # fmt: skip
    low, high = draw({**final, "unfixed": ("old", one)}, 2, 1e-8)["range"]
    assert low < high


def requested(*options, fixed=1e-6, unfixed=0.3, level=1):
    """A plan for requests, and results whose frames are off by whole levels on the fixed side."""
    plan = make_plan(parser().parse_args(["--device", "cpu", "--steps", "2", *options]))
    results = results_of(plan, fixed=fixed, unfixed=unfixed)
    generator = torch.Generator().manual_seed(0)
    for case in plan.cases:
        parts, frames = case.facts()["chunks"], 1 if case.name == "t2i" else 9
        shown = torch.randint(64, 128, (frames, 32, 48, 3), generator=generator)
        for name, run in results.items():
            found = run["cases"][case.name]
            found.pop("velocity")
            found["trajectory"] = torch.cat([found["trajectory"][:-1]] * parts)
            off = {"one": 0, "fixed": level}.get(name, 40)
            found["frames"] = torch.cat([shown + off] * parts)[: 9 * parts - 1 or 1].to(torch.uint8)
            if case.name in ("audio", "action"):
                found[case.name] = found["trajectory"][0, 0]
    return plan, results


def test_requests_are_held_by_latents_frames_and_the_bug():
    plan, results = requested("--request")
    names = judged(plan, results)
    assert set(names.values()) == {"PASS"}
    for case in plan.cases[1:]:
        assert {f"{case.name}/frames", f"{case.name}/unfixed-seen"} < names.keys()
    assert {"transfer/final-latents/chunk0", "transfer/final-latents/chunk1"} < names.keys()
    assert {"audio/audio", "action/action", "final-latents", "frames"} < names.keys()


@pytest.mark.parametrize(
    "errors, fails",
    [
        ({"fixed": 1e-3}, {"final-latents"}),
        ({"level": 2}, {"frames"}),
        ({"unfixed": 1e-4}, {"unfixed-seen"}),
        ({"fixed": float("nan")}, {"healthy-size", "final-latents"}),
    ],
    ids=str,
)
def test_requests_that_are_off_fail(errors, fails):
    names = judged(*requested("--request", "t2v", **errors))
    found = {name for name, status in names.items() if status == "FAIL"}
    assert found == fails


def test_requests_page_shows_frames_and_each_chunk(tmp_path):
    plan, results = requested("--request", "transfer", "--graphs")
    record = record_of(plan, results)
    write_report(record, tmp_path / "report")
    facts = check_report(tmp_path / "report")
    (film,) = facts["films"]
    assert film["name"] == "transfer" and len(film["strips"]) == 2 and len(film["rows"]) == 5
    text = (tmp_path / "report" / "report.html").read_text()
    assert "chunk 1" in text and "image/gif" in text and "whole requests from graphs" in text
    assert "films" not in record_of(plan_of(), results_of(plan_of()))
