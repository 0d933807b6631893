# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of the parity run: random ones by diffusers' names, and checkpoint folders."""

import json

import pytest
import torch
from cosmos3_sizes import SIZES, full_config
from cosmos3_weights import UNUSED, weight_shapes
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3OmniTransformer
from parity.checkpoint import CheckpointWeights, check_checkpoint, random_weights, read_config
from safetensors.torch import save_file

NAME = "diffusion_pytorch_model"
SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "rope_axes_dim": [4, 2, 2],
    "vocab_size": 64,
}


def write_checkpoint(folder, fields, tensors, shards=1):
    folder.mkdir(parents=True, exist_ok=True)
    config = {"_class_name": "Cosmos3OmniTransformer", **fields}
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / f"{NAME}.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        part = dict(sorted(tensors.items())[shard::shards])
        file = f"{NAME}-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / f"{NAME}.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def small():
    config = full_config(SMALL)
    return config, dict(random_weights(config, seed=1))


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_equal_diffusers(size):
    config = full_config(SIZES[size])
    with torch.device("meta"):
        model = Cosmos3OmniTransformer(**config)
    expected = {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name not in UNUSED
    }
    assert weight_shapes(config) == expected


def test_random_weights_depend_on_seed_and_name_alone(small):
    config, tensors = small
    again = random_weights(config, seed=1)
    assert all(torch.equal(again[name], tensors[name]) for name in reversed(list(tensors)))
    other = random_weights(config, seed=2)["proj_in.weight"]
    assert not torch.equal(other, tensors["proj_in.weight"])
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())


@pytest.mark.parametrize("shards", [1, 3])
def test_checkpoint_folder_gives_its_tensors(tmp_path, small, shards):
    config, tensors = small
    extra = {"lm_head.weight": torch.zeros(64, 32)}
    write_checkpoint(tmp_path / "pipeline" / "transformer", SMALL, {**tensors, **extra}, shards)
    folder = tmp_path / "pipeline"
    assert read_config(folder) == config
    weights = CheckpointWeights(folder, config)
    assert set(weights) == set(tensors)
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)


def test_checkpoint_that_does_not_fit_is_refused_by_tensor(tmp_path, small):
    config, tensors = small
    tensors["proj_in.weight"] = torch.zeros(3, 5)
    tensors["layers.7.extra.weight"] = torch.zeros(2)
    del tensors["proj_out.bias"]
    write_checkpoint(tmp_path, SMALL, tensors)
    with pytest.raises(ValueError) as refusal:
        check_checkpoint(tmp_path, config)
    message = str(refusal.value)
    assert "missing: proj_out.bias" in message
    assert "unknown to the model: layers.7.extra.weight" in message
    assert "proj_in.weight is [3, 5], expected [32, 192]" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "config.json").unlink(), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (
            lambda f: (f / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}'),
            "holds a FluxTransformer2DModel",
        ),
        (lambda f: (f / "config.json").write_text('{"depth": 3}'), "cannot build a model"),
        (lambda f: (f / f"{NAME}.safetensors").unlink(), "cannot be read as safetensors"),
        (lambda f: (f / f"{NAME}.safetensors").write_bytes(b"xyz"), "cannot be read as safetens"),
        (
            lambda f: (f / f"{NAME}.safetensors.index.json").write_text("[]"),
            "is no safetensors index",
        ),
    ],
)
def test_damaged_checkpoint_is_refused(tmp_path, small, damage, message):
    _, tensors = small
    write_checkpoint(tmp_path, SMALL, tensors)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        check_checkpoint(tmp_path, read_config(tmp_path))
