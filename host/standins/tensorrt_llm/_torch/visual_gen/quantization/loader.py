# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the weight loader, which quantises on the fly upstream and only copies here."""

from collections.abc import Mapping

import torch

from tensorrt_llm._torch.modules.linear import WeightMode


class DynamicLinearWeightLoader:
    """Hands checkpoint tensors to layers that have ``load_weights``."""

    def __init__(self, model_config, params_map: dict[str, list[str]] | None = None) -> None:
        """Remember what it needs; the host has nothing to quantise.

        Args:
            model_config: the configuration.
            params_map: for each fused layer's own name, the checkpoint's names of its parts.
        """
        self.model_config = model_config
        self.params_map = params_map or {}

    def filter_weights(
        self, prefix: str, weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return what belongs to the module ``prefix``, by the names inside it."""
        start = f"{prefix}."
        return {k[len(start) :]: v for k, v in weights.items() if k.startswith(start)}

    def get_linear_weights(
        self, module, full_name: str, weights: Mapping[str, torch.Tensor]
    ) -> list[dict[str, torch.Tensor]]:
        """Return one dict for each part of a layer's weight; empty where the checkpoint has none.

        Args:
            module: the layer.
            full_name: its name in the model.
            weights: the checkpoint, by names in the model.
        """
        parent, _, own = full_name.rpartition(".")
        names = [full_name]
        if module.weights_loading_config.weight_mode is not WeightMode.VANILLA:
            names = [f"{parent}.{part}" if parent else part for part in self.params_map[own]]
        return [self.filter_weights(name, weights) for name in names]

    def load_linear_weights(
        self, module, name: str, weight_dicts: list[dict[str, torch.Tensor]]
    ) -> None:
        """Load one layer.

        Raises:
            ValueError: the tensors do not fit; the message names the layer.
        """
        try:
            module.load_weights(weight_dicts)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
