# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The exactness checks, apart from the tests, so that seeded faults can be put through them too.

Each takes `run(world_size, function, *args)`, which is Ranks.run or one that breaks the code in
the ranks first, and raises ToleranceError when numbers are off.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable

import torch
import torch.distributed as dist
from cosmos3_weights import init_random_weights

from support import attend
from support.cases import AttentionCase, Layout
from support.model import ModelCase, run_oracle
from support.reference import padded_attention, per_sample_attention
from support.tiers import (
    SEES_THE_BUG,
    ToleranceError,
    assert_bitwise,
    assert_sees_the_bug,
    assert_within,
    reduction_order,
)
from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import Cosmos3VFMTransformer

# diffusers keeps the timestep's features and the norms' variances in float32 in a float64 model.
AGAINST_ORACLE = {torch.float32: 5e-6, torch.float64: 1e-6}

_NAMES = ("q", "k", "v", "text_k", "text_v")


def is_padded(layout: Layout, lengths: tuple[int, ...], video_rows: int) -> bool:
    """Whether the unfixed path has any padding to count."""
    size = layout.sequence_size
    if size == 1:
        return False  # it loops over the samples then
    # Guidance branches on ranks of their own are batches by themselves.
    share = len(lengths) // layout.cfg
    batches = [lengths[first : first + share] for first in range(0, len(lengths), share)]
    unequal = any(len(set(batch)) > 1 or max(batch) % size for batch in batches)
    return bool(video_rows % size or unequal)


def attention_reference(case: AttentionCase) -> torch.Tensor:
    drawn = case.tensors()
    return per_sample_attention(*(drawn[name] for name in _NAMES), case.lengths)[0]


def _logic_attention(rank: int, case: AttentionCase) -> tuple[torch.Tensor, torch.Tensor]:
    return attend.exact(rank, case), attend.unfixed(rank, case)


def check_attention(run: Callable, case: AttentionCase, least: float = SEES_THE_BUG) -> None:
    """P ranks attend exactly; the unfixed path on the same ranks is the bug, and is seen."""
    shards = run(case.layout.world_size, _logic_attention, case)
    fixed, unfixed = (attend.gathered(case, [s[which] for s in shards]) for which in (0, 1))
    bound, expected = reduction_order(case.layout, case.dtype), attention_reference(case)
    assert_within(fixed, expected, bound, f"{case} against per-sample attention")
    drawn = case.tensors()
    padded = padded_attention(
        *(drawn[name] for name in _NAMES), case.lengths, case.layout.sequence_size
    )
    if case.layout.ring > 1:
        # There is no unfixed ring to run: it is refused, and would skip the ring, since the text
        # makes the keys more than the queries.
        unfixed = padded
    if is_padded(case.layout, case.lengths, case.video_rows):
        assert_sees_the_bug(unfixed, expected, bound, least)
    # What the unfixed ranks compute is the bug as the contract describes it, not another one: it
    # is right where nothing is padded.
    assert_within(unfixed, padded, bound, f"unfixed {case} against padded attention")


@functools.lru_cache(maxsize=24)
def _host(model, overrides, layout, backend, dtype, seed, rank, group, text_kv):
    case = ModelCase(model, overrides, layout, backend=backend, dtype=dtype, seed=seed)
    config = DiffusionModelConfig.from_diffusers(
        case.config,
        backend=backend,
        dtype=dtype,
        visual_gen_mapping=attend.mapping(layout, rank) if layout.world_size > 1 else None,
    )
    transformer = Cosmos3VFMTransformer(config, text_kv=text_kv)
    init_random_weights(transformer, seed)
    return transformer


def host(case: ModelCase, rank: int = 0, text_kv: str = "exact") -> Cosmos3VFMTransformer:
    """The host's transformer with an empty cache. A model serves all cases that differ in inputs.

    Making the process groups of a layout and the weights costs more than a forward.
    """
    transformer = _host(
        case.model,
        case.overrides,
        case.layout,
        case.backend,
        case.dtype,
        case.seed,
        rank,
        dist.group.WORLD if dist.is_initialized() else None,
        text_kv,
    )
    transformer.reset_cache()
    return transformer


def velocities(
    transformer, case: ModelCase, samples: slice | list[int] = slice(None)
) -> dict[str, torch.Tensor]:
    """Velocities by modality, those of given frames and actions zeroed.

    Args:
        transformer: From host().
        case: What to predict.
        samples: Those that this rank's guidance branch computes.
    """
    inputs = {
        name: value[samples] if isinstance(value, torch.Tensor) else value
        for name, value in case.inputs().items()
    }
    if "control_latents" in inputs:
        inputs["control_latents"] = [x[samples] for x in inputs["control_latents"]]
    output = transformer(**inputs)
    found = {name: getattr(output, name) for name in ("video", "audio", "action")}
    return case.noisy_only({name: x for name, x in found.items() if x is not None})


def _samples(case: ModelCase, rank: int) -> slice:
    """The samples of a rank: all, or its share where guidance branches have ranks of their own."""
    share = len(case.lengths) // case.layout.cfg
    first = attend.mapping(case.layout, rank).cfg_rank * share
    return slice(first, first + share)


def _logic_transformer(rank: int, case: ModelCase) -> tuple:
    samples = _samples(case, rank)
    # The release refuses a ring, so there is no unfixed path to run there.
    unfixed = None if case.layout.ring > 1 else host(case, rank, "padded")
    return (
        velocities(host(case, rank), case, samples),
        velocities(unfixed, case, samples) if unfixed else {},
        # In the same process: a fault in the code shows in both, and only the oracle tells.
        velocities(host(case.single()), case) if rank == 0 else None,
    )


