# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the parity run makes of its options and of a VisualGen YAML."""

import pytest
from cosmos3_requests import TYPES
from parity.cli import parser
from parity.plan import make_plan, parse_layout
from parity.requests import make_requests

YAML = """
model: nvidia/Cosmos3-Nano
parallel_config: {cfg_size: %d, tp_size: %d, ulysses_size: 2}
attention_config: {backend: %s}
"""


def plan_of(*options):
    return make_plan(parser().parse_args(["--device", "cpu", "--video", "1,4,4", *options]))


def config_of(tmp_path, cfg=1, tp=2, backend="VANILLA"):
    path = tmp_path / "the config.yaml"
    path.write_text(YAML % (cfg, tp, backend))
    return str(path)


@pytest.mark.parametrize("cfg, tp", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("backend, runs", [("FA4", "FA4"), ("TRTLLM", "VANILLA")])
def test_config_vs_the_same_layout_by_hand(tmp_path, cfg, tp, backend, runs):
    found = plan_of("--config", config_of(tmp_path, cfg, tp, backend))
    same = plan_of("--layout", f"cfg={cfg},tp={tp},ulysses=2", "--backend", runs)
    assert found.settings == same.settings and found.runs == same.runs
    assert found.settings["ranks"] == cfg * tp * 2
    assert found.settings["layout"] == {
        axis: size for axis, size in (("cfg_size", cfg), ("tp_size", tp), ("ulysses_size", 2))
        if size > 1
    }  # fmt: skip


@pytest.mark.parametrize(
    "text, parts",
    [
        ("parallel_config: {ulyses_size: 2}", ["ulyses_size", "ulysses_size", "make preflight"]),
        ("parallel_config: {ulysses_size: 3}", ["ulysses_size=3", "does not divide"]),
        ("parallel_config: {ulysses_size: 8, tp_size: 2}", ["16 ranks", "8 at most"]),
        ("attention_config: {backend: CUTEDSL}", ["CUTEDSL", "--backend VANILLA or FA4"]),
        ("[]", ["expected a mapping"]),
    ],
)
def test_config_that_cannot_be_run_is_refused(tmp_path, text, parts):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as refusal:
        plan_of("--config", str(path))
    for part in parts:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    "layout, backend", [("ulysses=4", "VANILLA"), ("ring=2", "FA4"), ("attn2d=2x2", "FA4")]
)
def test_backend_follows_what_the_layout_needs(layout, backend):
    assert plan_of("--layout", layout).settings["backend"] == backend


def test_layout_of_all_axes():
    sizes = parse_layout("cfg=2, tp=2, attn2d=1x2,ulysses=1")
    assert (sizes.cfg_size, sizes.tp_size, sizes.attn2d_col_size, sizes.processes) == (2, 2, 2, 8)


@pytest.mark.parametrize(
    "options, names",
    [
        ((), ["video"]),
        (("--prompt-tokens", "7,19"), ["video"]),
    ],
)
def test_request_that_was_described_is_the_only_one(options, names):
    assert [case.name for case in plan_of(*options).cases] == names


def test_default_run_has_an_image_with_an_empty_negative_prompt():
    video, image = make_plan(parser().parse_args(["--device", "cpu"])).cases
    assert (video.name, image.name) == ("video", "image") and image.video[0] == 1
    assert image.prompts[0].text == "" and image.prompts[1] == video.prompts[1]
    # Neither request is one that the old way gets right.
    assert video.pads and image.pads


REQUEST = ["--device", "cpu", "--request"]


def test_request_takes_a_model_with_sound_and_actions_and_no_oracle():
    plan = make_plan(parser().parse_args([*REQUEST, "all", "--graphs"]))
    assert plan.settings["requests"] == [case.name for case in plan.cases] == list(TYPES)
    assert plan.settings["config"]["sound_gen"] and plan.settings["config"]["action_gen"]
    assert [run.name for run in plan.runs] == ["one", "unfixed", "fixed"]
    chunks = {case.name: case.facts()["chunks"] for case in plan.cases}
    assert chunks == {name: 2 if name == "transfer" else 1 for name in TYPES}
    alone = make_plan(parser().parse_args([*REQUEST, "t2v", "--graphs", "--ranks", "1"]))
    assert [run.name for run in alone.runs] == ["one", "unfixed-one", "fixed"]


@pytest.mark.parametrize(
    "options, parts",
    [
        ("--request t2v --guidance=-1", "--guidance -1.0 with --request: expected 0 or more"),
        ("--request t2v --video 1,4,4", "--request does not go with --video"),
        ("--graphs", "--graphs goes with --request"),
    ],
)
def test_request_options_that_do_not_go_together_are_refused(options, parts):
    with pytest.raises(ValueError, match=parts):
        make_plan(parser().parse_args(["--device", "cpu", *options.split()]))


def test_unknown_request_type_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([*REQUEST, "v2v"])
    assert caught.value.code == 2 and "invalid choice: 'v2v'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["audio", "action", "all"])
def test_checkpoint_without_the_parts_of_a_request_is_refused(kind):
    args = parser().parse_args([*REQUEST, kind])
    with pytest.raises(ValueError, match="the checkpoint has no .*_gen.*ask for one of t2v"):
        make_requests(kind, args, ("", "A fox."), {"sound_gen": False})
