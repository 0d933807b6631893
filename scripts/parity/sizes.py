# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Model sizes, as fields of the config.json of diffusers' Cosmos3OmniTransformer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cosmos3_sizes import MODELS, VOCABULARY

# Weights that `make deviation` and, by default, `make parity` run.
LEARNED = Path(__file__).parents[1] / "deviation" / "learned"

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 32,
        "intermediate_size": 768,
        "rope_axes_dim": [6, 5, 5],
        "vocab_size": VOCABULARY,
    },
    # Frames are the latents, so that no VAE stands between. Its rotary frequencies are higher than
    # the released models', since it has few columns to tell apart.
    "learned": {
        "num_hidden_layers": 4,
        "hidden_size": 192,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 32,
        "intermediate_size": 384,
        "rope_axes_dim": [6, 5, 5],
        "rope_theta": 10000.0,
        "latent_channel": 3,
        "latent_patch_size": 2,
        "patch_latent_dim": 12,
        "vocab_size": VOCABULARY,
    },
    # Nano's widths, with 4 of its layers or all of them.
    "nano-4l": {**MODELS["nano"], "num_hidden_layers": 4},
    "nano": MODELS["nano"],
}

# A request that the learned size knows the words of, and the shape of its videos.
LEARNED_PROMPT, LEARNED_VIDEO = "A red square moves right.", (5, 14, 14)


def full_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with diffusers' defaults for those left out.

    Raises:
        Exception: Whatever diffusers raises on fields that it cannot build a model from.
    """
    import torch
    from diffusers.models.transformers.transformer_cosmos3 import Cosmos3OmniTransformer

    with torch.device("meta"):
        model = Cosmos3OmniTransformer(**fields)
    config = {key: value for key, value in model.config.items() if not key.startswith("_")}
    config["rope_axes_dim"] = list(config["rope_axes_dim"])
    return config
