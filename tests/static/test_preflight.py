# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The layout's rules against brute force, and the preflight command on good and bad files.

Nothing here needs torch. Fields: P sequence-parallel size, H query heads, H_kv K/V heads, S rows of
the generation sequence, m padded slots.
"""

import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from cosmos3_sizes import MODELS
from hypothesis import given, settings
from hypothesis import strategies as st
from patchset.report import Refusal
from preflight import cli, unfixed
from preflight.config import parse_config, read_config
from preflight.model import find_model, parse_model
from preflight.rules import PATH, layout_check

Sizes, Heads = layout_check.Sizes, layout_check.Heads
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"

NANO = [Heads(32, 8)]


def errors(*args, **kwargs) -> list[str]:
    found = layout_check.check_layout(*args, **kwargs)
    return [finding.name for finding in found if finding.severity == "error"]


# ------------------------------------------------------------------ rules against brute force


def _blocks(items: list, ways: int) -> list[list] | None:
    """Equal contiguous blocks, or None where there are none."""
    if len(items) % ways:
        return None
    size = len(items) // ways
    return [items[i * size : (i + 1) * size] for i in range(ways)]


def heads_fit(sizes: Sizes, towers: list[Heads]) -> bool:
    """Hands every head out, and looks whether each rank can attend with what it got."""
    ranks_kv = []
    for tower in towers:
        if tower.query % tower.kv:
            return False
        group = tower.query // tower.kv
        cut_q = _blocks(list(range(tower.query)), sizes.tp_size)
        cut_kv = _blocks(list(range(tower.kv)), sizes.tp_size)
        if cut_q is None or cut_kv is None:
            return False
        held = []
        for q, kv in zip(cut_q, cut_kv):
            own_q, own_kv = _blocks(q, sizes.ulysses_size), _blocks(kv, sizes.ulysses_size)
            if own_q is None or own_kv is None:
                return False
            for rank_q, rank_kv in zip(own_q, own_kv):
                # Each query head finds its own K/V head on the same rank.
                if {head // group for head in rank_q} != set(rank_kv):
                    return False
            held.append([len(x) for x in own_kv])
        ranks_kv.append(held)
    # Text keys and video keys of a rank stand in one tensor.
    return all(held == ranks_kv[0] for held in ranks_kv)


def sequence_ranks(sizes: Sizes) -> int:
    """P, counted: ranks that differ in an axis along which the sequence is cut."""
    cut = ("ring_size", "attn2d_row_size", "attn2d_col_size", "ulysses_size")
    return len(list(itertools.product(*(range(getattr(sizes, name)) for name in cut))))


def layout_fits(sizes: Sizes, towers, world_size: int, backend: str) -> bool:
    ranks = list(itertools.product(*(range(size) for size in asdict(sizes).values())))
    mesh = sizes.attn2d_row_size > 1 or sizes.attn2d_col_size > 1
    ring = sizes.ring_size > 1
    kernel = {"TRTLLM": "VANILLA"}.get(backend, backend)
    return (
        len(ranks) == world_size
        and not (mesh and ring)
        and kernel in (("FA4",) if mesh or ring else ("FA4", "VANILLA"))
        and heads_fit(sizes, towers)
    )


small = st.integers(1, 4)
sizes_drawn = st.builds(
    Sizes,
    cfg_size=st.integers(1, 2),
    tp_size=st.sampled_from([1, 1, 2, 3, 4, 8]),
    ring_size=st.sampled_from([1, 1, 1, 2, 3]),
    attn2d_row_size=st.sampled_from([1, 1, 1, 2]),
    attn2d_col_size=st.sampled_from([1, 1, 1, 2, 3]),
    ulysses_size=st.sampled_from([1, 2, 3, 4, 8]),
)
head_counts = st.one_of(
    st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4, 6, 8, 12])).map(
        lambda x: (x[0] * x[1], x[1])
    ),
    st.tuples(st.integers(1, 16), st.integers(1, 16)),
)


@st.composite
def towers_drawn(draw):
    generation = draw(head_counts)
    if draw(st.booleans()):
        return [Heads(*generation)]
    text = draw(st.one_of(head_counts, st.just(generation)))
    return [Heads(*text, "text"), Heads(*generation, "generation")]


@settings(max_examples=600, deadline=None, print_blob=True)
@given(
    sizes_drawn,
    towers_drawn(),
    st.sampled_from([None, 1, 2, 4, 8]),
    st.sampled_from(["FA4", "VANILLA", "TRTLLM", "CUTEDSL", "CUDNN", "FLASHINFER", "ELSE"]),
)
def test_accepted_layouts_vs_brute_force(sizes, towers, world_size, backend):
    world_size = world_size or sizes.processes
    found = errors(sizes, towers, world_size=world_size, backend=backend)
    assert (not found) == layout_fits(sizes, towers, world_size, backend)


@settings(max_examples=300, deadline=None)
@given(sizes_drawn, towers_drawn())
def test_head_check_names_every_failing_count_and_what_works(sizes, towers):
    found = [x for x in layout_check.check_heads(sizes, towers) if "does not divide" in x.message]
    counts = {name: count for tower in towers for name, count in tower.named().items()}
    failing = {f"{name}={count}" for name, count in counts.items() if count % sizes.head_ways}
    assert bool(found) == bool(failing)
    if found:
        named = re.search(r"does not divide (.*);", found[0].message).group(1)
        assert set(named.split(", ")) == failing
        works = json.loads(re.search(r"must be one of (\[.*\])", found[0].message).group(1))
        fit = [n for n in range(1, 65) if all(count % n == 0 for count in counts.values())]
        assert works == fit


@settings(max_examples=300, deadline=None)
@given(sizes_drawn, st.integers(1, 300))
def test_ranks_without_rows_vs_cut_sequence(sizes, rows):
    ways = sequence_ranks(sizes)
    padded = [True] * rows + [False] * (-rows % ways)
    used = sum(any(block) for block in _blocks(padded, ways))
    assert layout_check.ranks_with_rows(sizes, rows) == used
    found = list(layout_check.check_video(sizes, rows))
    assert bool(found) == (used < ways)
    if found:
        assert found[0].severity == "warning"
        assert f"{ways - used} of {ways} ranks" in found[0].message
        # What the message says would work does, and nothing larger does.
        full = [
            n
            for n in range(1, ways)
            if all(any(x) for x in _blocks([True] * rows + [False] * (-rows % n), n))
        ]
        assert f"{max(full)} ranks all get rows" in found[0].message


@pytest.mark.parametrize("world_size", [1, 2, 6, 8, 12])
def test_layouts_listed_vs_brute_force(world_size):
    sizes = range(1, world_size + 1)
    brute = {
        Sizes(*x) for x in itertools.product((1, 2), *[sizes] * 5) if math.prod(x) == world_size
    }
    listed = cli.layouts_of(world_size)
    assert len(listed) == len(set(listed)) and set(listed) == brute


# ------------------------------------------------------------------ single rules


@pytest.mark.parametrize("size", [0, -1, 1.0, "2", True, None])
def test_sizes_that_are_no_whole_numbers(size):
    sizes = Sizes(ulysses_size=size)
    (found,) = layout_check.check_layout(sizes, NANO, backend="FA4", video_rows=7, world_size=2)
    assert found.severity == "error"
    assert f"ulysses_size={size!r}" in found.message and "whole numbers" in found.message


def test_counts_of_both_towers_are_named():
    towers = [Heads(24, 8, "text"), Heads(32, 4, "generation")]
    found = list(layout_check.check_heads(Sizes(tp_size=2, ulysses_size=8), towers))
    said = " ".join(x.message for x in found)
    assert "= 16 does not divide text tower num_attention_heads=24" in said
    assert "text tower num_key_value_heads=8, generation tower num_key_value_heads=4" in said
    assert "generation tower num_attention_heads=32" not in said
    assert "must be one of [1, 2, 4]" in said and "same number of key/value heads" in said


@pytest.mark.parametrize("count", [0, -8, True, 8.0, None], ids=repr)
def test_head_counts_that_are_no_counts_are_refused(count):
    """Before anything is divided by them."""
    (found,) = layout_check.check_heads(Sizes(), [Heads(32, count)])
    assert found.severity == "error" and f"num_key_value_heads={count!r}" in found.message
    assert "whole numbers of at least 1" in found.message


# GPU, flash-attn-4, grouped, head_dim: the finding's severity and a word of its reason.
KERNELS = [
    ("sm90", "4.0.0b19", True, 128, None, ""),
    ("sm90", "4.0.0b36", True, 256, "note", "nobody has run it there"),
    ("sm90", "4.0.0b19", True, 100, "error", "multiples of 8 from 8 to 256"),
    ("sm90", "4.0.0b4", True, 128, "warning", "nobody has tried this release"),
    ("sm90", "4.0.0b25", True, 128, "warning", "nobody has tried this release"),
    ("sm100", "4.0.0b25", True, 128, "warning", "nobody has tried this release"),
    ("sm100", "4.0.0b19", True, 128, "note", "nobody has run it there"),
    ("sm_103a", "4.0.0b30", True, 128, "note", "nobody has run it there"),
    ("sm100", "4.0.0b19", True, 256, "error", "from 8 to 128"),
    ("sm80", "4.0.0b19", True, 128, "error", "grouped-query"),
    ("sm80", "4.0.0b19", False, 128, "note", "nobody has run it there"),
    ("sm80", "4.0.0b25", True, 128, "warning", "nobody has tried this release"),
    ("sm80", "4.0.0b29", True, 128, "note", "nobody has run it there"),
    ("sm80", "4.0.0", True, 128, "note", "nobody has run it there"),
    ("sm80", "2.8.3", True, 128, "warning", "nobody has tried this release"),
    ("sm120", "4.0.0b19", True, 128, "error", "none of its kernels compiles"),
    ("sm120", "4.0.0b20", True, 128, "warning", "nobody has tried this release"),
    ("sm120", "4.0.0b21", True, 128, "note", "nobody has run it there"),
    ("sm120", "4.0.0b36", True, 64, "warning", "other sizes than 128"),
    ("sm86", "4.0.0b19", True, 128, "warning", "nobody has tried this architecture"),
    ("sm110", "4.0.0b36", True, 128, "warning", "nobody has tried this architecture"),
    ("sm121", "4.0.0b36", True, 128, "warning", "nobody has tried this architecture"),
    ("sm75", "4.0.0b36", True, 128, "error", "SM8x to SM12x only"),
]


@pytest.mark.parametrize(
    "gpu, version, grouped, head_dim, severity, reason",
    KERNELS,
    ids=[f"{x[0]}-{x[1]}-{'gqa' if x[2] else 'mha'}-d{x[3]}" for x in KERNELS],
)
def test_fa4_kernel_by_what_is_missing(gpu, version, grouped, head_dim, severity, reason):
    found = list(layout_check.check_kernel("FA4", gpu, head_dim, grouped, version))
    if severity is None:
        assert not found
        return
    # What was only compiled says so beside what is wrong with the head size.
    others = {x.severity for x in found if reason not in x.message}
    assert others <= {"note"}
    (one,) = [x for x in found if reason in x.message]
    assert one.severity == severity and f"sm{layout_check.gpu_number(gpu)}" in one.message


@pytest.mark.parametrize("gpu", ["sm70", "sm75", "sm80", "sm90", "sm100", "sm120"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_vanilla_runs_on_every_gpu(gpu, head_dim):
    found = list(layout_check.check_kernel("VANILLA", gpu, head_dim))
    assert {x.severity for x in found} <= {"note"}


@pytest.mark.parametrize("gpu", ["", "90a0", "hopper", "sm9", "sm1000"])
def test_gpu_of_another_form_is_refused(gpu):
    with pytest.raises(ValueError, match="expected the form sm90"):
        layout_check.gpu_number(gpu)


@pytest.mark.parametrize("head_dim", [0, 1, 65, -2, True, 64.0])
def test_head_dim_that_cannot_be_rotated(head_dim):
    assert errors(Sizes(), NANO, head_dim=head_dim, backend="FA4", gpu="sm90") == ["head-dim"]


def test_require_layout_says_everything_in_one_error():
    with pytest.raises(ValueError) as error:
        layout_check.require_layout(
            Sizes(ring_size=2, attn2d_row_size=2, ulysses_size=16),
            NANO,
            world_size=8,
            backend="VANILLA",
            head_dim=127,
        )
    said = str(error.value)
    assert said.startswith("5 problems with the layout (ring_size=2 attn2d_row_size=2 ")
    for part in (
        "multiplies to 64, but there are 8 processes",
        "exclude each other",
        "does not divide num_key_value_heads=8",
        "Attention2D needs an attention backend that returns its LSE, and VANILLA does not",
        "head_dim=127",
    ):
        assert part in said


def test_require_layout_returns_warnings_and_notes():
    found = layout_check.require_layout(
        Sizes(ulysses_size=4), NANO, backend="VANILLA", gpu="sm75", head_dim=128, video_rows=2
    )
    assert [x.severity for x in found] == ["warning", "note"]


def test_sizes_are_read_off_a_mapping():
    mapping = SimpleNamespace(
        **{"cfg_size": 2, "tp_size": 2, "ring_size": 1, "attn2d_row_size": 1},
        **{"attn2d_col_size": 3, "ulysses_size": 4, "world_size": 48, "rank": 5},
    )
    sizes = Sizes.from_mapping(mapping)
    assert sizes == Sizes(cfg_size=2, tp_size=2, attn2d_col_size=3, ulysses_size=4)
    assert (sizes.processes, sizes.sequence_size, sizes.head_ways) == (48, 12, 8)
    assert Sizes.from_mapping(None) == Sizes() and str(Sizes()) == "one rank"


def test_backend_that_is_served_by_another_is_judged_as_that():
    assert not errors(Sizes(ulysses_size=8), NANO, backend="TRTLLM")
    (found,) = layout_check.check_backend(Sizes(attn2d_row_size=2), "TRTLLM")
    assert "VANILLA, which serves TRTLLM here, does not" in found.message


# ------------------------------------------------------------------ the unfixed release


def test_leaked_share_is_the_exact_error_of_one_attention():
    rng = random.Random(5)
    for valid, slots in ((23, 13), (1054, 670), (34, 1)):
        logits = [rng.gauss(0, 0.5) for _ in range(valid)]
        values = [rng.gauss(0, 1) for _ in range(valid)]
        total = sum(map(math.exp, logits))
        right = sum(math.exp(s) * v for s, v in zip(logits, values)) / total
        padded = sum(math.exp(s) * v for s, v in zip(logits + [0] * slots, values + [0] * slots))
        padded /= total + slots * math.exp(0)
        assert abs(padded - right) / abs(right) == pytest.approx(slots / (total + slots))
        # With the logits at 0 the sum is the number of keys, and the share the estimate.
        leak = unfixed.Leak(7, valid - 7, slots, 0)
        assert leak.share == pytest.approx(slots / (valid + slots))


@pytest.mark.parametrize(
    "run", unfixed.MEASURED, ids=lambda run: f"{run.what}-{run.leak.share:.3f}"
)
def test_measured_runs_lie_within_the_estimate(run):
    low, high = run.leak.expected
    assert low <= run.error <= high


@pytest.mark.parametrize(
    "leak, size",
    [
        (unfixed.Leak(30, 1024, 0, 0), "none"),
        (unfixed.Leak(30, 1024, 670, 0), "tens of percent"),
        (unfixed.Leak(7, 27, 3, 0), "percents to tens of percent"),
        (unfixed.Leak(30, 37440, 670, 0), "below the noise of bf16 to percents"),
        (unfixed.Leak(30, 37441, 0, 1), "below the noise of bf16"),
    ],
)
def test_error_class_is_that_of_the_whole_estimate(leak, size):
    assert leak.size == size


@settings(max_examples=300, deadline=None)
@given(sizes_drawn, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 60))
def test_leaks_vs_padded_slots_counted(sizes, prompts, rows):
    ways = sequence_ranks(sizes)
    half = -(-len(prompts) // sizes.cfg_size)
    expected = []
    for batch in (prompts[:half], prompts[half:]):
        if not batch:
            continue
        slots = max(batch)
        while slots % ways:
            slots += 1
        video = rows
        while video % ways:
            video += 1
        for prompt in batch:
            keys = [1] * rows + [0] * (video - rows) + [1] * prompt + [0] * (slots - prompt)
            # One rank cuts each sample to its own length.
            expected.append(keys.count(0) if ways > 1 else 0)
    found = unfixed.leaks(sizes, prompts, rows)
    assert [leak.slots for leak in found] == expected
    assert [leak.prompt for leak in found] == prompts


# Sizes, prompts, rows: the verdict.
VERDICTS = [
    (Sizes(), (30, 700), 27, "exact"),
    (Sizes(tp_size=8), (30, 700), 27, "exact"),
    (Sizes(cfg_size=2, tp_size=2), (30, 700), 27, "exact"),
    (Sizes(cfg_size=2), (), None, "exact"),
    (Sizes(ulysses_size=2), (30, 700), 1024, "wrong"),
    (Sizes(ulysses_size=2), (12, 12), 28, "exact"),
    (Sizes(ulysses_size=2), (12, 12), 27, "wrong"),
    (Sizes(ulysses_size=2), (13, 13), 28, "wrong"),
    (Sizes(attn2d_row_size=2, attn2d_col_size=2), (12, 16), 28, "wrong"),
    (Sizes(cfg_size=2, ulysses_size=2), (30, 700), 1024, "exact"),
    (Sizes(cfg_size=2, ulysses_size=4), (30, 700), 1024, "wrong"),
    (Sizes(ulysses_size=2), (), None, "depends"),
    (Sizes(ulysses_size=2), (), 27, "wrong"),
    (Sizes(ulysses_size=2), (), 28, "depends"),
    (Sizes(ulysses_size=2), (700,), 28, "depends"),
    (Sizes(ulysses_size=2), (701,), 28, "wrong"),
    (Sizes(ulysses_size=2), (30, 700), None, "wrong"),
    (Sizes(ulysses_size=2), (30, 30), None, "depends"),
    (Sizes(ring_size=2), (30, 700), 28, "refused"),
]


@pytest.mark.parametrize(
    "sizes, prompts, rows, status",
    VERDICTS,
    ids=[f"{x[0]}-{x[1]}-{x[2]}".replace(" ", "") for x in VERDICTS],
)
def test_verdict_on_the_unfixed_release(sizes, prompts, rows, status):
    verdict = unfixed.judge(sizes, prompts, rows)
    assert verdict.status == status
    said = " ".join(verdict.words())
    assert ("WRONGLY" in said) == (status in ("wrong", "depends"))
    if status in ("wrong", "depends"):
        # An estimate never comes without saying what it is worth.
        assert "no bound" in said and "Nearest measured" in said
        assert verdict.worst.slots > 0
        unknown = not prompts or rows is None or len(prompts) == 1
        assert unknown == any(leak.assumed for leak in verdict.leaks)
    else:
        assert not verdict.leaks or all(leak.slots == 0 for leak in verdict.leaks)


# ------------------------------------------------------------------ the command


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


def test_rules_need_the_standard_library_only():
    code = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('rules', {str(PATH)!r})\n"
        "sys.modules['rules'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(names - set(sys.stdlib_module_names) - {'rules', '__main__', '__mp_main__'})\n"
    )
    # Without the site, whose hooks may import what they like.
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys\n" + code], capture_output=True, text=True
    )
    assert result.stdout.strip() == "set()", result.stdout + result.stderr


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
