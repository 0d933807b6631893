# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input on several ranks: every rank raises the same ValueError, and none is left waiting."""

import dataclasses
import re
import time

import pytest
import torch
from support import attend
from support.cases import AttentionCase, Layout
from support.checks import host
from support.model import ModelCase

from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout

pytestmark = pytest.mark.gloo

# What all ranks have to raise within. A collective that waits for a rank would take two minutes.
SECONDS = 20.0


def _backend(layout: Layout) -> str:
    """Attention2D and ring need an LSE, which VANILLA has not."""
    return "VANILLA" if layout.sequence_size == layout.ulysses else "FA4"


def _attach(rank: int, layout: Layout, **changes) -> None:
    """One attention with a text that belongs to another sequence."""
    case = AttentionCase(layout=layout, dtype=torch.float32, heads=8, kv_heads=8)
    vgm = attend.mapping(case.layout, rank)
    attn = attend.install(attend.wrap_parallel_attention(attend.compute_backend(case), vgm))
    cached = dataclasses.replace(case, **changes)
    drawn = cached.tensors()
    text = TextKV.build(
        [(drawn["text_k"], drawn["text_v"])], cached.lengths, TextKVLayout.from_mapping(vgm)
    )
    q, k, v = (
        case.padded_video(case.tensors()[name]).chunk(layout.world_size, dim=1)[rank]
        for name in "qkv"
    )
    attend.call(attn, q, k, v, text=text.attach(q.flatten(2), case.video_rows)[0])


def _logic_attach_batch(rank, layout):
    _attach(rank, layout, lengths=(7, 19, 3))


def _logic_attach_dtype(rank, layout):
    _attach(rank, layout, dtype=torch.float64)


def _logic_lengths_over_rows(rank, layout):
    case = AttentionCase()
    drawn = case.tensors()
    vgm = attend.mapping(layout, rank)
    TextKV.build([(drawn["text_k"], drawn["text_v"])], (7, 99), TextKVLayout.from_mapping(vgm))


def _logic_kv_heads(rank, layout):
    case = AttentionCase(kv_heads=3, heads=3)
    drawn = case.tensors()
    vgm = attend.mapping(layout, rank)
    TextKV.build([(drawn["text_k"], drawn["text_v"])], case.lengths, TextKVLayout.from_mapping(vgm))


def _logic_model_heads(rank, layout):
    heads = (("num_attention_heads", 6), ("num_key_value_heads", 3))
    host(ModelCase(layout=layout, backend=_backend(layout), overrides=heads), rank)


def _logic_model_backend(rank, layout):
    host(ModelCase(layout=layout, backend="CUTEDSL"), rank)


def _forward(rank, layout, **changes):
    case = ModelCase(layout=layout, backend=_backend(layout))
    host(case, rank).forward(**(case.inputs() | changes))


def _logic_left_padded(rank, layout):
    _forward(rank, layout, text_mask=ModelCase().inputs()["text_mask"].flip(1))


def _logic_hole(rank, layout):
    mask = ModelCase().inputs()["text_mask"]
    mask[1, 3] = 0
    _forward(rank, layout, text_mask=mask)


def _logic_empty_prompt(rank, layout):
    mask = ModelCase().inputs()["text_mask"]
    mask[0] = 0
    _forward(rank, layout, text_mask=mask)


def _logic_text_of_another_batch(rank, layout):
    other = ModelCase(lengths=(7, 19, 3)).inputs()
    _forward(rank, layout, text_ids=other["text_ids"], text_mask=other["text_mask"])


def _logic_latents_of_another_dtype(rank, layout):
    _forward(rank, layout, hidden_states=ModelCase(dtype=torch.float64).inputs()["hidden_states"])


def _logic_cache_of_another_batch(rank, layout):
    """The prompts changed and nobody called reset_cache()."""
    case = ModelCase(layout=layout, backend=_backend(layout))
    transformer = host(case, rank)
    transformer.forward(**case.inputs())
    transformer.forward(**dataclasses.replace(case, lengths=(7, 19, 3)).inputs())


def _logic_cache_of_another_model(rank, layout):
    """A cached text from a model with half as many K/V heads: another head layout."""
    case = ModelCase(layout=layout, backend=_backend(layout))
    small = dataclasses.replace(case, overrides=(("num_key_value_heads", layout.head_ways),))
    other = host(small, rank)
    other.forward(**case.inputs())
    transformer = host(case, rank)
    transformer.cached_kv = other.cached_kv
    transformer.cached_freqs_gen = other.cached_freqs_gen
    transformer.forward(**case.inputs())


def _logic_cache_of_one_rank(rank, layout):
    """A cached text that was built without the layout holds all heads."""
    case = ModelCase(layout=layout, backend=_backend(layout))
    alone = host(case.single())
    alone.forward(**case.inputs())
    transformer = host(case, rank)
    transformer.cached_kv = alone.cached_kv
    transformer.cached_freqs_gen = alone.cached_freqs_gen
    transformer.forward(**case.inputs())


