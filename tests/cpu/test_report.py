# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity run's checks on made-up results, and the report that is written of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from parity import cli, driver
from parity.checks import Check, at_most, compare, per_part, relative
from parity.pictures import Palette, difference, log_colours
from parity.report import REPORT_FILES, _scale, headline, markdown, replace_folder, write_report
from support.report_page import check_report

STEPS = 3
SHAPE = (48, 3, 9, 14)


def settings_of(tmp_path, **options):
    settings = cli.parse(["--steps", str(STEPS), "--out", str(tmp_path / "report")])
    settings = replace(settings, **{"video": SHAPE[1:], "device": "cpu", **options})
    return cli.prepare(settings)


def results_of(settings, fixed=1e-7, unfixed=0.3, oracle=5e-7, digest="a"):
    """Results whose runs differ from `one` by given relative errors."""
    generator = torch.Generator().manual_seed(3)
    velocity = torch.randn(STEPS, 2, *SHAPE, generator=generator, dtype=torch.float64)
    trajectory = torch.randn(STEPS + 1, *SHAPE, generator=generator, dtype=torch.float64)

    def off(tensor, error):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        dims = tuple(range(2, tensor.dim()))
        norm = torch.linalg.vector_norm
        size = norm(tensor, dim=dims, keepdim=True) / norm(noise, dim=dims, keepdim=True)
        return tensor + error * size * noise

    errors = {"unfixed-one": 8e-7, "unfixed": unfixed, "fixed": fixed, "float32": 1e-2}
    results = {}
    for run in driver.plan(settings):
        report = {
            "digest": digest,
            "files": {},
            "outside": [],
            "forward_seconds": [0.2, 0.1],
            "attention": "A > B",
            "text_bytes": 1000,
            "device_peak_bytes": None,
        }
        error = errors.get(run.name, 0.0)
        results[run.name] = {
            "velocity": off(velocity, error),
            "trajectory": off(trajectory, error),
            "reports": [dict(report) for _ in range(run.ranks)],
            "peak_bytes": 1 << 30,
            "seconds": 1.0,
        }
    if "oracle" in results:
        exact = results["float32" if settings.dtype == "bfloat16" else "one"]["velocity"]
        results["oracle"]["velocity"] = off(exact, oracle)[:1]
        results["oracle"].pop("trajectory")
    if "split" in results:
        results["split"].pop("trajectory")
    return results


def statuses(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.status for check in checks}


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


def test_good_results_pass_every_check(tmp_path):
    settings = settings_of(tmp_path)
    checks, errors = compare(results_of(settings), settings)
    assert {check.status for check in checks} == {"PASS"}
    assert len(errors["fixed-vs-one"]["negative"]) == STEPS
    names = statuses(checks)
    for part in ("batch", "negative", "positive"):
        assert f"fixed-vs-one/{part}" in names and f"unfixed-one-vs-one/{part}" in names
    for sample in ("negative", "positive"):
        assert f"fixed-vs-oracle/{sample}" in names and f"one-vs-oracle/{sample}" in names


def on_gpu(tmp_path, **options):
    return replace(settings_of(tmp_path, **options), device="cuda")


def test_rows_of_a_matrix_product_are_split_on_a_gpu_alone(tmp_path):
    def names(settings):
        return [run.name for run in driver.plan(settings)]

    assert "split" not in names(settings_of(tmp_path)) and "split" in names(on_gpu(tmp_path))
    assert "split" not in names(on_gpu(tmp_path, ranks=1, layout={"ulysses_size": 1}))


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_distance_from_one_rank_vs_what_fewer_rows_change_there(tmp_path, dtype, moved):
    """Only what one rank does too, when it multiplies as many rows at a time, and in bfloat16."""
    settings = on_gpu(tmp_path, dtype=dtype)
    results = results_of(settings, fixed=1e-3)
    if moved:
        results["split"]["velocity"] = results["fixed"]["velocity"]
    results["fixed"]["trajectory"] = results["one"]["trajectory"]
    names = statuses(compare(results, settings)[0])
    for part in ("batch", "negative", "positive"):
        assert names[f"fixed-vs-split/{part}"] == ("PASS" if moved else "FAIL")
        excused = moved and dtype == "bfloat16"
        assert names[f"fixed-vs-one/{part}"] == ("PASS" if excused else "FAIL")


