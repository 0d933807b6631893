# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Measure: the same requests on one rank, and as P ranks do, unfixed and fixed.

Every finished point is a line of a file, under a digest of all that it depends on, so that an
interrupted run goes on where it was.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cosmos3_checkpoint import WEIGHTS
from cosmos3_sizes import LEARNED, SIZES
from hostpath import ROOT
from preflight.layout import Sizes

from deviation import scenes
from deviation.generate import Request, build, video, zero_key_mass

SHORT, LONG = 0, 500
# Half a step of an 8-bit pixel. Whoever computes them in float32, videos differ by less.
NOISE_FLOOR = 1 / 255
# Requests of which a result keeps the frames.
SHOWN = 6

# The official files for Cosmos3, by their names upstream, and how they lay out ranks.
CONFIGURATIONS = {
    "cosmos3-nano-1gpu": Sizes(),
    "cosmos3-t2i-1gpu": Sizes(),
    "cosmos3-fp8-1gpu": Sizes(),
    "cosmos3-super-4gpu": Sizes(cfg_size=2, ulysses_size=2),
    "cosmos3-super-4gpu-hopper": Sizes(tp_size=2, ulysses_size=2),
    "cosmos3-super-8gpu": Sizes(cfg_size=2, ulysses_size=4),
    "cosmos3_t2v_bf16_gb200_nvl72": Sizes(
        cfg_size=2, attn2d_row_size=3, attn2d_col_size=3, ulysses_size=4
    ),
}


@dataclass(frozen=True)
class Point:
    """One place on one axis.

    Attributes:
        axis: What is varied: a plot's name.
        label: The value in words, on the axis.
        request: What is asked for.
        ranks: P.
        requests: How many.
    """

    axis: str
    label: str
    request: Request
    ranks: int = 2
    requests: int = 8


def points(requests: int) -> list[Point]:
    """Returns all points; the first is the headline, of the shipped negative prompt."""
    base, made = Request(), []

    def add(axis: str, label: str, ranks: int = 2, **changes) -> None:
        request = replace(base, **changes)
        made.append(Point(axis, label, request, ranks, requests))

    made.append(Point("headline", "all lengths", replace(base, words=None), 2, 6 * requests))
    for sections in (0, 2, 4, None, 18, 27):
        add("gap", "as shipped" if sections is None else f"{sections} sections", sections=sections)
    for words in (100, LONG):
        add("gap, negative shorter", f"captions of {words} words", sections=0, words=words)
    add("caption", "short", words=SHORT)
    add("caption", "medium", words=150)
    add("caption", "long", words=LONG)
    for guidance in (1.0, 3.0, 6.0, 9.0):
        add("guidance", f"{guidance:g}", guidance=guidance)
    for ranks in (2, 4):
        add("ranks", f"{ranks}", ranks)
    for frames in (3, 4, 5):
        add("frames", f"{frames}", frames=frames)
    for steps in (4, 10, 35):
        add("steps", f"{steps}", steps=steps)
    for ranks in (2, 4):
        text = {"sections": 2, "divisor": 4}
        add("cause", "nothing padded", ranks, **text, frames=4, together=False)
        add("cause", "rounding tail alone", ranks, frames=4, together=False)
        add("cause", "video padding alone", ranks, **text, together=False)
        add("cause", "text padding alone", ranks, **text, frames=4)
        add("cause", "all of them", ranks)
    for ranks, together in dict.fromkeys(map(padded_like, CONFIGURATIONS.values())):
        how = "one batch" if together else "each prompt apart"
        add("configuration", f"{how} on {ranks}", ranks, together=together)
    return made


def padded_like(sizes: Sizes) -> tuple[int, bool]:
    """Returns P, and whether both prompts are one batch: all that padding depends on."""
    return sizes.sequence_size, sizes.cfg_size == 1


