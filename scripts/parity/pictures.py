# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of latents and of their differences, and the plot of the error per step.

Fields: C channels, T frames, H height, W width of the latents.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np

COLOUR_MAP = "inferno"
# Frames shown: the first, the middle and the last.
FRAMES = 3


class Palette:
    """Turns latents into colours, alike for all latents that are to be compared.

    The first principal component of a patch gives the brightness, the second and third the hue:
    blue to yellow and green to red. A patch is what the model sees as one video row; inside it
    the channels of each place mean something else, so that places are not comparable.

    Args:
        latents: [C, T, H, W], whose components and range set the palette.
        patch: Side of a patch.
    """

    def __init__(self, latents: np.ndarray, patch: int):
        self._patch = patch
        # Three channels are colours already.
        self._rgb = len(latents) == 3
        if self._rgb:
            return
        rows, _ = self._rows(latents)
        self._mean = rows.mean(axis=0)
        _, _, components = np.linalg.svd(rows - self._mean, full_matrices=False)
        self._basis = np.zeros((3, rows.shape[1]))
        self._basis[: len(components[:3])] = components[:3]
        # An eigenvector's sign is arbitrary.
        self._basis *= np.sign(self._basis.sum(axis=1, keepdims=True) + 1e-30)
        scores = (rows - self._mean) @ self._basis.T
        self._low, self._high = np.percentile(scores, (1, 99), axis=0)

    def _rows(self, latents: np.ndarray) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Returns one row for each whole patch, and the grid of patches."""
        channels, frames, height, width = latents.shape
        latents = np.nan_to_num(latents, posinf=0.0, neginf=0.0)
        p = self._patch
        # Patches that the video's edge cuts have places without latents, which no component fits.
        whole = latents[:, :, : height // p * p or 1, : width // p * p or 1].astype(np.float64)
        pad = ((0, 0), (0, 0), (0, -whole.shape[2] % p), (0, -whole.shape[3] % p))
        padded = np.pad(whole, pad, mode="edge")
        grid = (frames, padded.shape[2] // p, padded.shape[3] // p)
        blocks = padded.reshape(channels, frames, grid[1], p, grid[2], p)
        return blocks.transpose(1, 2, 4, 0, 3, 5).reshape(math.prod(grid), -1), grid

    def colours(self, latents: np.ndarray) -> np.ndarray:
        """Returns uint8 [T, rows, columns, 3] for latents [C, T, H, W]; RGB as it is."""
        if self._rgb:
            scaled = (np.nan_to_num(latents).clip(-1, 1) + 1) * 127.5
            return scaled.round().astype(np.uint8).transpose(1, 2, 3, 0)
        rows, grid = self._rows(latents)
        scores = (rows - self._mean) @ self._basis.T
        unit = (scores - self._low) / np.maximum(self._high - self._low, 1e-30)
        first, second, third = np.clip(unit, 0.0, 1.0).T
        brightness = 0.12 + 0.76 * first
        blue, red = 0.55 * (second - 0.5), 0.55 * (third - 0.5)
        # YCbCr to RGB, ITU-R BT.601.
        rgb = np.stack(
            (
                brightness + 1.402 * red,
                brightness - 0.344136 * blue - 0.714136 * red,
                brightness + 1.772 * blue,
            ),
            axis=-1,
        )
        return (np.clip(rgb, 0, 1) * 255).round().astype(np.uint8).reshape(*grid, 3)


def difference(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns the error at each place, [T, H, W]: L2 over channels against the whole's mean."""
    delta = np.sqrt(((found.astype(np.float64) - expected) ** 2).sum(axis=0))
    size = math.sqrt(float((expected.astype(np.float64) ** 2).sum(axis=0).mean()))
    return delta / max(size, 1e-300)


