# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the weight loader, which quantises on the fly upstream and only copies here."""

import torch


class DynamicLinearWeightLoader:
    """Hands checkpoint tensors to layers that have ``load_weights``."""

    def __init__(self, model_config) -> None:
        """Remember the configuration; the host has nothing to quantise."""
        self.model_config = model_config

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
