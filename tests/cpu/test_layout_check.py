# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The layout's rules where they count: in the constructor, and against what the modules do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model import MODELS

from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
from tensorrt_llm._torch.visual_gen.models.cosmos3 import layout_check, transformer_cosmos3
from tensorrt_llm._torch.visual_gen.models.cosmos3.layout_check import Sizes
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKVLayout
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import Cosmos3VFMTransformer


def _config(backend: str = "FA4", overrides: dict | None = None, **layout) -> DiffusionModelConfig:
    config = DiffusionModelConfig.from_diffusers(MODELS["tiny"] | (overrides or {}))
    config.attention.backend = backend
    world = 1
    for size in layout.values():
        world *= size
    config.visual_gen_mapping = VisualGenMapping(world, 0, **layout)
    return config


# Layout, backend, fields: what the one error says.
REFUSED = {
    "everything": (
        {"attn2d_row_size": 2, "ulysses_size": 16},
        "VANILLA",
        {"num_attention_heads": 12},
        (
            "3 problems with the layout (attn2d_row_size=2 ulysses_size=16)",
            "does not divide num_attention_heads=12, num_key_value_heads=8",
            "one of [1, 2, 4]",
            "12 is not a multiple of",
            "VANILLA does not",
        ),
    ),
    "attn2d-vanilla": (
        {"attn2d_col_size": 2},
        "VANILLA",
        {},
        ("Attention2D needs an attention backend that returns its LSE", "choose FA4"),
    ),
    "attn2d-trtllm": ({"attn2d_col_size": 2}, "TRTLLM", {}, ("serves TRTLLM here, does not",)),
    "ring-vanilla": ({"ring_size": 2}, "VANILLA", {}, ("Ring attention needs", "choose FA4")),
    "cutedsl": ({"ulysses_size": 2}, "CUTEDSL", {}, ("no key lengths", "use FA4 or VANILLA")),
    "unknown-backend": ({"ulysses_size": 2}, "ELSE", {}, ("'ELSE' is unknown", "FA4 or VANILLA")),
    "groups": ({}, "FA4", {"num_attention_heads": 12}, ("12 is not a multiple of",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_constructor_says_everything_before_any_weight(name, monkeypatch):
    layout, backend, overrides, parts = REFUSED[name]

    def too_late(*args):
        raise AssertionError("a layer was made")

    monkeypatch.setattr(transformer_cosmos3, "Cosmos3LanguageModel", too_late)
    with pytest.raises(ValueError) as error:
        Cosmos3VFMTransformer(_config(backend, overrides, **layout))
    for part in parts:
        assert part in str(error.value)


def test_constructor_asks_for_the_kernel_where_a_gpu_is_meant(monkeypatch):
    machine = {"gpu": "sm120", "flash_attn": "4.0.0b19"}
    monkeypatch.setattr(transformer_cosmos3, "this_machine", lambda: machine)
    with torch.device("meta"):
        with pytest.raises(ValueError, match="sm120: none of its kernels compiles"):
            Cosmos3VFMTransformer(_config())
        Cosmos3VFMTransformer(_config("VANILLA"))
        # Heads of 16 numbers are fine there.
        machine.update(gpu="sm90")
        Cosmos3VFMTransformer(_config())
    # On the CPU the plain-torch kernels serve FA4, whatever GPU there is.
    machine.update(gpu="sm120")
    Cosmos3VFMTransformer(_config())


def test_this_machine_names_a_gpu_that_the_rules_understand():
    machine = layout_check.this_machine()
    assert set(machine) == {"gpu", "flash_attn"}
    if machine["gpu"] is not None:
        layout_check.gpu_number(machine["gpu"])


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 1, 3), (1, 2, 3)]),
    st.integers(1, 60),
)
def test_ranks_with_rows_vs_the_adapters_own_count(ulysses, context, rows):
    ring, row_size, col_size = context
    layout = TextKVLayout(
        ulysses_size=ulysses, ring_size=ring, row_size=row_size, col_size=col_size
    )
    chunks = [layout.chunk_video_rows(rows, i) for i in range(ring * row_size * col_size)]
    sizes = Sizes(
        ulysses_size=ulysses, ring_size=ring, attn2d_row_size=row_size, attn2d_col_size=col_size
    )
    block = -(-rows // sizes.sequence_size)
    # A chunk is what the ranks of one all-to-all hold together.
    assert layout_check.ranks_with_rows(sizes, rows) == sum(-(-chunk // block) for chunk in chunks)
