# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Whole weights by diffusers' names, made from a seed or read from a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from cosmos3_sizes import full_config
from cosmos3_weights import UNUSED, RandomWeights, weight_shapes
from safetensors import SafetensorError, safe_open

WEIGHTS = "diffusion_pytorch_model.safetensors"
# Names listed in a message before it says "and n more".
_LISTED = 6


def random_weights(
    config: dict[str, Any], seed: int, device: torch.device | str = "cpu"
) -> RandomWeights:
    """Returns a model's weights, the same for every rank, layout and dtype.

    The values are bfloat16, as in published checkpoints: one model, whatever dtype it is run in.

    Args:
        config: Fields of the diffusers config.json.
        seed: Any integer from 0.
        device: Where each tensor is made when it is asked for.
    """
    return RandomWeights(config, seed, torch.bfloat16, device)


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the fields of a checkpoint's config.json.

    Args:
        folder: A transformer folder in diffusers' format, or a pipeline folder that holds one.

    Raises:
        ValueError: There is no such file, or it describes another model.
    """
    expected = "expected a folder with config.json of diffusers' Cosmos3OmniTransformer"
    path = _transformer_folder(folder) / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--checkpoint {folder}: {path} cannot be read ({error}); {expected}.")
    kind = fields.get("_class_name", "Cosmos3OmniTransformer")
    if kind != "Cosmos3OmniTransformer":
        raise ValueError(f"--checkpoint {folder} holds a {kind}; {expected}.")
    fields = {key: value for key, value in fields.items() if not key.startswith("_")}
    try:
        return full_config(fields)
    except Exception as error:
        raise ValueError(
            f"--checkpoint {folder}: diffusers cannot build a model from {path} ({error}); "
            f"{expected}."
        ) from error


def check_checkpoint(folder: Path, config: dict[str, Any]) -> dict[str, Path]:
    """Compares names and shapes of a checkpoint with a model, from the files' headers alone.

    Returns:
        The file of each tensor that the model takes.

    Raises:
        ValueError: Names every kind of misfit with the tensors concerned.
    """
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in _files(folder):
        for name, shape in _header(path):
            found[name] = (path, shape)
    found = {name: entry for name, entry in found.items() if name not in UNUSED}
    expected = weight_shapes(config)
    misfits = []
    missing = sorted(expected.keys() - found.keys())
    if missing:
        misfits.append(f"missing: {_some(missing)}")
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        misfits.append(f"unknown to the model: {_some(unknown)}")
    wrong = [
        f"{name} is {list(found[name][1])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name][1] != shape
    ]
    if wrong:
        misfits.append(f"of another shape: {_some(wrong)}")
    if misfits:
        raise ValueError(
            f"--checkpoint {folder} does not fit its config.json; {'; '.join(misfits)}. Give the "
            "folder that diffusers' save_pretrained() wrote."
        )
    return {name: path for name, (path, _) in found.items()}


class CheckpointWeights(Mapping):
    """The weights of a checkpoint folder in the dtype in which they are stored.

    A tensor is read when it is asked for, and not kept.

    Args:
        folder: A transformer folder in diffusers' format, or a pipeline folder that holds one.
        config: Fields of its config.json.
        device: Where tensors are read to.

    Raises:
        ValueError: Tensors do not fit the config; see check_checkpoint().
    """

    def __init__(self, folder: Path, config: dict[str, Any], device: torch.device | str = "cpu"):
        self._files = check_checkpoint(folder, config)
        self._open = {
            path: safe_open(path, framework="pt", device=str(device))
            for path in set(self._files.values())
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._open[self._files[name]].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files


def _transformer_folder(folder: Path) -> Path:
    inner = Path(folder) / "transformer"
    return inner if (inner / "config.json").exists() else Path(folder)


def _files(folder: Path) -> list[Path]:
    root = _transformer_folder(folder)
    index = root / f"{WEIGHTS}.index.json"
    if index.exists():
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"--checkpoint {folder}: {index} is no safetensors index ({error!r}); expected "
                'JSON with a "weight_map".'
            ) from error
        return [root / shard for shard in shards]
    return [root / WEIGHTS]


def _header(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    try:
        with safe_open(path, framework="pt") as file:
            return [(name, tuple(file.get_slice(name).get_shape())) for name in file.keys()]
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"--checkpoint: {path} cannot be read as safetensors ({error}); expected "
            f"{WEIGHTS} or the shards that {WEIGHTS}.index.json names."
        ) from error


def _some(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
