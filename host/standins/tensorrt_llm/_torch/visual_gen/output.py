# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for what a pipeline returns, and for the clock beside it."""

from dataclasses import dataclass

import torch


@dataclass
class PipelineOutput:
    """What a request returns; None where there is nothing, and for frames on other ranks than 0.

    Attributes:
        video: uint8 [1, frames, height, width, 3].
        image: uint8 [1, height, width, 3].
        audio: float32 [1, channels, samples].
        action: float32 [1, actions, the embodiment's own width].
        frame_rate: frames per second.
        audio_sample_rate: samples per second.
    """

    video: torch.Tensor | None = None
    image: torch.Tensor | None = None
    audio: torch.Tensor | None = None
    action: torch.Tensor | None = None
    frame_rate: float | None = None
    audio_sample_rate: int | None = None


class CudaPhaseTimer:
    """Takes the marks between the phases of a request, and times nothing."""

    def _mark(self) -> None:
        pass

    mark_pre_start = mark_denoise_start = mark_post_start = mark_end = _mark

    def fill(self, output: PipelineOutput) -> PipelineOutput:
        """Return ``output`` as it is."""
        return output
