# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of latents and of their differences, and the plot of the error per step.

Fields: C channels, T frames, H height, W width of the latents.
"""

from __future__ import annotations

import base64
import io
import math

import numpy as np

COLOUR_MAP = "inferno"


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
        """Returns uint8 [T, H / patch, W / patch, 3] for latents [C, T, H, W]."""
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


def log_colours(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns uint8 [..., 3] for values on a logarithmic scale.

    0 has the lowest colour; infinity and NaN, which equal nothing, have the highest.
    """
    import matplotlib

    finite = np.where(np.isfinite(values), values, high)
    floor = np.log10(np.maximum(finite, low * 1e-9))
    unit = (floor - math.log10(low)) / (math.log10(high) - math.log10(low))
    colours = matplotlib.colormaps[COLOUR_MAP](np.clip(unit, 0.0, 1.0))
    return (colours[..., :3] * 255).round().astype(np.uint8)


def colour_bar() -> np.ndarray:
    """Returns the colours from lowest to highest, uint8 [1, 256, 3]."""
    return log_colours(np.logspace(0, 1, 256)[None], 1.0, 10.0)


def png(pixels: np.ndarray) -> str:
    """Returns uint8 [H, W, 3] as a PNG in a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return _data_uri(buffer.getvalue())


def error_plot(
    panels: list[tuple[str, list[tuple[str, str, list[float]]], float | None]], dark: bool
) -> str:
    """Draws error against step on a logarithmic scale.

    Args:
        panels: (title, lines, limit); a line is (label, colour role, errors by step), and the
            role is "unfixed", "fixed" or "plain".
        dark: For a dark page.

    Returns:
        A PNG in a data URI, transparent where nothing is drawn.
    """
    # The object interface: pyplot would keep state and choose a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ink = "#c9d1d9" if dark else "#30363d"
    roles = {
        "unfixed": "#ff7b72" if dark else "#c9302c",
        "fixed": "#56d364" if dark else "#1a7f37",
        "plain": "#79c0ff" if dark else "#0969da",
    }
    drawn = [
        v for _, lines, _ in panels for *_, errors in lines for v in errors if 0 < v < math.inf
    ]
    limits = [limit for *_, limit in panels if limit]
    positive = drawn + limits or [1.0]
    low = 10.0 ** (math.floor(math.log10(min(positive))) - 1)
    high = 10.0 ** math.ceil(math.log10(max(positive)) + 0.1)

    figure = Figure(figsize=(10.4, 4.2), dpi=170)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, lines, limit) in zip(axes, panels):
        for label, role, errors in lines:
            # On a logarithmic scale 0 has no place; the lower edge says "equal to the last bit".
            heights = [max(error, low) for error in errors]
            style = "--" if "positive" in label else "-"
            axis.plot(
                range(len(errors)),
                heights,
                style,
                color=roles[role],
                label=label,
                marker="o",
                markersize=3.2,
                linewidth=1.6,
                clip_on=False,
            )
        if limit:
            axis.axhline(limit, color=ink, linewidth=1, linestyle=":")
            axis.annotate(
                f"limit {limit:g}",
                (0.995, limit),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                color=ink,
                fontsize=8,
            )
        axis.set_yscale("log")
        axis.set_ylim(low, high)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        axis.set_title(title, color=ink, fontsize=10, loc="left")
        axis.set_xlabel("step", color=ink, fontsize=9)
        axis.tick_params(colors=ink, labelsize=8, which="both")
        axis.grid(color=ink, alpha=0.15, linewidth=0.6)
        for spine in axis.spines.values():
            spine.set_color(ink)
            spine.set_alpha(0.35)
        axis.legend(
            fontsize=8,
            frameon=False,
            labelcolor=ink,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.17),
            ncols=2,
        )
    axes[0].set_ylabel("relative error", color=ink, fontsize=9)
    figure.tight_layout()
    buffer = io.BytesIO()
    canvas.figure.savefig(buffer, format="png", transparent=True, bbox_inches="tight")
    return _data_uri(_fewer_colours(buffer.getvalue()))


def _fewer_colours(data: bytes) -> bytes:
    """Returns a PNG of a plot with a palette, a third of the size."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).quantize(64, method=Image.Quantize.FASTOCTREE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _data_uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()
