# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The layout's rules and the unfixed releases' padding against brute force, without torch.

Fields: P sequence-parallel size, H query heads, H_kv K/V heads, S rows of the generation sequence,
m padded slots.
"""

import itertools
import json
import math
import random
import re
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight import layout, unfixed
from preflight.layout import Heads, Sizes

NANO = [Heads(32, 8)]


def errors(*args, **kwargs) -> list[str]:
    found = layout.check_layout(*args, **kwargs)
    return [finding.name for finding in found if finding.severity == "error"]


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
    # Any backend serves a batch; these two return no LSE to merge by.
    lacks_lse = backend in ("VANILLA", "TRTLLM")
    return (
        len(ranks) == world_size
        and not (mesh and ring)
        and not (lacks_lse and (mesh or ring))
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
    found = [x for x in layout.check_heads(sizes, towers) if "does not divide" in x.message]
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
    assert layout.ranks_with_rows(sizes, rows) == used
    found = list(layout.check_video(sizes, rows))
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


# ------------------------------------------------------------------ single rules


@pytest.mark.parametrize("size", [0, -1, 1.0, "2", True, None])
def test_sizes_that_are_no_whole_numbers(size):
    sizes = Sizes(ulysses_size=size)
    (found,) = layout.check_layout(sizes, NANO, backend="FA4", video_rows=7, world_size=2)
    assert found.severity == "error"
    assert f"ulysses_size={size!r}" in found.message and "whole numbers" in found.message


def test_counts_of_both_towers_are_named():
    towers = [Heads(24, 8, "text"), Heads(32, 4, "generation")]
    found = list(layout.check_heads(Sizes(tp_size=2, ulysses_size=8), towers))
    said = " ".join(x.message for x in found)
    assert "= 16 does not divide text tower num_attention_heads=24" in said
    assert "text tower num_key_value_heads=8, generation tower num_key_value_heads=4" in said
    assert "generation tower num_attention_heads=32" not in said
    assert "must be one of [1, 2, 4]" in said and "same number of key/value heads" in said


@pytest.mark.parametrize("count", [0, -8, True, 8.0, None], ids=repr)
def test_head_counts_that_are_no_counts_are_refused(count):
    """Before anything is divided by them."""
    (found,) = layout.check_heads(Sizes(), [Heads(32, count)])
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
    found = list(layout.check_kernel("FA4", gpu, head_dim, grouped, version))
    if severity is None:
        assert not found
        return
    # What was only compiled says so beside what is wrong with the head size.
    others = {x.severity for x in found if reason not in x.message}
    assert others <= {"note"}
    (one,) = [x for x in found if reason in x.message]
    assert one.severity == severity and f"sm{layout.gpu_number(gpu)}" in one.message


@pytest.mark.parametrize("gpu", ["sm70", "sm75", "sm80", "sm90", "sm100", "sm120"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_vanilla_runs_on_every_gpu(gpu, head_dim):
    found = list(layout.check_kernel("VANILLA", gpu, head_dim))
    assert {x.severity for x in found} <= {"note"}


@pytest.mark.parametrize("gpu", ["", "90a0", "hopper", "sm9", "sm1000"])
def test_gpu_of_another_form_is_refused(gpu):
    with pytest.raises(ValueError, match="expected the form sm90"):
        layout.gpu_number(gpu)


@pytest.mark.parametrize("head_dim", [0, 1, 65, -2, True, 64.0])
def test_head_dim_that_cannot_be_rotated(head_dim):
    assert errors(Sizes(), NANO, head_dim=head_dim, backend="FA4", gpu="sm90") == ["head-dim"]


def test_sizes_multiply():
    sizes = Sizes(cfg_size=2, tp_size=2, attn2d_col_size=3, ulysses_size=4)
    assert (sizes.processes, sizes.sequence_size, sizes.head_ways) == (48, 12, 8)
    assert str(sizes) == "cfg_size=2 tp_size=2 attn2d_col_size=3 ulysses_size=4"
    assert str(Sizes()) == "one rank"


def test_backend_that_is_served_by_another_is_judged_as_that():
    assert not errors(Sizes(ulysses_size=8), NANO, backend="TRTLLM")
    (found,) = layout.check_backend(Sizes(attn2d_row_size=2), "TRTLLM")
    assert "VANILLA, which serves TRTLLM here, does not" in found.message


@pytest.mark.parametrize("backend", ["CUTEDSL", "CUDNN", "FLASHINFER", "TE", "ELSE"])
@pytest.mark.parametrize("merges", [False, True])
def test_backend_without_key_lengths_is_served_a_length_at_a_time(backend, merges):
    found = list(layout.check_backend(Sizes(ring_size=2 if merges else 1, ulysses_size=2), backend))
    assert [x.severity for x in found] == (["warning", "note"] if merges else ["note"])
    assert "one launch per distinct length" in found[-1].message
    if merges:
        assert f"whether {backend} does, its support_lse() says" in found[0].message


@pytest.mark.parametrize("backend", ["FA4", "VANILLA", "TRTLLM"])
def test_backend_with_key_lengths_has_nothing_to_be_said(backend):
    assert not list(layout.check_backend(Sizes(ulysses_size=8), backend))


@pytest.mark.parametrize("length, tokens, lost", [(4096, 4094, 0), (4096, 5000, 906), (8, 7, 1)])
def test_cut_prompt_says_what_remains(length, tokens, lost):
    found = list(layout.check_prompts([tokens, 1], length))
    assert len(found) == bool(lost)
    if lost:
        assert found[0].severity == "warning"
        assert f"{length - 2} remain and the last {lost} are lost" in found[0].message


# ------------------------------------------------------------------ the unfixed releases


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
def test_verdict_on_the_unfixed_releases(sizes, prompts, rows, status):
    verdict = unfixed.judge(sizes, prompts, rows)
    assert verdict.status == status
    said = " ".join(verdict.words())
    assert "TensorRT-LLM 1.3.0rc25 to rc29" in said
    assert ("WRONGLY" in said) == (status in ("wrong", "depends"))
    assert ("Main since 2026-10-02 (1.4.0rc1) is exact" in said) == ("WRONGLY" in said)
    if status in ("wrong", "depends"):
        # An estimate never comes without saying what it is worth.
        assert "no bound" in said and "Nearest measured" in said
        assert verdict.worst.slots > 0
        unknown = not prompts or rows is None or len(prompts) == 1
        assert unknown == any(leak.assumed for leak in verdict.leaks)
    else:
        assert not verdict.leaks or all(leak.slots == 0 for leak in verdict.leaks)