def test_distance_from_one_rank_is_not_excused_by_a_rank_that_moves_elsewhere(tmp_path):
    settings = on_gpu(tmp_path)
    results = results_of(settings, fixed=1e-3)
    # As far from one rank, but in another direction.
    one, other = results["one"]["velocity"], results["unfixed-one"]["velocity"]
    results["split"]["velocity"] = one + 1e3 * (other - one)
    names = statuses(compare(results, settings)[0])
    assert names["fixed-vs-split/batch"] == "FAIL"


@pytest.mark.parametrize("dtype, error", [("float32", 6e-6), ("float64", 2e-12)])
def test_error_over_the_limit_fails(tmp_path, dtype, error):
    settings = settings_of(tmp_path, dtype=dtype)
    results = results_of(settings, fixed=error)
    # The per-sample loop of old is made to differ by less than float64's limit.
    results["unfixed-one"]["velocity"] = results["one"]["velocity"]
    names = statuses(compare(results, settings)[0])
    assert {names[f"fixed-vs-one/{part}"] for part in ("batch", "negative", "positive")} == {"FAIL"}
    assert names["unfixed-one-vs-one/batch"] == "PASS"


def test_one_bad_sample_fails_although_the_batch_passes(tmp_path):
    settings = settings_of(tmp_path)
    results = results_of(settings, fixed=0.0)
    results["fixed"]["velocity"] = results["one"]["velocity"].clone()
    # Positive is a tiny part of the batch here.
    for run in results.values():
        run["velocity"][:, 1] *= 1e-3
    results["fixed"]["velocity"][:, 1] *= 1 + 1e-4
    names = statuses(compare(results, settings)[0])
    assert names["fixed-vs-one/batch"] == "PASS"
    assert names["fixed-vs-one/positive"] == "FAIL"


def test_unfixed_run_that_is_right_fails_as_blind(tmp_path):
    settings = settings_of(tmp_path)
    checks, _ = compare(results_of(settings, unfixed=1e-7), settings)
    (seen,) = [check for check in checks if check.name == "unfixed-seen"]
    assert seen.status == "FAIL" and "blind" in seen.note
    assert [check.name for check in checks if check.status == "FAIL"] == ["unfixed-seen"]


def test_not_a_number_never_passes(tmp_path):
    assert at_most("x", float("nan"), 1.0).status == "FAIL"
    settings = settings_of(tmp_path)
    results = results_of(settings)
    results["fixed"]["velocity"][1, 0, 0, 0, 0, 0] = float("nan")
    names = statuses(compare(results, settings)[0])
    assert names["healthy-size"] == "FAIL" and names["fixed-vs-one/negative"] == "FAIL"


def test_ranks_that_disagree_fail(tmp_path):
    settings = settings_of(tmp_path)
    results = results_of(settings)
    results["fixed"]["reports"][1]["digest"] = "b"
    assert statuses(compare(results, settings)[0])["ranks-agree"] == "FAIL"


def test_text_over_share_and_bucket_fails(tmp_path):
    settings = settings_of(tmp_path)
    results = results_of(settings)
    results["fixed"]["reports"][1]["text_bytes"] = 1000 + settings.bucket_bytes
    assert statuses(compare(results, settings)[0])["text-bytes"] == "PASS"
    results["fixed"]["reports"][1]["text_bytes"] += 1
    assert statuses(compare(results, settings)[0])["text-bytes"] == "FAIL"


def test_bfloat16_is_held_to_its_own_rounding(tmp_path):
    settings = settings_of(tmp_path, dtype="bfloat16")
    results = results_of(settings, fixed=5e-5)
    one, noise = results["one"]["velocity"], results["float32"]["velocity"]
    results["float32"]["velocity"] = one + 0.01 * noise
    names = statuses(compare(results, settings)[0])
    assert names["fixed-vs-one/batch"] == names["fixed-vs-float32/batch"] == "PASS"
    assert names["one-vs-float32/positive"] == "PASS"
    assert not any(name.startswith("unfixed-one-vs-one") for name in names)


def test_one_rank_skips_what_needs_several_and_says_why(tmp_path):
    settings = settings_of(tmp_path, ranks=1)
    checks, _ = compare(results_of(settings), settings)
    skipped = {check.name: check.note for check in checks if check.status == "SKIP"}
    assert "unfixed-seen" in skipped and "fixed-vs-one/batch" in skipped
    assert all("--ranks 1" in note for note in skipped.values())
    assert statuses(checks)["one-vs-oracle/negative"] == "PASS"
    assert "skipped" in headline(checks)


def test_lines_are_status_name_measured_limit():
    assert at_most("a/b", 1.25e-7, 5e-6).line() == "PASS a/b 1.25e-07 <=5.00e-06"
    assert Check("c", "SKIP", None, None).line() == "SKIP c - -"


