# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Names, shapes and random values of a Cosmos3 checkpoint, from its configuration alone.

Names are diffusers' (``Cosmos3OmniTransformer``). Every tensor is made from its name, its shape
and a seed, so that all ranks, layouts and implementations get the same weights without a file.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping

import torch

# Weights of these widths keep the scale that 0.02 gives at this one.
NANO_HIDDEN = 4096

# Of a checkpoint, but not of what generation computes.
UNUSED = ("lm_head.weight", "norm.weight")


def weight_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that generation needs.

    Args:
        config: diffusers' fields; ``hidden_size``, ``intermediate_size``, ``head_dim``,
            ``num_attention_heads``, ``num_key_value_heads``, ``num_hidden_layers``,
            ``vocab_size``, ``latent_patch_size`` and ``latent_channel`` are required.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config["head_dim"]
    q = config["num_attention_heads"] * width
    kv = config["num_key_value_heads"] * width
    gated = config.get("hidden_act", "silu") == "silu"
    text_norm = config.get("qk_norm_for_text", True)
    bias = config.get("attention_bias", False)
    patch = config["latent_patch_size"] ** 2 * config["latent_channel"]
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config["vocab_size"], hidden)}

    def linear(name: str, outputs: int, inputs: int, has_bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)

    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        attention = f"{layer}.self_attn"
        for names, out in (
            (("to_q", "to_k", "to_v"), "to_out"),
            (("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out"),
        ):
            for name, outputs in zip(names, (q, kv, kv)):
                linear(f"{attention}.{name}", outputs, hidden, bias)
            linear(f"{attention}.{out}", hidden, q, bias)
        norms = ["norm_added_q", "norm_added_k"]
        if text_norm:
            norms += ["norm_q", "norm_k"]
        elif config.get("use_und_k_norm_for_gen", False):
            norms.append("k_norm_und_for_gen")
        for name in norms:
            shapes[f"{attention}.{name}.weight"] = (width,)
        for tower in ("", "_moe_gen"):
            shapes[f"{layer}.input_layernorm{tower}.weight"] = (hidden,)
            shapes[f"{layer}.post_attention_layernorm{tower}.weight"] = (hidden,)
            for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
                linear(f"{layer}.mlp{tower}.{name}", inner, hidden, False)
            linear(f"{layer}.mlp{tower}.down_proj", hidden, inner, False)
    shapes["norm_moe_gen.weight"] = (hidden,)
    linear("proj_in", hidden, patch, True)
    linear("proj_out", patch, hidden, True)
    linear("time_embedder.linear_1", hidden, 256, True)
    linear("time_embedder.linear_2", hidden, hidden, True)
    if config.get("sound_gen", False):
        linear("audio_proj_in", hidden, config["sound_dim"], True)
        linear("audio_proj_out", config["sound_dim"], hidden, True)
        shapes["audio_modality_embed"] = (hidden,)
    if config.get("action_gen", False):
        domains, actions = config.get("num_embodiment_domains", 32), config["action_dim"]
        for name, outputs in (("action_proj_in", hidden), ("action_proj_out", actions)):
            shapes[f"{name}.fc.weight"] = (domains, hidden * actions)
            shapes[f"{name}.bias.weight"] = (domains, outputs)
        shapes["action_modality_embed"] = (hidden,)
    return shapes


def random_weight(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Make one tensor, the same in every process on the same kind of device.

    Norm weights are 1 + 0.2 n, so that a norm that is left out or swapped shows. Everything else
    is 0.02 n, times sqrt(4096 / inputs) for narrower inputs, so that a tiny model mixes as much
    in each layer as Nano does. n is drawn in float32, whatever the dtype.

    Args:
        name: diffusers' name.
        shape: of the whole tensor.
        seed: of the model.
        dtype: of the result.
        device: where it is made; a CPU and a GPU draw different values.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    n = torch.randn(shape, generator=generator, dtype=torch.float32, device=device)
    if "norm" in name.split(".")[-2:][0]:
        return n.mul_(0.2).add_(1.0).to(dtype)
    scale = 0.02
    if len(shape) == 2 and "embed" not in name and not name.startswith("action_proj"):
        scale *= math.sqrt(max(1.0, NANO_HIDDEN / shape[1]))
    return n.mul_(scale).to(dtype)


class RandomWeights(Mapping):
    """All tensors of a random checkpoint; each is made when it is asked for, and not kept."""

    def __init__(
        self,
        config: dict,
        seed: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Remember what :func:`random_weight` needs."""
        self.shapes = weight_shapes(config)
        self.seed = seed
        self.dtype = dtype
        self.device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        """Make the tensor ``name``."""
        return random_weight(name, self.shapes[name], self.seed, self.dtype, self.device)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor, without making it."""
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.shapes)


def init_random_weights(transformer, seed: int, device: torch.device | str | None = None) -> None:
    """Fill a ``Cosmos3VFMTransformer`` with the weights of ``seed``.

    One layer's whole weights exist beside the model at a time, on ``device``.

    Args:
        transformer: the model; its ``model_config.pretrained_config`` names every shape.
        seed: of the weights.
        device: where the values are drawn, the model's own device when None.
    """
    config = transformer.model_config
    device = next(transformer.parameters()).device if device is None else device
    weights = RandomWeights(vars(config.pretrained_config), seed, config.torch_dtype, device)
    transformer.load_weights(weights)
    transformer.post_load_weights()
