# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a transfer request asks for: controls, how strongly they count, and how it is cut."""

from dataclasses import dataclass, field

# In the order in which the model gets them.
TRANSFER_HINT_KEYS = ("edge", "blur", "depth", "seg", "wsm")


@dataclass
class Cosmos3TransferHint:
    """One control.

    Attributes:
        key: one of TRANSFER_HINT_KEYS.
        control: the clip's bytes. The host computes no controls from a video.
    """

    key: str
    control: bytes | None = None


@dataclass
class Cosmos3TransferConfig:
    """A transfer request beside what every request has.

    Attributes:
        hints: controls by key.
        guidance_scale: of the prompt; at most 1 for no negative branch.
        control_guidance: of the controls; 1 for no branch without them.
        control_guidance_interval: timesteps within which that holds; it is 1 outside.
        flow_shift: of the schedule.
        num_video_frames_per_chunk: frames of one chunk, 4 k + 1.
        num_conditional_frames: last frames of a chunk that the next begins with.
        max_frames: most frames that are read of a clip.
        share_vision_temporal_positions: whether controls stand at the video's positions.
        num_frames: of the whole video; the longest control's when None.
        fps: frames per second; the request's when None.
        emphasize_control_in_prompt: whether the prompt names its controls.
    """

    hints: dict[str, Cosmos3TransferHint] = field(default_factory=dict)
    guidance_scale: float | None = None
    control_guidance: float = 1.0
    control_guidance_interval: tuple[float, float] | None = None
    flow_shift: float | None = None
    num_video_frames_per_chunk: int = 93
    num_conditional_frames: int = 1
    max_frames: int = 5000
    share_vision_temporal_positions: bool = True
    num_frames: int | None = None
    fps: float | None = None
    emphasize_control_in_prompt: bool = True

    @property
    def ordered_hints(self) -> list[Cosmos3TransferHint]:
        """The controls in the model's order."""
        return [self.hints[key] for key in TRANSFER_HINT_KEYS if key in self.hints]

    def emphasized_prompt(self, prompt: str) -> str:
        """The prompt, naming the controls where that is asked for."""
        if not self.emphasize_control_in_prompt:
            return prompt
        names = " and ".join(hint.key for hint in self.ordered_hints)
        return f"{prompt.rstrip()} Keep to the {names} control in every frame."
