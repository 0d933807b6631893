# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Legal configurations drawn at random, in float64, against per-sample attention.

A failure is shrunk to the smallest case and printed with what reproduces it.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import AttentionCase, Layout
from support.checks import check_attention, check_transformer
from support.model import ModelCase

pytestmark = pytest.mark.gloo

MAX_RANKS = 8
WITH_LSE = ["FA4", "DENSE-HND-LSE"]


@st.composite
def legal_cases(draw) -> AttentionCase:
    """A layout of at most MAX_RANKS ranks, and heads that it divides."""
    tp = draw(st.sampled_from([1, 2]))
    ulysses = draw(st.sampled_from([u for u in (1, 2, 3, 4, 8) if tp * u <= MAX_RANKS]))
    meshes = [{}, {"rows": 1, "cols": 2}, {"rows": 2, "cols": 1}, {"rows": 2, "cols": 2}]
    meshes += [{"rows": 2, "cols": 3}, {"rows": 4, "cols": 1}, {"rows": 1, "cols": 4}]
    meshes += [{"ring": 2}, {"ring": 3}, {"ring": 4}]
    layouts = [Layout(tp=tp, ulysses=ulysses, **mesh) for mesh in meshes]
    layout = draw(st.sampled_from([x for x in layouts if x.world_size <= MAX_RANKS]))
    kv_heads = layout.head_ways * draw(st.integers(1, 2))
    # Ring and Attention2D need an LSE, which VANILLA has not.
    alone = layout.ring * layout.rows * layout.cols == 1
    return AttentionCase(
        layout=layout,
        lengths=tuple(draw(st.lists(st.integers(1, 140), min_size=1, max_size=4))),
        video_rows=draw(st.integers(1, 70)),
        heads=kv_heads * draw(st.sampled_from([1, 2, 4])),
        kv_heads=kv_heads,
        backend=draw(st.sampled_from([*(["VANILLA", "DENSE-NHD"] if alone else []), *WITH_LSE])),
        dtype=torch.float64,
        head_dim=8,
        seed=draw(st.integers(0, 2**16)),
        spare_rows=draw(st.integers(0, 3)),
    )


@settings(max_examples=50, deadline=None, print_blob=True)
@given(case=legal_cases())
def test_random_layout_attention_output_vs_per_sample(ranks, case):
    # One padding row among 200 keys moves the result by little: the bound itself is exceeded.
    check_attention(ranks.run, case, least=0.0)


# Few, since each is a model of its own on every rank; heads are 16 / 8 in all of them.
MODEL_LAYOUTS = [
    Layout(ulysses=2),
    Layout(ulysses=4),
    Layout(rows=2, cols=2),
    Layout(rows=1, cols=3),
    Layout(rows=2, cols=1, ulysses=2),
    Layout(tp=2, ulysses=2),
]


@st.composite
def legal_models(draw) -> ModelCase:
    """A whole model with any mix of modalities in its generation sequence."""
    layout = draw(st.sampled_from(MODEL_LAYOUTS))
    model = draw(st.sampled_from(["tiny", "edge", "omni"]))
    video = (draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    omni = model == "omni"
    mesh = layout.rows * layout.cols > 1
    return ModelCase(
        model=model,
        layout=layout,
        lengths=tuple(draw(st.lists(st.integers(1, 140), min_size=1, max_size=3))),
        video=video,
        given_frames=draw(st.sampled_from([(), (0,)])) if video[0] > 1 else (),
        sound_rows=draw(st.integers(0, 6)) if omni else 0,
        action_rows=draw(st.integers(0, 5)) if omni else 0,
        controls=draw(st.integers(0, 2)),
        share=draw(st.booleans()),
        backend="FA4" if mesh else draw(st.sampled_from(["VANILLA", "FA4"])),
        dtype=torch.float64,
    )


@settings(max_examples=20, deadline=None, print_blob=True)
@given(case=legal_models())
def test_random_layout_transformer_velocity_vs_one_rank_and_diffusers(ranks, case):
    check_transformer(ranks.run, case, least=0.0)
