# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The preflight command on good and bad files, without torch."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cosmos3_sizes import MODELS
from patchset.report import Refusal
from preflight import cli
from preflight.config import parse_config, read_config
from preflight.layout import Heads, Sizes
from preflight.model import find_model, parse_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"

NANO = [Heads(32, 8)]


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize("world_size", [1, 2, 6, 8, 12])
def test_layouts_listed_vs_brute_force(world_size):
    sizes = range(1, world_size + 1)
    brute = {
        Sizes(*x) for x in itertools.product((1, 2), *[sizes] * 5) if math.prod(x) == world_size
    }
    listed = cli.layouts_of(world_size)
    assert len(listed) == len(set(listed)) and set(listed) == brute


def yaml_of(parallel: str = "", backend: str | None = None) -> str:
    text = f"parallel_config: {{{parallel}}}\n"
    return text + (f"attention_config: {{backend: {backend}}}\n" if backend else "")


@pytest.fixture
def preflight(tmp_path, capsys):
    """Runs the command on a YAML's text and returns its exit status, lines and what it said."""

    def run(text: str | None, *options: str):
        file = tmp_path / "config.yaml"
        if text is not None:
            file.write_text(text, encoding="utf-8")
        gpu = () if "--gpu" in options else ("--gpu", "none")
        status = cli.main(["--config", str(file), *gpu, *options])
        out, err = capsys.readouterr()
        lines = [line.split(" ", 2) for line in out.splitlines() if line[:4] in LINES]
        return SimpleNamespace(
            status=status, lines={x[1]: x[0] for x in lines}, out=out, err=err, said=out + err
        )

    return run


LINES = ("PASS", "FAIL", "SKIP")
REQUEST = ("--prompt-tokens", "30,700", "--video-rows", "24,60,104")

GOOD = {
    "empty-blocks": ("parallel_config:\nattention_config:\n", "--world-size", "1"),
    "no-blocks": ("revision: main\n", "--world-size", "1"),
    "ulysses2": (yaml_of("ulysses_size: 2"), "--world-size", "2"),
    "ulysses8-fa4": (yaml_of("ulysses_size: 8", "FA4"), "--gpu", "sm90", "--world-size", "8"),
    "trtllm": (yaml_of("ulysses_size: 2", "TRTLLM"), "--gpu", "sm90"),
    "attn2d": (yaml_of("attn2d_size: [2, 3], ulysses_size: 2", "FA4"), "--world-size", "12"),
    "attn2d-1x1-vanilla": (yaml_of("attn2d_size: [1, 1]", "VANILLA"), "--world-size", "1"),
    "ring": (yaml_of("ring_size: 2, ulysses_size: 2", "FA4"), "--world-size", "4"),
    "tp-ulysses-cfg": (
        yaml_of("cfg_size: 2, tp_size: 2, ulysses_size: 4, parallel_vae_size: 8"),
        *("--world-size", "16"),
    ),
    "edge": (yaml_of("ulysses_size: 8", "FA4"), "--model", "edge", "--gpu", "sm100"),
    "super": (yaml_of("tp_size: 8"), "--model", "super", "--gpu", "sm120"),
    "sm80-new": (
        yaml_of("ulysses_size: 2", "FA4"),
        *("--gpu", "sm80", "--flash-attn", "4.0.0b29"),
    ),
    "long-prompt": (
        "max_sequence_length: 8192\n" + yaml_of("ulysses_size: 2"),
        *("--prompt-tokens", "1,8192"),
    ),
    "one-row": (yaml_of("ulysses_size: 2"), "--video-rows", "1"),
}

