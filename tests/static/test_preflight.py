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
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cosmos3_sizes import MODELS
from patchset.project import Project
from patchset.report import Refusal
from preflight import cli, unfixed
from preflight.config import parse_config, read_config
from preflight.layout import Heads, Sizes
from preflight.model import find_model, parse_model
from preflight.schema import ARGS

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
    "empty": ("", "--world-size", "1"),
    "comment": ("# nothing\n",),
    "empty-blocks": ("parallel_config: {}\nattention_config: {}\n", "--world-size", "1"),
    "no-blocks": ("revision: main\n", "--world-size", "1"),
    "null-where-valid": ("quant_config:\ncache_config:\nrevision:\nruntime_lora_config:\n",),
    "cutedsl": (yaml_of("ulysses_size: 2", "CUTEDSL"), "--gpu", "sm100"),
    "cudnn-ring": (yaml_of("ring_size: 2", "CUDNN"), "--gpu", "sm90"),
    "async": (yaml_of("ulysses_size: 4, async_ulysses: true"),),
    "dynamic-fp8": ("quant_config: {quant_algo: FP8, dynamic: true}\n" + yaml_of("tp_size: 2"),),
    "static-fp8-alone": ("revision: fp8\n", "--world-size", "1"),
    "graphs": ("cuda_graph_config: {enable: true}\n" + yaml_of("ulysses_size: 2", "FA4"),),
    "offload": ("cpu_offload_config: {enable: true, stages: [reasoner, [generator, vae]]}",),
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
        yaml_of("ulysses_size: 2"),
        *("--prompt-tokens", "1,8190", "--max-sequence-length", "8192"),
    ),
    "prompts-cut": (
        yaml_of("ulysses_size: 2"),
        *("--prompt-tokens", "5000,30", "--video-rows", "24,60,104"),
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
        "unfixed-releases",
        ("WRONGLY", "1.76%", "no bound", "in 1.3.0rc25 to rc29", "one launch there. 1.4.0rc0"),
    ),
    "empty-prompt": (
        (yaml_of("ulysses_size: 2"), "--prompt-tokens", "0,700"),
        "prompt",
        ("0 tokens", "at least 1", "a chat template", "Count with the template"),
    ),
    "static-fp8-revision": (
        ("revision: fp8\n" + yaml_of("ulysses_size: 2"),),
        "quantisation",
        ("revision=fp8", "on 2 ranks; expected one", "#17476", "bfloat16, or use one rank"),
    ),
    "static-fp8-quantised-again": (
        (
            "revision: fp8\nquant_config: {quant_algo: FP8, dynamic: true}\n"
            + yaml_of("ulysses_size: 2"),
        ),
        "quantisation",
        ("revision=fp8 is static FP8 on 2 ranks",),
    ),
    "static-fp8-flag": (
        ("quant_config: {quant_algo: FP8, dynamic: false}\n" + yaml_of("cfg_size: 2"),),
        "quantisation",
        ("quant_algo=FP8 is static", "one GPU only"),
    ),
    "static-fp8-groups": (
        (
            "quant_config: {quant_algo: FP8, config_groups: {all: {weights: {dynamic: false}}}}\n"
            + yaml_of("tp_size: 2"),
        ),
        "quantisation",
        ("static FP8 on 2 ranks",),
    ),
    "teacache": (
        ("cache_config: {cache_backend: teacache}",),
        "step-cache",
        ("cache_backend=teacache", "no TeaCache coefficients", "leave cache_config out"),
    ),
    "cache-dit": (
        ("cache_config: {cache_backend: cache_dit}",),
        "step-cache",
        ("no Cache-DiT enabler", "leave cache_config out"),
    ),
    "graphs-with-offloading": (
        ("cuda_graph_config: {enable: true}\ncpu_offload_config: {enable: true}",),
        "cuda-graphs",
        ("exclude each other", "set one of them to false"),
    ),
    "stage-unknown": (
        ("cpu_offload_config: {enable: true, stages: [reasoner, [transformer]]}",),
        "offloading",
        ("stages has 'transformer'", "reasoner, generator"),
    ),
    "vae": (
        (yaml_of("parallel_vae_size: 4, ulysses_size: 2"),),
        "parallel-vae",
        ("parallel_vae_size=4", "2 ranks", "set it to 2 or less"),
    ),
    "async-alone": (
        (yaml_of("async_ulysses: true"),),
        "async-ulysses",
        ("ulysses_size of at least 2",),
    ),
    "async-ring": (
        (yaml_of("async_ulysses: true, ulysses_size: 2, ring_size: 2", "FA4"),),
        "async-ulysses",
        ("does not go with ring_size",),
    ),
    "quantised-attention": (
        ("attention_config: {backend: FA4, quant_attention_config: {qk_dtype: int8}}",),
        "backend",
        ("quant_attention_config with backend FA4", "TRTLLM and CUTEDSL"),
    ),
    "quantised-attention-recipe": (
        ("attention_config: {backend: CUTEDSL, quant_attention_config: {qk_dtype: int8}}",),
        "backend",
        ("('int8', 'fp8', (0, 0, 0)) with backend CUTEDSL", "expected one of ('bf16', 'fp8'"),
    ),
    "sparse-backend": (
        ("attention_config: {sparse_attention_config: {algorithm: skip_softmax}}",),
        "backend",
        ("sparse_attention_config with backend VANILLA", "only TRTLLM and CUTEDSL"),
    ),
    "vsa": (
        ("attention_config: {backend: CUTEDSL, sparse_attention_config: {algorithm: vsa}}",),
        "backend",
        ("no Cosmos3 checkpoint has its gates",),
    ),
    "memory": (
        (yaml_of("ulysses_size: 4"), "--model", "super", "--gpu-memory", "80"),
        "memory",
        ("the weights alone take", "raise tp_size"),
    ),
}

