# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The memory that preflight estimates, against models and tensors counted on the meta device."""

import pytest
import torch
from cosmos3_sizes import MODELS, SIZES
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3OmniTransformer
from preflight import memory
from preflight.layout import Sizes
from preflight.model import parse_model

EXTRAS = {
    "action": {"action_gen": True, "action_dim": 10, "num_embodiment_domains": 3},
    "sound": {"sound_gen": True, "sound_dim": 64},
}
CASES = {name: fields for name, fields in MODELS.items()} | {
    f"tiny-{name}": SIZES["tiny"] | fields for name, fields in EXTRAS.items()
}


@pytest.mark.parametrize("name", CASES)
def test_weights_vs_a_model_on_the_meta_device(name):
    with torch.device("meta"):
        model = Cosmos3OmniTransformer(**CASES[name])
    text = generation = shared = 0
    for key, parameter in model.named_parameters():
        if key.startswith("lm_head"):
            # TensorRT-LLM's transformer has none.
            continue
        if not key.startswith("layers.") or parameter.ndim == 1:
            shared += parameter.numel()
        elif any(x in key for x in ("add_", "_moe_gen")):
            generation += parameter.numel()
        else:
            text += parameter.numel()
    counted = memory.count_weights(parse_model(CASES[name], name))
    assert counted == memory.Weights(text, generation, shared)


@pytest.mark.parametrize(
    "sizes, samples, heads",
    [
        (Sizes(), 2, 8),
        (Sizes(cfg_size=2), 1, 8),
        (Sizes(tp_size=2, ulysses_size=2), 2, 2),
        (Sizes(cfg_size=2, ulysses_size=4), 1, 2),
        (Sizes(attn2d_row_size=2, attn2d_col_size=2), 2, 8),
    ],
    ids=str,
)
def test_text_kv_and_graph_buffers_vs_tensors(sizes, samples, heads):
    model = parse_model(MODELS["nano"], "nano")
    asked = {"video_rows": 1001, "text_rows": 700}
    found = memory.estimate(model, sizes, **asked, graphs=True)
    text = torch.empty(36, 2, samples, 700, heads, 128, dtype=torch.bfloat16, device="meta")
    rows = -(-1001 // sizes.sequence_size)
    tables = torch.empty(2, samples, rows, 1, 128, device="meta")
    assert found.text_kv == text.nbytes
    assert found.graph_buffers == text.nbytes + tables.nbytes
    assert memory.estimate(model, sizes, **asked).graph_buffers == 0


def test_only_tensor_parallelism_quantisation_and_offloading_make_weights_smaller():
    model = parse_model(MODELS["super"], "super")
    counted = memory.count_weights(model)
    layers, shared = counted.text + counted.generation, counted.shared

    def weights(sizes=Sizes(), **given):
        return memory.estimate(model, sizes, video_rows=64, text_rows=64, **given).weights

    assert weights() == weights(Sizes(cfg_size=2, ulysses_size=8)) == 2 * counted.total
    assert weights(Sizes(tp_size=4)) == layers // 2 + 2 * shared
    assert weights(weight_bytes=1) == layers + 2 * shared
    assert weights(offload=True) == layers + 2 * shared


@pytest.mark.parametrize("rows", [27, 4096])
def test_activations_vs_the_largest_tensors_of_a_layer(rows):
    """One rank without prompts to speak of, whose MLP or attention is written out."""
    fields = SIZES["tiny"]
    model = parse_model(fields, "tiny")
    hidden, inner = fields["hidden_size"], fields["intermediate_size"]
    query, kv = 16 * 32, 8 * 32
    found = memory.estimate(model, Sizes(cfg_size=2), video_rows=rows, text_rows=1)
    # Queries, keys and values; the same for the kernel; keys and values with the text; two outputs.
    attention = rows * (query + 2 * kv) * 2 + (rows + 1) * 2 * kv + 2 * rows * query
    mlp = 3 * rows * inner
    tables = 2 * rows * 32 * 4
    assert found.activations == 2 * (2 * rows * hidden + max(attention, mlp)) + tables


def test_the_text_tower_counts_where_the_video_is_small():
    model = parse_model(MODELS["nano"], "nano")
    for sizes in (Sizes(), Sizes(ulysses_size=8)):
        large = memory.estimate(model, sizes, video_rows=64, text_rows=4096)
        small = memory.estimate(model, sizes, video_rows=64, text_rows=256)
        assert large.activations > 8 * small.activations