# Name: YAML, options; the line that fails, and what is said: value, expected, what would work.
BAD = {
    "heads": (
        (yaml_of("ulysses_size: 16", "FA4"),),
        "heads",
        ("num_key_value_heads=8", "does not divide", "must be one of [1, 2, 4, 8]"),
    ),
    "heads-tp-x-ulysses": (
        (yaml_of("tp_size: 4, ulysses_size: 4"),),
        "heads",
        ("tp_size=4 x ulysses_size=4 = 16", "num_key_value_heads=8", "one of [1, 2, 4, 8]"),
    ),
    "heads-three": (
        (yaml_of("ulysses_size: 3"), "--model", "edge"),
        "heads",
        ("num_attention_heads=16, num_key_value_heads=8", "does not divide", "one of"),
    ),
    "world-size": (
        (yaml_of("ulysses_size: 2"), "--world-size", "4"),
        "world-size",
        ("ulysses_size=2 multiplies to 2", "there are 4 processes", "whose product is 4"),
    ),
    "ring-with-attn2d": (
        (yaml_of("ring_size: 2, attn2d_size: [1, 2]", "FA4"),),
        "mix",
        ("ring_size=2", "mesh of 1 x 2", "exclude each other", "set one of them to 1"),
    ),
    "attn2d-vanilla": (
        (yaml_of("attn2d_size: [1, 2]", "VANILLA"),),
        "backend",
        ("Attention2D", "returns its LSE, and VANILLA does not", "choose FA4"),
    ),
    "attn2d-default-backend": (
        (yaml_of("attn2d_size: [2, 1]"),),
        "backend",
        ("VANILLA does not", "choose FA4, or Ulysses instead"),
    ),
    "ring-trtllm": (
        (yaml_of("ring_size: 2", "TRTLLM"),),
        "backend",
        ("Ring attention", "VANILLA, which serves TRTLLM here, does not", "choose FA4"),
    ),
    "cutedsl": (
        (yaml_of("ulysses_size: 2", "CUTEDSL"),),
        "backend",
        ("CUTEDSL", "takes no key lengths", "use FA4 or VANILLA"),
    ),
    "cutedsl-ring": (
        (yaml_of("ring_size: 2", "CUTEDSL"),),
        "backend",
        ("takes no key lengths", "use FA4."),
    ),
    "sm120-at-the-pin": (
        (yaml_of("ulysses_size: 2", "FA4"), "--gpu", "sm120", "--flash-attn", "4.0.0b19"),
        "kernel",
        ("4.0.0b19", "sm120", "none of its kernels compiles", "use VANILLA", "4.0.0b29"),
    ),
    "sm80-at-the-pin": (
        (yaml_of("ulysses_size: 2", "FA4"), "--gpu", "80", "--flash-attn", "4.0.0b19"),
        "kernel",
        ("grouped-query", "does not compile", "use VANILLA"),
    ),
    "prompt-too-long": (
        (yaml_of("ulysses_size: 2"), "--prompt-tokens", "30,5000"),
        "prompt",
        ("5000 tokens", "[1, 4096]", "shorten it or set max_sequence_length to 5000"),
    ),
    "prompt-over-option": (
        (yaml_of(), "--prompt-tokens", "300", "--max-sequence-length", "256"),
        "prompt",
        ("300 tokens", "[1, 256]"),
    ),
    "empty-prompt": (
        (yaml_of("ulysses_size: 2"), "--prompt-tokens", "0,700"),
        "prompt",
        ("0 tokens", "[1, 4096]", "still needs a token"),
    ),
    "no-video": (
        (yaml_of("ulysses_size: 2"), "--video-rows", "0"),
        "video-rows",
        ("video_rows=0", "at least one row"),
    ),
    "no-video-height": (
        (yaml_of("ulysses_size: 2"), "--video-rows", "4,0,8"),
        "video-rows",
        ("video_rows=0", "at least one row"),
    ),
    "unfixed": (
        (yaml_of("ulysses_size: 2"), "--unfixed", *REQUEST),
        "unfixed-release",
        ("WRONGLY", "1.76%", "no bound"),
    ),
    "unknown-key": (
        (yaml_of("ulyses_size: 2"),),
        "config",
        ("unknown key ulyses_size in parallel_config", "did you mean ulysses_size?"),
    ),
    "unknown-key-far": (
        (yaml_of("pipeline: 2"),),
        "config",
        ("unknown key pipeline", "known: cfg_size, tp_size"),
    ),
    "old-key": ((yaml_of("dit_ulysses_size: 2"),), "config", ("did you mean ulysses_size?",)),
    "unknown-attention-key": (
        ("attention_config: {backnd: FA4}",),
        "config",
        ("unknown key backnd in attention_config", "did you mean backend?"),
    ),
    "unknown-block": (
        ("paralel_config: {ulysses_size: 2}",),
        "config",
        ("unknown block paralel_config", "did you mean parallel_config?"),
    ),
    "short-block": (
        ("parallel: {ulysses_size: 2}",),
        "config",
        ("unknown block parallel", "parallel_config"),
    ),
    "key-at-the-top": (
        ("ulysses_size: 2",),
        "config",
        ("ulysses_size stands at the top", "belongs under parallel_config"),
    ),
    "backend-at-the-top": (("backend: FA4",), "config", ("belongs under attention_config",)),
    "block-of-another-kind": (
        ("parallel_config: 2",),
        "config",
        ("parallel_config is 2", "expected a mapping"),
    ),
    "size-zero": ((yaml_of("tp_size: 0"),), "config", ("tp_size=0", "from 1 to")),
    "size-negative": ((yaml_of("ring_size: -2"),), "config", ("ring_size=-2", "from 1 to")),
    "size-fraction": ((yaml_of("ulysses_size: 2.0"),), "config", ("2.0", "whole number")),
    "size-quoted": ((yaml_of("ulysses_size: '2'"),), "config", ("'2'", "without quotes")),
    "size-bool": ((yaml_of("cfg_size: true"),), "config", ("cfg_size=True", "whole number")),
    "size-null": ((yaml_of("cfg_size:"),), "config", ("cfg_size=None", "whole number")),
    "size-huge": ((yaml_of(f"tp_size: {10**40}"),), "config", ("from 1 to 1048576",)),
    "cfg-three": ((yaml_of("cfg_size: 3"),), "config", ("cfg_size=3", "expected 1 or 2")),
    "attn2d-number": ((yaml_of("attn2d_size: 4"),), "config", ("attn2d_size=4", "[2, 2]")),
    "attn2d-three": ((yaml_of("attn2d_size: [1, 2, 3]"),), "config", ("two whole numbers",)),
    "attn2d-zero": ((yaml_of("attn2d_size: [0, 2]"),), "config", ("two whole numbers",)),
    "attn2d-twice": (
        (yaml_of("attn2d_size: [2, 2], attn2d_row_size: 4", "FA4"),),
        "config",
        ("attn2d_row_size=4 against attn2d_size=[2, 2]", "leave one out"),
    ),
    "backend-lower-case": ((yaml_of("", "fa4"),), "config", ("'fa4'", "did you mean FA4?")),
    "backend-unknown": ((yaml_of("", "XFORMERS"),), "config", ("'XFORMERS'", "known: VANILLA")),
    "backend-null": (("attention_config: {backend: }",), "config", ("None", "known: ")),
    "backend-list": (("attention_config: {backend: [FA4]}",), "config", ("is unknown",)),
    "async-alone": ((yaml_of("async_ulysses: true"),), "config", ("ulysses_size of at least 2",)),
    "async-ring": (
        (yaml_of("async_ulysses: true, ulysses_size: 2, ring_size: 2", "FA4"),),
        "config",
        ("does not go with ring_size",),
    ),
    "async-number": ((yaml_of("async_ulysses: 1"),), "config", ("expected true or false",)),
    "vae": (
        (yaml_of("parallel_vae_size: 4, ulysses_size: 2"),),
        "config",
        ("parallel_vae_size=4", "2 ranks", "set it to 2 or less"),
    ),
    "vae-dim": (
        (yaml_of("parallel_vae_split_dim: depth"),),
        "config",
        ("'depth'", "'width' or 'height'"),
    ),
    "quantised": (
        ("attention_config: {backend: FA4, quant_attention_config: {qk_dtype: int8}}",),
        "config",
        ("quant_attention_config with backend FA4", "TRTLLM and CUTEDSL"),
    ),
    "max-length": (("max_sequence_length: none",), "config", ("'none'", "whole number")),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_configuration_passes(preflight, name):
    text, *options = GOOD[name]
    result = preflight(text, *options)
    assert result.status == 0, result.said
    assert "FAIL" not in result.lines.values() and "PASS" in result.lines.values()
    assert "error:" not in result.err


@pytest.mark.parametrize("name", BAD)
def test_bad_configuration_fails_with_value_and_remedy(preflight, name):
    (text, *options), line, parts = BAD[name]
    result = preflight(text, *options)
    assert result.status == 1, result.said
    assert [name for name, status in result.lines.items() if status == "FAIL"] == [line]
    said = " ".join(result.said.split())
    for part in parts:
        assert part in said
    if line == "config":
        # What the author meant is not known, so nothing else is judged.
        assert result.lines == {"config": "FAIL", "layout": "SKIP"}
        assert "unfixed" not in result.out


def test_everything_wrong_is_said_at_once(preflight):
    text = yaml_of("ulysses_size: 16, ring_size: 2, attn2d_size: [2, 1]", "VANILLA")
    result = preflight(text, "--world-size", "8", "--prompt-tokens", "9999", "--gpu", "sm90")
    failed = {name for name, status in result.lines.items() if status == "FAIL"}
    assert failed == {"world-size", "mix", "heads", "backend", "prompt"}
    said = " ".join(result.out.split())
    assert "Layouts of 8 processes that work with VANILLA: ulysses_size=8; tp_size=8;" in said
    assert "With the fix it does not run as it is" in said


def test_skips_say_what_is_missing(preflight):
    result = preflight(yaml_of("ulysses_size: 2"))
    assert {x for x, status in result.lines.items() if status == "SKIP"} == {
        *("world-size", "kernel", "video-rows", "prompt")
    }
    for option in ("--world-size", "--gpu", "--video-rows", "--prompt-tokens"):
        assert re.search(rf"^SKIP .*give {option}", result.out, re.M)
    assert "5 passed, 0 failed, 4 skipped" in result.out


def test_warnings_pass_and_are_said(preflight):
    result = preflight(
        yaml_of("attn2d_row_size: 2, attn2d_col_size: 2", "FA4"),
        *("--video-rows", "3", "--gpu", "sm86"),
    )
    assert result.status == 0
    assert result.err.count("warning:") == 3
    for part in ("wants attn2d_size: [2, 2]", "1 of 4 ranks", "nobody has tried"):
        assert part in result.err


@pytest.mark.parametrize("status, options", [(0, ()), (1, ("--unfixed",))])
def test_unfixed_verdict_fails_only_where_it_is_asked_for(preflight, status, options):
    result = preflight(yaml_of("ulysses_size: 2", "FA4"), *REQUEST, *options)
    assert result.status == status
    said = " ".join(result.out.split())
    assert "computes this configuration WRONGLY" in said
    assert "With the fix it is exact" in said


def test_unfixed_verdict_is_skipped_where_it_depends(preflight):
    result = preflight(yaml_of("ulysses_size: 2"), "--unfixed")
    assert result.status == 0 and result.lines["unfixed-release"] == "SKIP"
    result = preflight(yaml_of("cfg_size: 2"), "--unfixed")
    assert result.status == 0 and result.lines["unfixed-release"] == "PASS"


def test_latents_and_rows_are_the_same(preflight):
    rows = preflight(yaml_of("ulysses_size: 2"), "--video-rows", "45").out
    latents = preflight(yaml_of("ulysses_size: 2"), "--video-rows", "3,5,9").out
    assert latents == rows and "45 rows on 2 of 2 ranks" in rows


def test_json_says_the_same(preflight):
    text = yaml_of("attn2d_size: [1, 2], ulysses_size: 2", "VANILLA")
    human = preflight(text, *REQUEST)
    machine = preflight(text, *REQUEST, "--json")
    tree = json.loads(machine.out)
    assert machine.status == human.status == 1 and not machine.err and not tree["passed"]
    assert {x["name"]: x["status"] for x in tree["checks"]} == human.lines
    for check in tree["checks"]:
        for finding in check["findings"]:
            assert f"{finding['severity']}: {finding['message']}" in human.err
    assert tree["layout"]["processes"] == tree["layout"]["sequence_size"] == 4
    works = tree["working_layouts"]
    assert works and all(x["attn2d_col_size"] * x["ring_size"] == 1 for x in works)
    (estimate,) = tree["unfixed"]["estimates"]
    assert tree["unfixed"]["status"] == "wrong" and estimate["text_slots"] == 670
    assert estimate["leaked_share"] == pytest.approx(670 / (37440 + 700))
    assert tree["unfixed"]["nearest_measured"]["error"] == 0.039


def test_json_of_a_configuration_that_is_not_understood(preflight):
    result = preflight("parallel_config: {ulyses_size: 2}", "--json")
    tree = json.loads(result.out)
    assert result.status == 1 and not tree["passed"]
    assert tree["layout"] is None and tree["unfixed"] is None and tree["working_layouts"] is None


# ------------------------------------------------------------------ usage and environment

UNREADABLE = {
    "missing": (None, (), ("cannot read", "No such file")),
    "empty": ("", (), ("holds nothing", "expected a mapping")),
    "list": ("- 1\n", (), ("holds a list",)),
    "no-yaml": ("parallel_config: {ulysses_size: 2", (), ("is not YAML",)),
    "key-twice": (
        "parallel_config: {ulysses_size: 2, ulysses_size: 4}",
        (),
        ("'ulysses_size' stands twice", "line 1"),
    ),
    "python-object": ("a: !!python/object:os.system {}", (), ("is not YAML",)),
    "deep": ("[" * 5000, (), ("is not YAML",)),
    "model-unknown": (yaml_of(), ("--model", "mini"), ("cannot read mini", "nano, super, edge")),
    "model-in-config": (
        "model: somebody/other\n",
        (),
        ("'somebody/other'", "give --model with nano, super, edge"),
    ),
    "gpu": (yaml_of(), ("--gpu", "hopper"), ("--gpu", "'hopper'", "sm90")),
    "video": (yaml_of(), ("--video-rows", "3,4"), ("--video-rows '3,4'", "T,H,W")),
    "video-negative": (yaml_of(), ("--video-rows=-3",), ("'-3'", "T,H,W")),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_usage_exits_with_two_and_prints_no_result(preflight, name):
    text, options, parts = UNREADABLE[name]
    result = preflight(text, *options)
    assert result.status == 2 and not result.out
    assert result.err.startswith("preflight: ")
    for part in parts:
        assert part in result.err


@pytest.mark.parametrize(
    "options",
    [
        ("--world-size", "0"),
        ("--world-size", "two"),
        ("--prompt-tokens", "3,x"),
        ("--prompt-tokens", ""),
        ("--max-sequence-length", "-1"),
        ("--no-such-option",),
    ],
)
def test_options_out_of_range_exit_with_two(preflight, options):
    with pytest.raises(SystemExit) as error:
        preflight(yaml_of(), *options)
    assert error.value.code == 2


def test_file_that_is_not_text(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(Refusal, match="is not UTF-8"):
        read_config(file)


def _run(code: str, *options: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """Runs Python code in which some modules cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", block + code, *options],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


MAIN = "from preflight.cli import main; sys.exit(main())"


def test_command_runs_without_torch(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml_of("ulysses_size: 2", "FA4"))
    heavy = ("torch", "numpy", "diffusers", "tensorrt_llm")
    result = _run(MAIN, "--config", str(file), "--world-size", "2", blocked=heavy)
    assert result.returncode == 0, result.stderr
    assert "PASS heads 32/8" in result.stdout


def test_missing_pyyaml_says_what_to_install(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml_of())
    result = _run(MAIN, "--config", str(file), blocked=("yaml",))
    assert result.returncode == 2 and not result.stdout
    assert "pip install pyyaml" in result.stderr and "make preflight" in result.stderr


# ------------------------------------------------------------------ models


@pytest.mark.parametrize("name, query", [("nano", 32), ("super", 64), ("edge", 16)])
def test_released_sizes(name, query):
    model = find_model(name, None)
    assert model.heads == [Heads(query, 8)] and model.head_dim == 128 and not model.findings()
    assert find_model(None, f"nvidia/Cosmos3-{name.title()}").heads == model.heads


def test_parity_sizes_are_the_shared_ones():
    from parity.sizes import SIZES

    assert SIZES["nano"] == MODELS["nano"]
    assert SIZES["nano-4l"] == MODELS["nano"] | {"num_hidden_layers": 4}


def test_checkpoint_folder_and_file_are_read(tmp_path):
    fields = {"_class_name": "Cosmos3OmniTransformer", "num_attention_heads": 12}
    fields |= {"num_key_value_heads": 6, "head_dim": 64, "rope_scaling": {"mrope_section": [8] * 3}}
    file = tmp_path / "transformer" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(fields))
    for place in (tmp_path, file.parent, file):
        model = find_model(str(place), None)
        assert model.heads == [Heads(12, 6)] and model.head_dim == 64 and model.layers == 36
        (found,) = model.findings()
        assert "rope_axes_dim=[8, 8, 8]" in found.message and "= 32" in found.message
    assert find_model(None, str(tmp_path)).heads == [Heads(12, 6)]


def test_towers_with_other_counts_are_told_apart():
    fields = MODELS["nano"] | {"text_config": {"num_attention_heads": 24}}
    model = parse_model(fields, "it")
    assert model.heads == [Heads(24, 8, "text"), Heads(32, 8, "generation")]
    assert "text tower 24 query / 8 key-value heads" in str(model)
    fields["text_config"]["num_attention_heads"] = 32
    assert parse_model(fields, "it").heads == [Heads(32, 8)]


@pytest.mark.parametrize(
    "fields, message",
    [
        ([], "holds a list"),
        ({"_class_name": "WanTransformer3DModel"}, "WanTransformer3DModel"),
        ({"_class_name": "Cosmos3OmniPipeline"}, "Cosmos3OmniPipeline"),
        ({"layers": 4}, "under transformer/"),
        (MODELS["nano"] | {"num_key_value_heads": 0}, "num_key_value_heads=0"),
        (MODELS["nano"] | {"num_attention_heads": "32"}, "num_attention_heads='32'"),
        (MODELS["nano"] | {"head_dim": 1 << 40}, "head_dim=1099511627776"),
        (MODELS["nano"] | {"rope_axes_dim": "24"}, "rope_axes_dim='24'"),
    ],
)
def test_config_json_of_something_else_is_refused(fields, message):
    with pytest.raises(Refusal, match=message):
        parse_model(fields, "config.json")


def test_model_folder_without_config_is_refused(tmp_path):
    with pytest.raises(Refusal, match="holds neither"):
        find_model(str(tmp_path), None)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Refusal, match="is not JSON"):
        find_model(str(tmp_path), None)


def test_unknown_keys_elsewhere_are_left_alone():
    config = parse_config(
        {"model": "m", "pipeline_config": {"max_sequence_length": 512, "what": 1}, "x": [1]}
    )
    assert config.usable and config.max_sequence_length == 512 and config.model == "m"