# YAML; what the config line says.
REFUSED = {
    "unknown-block": ("compilation_confg: {}", "did you mean compilation_config?"),
    "short-block": ("parallel: {ulysses_size: 2}", "did you mean parallel_config?"),
    "unknown-key": (yaml_of("ulyses_size: 2"), "ulyses_size in parallel_config; did you mean uly"),
    "unknown-key-far": (yaml_of("pipeline: 2"), "known: parallel_vae_size, parallel_vae_split"),
    "old-key": (yaml_of("dit_ulysses_size: 2"), "did you mean ulysses_size?"),
    "mapping-key": (yaml_of("attn2d_row_size: 2"), "did you mean attn2d_size?"),
    "no-field": ("max_sequence_length: 4096", "unknown key max_sequence_length at the top"),
    "key-at-the-top": ("ulysses_size: 2", "it belongs under parallel_config."),
    "backend-at-the-top": ("backend: FA4", "it belongs under attention_config."),
    "several-homes": (
        "enable: true",
        "torch_compile_config or cuda_graph_config or cpu_offload_config",
    ),
    "key-deep": (
        "attention_config: {backend: TRTLLM, quant_attention_config: {qk_type: fp8}}",
        "qk_type in attention_config.quant_attention_config; did you mean qk_dtype?",
    ),
    "key-of-a-variant": (
        "cache_config: {cache_backend: teacache, teacache_treshold: 1}",
        "teacache_treshold in cache_config; did you mean teacache_thresh?",
    ),
    "key-of-quantisation": ("quant_config: {quant_alg: FP8}", "did you mean quant_algo?"),
    "variant-unknown": (
        "cache_config: {cache_backend: tea}",
        "='tea'; known: teacache, cache_dit",
    ),
    "variant-missing": ("cache_config: {teacache_thresh: 0.1}", "cache_config.cache_backend=None"),
    "block-number": ("parallel_config: 2", "parallel_config is 2; expected a mapping"),
    "block-null": ("parallel_config:", "parallel_config is None; expected a mapping"),
    "size-zero": (yaml_of("tp_size: 0"), "parallel_config.tp_size=0; expected a whole number from"),
    "size-negative": (yaml_of("ring_size: -2"), "ring_size=-2; expected a whole number from 1"),
    "size-fraction": (yaml_of("ulysses_size: 2.0"), "ulysses_size=2.0; expected a whole number"),
    "size-quoted": (yaml_of("ulysses_size: '2'"), "without quotes"),
    "size-bool": (yaml_of("cfg_size: true"), "cfg_size=True; expected a whole number"),
    "size-null": (yaml_of("cfg_size:"), "cfg_size=None; expected a whole number"),
    "size-huge": (yaml_of(f"tp_size: {10**40}"), "from 1 to 1048576"),
    "cfg-three": (yaml_of("cfg_size: 3"), "cfg_size=3; expected a whole number from 1 to 2"),
    "attn2d-number": (yaml_of("attn2d_size: 4"), "attn2d_size=4; expected two whole numbers"),
    "attn2d-three": (yaml_of("attn2d_size: [1, 2, 3]"), "such as [2, 2]"),
    "attn2d-zero": (yaml_of("attn2d_size: [0, 2]"), "attn2d_size[0]=0; expected a whole number"),
    "backend-lower-case": (yaml_of("", "fa4"), "'fa4' is unknown; did you mean FA4?"),
    "backend-unknown": (yaml_of("", "XFORMERS"), "'XFORMERS' is unknown; known: VAN"),
    "backend-null": ("attention_config: {backend: }", "backend=None is unknown"),
    "backend-list": ("attention_config: {backend: [FA4]}", "backend=['FA4']"),
    "flag-number": (yaml_of("async_ulysses: 1"), "async_ulysses=1; expected true or false"),
    "vae-dim": (yaml_of("parallel_vae_split_dim: front"), "'front' is unknown; known:"),
    "number": ("cache_config: {cache_backend: teacache, teacache_thresh: 0}", "number above 0."),
    "number-nan": (
        "cache_config: {cache_backend: teacache, teacache_thresh: .nan}",
        "expected a number above 0.",
    ),
    "algorithm": ("quant_config: {quant_algo: fp8}", "did you mean FP8?"),
    "list-item": ("compilation_config: {resolutions: [[480, x]]}", "resolutions[0][1]='x'"),
    "lora-without-path": ("runtime_lora_config: {scale: 1}", "path is missing; expected text that"),
    "lora-path-empty": (
        "runtime_lora_config: {path: ''}",
        "path=''; expected text that",
    ),
    "coefficients-none": (
        "cache_config: {cache_backend: teacache, coefficients: []}",
        "coefficients=[]; expected a list that is not empty.",
    ),
    "list": ("compilation_config: {num_frames: 81}", "num_frames=81; expected a list."),
    "text": ("revision: 3", "revision=3; expected text."),
    "mapping": ("pipeline_config: [1]", "pipeline_config=[1]; expected a mapping."),
}

