# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Scenes: a form of one colour moves one way. Drawn from a seed, put into words, and judged.

Fields: N videos, T frames of H x W pixels, RGB in -1 to 1, as [N, 3, T, H, W].
"""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from parity.prompts import PROMPTS_DIR

SIDE, FRAMES = 14, 5
BACKGROUND, SIZE, SPEED = -0.8, 6, 2
COLOURS = {
    "red": (1.0, -0.8, -0.8),
    "green": (-0.8, 1.0, -0.8),
    "blue": (-0.8, -0.8, 1.0),
    "yellow": (1.0, 1.0, -0.8),
}
# Rows and columns per frame.
WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


def _forms() -> dict[str, torch.Tensor]:
    square = torch.ones(SIZE, SIZE)
    ring, cross = square.clone(), torch.zeros(SIZE, SIZE)
    ring[1:-1, 1:-1] = 0
    cross[2:4], cross[:, 2:4] = 1, 1
    return {"square": square, "cross": cross, "ring": ring}


FORMS = _forms()
ASPECTS = {"colour": tuple(COLOURS), "form": tuple(FORMS), "direction": tuple(WAYS)}


class Scene(NamedTuple):
    """What a caption says, one word of each of ASPECTS."""

    colour: str
    form: str
    direction: str


def random_scene(draw: random.Random) -> Scene:
    """Returns any scene."""
    return Scene(*(draw.choice(words) for words in ASPECTS.values()))


def render(scenes: list[Scene], draw: random.Random, frames: int = FRAMES) -> torch.Tensor:
    """Returns videos of scenes; where a form starts is drawn."""
    videos = torch.full((len(scenes), 3, frames, SIDE, SIDE), BACKGROUND)
    room, travel = SIDE - SIZE, SPEED * (frames - 1)
    for video, scene in zip(videos, scenes):
        step = WAYS[scene.direction]
        at = [draw.randint(0, room) if not d else draw.randint(0, room - travel) for d in step]
        at = [room - a if d < 0 else a for a, d in zip(at, step)]
        form = FORMS[scene.form].bool()
        for frame in range(frames):
            row, column = (a + SPEED * d * frame for a, d in zip(at, step))
            place = video[:, frame, row : row + SIZE, column : column + SIZE]
            place[:, form] = torch.tensor(COLOURS[scene.colour])[:, None]
    return videos


def judge(videos: torch.Tensor) -> list[Scene]:
    """Reads scenes off frames; an aspect that cannot be told is "".

    Each form is laid over each place of each frame, and the least sum of squares says which it is
    and where. A frame without anything misses by a form's whole area; half of it is not told.
    """
    videos = videos.float()
    # Deaf to a little noise, and full before full colour.
    strength = (((videos - BACKGROUND).abs().amax(1) - 0.3) / 1.2).clamp(0, 1)
    forms = torch.stack(list(FORMS.values()))
    area = forms.sum((1, 2))
    count, frames = strength.shape[:2]
    overlap = F.conv2d(strength.flatten(0, 1)[:, None], forms[:, None])
    found, place = overlap.flatten(2).max(2)
    misses = strength.square().sum((2, 3)).flatten()[:, None] + area - 2 * found
    misses = (misses / area).view(count, frames, -1).mean(1)
    best = misses.argmin(1)
    palette = torch.tensor(list(COLOURS.values()))
    scenes = []
    for n, form in enumerate(best.tolist()):
        if misses[n, form] > 0.5:
            scenes.append(Scene("", "", ""))
            continue
        columns = overlap.shape[3]
        at = place.view(count, frames, -1)[n, :, form]
        at = torch.stack([at // columns, at % columns]).float()
        moved = (at[:, -1] - at[:, 0]).tolist()
        way = max(WAYS, key=lambda name: sum(a * b for a, b in zip(moved, WAYS[name])))
        shown = strength[n] > 0.5
        colour = (palette - videos[n][:, shown].mean(1)).norm(dim=1).argmin()
        moving = max(map(abs, moved)) >= SPEED * (frames - 1) / 2
        scenes.append(Scene([*COLOURS][colour], [*FORMS][form], way if moving else ""))
    return scenes


LINES = (
    "A {0} {1} moves {2}.",
    "a {0} {1} moving {2}",
    "The {1} is {0} and goes {2}.",
    "A {1}, {0}, drifts {2} over a dark ground.",
    "Going {2}: one {0} {1} in an empty scene.",
)
# Nothing here names a colour, a form or a way.
REMARKS = (
    "The camera rests on a tripod and does not turn.",
    "Nothing else enters the scene while it lasts.",
    "The ground stays dark and even from the first frame to the last.",
    "Edges are crisp, without any blur or glow around them.",
    "The speed is the same in every frame.",
    "Light falls evenly, so that no shadow can be seen.",
    "There is no text, no logo and no frame around the picture.",
    "The size does not change on the way.",
    "A calm picture, made for looking at one thing only.",
    "The surface is plain, without texture or reflections.",
    "Between two frames the distance covered is always equal.",
    "It neither turns around itself nor changes its outline.",
    "The lens has no distortion and no vignetting.",
    "Seen from straight ahead, at a fixed distance.",
    "The motion begins at once and does not pause.",
    "Contrast between the thing and the ground is strong.",
)
TOPICS = ("camera", "lighting", "ground", "surface", "pace", "style", "quality", "framing")


def caption(scene: Scene, draw: random.Random, words: int = 0) -> str:
    """Returns one line, or text or JSON of about `words` words that says the same somewhere."""
    line = draw.choice(LINES).format(*scene)
    remarks, left = [], words - len(line.split())
    while left > 0:
        remarks.append(draw.choice(REMARKS))
        left -= len(remarks[-1].split())
    if words < 60:
        at = draw.randint(0, len(remarks))
        return " ".join(remarks[:at] + [line] + remarks[at:])
    fields = {"summary": line, "subject": {"color": scene.colour, "shape": scene.form}}
    fields["motion"] = {"direction": scene.direction}
    for i, topic in enumerate(TOPICS):
        fields[topic] = remarks[i :: len(TOPICS)]
    order = list(fields)
    draw.shuffle(order)
    return json.dumps({name: fields[name] for name in order if fields[name]})


def negative(sections: int | None = None) -> str:
    """Returns the negative prompt that parity ships, or one of so many of its sections.

    None takes it as it is; beyond its number they are repeated under other names, and 0 is empty.
    """
    whole = json.loads((PROMPTS_DIR / "negative.json").read_text(encoding="utf-8"))
    if sections is None:
        return json.dumps(whole)
    names = list(whole)
    chosen = {}
    for i in range(sections):
        name = names[i % len(names)]
        chosen[name if i < len(names) else f"{name}_{i // len(names) + 1}"] = whole[name]
    return json.dumps(chosen) if chosen else ""