# Name: (what each rank runs, then the value, what was expected and what would work, as patterns).
MISTAKES = {
    "attach-batch": (_logic_attach_batch, r"is \(2, ", r"= \(3, ", r"call reset_cache\(\)"),
    "attach-dtype": (_logic_attach_dtype, r"is .*float32", r"= .*float64", r"call reset_cache\(\)"),
    "lengths-over-rows": (
        _logic_lengths_over_rows,
        r"length 99 of sample 1",
        r"\[1, 24\]",
        r"pad or truncate",
    ),
    "kv-heads": (_logic_kv_heads, r"3 text K/V heads", r"Ulysses size", r"sizes .*: \[1, 3\]"),
    "model-heads": (
        _logic_model_heads,
        r"num_key_value_heads=3",
        r"does not divide",
        r"must be one of \[1, 3\]",
    ),
    "model-backend": (
        _logic_model_backend,
        r"CuTeDSLAttention",
        r"takes no key lengths",
        r"use FA4",
    ),
    "mask-left-padded": (
        _logic_left_padded,
        r"row 0",
        r"ones followed by zeros",
        r"pad prompts on the right",
    ),
    "mask-with-hole": (_logic_hole, r"row 1", r"ones followed by zeros", r"without holes"),
    "empty-prompt": (_logic_empty_prompt, r"row 0 has no token", r"empty", r"at least one token"),
    "text-of-another-batch": (
        _logic_text_of_another_batch,
        r"\(3, 24\)",
        r"must both be \[2, S_text\]",
        r"text_mask",
    ),
    "latents-of-another-dtype": (
        _logic_latents_of_another_dtype,
        r"float64",
        r"float32",
        r"cast the latents",
    ),
    "cache-of-another-batch": (
        _logic_cache_of_another_batch,
        r"is \(3, ",
        r"= \(2, ",
        r"call reset_cache\(\)",
    ),
    "cache-of-another-model": (
        _logic_cache_of_another_model,
        r"heads",
        r"expected|holds|but",
        r"reset_cache|rebuild",
    ),
    "cache-of-one-rank": (
        _logic_cache_of_one_rank,
        r"heads|layout|ulysses",
        r"expected|holds|but",
        r"reset_cache|rebuild",
    ),
}


# Mistakes of a head count or of one attention under Ulysses alone.
ULYSSES_ONLY = ("attach-batch", "attach-dtype", "kv-heads", "model-heads")
ULYSSES = [Layout(ulysses=2), Layout(ulysses=4)]
OTHERS = [
    Layout(rows=1, cols=2),
    Layout(rows=2, cols=2),
    Layout(ring=2),
    Layout(ring=2, ulysses=2),
    Layout(tp=2, ulysses=2),
]


def _cases() -> list:
    cases = []
    for name in MISTAKES:
        for layout in ULYSSES + ([] if name in ULYSSES_ONLY else OTHERS):
            cases.append(pytest.param(name, layout, id=f"{name}-{layout}"))
    return cases


@pytest.mark.parametrize(("name", "layout"), _cases())
def test_bad_input_every_rank_vs_value_expected_remedy(ranks, name, layout):
    function, *patterns = MISTAKES[name]
    size = layout.world_size
    # The first case of a number of ranks starts processes, which is not what is timed.
    ranks.run(size, _logic_nothing)
    start = time.monotonic()
    outcomes = ranks.outcomes(size, function, layout, timeout=SECONDS)
    assert time.monotonic() - start < SECONDS
    assert [o.error for o in outcomes] == ["ValueError"] * size, "\n".join(
        f"rank {rank}: {o.error}: {o.message or o.trace}" for rank, o in enumerate(outcomes)
    )
    assert len({o.message for o in outcomes}) == 1, "ranks tell different stories"
    for pattern in patterns:
        assert re.search(pattern, outcomes[0].message, re.DOTALL), (
            f"{pattern!r} is not in: {outcomes[0].message}"
        )


def _logic_nothing(rank: int) -> None:
    pass


def _logic_mapping(rank: int, sizes: dict) -> None:
    VisualGenMapping(world_size=2, rank=rank, **sizes)


@pytest.mark.parametrize(
    ("sizes", "pattern"),
    [
        ({"ulysses_size": 4}, r"multiply to 4, but there are 2 processes.*product is 2"),
        ({"ulysses_size": 0}, r"ulysses_size=0; expected a whole number of at least 1"),
        (
            {"ring_size": 2, "attn2d_row_size": 2},
            r"ring_size=2 .*2 x 1.*exclude each other.*set one",
        ),
    ],
    ids=["product", "zero", "ring-and-attn2d"],
)
def test_bad_layout_every_rank_vs_value_expected_remedy(ranks, sizes, pattern):
    ranks.run(2, _logic_nothing)
    outcomes = ranks.outcomes(2, _logic_mapping, sizes, timeout=SECONDS)
    assert [o.error for o in outcomes] == ["ValueError"] * 2
    assert len({o.message for o in outcomes}) == 1
    assert re.search(pattern, outcomes[0].message, re.DOTALL), outcomes[0].message