def digest(value: Any) -> str:
    """Returns a digest of something that JSON holds."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint() -> str:
    """Returns a digest of the weights and of all code that figures depend on."""
    folders = ("host", "overlay", "scripts/deviation", "scripts/parity")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    files += [*sorted((ROOT / "scripts").glob("cosmos3_*.py")), LEARNED / WEIGHTS]
    return digest([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])


def measure(chosen: list[Point], kept: Path, depends_on: str) -> Iterator[dict[str, Any]]:
    """Yields the result of each point, from the file or measured and added to it.

    Args:
        chosen: Points in any order.
        kept: File of finished points; a line that was cut off is measured again.
        depends_on: Digest of all else that results depend on.
    """
    finished = {}
    if kept.exists():
        for line in kept.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            finished[entry["key"]] = entry["result"]
    done = functools.lru_cache(maxsize=None)(_video)
    for number, point in enumerate(chosen):
        place = f"{number + 1}/{len(chosen)}"
        print(f"deviation: {place} {point.axis}: {point.label}", file=sys.stderr)
        key = digest([depends_on, asdict(point)])
        if key not in finished:
            finished[key] = _result(point, done)
            with kept.open("a") as file:
                file.write(f"\n{json.dumps({'key': key, 'result': finished[key]})}\n")
        yield finished[key]


@functools.lru_cache(maxsize=None)
def _model(fixed: bool, ranks: int):
    return build(fixed, ranks)


def _video(fixed: bool, ranks: int, request: Request, number: int) -> torch.Tensor:
    return video(_model(fixed, ranks), request, number)


def _result(point: Point, done) -> dict[str, Any]:
    request, count = point.request, point.requests
    one, unfixed, fixed = (
        torch.stack([done(*run, request, i) for i in range(count)])
        for run in ((True, 1), (False, point.ranks), (True, point.ranks))
    )
    runs = {"unfixed": unfixed, "fixed": fixed}
    seen = scenes.judge(one)
    asked = [request.prompts(i) for i in range(count)]
    lengths = [[len(prompt.ids) for prompt in prompts] for _, *prompts in asked]
    wanted = [scene for scene, *_ in asked]
    result = {
        "point": asdict(point),
        "gaps": [none - some for none, some in lengths],
        "tokens": lengths,
        "rows": request.frames * (scenes.SIDE // SIZES["learned"]["latent_patch_size"]) ** 2,
        "one": {"obeyed": obeyed(wanted, seen)},
    }
    for name, found in runs.items():
        judged = scenes.judge(found)
        result[name] = {
            "obeyed": obeyed(wanted, judged),
            "changed": [a != b for a, b in zip(seen, judged)],
            "psnr": [psnr(a, b) for a, b in zip(one, found)],
            "ssim": [ssim(a, b) for a, b in zip(one, found)],
            "farthest": float((one - found).abs().max()),
        }
    if point.axis == "headline":
        shown = {
            name: pixels(videos[:SHOWN]).numpy() for name, videos in {"one": one, **runs}.items()
        }
        result["pictures"] = {
            name: b64encode(frames.tobytes()).decode() for name, frames in shown.items()
        }
        result["asked"] = [list(scene) for scene in wanted[:SHOWN]]
        result["mass"] = zero_key_mass(request, point.ranks)
    return result


def obeyed(wanted: list[scenes.Scene], found: list[scenes.Scene]) -> list[list[bool]]:
    """Returns for each video whether each aspect is the caption's."""
    return [[a == b for a, b in zip(*pair)] for pair in zip(wanted, found)]


def pixels(videos: torch.Tensor) -> torch.Tensor:
    """Returns uint8 frames [..., T, H, W, 3] of videos [..., 3, T, H, W]."""
    scaled = (videos.clamp(-1, 1) + 1) * 127.5
    return scaled.round().to(torch.uint8).movedim(-4, -1)


def psnr(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """Returns decibels between videos of range 2; None where no pixel differs by NOISE_FLOOR."""
    apart = one.clamp(-1, 1) - other.clamp(-1, 1)
    known = apart.abs().max() > NOISE_FLOOR
    return 10 * math.log10(4 / apart.square().mean().item()) if known else None


def ssim(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """Returns the frames' mean structural similarity; None without scikit-image."""
    if importlib.util.find_spec("skimage") is None:
        return None
    from skimage.metrics import structural_similarity

    frames = zip(pixels(one).numpy(), pixels(other).numpy())
    found = [structural_similarity(a, b, channel_axis=2, data_range=255) for a, b in frames]
    return float(sum(found) / len(found))
