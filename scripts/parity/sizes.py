# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Model sizes, as fields of the config.json of diffusers' Cosmos3OmniTransformer."""

from __future__ import annotations

from typing import Any

from cosmos3_sizes import EDGE_RECIPE, MODELS, VOCABULARY

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
    # Nano's widths, with 4 of its layers or all of them.
    "nano-4l": {**MODELS["nano"], "num_hidden_layers": 4},
    "nano": MODELS["nano"],
}


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
