# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input on several ranks: every rank raises the same ValueError, and none is left waiting."""

import dataclasses
import re
import time

import pytest
import torch
import torch.distributed as dist
from support.cases import Layout
from support.checks import host
from support.model import ModelCase

from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

pytestmark = pytest.mark.gloo

# What all ranks have to raise within. A collective that waits for a rank would take two minutes.
SECONDS = 20.0


# A small model: what takes time here is only to be there.
LAYERS = (("num_hidden_layers", 1),)


def _backend(layout: Layout) -> str:
    """Attention2D and ring need an LSE, which VANILLA has not."""
    return "VANILLA" if layout.sequence_size == layout.ulysses else "FA4"


def _logic_model_heads(rank, layout):
    heads = (("num_attention_heads", 6), ("num_key_value_heads", 3))
    host(ModelCase(layout=layout, backend=_backend(layout), overrides=heads), rank)


def _logic_model_backend(rank, layout, backend):
    host(ModelCase(layout=layout, backend=backend), rank)


def _model(rank, layout):
    """A case and its model, once every rank has one: a slow rank is none that was left waiting."""
    case = ModelCase(layout=layout, backend=_backend(layout), overrides=LAYERS)
    transformer = host(case, rank)
    dist.barrier()
    return case, transformer


def _forward(rank, layout, **changes):
    case, transformer = _model(rank, layout)
    transformer.forward(**(case.inputs() | changes))


def _logic_mask(rank, layout, name):
    mask = ModelCase().inputs()["text_mask"].float()
    if name == "none":
        mask = None
    elif name == "three-dimensions":
        mask = mask[None]
    elif name == "left-padded":
        mask = mask.flip(1)
    elif name == "empty":
        mask[0] = 0
    else:
        mask[1, 3] = {"hole": 0.0, "half": 0.5, "nan": float("nan")}[name]
    _forward(rank, layout, text_mask=mask)


def _logic_text_of_another_batch(rank, layout):
    other = ModelCase(lengths=(7, 19, 3)).inputs()
    _forward(rank, layout, text_ids=other["text_ids"], text_mask=other["text_mask"])


def _logic_latents_of_another_dtype(rank, layout):
    _forward(rank, layout, hidden_states=ModelCase(dtype=torch.float64).inputs()["hidden_states"])


def _logic_cache_without_lengths(rank, layout):
    """Code that cut the cache by itself left a list of pairs."""
    case, transformer = _model(rank, layout)
    transformer.forward(**case.inputs())
    transformer.cached_kv = list(transformer.cached_kv)
    transformer.forward(**case.inputs())


def _logic_cache_of_another_dtype(rank, layout):
    case, transformer = _model(rank, layout)
    transformer.forward(**case.inputs())
    transformer.cached_kv.data = transformer.cached_kv.data.double()
    transformer.forward(**case.inputs())


def _logic_cache_of_another_batch(rank, layout):
    """The prompts changed and nobody called reset_cache()."""
    case, transformer = _model(rank, layout)
    transformer.forward(**case.inputs())
    transformer.forward(**dataclasses.replace(case, lengths=(7, 19, 3)).inputs())


def _logic_cache_of_another_model(rank, layout):
    """A cached text from a model with half as many K/V heads: another head layout."""
    case = ModelCase(layout=layout, backend=_backend(layout), overrides=LAYERS)
    small = dataclasses.replace(
        case, overrides=(*LAYERS, ("num_key_value_heads", layout.head_ways))
    )
    other = host(small, rank)
    other.forward(**case.inputs())
    transformer = host(case, rank)
    transformer.cached_kv = other.cached_kv
    transformer.cached_freqs_gen = other.cached_freqs_gen
    transformer.forward(**case.inputs())


def _logic_cache_of_one_rank(rank, layout):
    """A cached text that was built without the layout holds all heads."""
    case = ModelCase(layout=layout, backend=_backend(layout), overrides=LAYERS)
    alone = host(case.single())
    alone.forward(**case.inputs())
    transformer = host(case, rank)
    transformer.cached_kv = alone.cached_kv
    transformer.cached_freqs_gen = alone.cached_freqs_gen
    transformer.forward(**case.inputs())


# Name: (what each rank runs, its arguments, and patterns of the message).
MISTAKES = {
    "model-heads": (
        (_logic_model_heads,),
        (r"num_key_value_heads=3", r"does not divide", r"must be one of \[1, 3\]"),
    ),
    **{
        f"backend-without-lse-{backend.lower()}": (
            (_logic_model_backend, backend),
            (r"needs an attention backend that returns its LSE", r"choose FA4"),
        )
        for backend in ("VANILLA", "CUTEDSL", "DENSE-NHD")
    },
    **{
        f"mask-{name}": ((_logic_mask, name), ("text_mask", pattern))
        for name, pattern in {
            "none": r"None.*\[.*S_text\]",
            "three-dimensions": r"\(1, 2, 24\).*\[.*S_text\]",
            "left-padded": r"row 0 .*ones.*followed by zeros; pad",
            "hole": r"row 1 .*ones.*followed by zeros; pad .*without holes",
            "half": r"row 1 .*ones.*followed by zeros; pad",
            "nan": r"row 1 .*ones.*followed by zeros; pad",
            "empty": r"row 0 .* a token",
        }.items()
    },
    "text-of-another-batch": (
        (_logic_text_of_another_batch,),
        (r"\(3, 24\)", r"must both be \[2, S_text\]", r"text_mask"),
    ),
    "latents-of-another-dtype": (
        (_logic_latents_of_another_dtype,),
        (r"float64", r"float32", r"cast the latents"),
    ),
    "cache-without-lengths": (
        (_logic_cache_without_lengths,),
        (r"cached_kv is a list", r"no prompt lengths", r"select\(samples\)"),
    ),
    **{
        f"cache-of-{what}": ((function,), (holds, needs, r"call reset_cache\(\)"))
        for what, function, holds, needs in (
            ("another-batch", _logic_cache_of_another_batch, r"= \(2, ", r"needs \(3, "),
            ("another-dtype", _logic_cache_of_another_dtype, r"= .*float64", r"needs .*float32"),
            ("another-model", _logic_cache_of_another_model, r"K/V heads.*= \(2, ", r"needs \(2, "),
            ("one-rank", _logic_cache_of_one_rank, r"K/V heads.*= \(2, ", r"needs \(2, "),
        )
    },
}
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
        for layout in ULYSSES + OTHERS:
            if name == "model-heads" and layout not in ULYSSES:
                continue
            # Only meshes and rings need an LSE.
            if name.startswith("backend") and _backend(layout) == "VANILLA":
                continue
            cases.append(pytest.param(name, layout, id=f"{name}-{layout}"))
    return cases


@pytest.mark.parametrize(("name", "layout"), _cases())
def test_bad_input_every_rank_vs_value_expected_remedy(ranks, name, layout):
    (function, *arguments), patterns = MISTAKES[name]
    size = layout.world_size
    # The first case of a number of ranks starts processes, which is not what is timed.
    ranks.run(size, _logic_nothing)
    start = time.monotonic()
    outcomes = ranks.outcomes(size, function, layout, *arguments, timeout=SECONDS)
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
