# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a checkout's own files ask of the stand-ins, and the embedded host's own do not."""

from types import SimpleNamespace

import pytest
import torch
from parity import outside

from tensorrt_llm._torch.modules.linear import (
    Linear,
    TensorParallelMode,
    WeightMode,
    WeightsLoadingConfig,
)
from tensorrt_llm._torch.visual_gen.attention_backend.cute_dsl.vsa import VSAAttention
from tensorrt_llm._torch.visual_gen.attention_backend.trtllm import TrtllmAttention
from tensorrt_llm._torch.visual_gen.modules.rms_norm import RMSNorm, RMSNormTPAware
from tensorrt_llm._torch.visual_gen.quantization.loader import DynamicLinearWeightLoader
from tensorrt_llm.mapping import Mapping

# Parts of a fused weight: q, k and v of 6, 2 and 2 heads of 4.
PARTS = {"q": 24, "k": 8, "v": 8}


def _whole():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(rows, 16, generator=generator) for name, rows in PARTS.items()}


@pytest.mark.parametrize("rank", [0, 1])
def test_fused_linear_with_given_shards_vs_slices(rank):
    whole = _whole()
    # Uneven on purpose: 4 + 2 query heads, one key head each.
    shards = {
        "q": ((0, 16), (16, 24))[rank],
        "k": (4 * rank, 4 * rank + 4),
        "v": (4 * rank, 4 * rank + 4),
    }
    layer = Linear(
        16,
        40,
        bias=False,
        mapping=Mapping(world_size=2, rank=rank, tp_size=2),
        tensor_parallel_mode=TensorParallelMode.COLUMN,
        weights_loading_config=WeightsLoadingConfig(WeightMode.FUSED_QKV_LINEAR),
        override_tp_sharding=shards,
        reduce_output=False,
    )
    loader = DynamicLinearWeightLoader(None, params_map={"qkv": ["to_q", "to_k", "to_v"]})
    weights = {f"layer.to_{name}.weight": tensor for name, tensor in whole.items()}
    weights["layer.to_qq.weight"] = weights["other"] = torch.zeros(1)
    parts = loader.get_linear_weights(layer, "layer.qkv", weights)
    loader.load_linear_weights(layer, "layer.qkv", parts)
    expected = torch.cat([whole[name][start:end] for name, (start, end) in shards.items()])
    assert torch.equal(layer.weight, expected)
    assert layer(torch.eye(16)).shape == (16, len(expected))


def test_row_linear_with_given_shards_vs_slices():
    weight = _whole()["q"].t()
    for rank, (start, end) in enumerate(((0, 16), (16, 24))):
        layer = Linear(
            24,
            16,
            bias=False,
            mapping=Mapping(world_size=2, rank=rank, tp_size=2),
            tensor_parallel_mode=TensorParallelMode.ROW,
            override_tp_sharding=(start, end),
            reduce_output=False,
        )
        layer.load_weights([{"weight": weight}])
        assert torch.equal(layer.weight, weight[:, start:end])


def test_shards_without_tensor_parallelism_vs_whole():
    layer = Linear(16, 24, bias=False, override_tp_sharding=(0, 24))
    layer.load_weights([{"weight": _whole()["q"]}])
    assert torch.equal(layer.weight, _whole()["q"])


def test_missing_part_of_a_fused_weight_vs_empty_dict():
    layer = Linear(16, 40, weights_loading_config=WeightsLoadingConfig(WeightMode.FUSED_QKV_LINEAR))
    loader = DynamicLinearWeightLoader(None, params_map={"qkv": ["to_q", "to_k", "to_v"]})
    weights = {"a.to_q.weight": _whole()["q"], "a.to_v.weight": _whole()["v"]}
    found = loader.get_linear_weights(layer, "a.qkv", weights)
    assert [bool(part) for part in found] == [True, False, True]


def test_norm_by_its_other_name_vs_norm():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    plain = RMSNorm(hidden_size=8, eps=1e-6)
    aware = RMSNormTPAware(hidden_size=8, eps=1e-6, mapping=Mapping(), override_tp_sharding=(0, 8))
    assert torch.equal(aware(x), plain(x))
    with pytest.raises(ValueError, match="per_head"):
        RMSNormTPAware(hidden_size=8, eps=1e-6, enable_tp=True)


@pytest.mark.parametrize("backend", [TrtllmAttention, VSAAttention])
def test_absent_backend_refused_vs_reason(backend):
    made = backend(num_heads=4, num_kv_heads=2, head_dim=8, quant_config=None)
    assert (made.num_kv_heads, made.scale) == (2, 8**-0.5)
    with pytest.raises(NotImplementedError, match=f"{backend.__name__}.*VANILLA or FA4"):
        made.forward(None, None, None)


class _Bfloat16Model(torch.nn.Module):
    """What outside.before_loading looks at, as the files make it."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Module()
        self.norm.weight = torch.nn.Parameter(torch.ones(4))
        self.norm.dtype = torch.bfloat16
        self.proj = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.time_embedder = torch.nn.Module()
        powers = -torch.arange(128, dtype=torch.bfloat16) * 0.07
        self.time_embedder.register_buffer("freqs", powers.exp(), persistent=False)
        self.language_model = torch.nn.Module()
        self.language_model.rotary_emb = torch.nn.Module()
        self.language_model.rotary_emb.register_buffer("inv_freq", torch.ones(2))
        self.model_config = SimpleNamespace(pretrained_config=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_model_given_a_dtype_vs_what_loses_nothing(dtype):
    model = _Bfloat16Model()
    notes = outside.before_loading(model, dtype, torch.device("cpu"))
    assert {p.dtype for p in model.parameters()} == {dtype} and model.norm.dtype == dtype
    expected = 10000.0 ** (-torch.arange(128, dtype=torch.float64) / 128)
    freqs = model.time_embedder.freqs
    assert freqs.dtype == dtype and (freqs - expected).abs().max() < 1e-6
    # A float64 model's angles are float32 as well; the files insist on it.
    assert model.language_model.rotary_emb.inv_freq.dtype == torch.float32
    assert [note.partition(":")[0] for note in notes] == ["weights", "time embedder"]


def test_bfloat16_model_vs_itself():
    model, before = _Bfloat16Model(), _Bfloat16Model()
    assert outside.before_loading(model, torch.bfloat16, torch.device("cpu")) == []
    assert model.norm.dtype == torch.bfloat16
    assert torch.equal(model.time_embedder.freqs, before.time_embedder.freqs)
