# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the video decoder: a clip is the file that numpy.save() makes of its frames."""

import io
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class VideoStreamInfo:
    """What a header says: a clip's size, and no rate, which the file does not hold."""

    height: int
    width: int
    frame_rate: float | None = None


def _frames(data: bytes) -> np.ndarray:
    try:
        frames = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"the clip cannot be read ({error}); expected numpy.save()'s") from error
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        raise ValueError(
            f"the clip is {frames.dtype} {frames.shape}; expected uint8 [frames, height, width, 3]"
        )
    return frames


def video_stream_info(data: bytes) -> VideoStreamInfo:
    """Return a clip's size."""
    return VideoStreamInfo(*_frames(data).shape[1:3])


def decode_video_reference_window(
    data: bytes,
    *,
    first_frame: int,
    last_frame: int,
    target_h: int,
    target_w: int,
    device,
    resize: str = "crop",
    frame_step: int = 1,
) -> torch.Tensor:
    """Return uint8 [frames, target_h, target_w, 3]: the frames from first to last, both included.

    Raises:
        ValueError: it is no clip, or of another size. Nothing is resized here.
    """
    frames = _frames(data)
    if frames.shape[1:3] != (target_h, target_w):
        raise ValueError(
            f"the clip is {frames.shape[1]} x {frames.shape[2]} (height x width) and the video "
            f"{target_h} x {target_w}; give one of the same size"
        )
    count = len(frames)
    first, last = (n + count if n < 0 else n for n in (first_frame, last_frame))
    return torch.from_numpy(frames[max(first, 0) : last + 1 : frame_step].copy()).to(device)
