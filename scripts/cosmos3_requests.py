# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One small request of each type, as the keyword arguments of upstream's pipeline.

A request is a dictionary of what `Cosmos3OmniMoTPipeline.forward` takes, on the host and on a
checkout alike. Pictures are PNG files and clips are files of numpy.save(), as bytes.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

Request = dict[str, Any]

TYPES = ("t2v", "t2i", "i2v", "transfer", "audio", "action")
# Fields of a model that all types can be asked of.
ACTION = {"action_gen": True, "action_dim": 16}
OMNI = {"sound_gen": True, "sound_dim": 8, **ACTION}
# Pixels. 5 x 7 video rows in each latent frame, which no number of ranks divides.
HEIGHT, WIDTH, FRAMES = 160, 224, 9
PROMPT = "A red fox runs over a snowy hill at dawn, and the camera follows it."


def make_request(kind: str, prompt: str = PROMPT, negative: str = "", **changes) -> Request:
    """Returns a request.

    Args:
        kind: One of TYPES.
        prompt: What to show.
        negative: What not to. An image's and a transfer's is always empty, as upstream's are.
        **changes: Replace arguments; those of "transfer_config" replace its fields.

    Raises:
        ValueError: There is no such type.
    """
    if kind not in TYPES:
        raise ValueError(f"request type {kind!r}; expected one of {', '.join(TYPES)} or all.")
    controls = changes.pop("transfer_config", {})
    request = {
        "prompt": prompt,
        "negative_prompt": "" if kind in ("t2i", "transfer") else negative,
        "height": HEIGHT,
        "width": WIDTH,
        "num_frames": FRAMES,
        "num_inference_steps": 4,
        "guidance_scale": 6.0,
        "seed": 0,
        "max_sequence_length": 1024,
        "frame_rate": 24.0,
        "use_guardrails": False,
        **changes,
    }
    size = (request["height"], request["width"])
    if kind == "t2i":
        request |= {"output_type": "image", "num_frames": 1}
    if kind in ("i2v", "action"):
        request.setdefault("image", picture(*size))
    if kind == "audio":
        request["enable_audio"] = True
    if kind == "action":
        request.setdefault("action_chunk_size", request.pop("num_frames") - 1)
        request = {
            "action_mode": "policy",
            "domain_id": 1,
            "raw_action_dim": 9,
            "action_resolution": 256,
            "action_fps": request["frame_rate"],
            **request,
        }
    if kind == "transfer":
        request["prompt"] = upsampled(prompt)
        chunk = request["num_frames"]
        total = request["num_frames"] = 2 * chunk - 1
        request["transfer_config"] = {
            "hints": {"edge": clip(0, total, *size), "depth": clip(1, total, *size)},
            "guidance_scale": 3.0,
            "control_guidance": 1.5,
            "num_video_frames_per_chunk": chunk,
            "num_conditional_frames": 1,
            "num_frames": total,
            **controls,
        }
    return request


def upsampled(prompt: str) -> str:
    """Returns a prompt with a line for each shot, as long as those that transfers are given."""
    shots = [f"Shot {i}: seen from {10 + i} degrees, {i} steps away." for i in range(24)]
    return " ".join([prompt, *shots])


def forward_arguments(request: Request) -> dict[str, Any]:
    """Returns what forward() is called with: the transfer's part as the importable tree's class."""
    if "transfer_config" not in request:
        return dict(request)
    from tensorrt_llm._torch.visual_gen.models.cosmos3.transfer import (
        Cosmos3TransferConfig,
        Cosmos3TransferHint,
    )

    fields = dict(request["transfer_config"])
    hints = {
        key: Cosmos3TransferHint(key=key, control=data) for key, data in fields.pop("hints").items()
    }
    config = Cosmos3TransferConfig(hints=hints, **fields)
    return {**request, "transfer_config": config}


def chunks(request: Request) -> int:
    """Returns how many parts a request is denoised in."""
    config = request.get("transfer_config")
    if config is None:
        return 1
    chunk, keep = config["num_video_frames_per_chunk"], config["num_conditional_frames"]
    return 1 + max(0, math.ceil((config["num_frames"] - chunk) / (chunk - keep)))


def growth(request: Request) -> float:
    """Returns by how much guidance, steps and chunks carry the error of one forward on."""
    config = request.get("transfer_config", {})
    guidance = config.get("guidance_scale", request["guidance_scale"])
    control = config.get("control_guidance", 1.0)
    positive = max(1.0, guidance) * (abs(control) + abs(control - 1))
    steps = request["num_inference_steps"] * chunks(request)
    return (positive + max(0.0, guidance - 1)) * steps


def first_chunk(request: Request) -> int:
    """Returns the frames of the first part; those that follow show one fewer."""
    frames = request.get("num_frames") or request["action_chunk_size"] + 1
    return request.get("transfer_config", {}).get("num_video_frames_per_chunk", frames)


def picture(height: int, width: int, seed: int = 0) -> bytes:
    """Returns a drawing as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(_drawing(seed, 1, height, width)[0]).save(buffer, "PNG")
    return buffer.getvalue()


def clip(seed: int, frames: int, height: int, width: int) -> bytes:
    """Returns a moving drawing as a file of numpy.save()."""
    buffer = io.BytesIO()
    np.save(buffer, _drawing(seed, frames, height, width))
    return buffer.getvalue()


def _drawing(seed: int, frames: int, height: int, width: int) -> np.ndarray:
    """Returns uint8 [frames, height, width, 3]: a disc that crosses a slope of colour."""
    t, y, x = np.mgrid[0:frames, 0:height, 0:width].astype(np.float64)
    radius = height * (0.15 + 0.05 * (seed % 4))
    centre_x = width * (0.25 + 0.5 * t / max(frames - 1, 1))
    centre_y = height * (0.5 + 0.2 * np.sin(seed + 2 * np.pi * t / max(frames, 2)))
    inside = (x - centre_x) ** 2 + (y - centre_y) ** 2 < radius**2
    ground = np.stack([x / width, y / height, 0.5 + 0.5 * np.sin(seed + x / 17)], axis=-1)
    shown = np.where(inside[..., None], 1 - ground, ground)
    return (shown * 255).round().astype(np.uint8)