def _branches_together(case: ModelCase, results: list) -> list[list[dict]]:
    """The outputs of all samples, [(fixed, unfixed) of one branch after the other] by rank."""
    size = case.layout.world_size // case.layout.cfg
    joined = []
    for rank in range(size):
        parts = results[rank::size]
        joined.append(
            [
                {name: torch.cat([part[which][name] for part in parts]) for name in parts[0][which]}
                for which in (0, 1)
            ]
        )
    return joined


@functools.lru_cache(maxsize=None)
def oracle(case: ModelCase) -> dict[str, torch.Tensor]:
    """diffusers' velocities. They depend on neither layout nor backend: pass a plain case."""
    return run_oracle(case)


def sequence_rows(case: ModelCase) -> int:
    """Rows of the generation sequence: controls, video, sound and actions."""
    frames, height, width = case.video
    video = frames * -(-height // 2) * -(-width // 2)
    return video * (1 + case.controls) + case.sound_rows + case.action_rows


def plain(case: ModelCase) -> ModelCase:
    """The case without what the oracle does not know."""
    return dataclasses.replace(case, layout=Layout(), backend="VANILLA")


def check_transformer(run: Callable, case: ModelCase, least: float = SEES_THE_BUG) -> None:
    """P ranks, one rank and diffusers agree; the unfixed path on the same ranks does not."""
    results = run(case.layout.world_size, _logic_transformer, case)
    one = results[0][2]
    results = _branches_together(case, results)
    fixed, unfixed = results[0]
    expected = oracle(plain(case))
    assert fixed.keys() == one.keys() == expected.keys()
    against_one, against_oracle = (
        reduction_order(case.layout, case.dtype),
        AGAINST_ORACLE[case.dtype],
    )
    for name, velocity in expected.items():
        what = f"{case}: {name}"
        assert_within(one[name], velocity, against_oracle, f"{what}, one rank against diffusers")
        assert_within(fixed[name], one[name], against_one, f"{what}, ranks against one rank")
        assert_within(fixed[name], velocity, against_oracle, f"{what}, ranks against diffusers")
        for rank, (other, _) in enumerate(results):
            assert_bitwise(other[name], fixed[name], f"{what}, rank {rank} against rank 0")
    if case.layout.ring > 1:
        assert unfixed == {}
    elif is_padded(case.layout, case.lengths, sequence_rows(case)):
        assert_sees_the_bug(unfixed["video"], one["video"], against_one, least)
    else:
        assert_within(unfixed["video"], one["video"], against_one, f"{case}: unfixed, no padding")


def _logic_branches(rank: int, cases: tuple) -> tuple:
    transformer = host(cases[0], rank)
    saved, first, again = [], [], []
    for branch in cases:
        transformer.reset_cache()
        first.append(velocities(transformer, branch))
        saved.append((transformer.cached_kv, transformer.cached_freqs_gen))
    # Neither the order nor the last branch is the one in which they were made.
    indices = list(range(len(cases)))
    for index in indices + indices[::-1]:
        transformer.cached_kv, transformer.cached_freqs_gen = saved[index]
        again.append((index, velocities(transformer, cases[index])))
    return first, again


def check_branches(run: Callable, cases: tuple[ModelCase, ...]) -> None:
    """Guidance branches that a pipeline swaps by assignment keep their own text and lengths.

    Args:
        run: Runs the ranks.
        cases: One for each branch, of one layout and model; prompts and controls may differ.
    """
    first, again = run(cases[0].layout.world_size, _logic_branches, cases)[0]
    for case, found in zip(cases, first):
        for name, velocity in oracle(plain(case)).items():
            what = f"branch {case}: {name} against diffusers"
            assert_within(found[name], velocity, AGAINST_ORACLE[case.dtype], what)
    for index, found in again:
        for name, velocity in first[index].items():
            assert_bitwise(found[name], velocity, f"branch {cases[index]} restored: {name}")


def _logic_selected(rank: int, case: ModelCase, samples: list[int]) -> dict:
    transformer = host(case, rank)
    velocities(transformer, case)
    transformer.cached_kv = transformer.cached_kv.select(samples)
    transformer.cached_freqs_gen = tuple(x[samples] for x in transformer.cached_freqs_gen)
    return velocities(transformer, case, samples)


def check_selected(run: Callable, case: ModelCase) -> None:
    """A batch that is cut to its conditional half in mid-request keeps that half's text."""
    samples = list(range(len(case.lengths) // 2, len(case.lengths)))
    for found in run(case.layout.world_size, _logic_selected, case, samples):
        for name, velocity in oracle(plain(case)).items():
            what = f"selected samples of {case}: {name} against diffusers"
            assert_within(found[name], velocity[samples], AGAINST_ORACLE[case.dtype], what)


def _logic_text_tail(rank: int, case: AttentionCase) -> bool:
    layout = attend.TextKVLayout.from_mapping(attend.mapping(case.layout, rank))
    text = attend.text_of(case, case.tensors(), layout)
    return all(
        bool((text.data[:, :, sample, length:] == 0).all())
        for sample, length in enumerate(text.local_lengths)
    )


def check_text_tail(run: Callable, case: AttentionCase) -> None:
    """What is cached past each prompt is zero: kernels multiply it by weight 0."""
    if not all(run(case.layout.world_size, _logic_text_tail, case)):
        raise ToleranceError("text rows past a prompt's length are not zero")