def write(settings, results):
    checks, errors = compare(results, settings)
    runs = driver.plan(settings)
    facts = driver._facts(settings, runs, results)
    facts["errors"] = errors
    facts["cost"] = {"seconds": 1.0, "peak_bytes": 1 << 30, "cores": 2}
    scratch = settings.out.parent / "scratch"
    write_report(settings, runs, results, checks, facts, scratch)
    assert not scratch.exists()
    return checks


@pytest.mark.parametrize("options", [{}, {"ranks": 1}, {"dtype": "bfloat16"}, {"oracle": False}])
def test_report_can_be_opened_and_read(tmp_path, options):
    settings = settings_of(tmp_path, **options)
    write(settings, results_of(settings))
    facts = check_report(settings.out)
    assert facts["settings"]["video_rows"] == 3 * 5 * 7
    assert facts["prompts"]["tokenizer_vocabulary"] <= facts["prompts"]["model_vocabulary"]
    assert facts["prompts"]["model_vocabulary"] == 151936
    assert facts["versions"]["torch"] == torch.__version__
    assert "fixed-vs-one" in facts["errors"] or options == {"ranks": 1}


def test_report_is_a_result_file_that_the_pull_request_takes(tmp_path):
    from patchset.results import of_kind

    arguments = ["--ranks", "2", "--out", str(tmp_path / "report"), "--commit=ab12"]
    settings = cli.prepare(cli.parse([*arguments, "--device", "cpu", "--video", "3,9,14"]))
    write(settings, results_of(settings))
    (result,) = of_kind(settings.out, "parity")
    assert result.commit == "ab12"
    assert result.data["command"] == "make parity ARGS='--ranks 2 --device cpu --video 3,9,14'"
    text = result.markdown()
    assert "| unfixed-seen | PASS |" in text and "fixed-vs-one/batch" in text


def test_report_of_failed_run_says_so_and_stays_valid_json(tmp_path):
    settings = settings_of(tmp_path)
    results = results_of(settings)
    results["fixed"]["velocity"][1, 0] = float("inf")
    results["unfixed"]["trajectory"][-1] = float("nan")
    write(settings, results)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = (settings.out / "parity.json").read_text()
    json.loads(text, parse_constant=refuse)
    check_report(settings.out)
    assert "checks failed" in (settings.out / "report.html").read_text()


def test_prompts_are_escaped_in_the_page(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"positive": "<script>x</script> & $pictures", "negative": "y"}))
    settings = settings_of(tmp_path, prompts_file=path)
    write(settings, results_of(settings))
    text = (settings.out / "report.html").read_text()
    assert "<script" not in text and "&lt;script&gt;x&lt;/script&gt; &amp; $pictures" in text


def test_earlier_report_is_replaced_whole(tmp_path):
    settings = settings_of(tmp_path)
    settings.out.mkdir()
    for name in REPORT_FILES:
        (settings.out / name).write_text("old")
    write(settings, results_of(settings))
    check_report(settings.out)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_failed_replacement_leaves_the_earlier_report(tmp_path):
    out = tmp_path / "report"
    out.mkdir()
    (out / "parity.json").write_text("old")
    with pytest.raises(ValueError, match="cannot be replaced"):
        replace_folder(tmp_path / "never-written", out)
    assert (out / "parity.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_markdown_has_a_row_for_each_run_and_check(tmp_path):
    settings = settings_of(tmp_path)
    results = results_of(settings)
    checks, errors = compare(results, settings)
    facts = driver._facts(settings, driver.plan(settings), results)
    facts.update(errors=errors, cost={"seconds": 1.0, "peak_bytes": 1 << 30, "cores": 2})
    text = markdown(checks, facts)
    for run in driver.plan(settings):
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
    values = np.array([0.0, 1e-8, 1e-4, 1.0, 50.0, np.inf, np.nan])
    brightness = log_colours(values, 1e-8, 1.0).astype(int).sum(axis=-1)
    assert brightness[0] == brightness[1] < brightness[2] < brightness[3]
    assert len(set(brightness[3:])) == 1


def test_difference_scale_follows_the_limit_of_the_dtype():
    low, high = _scale({"fixed": np.array([0.0]), "unfixed": np.array([0.4])}, "float32")
    assert (low, high) == (pytest.approx(1e-8), pytest.approx(1.0))
    low, _ = _scale({"fixed": np.array([0.0])}, "float64")
    assert low == pytest.approx(1e-14)
