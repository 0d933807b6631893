# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Model sizes, as fields of the config.json of diffusers' Cosmos3OmniTransformer.

Imported without torch, so that a configuration can be checked on any machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Tokens of Nano's and Super's vocabulary.
VOCABULARY = 151936

_ATTENTION = {"num_key_value_heads": 8, "head_dim": 128, "rope_axes_dim": [24, 20, 20]}

# What Edge has otherwise than the models of Qwen's recipe. It has no sound either.
EDGE_RECIPE = {
    "hidden_act": "relu2",
    "qk_norm_for_text": False,
    "use_und_k_norm_for_gen": True,
    "rms_norm_eps": 1e-5,
}

MODELS: dict[str, dict[str, Any]] = {
    "nano": {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
        "vocab_size": VOCABULARY,
        **_ATTENTION,
    },
    "super": {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 64,
        "intermediate_size": 25600,
        "vocab_size": VOCABULARY,
        **_ATTENTION,
    },
    # Its vocabulary is another one, on which nothing here depends.
    "edge": {
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 9216,
        **EDGE_RECIPE,
        **_ATTENTION,
    },
}

# Weights that `make deviation` and, by default, `make parity` run.
LEARNED = Path(__file__).parent / "deviation" / "learned"

# What runs here: small ones of our own, and Nano.
_TINY = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "intermediate_size": 768,
    "rope_axes_dim": [6, 5, 5],
    "vocab_size": VOCABULARY,
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": _TINY,
    # The same in Edge's recipe.
    "tiny-edge": {**_TINY, **EDGE_RECIPE},
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
