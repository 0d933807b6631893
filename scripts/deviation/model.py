# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The tiny Cosmos3 that has learned: its configuration and its stored weights.

The table of token embeddings is stored for the tokens that occur in captions and negative prompts
only; any other token is zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from cosmos3_weights import weight_shapes
from safetensors import safe_open

FILE = Path(__file__).parent / "learned.safetensors"
EMBEDDING, TOKENS = "embed_tokens.weight", "embed_tokens.ids"
# Frames are the latents, so that no VAE stands between. Lower rotary frequencies than the
# released models', which tell apart what is hundreds of columns away.
FIELDS: dict[str, Any] = {
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
    "vocab_size": 151936,
}


class LearnedWeights(Mapping):
    """The stored weights by diffusers' names, bfloat16; whole tensors, made when asked for.

    Args:
        device: Where tensors are read to.
        path: Of the file.
    """

    def __init__(self, device: torch.device | str = "cpu", path: Path = FILE):
        self._file = safe_open(path, framework="pt", device=str(device))
        self._names = [name for name in self._file.keys() if name != TOKENS]
        self.record = json.loads((self._file.metadata() or {}).get("record", "{}"))

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._file.get_tensor(name)
        if name != EMBEDDING:
            return tensor
        whole = tensor.new_zeros(weight_shapes(FIELDS)[EMBEDDING])
        whole[self._file.get_tensor(TOKENS).long()] = tensor
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names
