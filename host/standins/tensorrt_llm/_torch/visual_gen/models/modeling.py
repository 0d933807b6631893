# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the base class of VisualGen transformers."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class TransformerOutput:
    """Velocities, one field for each modality; None where there is none.

    Attributes:
        video: [B, C, T, H, W].
        image: unused by Cosmos3, which returns an image as a video of one frame.
        audio: [B, sound_dim, T_audio].
        action: [B, T_action, action_dim].
    """

    video: torch.Tensor | None = None
    image: torch.Tensor | None = None
    audio: torch.Tensor | None = None
    action: torch.Tensor | None = None


class BaseDiffusionModel(nn.Module):
    """Keeps the configuration; the subclasses do the rest."""

    def __init__(self, model_config) -> None:
        """Remember ``model_config``."""
        super().__init__()
        self.model_config = model_config

    def register_cuda_graph_extra_key_fns(self, runner) -> None:
        """Register what else than shapes decides a forward; nothing for models in general."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device