# What the official files for Cosmos3 hold, by their names upstream; model, and checks that fail.
OFFICIAL = {
    "cosmos3-nano-1gpu": (yaml_of("cfg_size: 1, ulysses_size: 1", "VANILLA"), "nano", 1),
    "cosmos3-t2i-1gpu": (
        yaml_of("cfg_size: 1, ulysses_size: 1", "VANILLA")
        + "compilation_config: {resolutions: [[1024, 1024]], num_frames: [1]}",
        "super",
        1,
    ),
    "cosmos3-fp8-1gpu": (
        "revision: fp8\n" + yaml_of("cfg_size: 1, ulysses_size: 1", "VANILLA"),
        "super",
        1,
    ),
    "cosmos3-super-4gpu": (
        yaml_of("cfg_size: 2, ulysses_size: 2, parallel_vae_size: 4", "VANILLA"),
        "super",
        4,
    ),
    "cosmos3-super-4gpu-hopper": (
        yaml_of("cfg_size: 1, tp_size: 2, ulysses_size: 2, parallel_vae_size: 4", "VANILLA"),
        "super",
        4,
    ),
    "cosmos3-super-8gpu": (
        yaml_of(
            "cfg_size: 2, ulysses_size: 4, async_ulysses: true, parallel_vae_size: 8", "VANILLA"
        ),
        "super",
        8,
    ),
    "cosmos3_t2v_bf16_gb200_nvl72": (
        yaml_of("cfg_size: 2, ulysses_size: 4, attn2d_size: [3, 3], parallel_vae_size: 8", "FA4")
        + "compilation_config: {resolutions: [[720, 1280]], num_frames: [189]}",
        "super",
        72,
    ),
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


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_visualgen_would_refuse_fails_with_a_remedy(preflight, name):
    text, part = REFUSED[name]
    result = preflight(text)
    assert result.status == 1 and part in " ".join(result.err.split())
    # What the author meant is not known, so nothing else is judged.
    assert result.lines == {"config": "FAIL", "layout": "SKIP"}
    assert "1.3.0rc25" not in result.out


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_file_is_judged_as_written(preflight, name):
    text, model, ranks = OFFICIAL[name]
    request = ("--prompt-tokens", "30,701", "--video-rows", "24,60,104", "--gpu", "sm100")
    result = preflight(text, "--model", model, "--world-size", str(ranks), *request)
    assert result.status == 0, result.said
    assert f"{ranks} ranks {ranks} processes" in result.out
    wrong = ranks > 1
    assert ("WRONGLY" in result.out) == wrong and (
        "With the fix it is exact" in result.out
    ) == wrong


@pytest.mark.parametrize("algorithm", ["FP8", "FP8_BLOCK_SCALES", "NVFP4"])
@pytest.mark.parametrize("axis", ["tp_size", "ulysses_size"])
def test_quantised_on_load_is_never_called_exact(preflight, algorithm, axis):
    """Scales of whole tensors depend on the rows of a rank, those of blocks do not."""
    result = preflight(f"quant_config: {{quant_algo: {algorithm}}}\n" + yaml_of(f"{axis}: 2"))
    assert result.status == 0 and result.lines["quantisation"] == "PASS"
    assert "quantises on load" in result.err and "it is exact" not in result.out
    by_rows = axis == "ulysses_size" and algorithm != "FP8_BLOCK_SCALES"
    assert ("2 ranks do not give the numbers of one" in result.err) == by_rows


def test_fields_that_nobody_looked_at_are_named(preflight):
    text = "enable_layerwise_nvtx_marker: true\npipeline_config: {a: 1}\n"
    result = preflight(text + "compilation_config: {skip_warmup: true}\n")
    assert result.status == 0
    for name in ("enable_layerwise_nvtx_marker", "pipeline_config", "compilation_config"):
        assert name in result.err.partition("not judged beyond their types: ")[2]
    assert "not judged" not in preflight(yaml_of("tp_size: 2")).err


def _leaves(spec, place=()):
    if spec.kind not in ("block", "union"):
        return [(place, spec)]
    variants = {"": spec.inner} if spec.kind == "block" else spec.inner
    return [
        leaf
        for tag, fields in variants.items()
        for key, inner in fields.items()
        for leaf in _leaves(inner, (*place, (spec.tag, tag), key))
    ]


@pytest.mark.parametrize(
    "place, spec", _leaves(ARGS), ids=lambda x: x[-1] if isinstance(x, tuple) else ""
)
def test_every_field_takes_its_default_and_refuses_another_kind(place, spec):
    """And its name with a letter more is unknown, at every depth."""

    last = place[-1]

    def parse(key, value):
        # The last name with its value, then the blocks around it from the inside out.
        found = {key: value}
        for step in reversed(place[:-1]):
            found = found | {step[0]: step[1]} if isinstance(step, tuple) and step[0] else found
            if step == "runtime_lora_config":
                # It cannot do without.
                found = {"path": "adapter"} | found
            found = {step: found} if isinstance(step, str) else found
        return [x.message for x in parse_config(found).findings if x.severity == "error"]

    required = spec.default is None and not spec.null
    assert bool(parse(last, spec.default)) == required
    assert parse(last, object())
    (message,) = parse(last + "x", spec.default)
    assert f"did you mean {last}?" in message


def test_prompts_are_judged_as_cut(preflight):
    cut = preflight(yaml_of("ulysses_size: 2"), "--prompt-tokens", "5000,30", "--json")
    tree = json.loads(cut.out)
    assert tree["passed"] and tree["unfixed"]["estimates"][0]["text_slots"] == 4094 - 30


def test_memory_is_compared_where_its_size_is_known(preflight):
    asked = (yaml_of("tp_size: 4"), "--model", "super", *REQUEST)
    unknown = preflight(*asked)
    assert unknown.lines["memory"] == "SKIP" and "give --gpu-memory" in unknown.out
    assert "Memory of one rank, an estimate" in unknown.out and "Not counted: VAE" in unknown.out
    tree = json.loads(preflight(*asked, "--json").out)["memory"]
    fits = -(-sum(tree.values()) // 2**30)
    assert preflight(*asked, "--gpu-memory", str(fits)).lines["memory"] == "PASS"
    weights = -(-tree["weights"] // 2**30)
    assert weights < fits - 1
    tight = preflight(*asked, "--gpu-memory", str(weights))
    assert tight.status == 0 and "warning: weights" in tight.err
    assert preflight(*asked, "--gpu-memory", str(weights - 1)).status == 1


def test_everything_wrong_is_said_at_once(preflight):
    text = yaml_of("ulysses_size: 16, ring_size: 2, attn2d_size: [2, 1]", "VANILLA")
    result = preflight(text, "--world-size", "8", "--gpu", "sm90")
    failed = {name for name, status in result.lines.items() if status == "FAIL"}
    assert failed == {"world-size", "mix", "heads", "backend"}
    said = " ".join(result.out.split())
    assert "Layouts of 8 processes that work with VANILLA: ulysses_size=8; tp_size=8;" in said
    assert "With the fix it does not run as it is" in said


def test_skips_say_what_is_missing(preflight):
    result = preflight(yaml_of("ulysses_size: 2"))
    assert {x for x, status in result.lines.items() if status == "SKIP"} == {
        *("world-size", "kernel", "video-rows", "prompt", "memory")
    }
    for option in ("--world-size", "--gpu", "--video-rows", "--prompt-tokens", "--gpu-memory"):
        assert re.search(rf"^SKIP .*give {option}", result.out, re.M)
    assert "12 passed, 0 failed, 5 skipped" in result.out


def test_warnings_pass_and_are_said(preflight):
    result = preflight(
        yaml_of("attn2d_size: [2, 2]", "CUDNN"), *("--video-rows", "3", "--prompt-tokens", "9999")
    )
    assert result.status == 0 and result.err.count("warning:") == 4
    # Whether the backend returns an LSE is not known here, and no pass.
    assert result.lines["backend"] == "SKIP"
    for part in ("other revisions", "support_lse()", "1 of 4 ranks", "the last 5905 are lost"):
        assert part in result.err


@pytest.mark.parametrize("status, options", [(0, ()), (1, ("--unfixed",))])
def test_unfixed_verdict_fails_only_where_it_is_asked_for(preflight, status, options):
    result = preflight(yaml_of("ulysses_size: 2", "FA4"), *REQUEST, *options)
    assert result.status == status
    said = " ".join(result.out.split())
    assert "compute this configuration WRONGLY" in said
    assert "With the fix it is exact" in said


def test_unfixed_verdict_is_skipped_where_it_depends(preflight):
    result = preflight(yaml_of("ulysses_size: 2"), "--unfixed")
    assert result.status == 0 and result.lines["unfixed-releases"] == "SKIP"
    result = preflight(yaml_of("cfg_size: 2"), "--unfixed")
    assert result.status == 0 and result.lines["unfixed-releases"] == "PASS"


def test_releases_that_are_named_vs_upstream():
    pin, main = (Project(ROOT).base(name) for name in ("pin", "main"))
    listed = Project(ROOT).upstream["releases"]
    first, *_, last = [version for version, name in listed.items() if name == "pin"]
    assert unfixed.UNFIXED == f"{first} to {last.removeprefix('1.3.0')}" and pin.padding_bug
    assert [v for v, name in listed.items() if name == "main"] == ["1.4.0rc1"]
    assert "1.4.0rc1" in unfixed.EXACT and not main.padding_bug
    assert [v for v, name in listed.items() if name == "unclear"] == [unfixed.UNCLEAR]


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
        ("--max-sequence-length", "2"),
        ("--gpu-memory", "0"),
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


def test_command_takes_less_than_half_a_second(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml_of("ulysses_size: 2", "FA4"))
    took = []
    for _ in range(5):
        start = time.monotonic()
        assert _run(MAIN, "--config", str(file), "--gpu", "sm90").returncode == 0
        took.append(time.monotonic() - start)
    assert min(took) < 0.5


def test_make_takes_names_with_spaces_and_quotes(tmp_path):
    folder = tmp_path / "it's a checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODELS["edge"]))
    file = tmp_path / 'two  "words".yaml'
    file.write_text(yaml_of("ulysses_size: 2"))
    command = ["make", "-C", str(ROOT), "preflight", f"PYTHON={sys.executable}"]
    options = [f"CONFIG={file}", f"MODEL={folder}", "ARGS=--gpu none"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert f"config  {file}\n" in result.stdout and "config.json: 16 query" in result.stdout
    result = subprocess.run([*command], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "make preflight CONFIG=file.yaml" in result.stderr


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