def log_levels(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns uint8 levels on a logarithmic scale from low to high.

    0 has the lowest; infinity and NaN, which equal nothing, have the highest.
    """
    finite = np.where(np.isfinite(values), values, high)
    logs = np.log10(np.maximum(finite, low * 1e-9))
    unit = (logs - math.log10(low)) / (math.log10(high) - math.log10(low))
    return (np.clip(unit, 0.0, 1.0) * 255).round().astype(np.uint8)


def level_png(levels: np.ndarray) -> str:
    """Returns uint8 levels [H, W] as a coloured PNG in base64."""
    import matplotlib
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(levels), "P")
    colours = matplotlib.colormaps[COLOUR_MAP](np.arange(256))[:, :3]
    image.putpalette((colours * 255).round().astype(np.uint8).tobytes())
    return _encoded(image)


def colour_bar() -> str:
    """Returns all levels from lowest to highest as a PNG in base64."""
    return level_png(np.arange(256, dtype=np.uint8)[None])


def colour_png(pixels: np.ndarray) -> str:
    """Returns uint8 [H, W, 3] as a PNG in base64."""
    from PIL import Image

    return _encoded(Image.fromarray(np.ascontiguousarray(pixels)))


def draw(final: dict[str, tuple[str, Any]], patch: int, low: float) -> dict[str, Any]:
    """Returns the pictures of the latents at the end, as a result file keeps them.

    Args:
        final: Run name -> (title, tensor [C, T, H, W]); "one" is what the others are held against.
        patch: Side of a patch.
        low: Differences up to this are black; a power of ten.

    Returns:
        "frames" shown; "range" of the difference maps; "shape" of a frame, "wide" or "tall";
        "columns", each with "title", "foot" and one of "images" for each frame.
    """
    shown = [name for name in ("one", "unfixed", "fixed") if name in final]
    if len(shown) == 1:
        shown.append("unfixed-one")
    latents = {name: final[name][1].float().numpy() for name in shown}
    one, titles = latents["one"], {name: final[name][0] for name in shown}
    palette = Palette(one, patch)
    maps = {name: difference(latents[name], one) for name in shown[1:]}
    most = max((float(values.max()) for values in maps.values()), default=0.0)
    # One range, in whole decades, for all maps.
    high = 10.0 ** math.ceil(math.log10(most)) if 0 < most < math.inf else 1.0
    high = max(high, low * 100)
    # Cut to whole patches, as the pictures of latents are, so that places lie side by side.
    height, width = (max(n // patch * patch, 1) for n in one.shape[2:])
    frames = sorted({round(i * (one.shape[1] - 1) / (FRAMES - 1)) for i in range(FRAMES)})
    columns = []
    for name in shown:
        colours = palette.colours(latents[name])
        images = [colour_png(colours[frame]) for frame in frames]
        columns.append({"title": titles[name], "foot": "", "images": images})
    for name, values in maps.items():
        levels = log_levels(values[:, :height, :width], low, high)
        whole = math.sqrt(float((values**2).mean()))
        columns.append(
            {
                "title": f"difference: {titles[name]}",
                "foot": f"{whole:.1e} over all frames" if whole else "equal to the last bit",
                "images": [level_png(levels[frame]) for frame in frames],
            }
        )
    shape = "wide" if width > 1.2 * height else "tall"
    return {"frames": frames, "range": [low, high], "shape": shape, "columns": columns}


def film(frames: dict[str, np.ndarray], chunk: int) -> dict[str, Any]:
    """Returns the frames of a request, as a result file keeps them.

    Args:
        frames: By run, uint8 [F, height, width, 3]; the first is what the others are held against.
        chunk: Frames of the first chunk; those that follow show one fewer.

    Returns:
        "rows": the runs, and how far each is from the first, 8 times as bright; "strips", one
        picture of all rows for each chunk; "animation", a GIF of all rows side by side.
    """
    first, *_ = frames.values()
    rows = dict(frames)
    for title, found in list(frames.items())[1:]:
        distance = 8 * np.abs(found.astype(np.int16) - first)
        rows[f"8 x difference: {title}"] = np.clip(distance, 0, 255).astype(np.uint8)
    # Half the size: pictures of a random model are noise, which no format makes small.
    small = np.stack([values[:, ::2, ::2] for values in rows.values()])
    edges = [0, *range(chunk, len(first), max(1, chunk - 1)), len(first)]
    parts = [small[:, a:b] for a, b in zip(edges, edges[1:])]
    strips = [
        _encoded(_paletted(np.concatenate(list(np.concatenate(x.swapaxes(0, 1), axis=2)))))
        for x in parts
    ]
    moving = [_paletted(np.concatenate(list(x), axis=1)) for x in small.swapaxes(0, 1)]
    animation = base64.b64encode(gif(moving, 160)).decode()
    return {"rows": list(rows), "strips": strips, "animation": animation}


def gif(images: list, duration: int) -> bytes:
    """Returns PIL images as a GIF that repeats, each shown for so many milliseconds."""
    buffer = io.BytesIO()
    options = {"save_all": True, "append_images": images[1:], "duration": duration, "loop": 0}
    images[0].save(buffer, "GIF", **options)
    return buffer.getvalue()


def error_plot(
    panels: list[tuple[str, list[tuple[str, str, list[float]]], float | None]], dark: bool
) -> str:
    """Draws error against step on a logarithmic scale.

    Args:
        panels: (title, lines, limit); a line is (label, colour role, errors by step), and the
            role is "unfixed", "fixed" or "plain"; any other takes the next colour.
        dark: For a dark page.

    Returns:
        A PNG in base64, transparent where nothing is drawn.
    """
    # The object interface: pyplot would choose a display.
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ink = "#c9d1d9" if dark else "#30363d"
    roles = {
        "unfixed": "#ff7b72" if dark else "#c9302c",
        "fixed": "#56d364" if dark else "#1a7f37",
        "plain": "#79c0ff" if dark else "#0969da",
    }
    values = [float(v) for _, lines, _ in panels for *_, errors in lines for v in errors]
    limits = [limit for *_, limit in panels if limit]
    positive = [v for v in values if 0 < v < math.inf] + limits or [1.0]
    low = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    high = 10.0 ** math.ceil(math.log10(max(positive)) + 0.1)
    colours = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    style = {**dict.fromkeys(colours, ink), "font.size": 8, "axes.titlesize": 10}
    style |= {"axes.edgecolor": (ink, 0.35), "grid.alpha": 0.15, "axes.grid": True}
    buffer = io.BytesIO()
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(10.4, 4.2), dpi=170, layout="tight")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (title, lines, limit) in zip(axes, panels):
            for label, role, errors in lines:
                axis.plot(
                    # On a logarithmic scale 0 has no place; the lower edge says "equal".
                    [max(float(error), low) for error in errors],
                    "o--" if "positive" in label else "o-",
                    color=roles.get(role),
                    label=label,
                    markersize=3.2,
                    linewidth=1.6,
                    clip_on=False,
                )
            if limit:
                axis.axhline(limit, color=ink, linewidth=1, linestyle=":")
                place = axis.get_yaxis_transform()
                axis.text(
                    0.995, limit, f"limit {limit:g}", transform=place, ha="right", va="bottom"
                )
            axis.set(yscale="log", ylim=(low, high), xlabel="step")
            axis.set_title(title, loc="left")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 2}
            axis.legend(frameon=False, **below)
        axes[0].set_ylabel("relative error")
        figure.savefig(buffer, format="png", transparent=True, bbox_inches="tight")
    return _fewer_colours(buffer.getvalue())


def _fewer_colours(data: bytes) -> str:
    """Returns a PNG of a plot with a palette, a third of the size, in base64."""
    from PIL import Image

    return _encoded(Image.open(io.BytesIO(data)).quantize(64, method=Image.Quantize.FASTOCTREE))


def _paletted(pixels: np.ndarray):
    from PIL import Image

    return Image.fromarray(pixels).quantize(64, method=Image.Quantize.FASTOCTREE)


def _encoded(image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
