# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The page of a result: one HTML file with all pictures inside."""

from __future__ import annotations

import base64
import io
from html import escape
from statistics import mean
from typing import Any

import numpy as np
from parity.pictures import gif

from deviation.measure import CONFIGURATIONS, padded_like
from deviation.scenes import ASPECTS, SIDE

RUNS = {"one": "one rank", "unfixed": "{0} ranks, unfixed", "fixed": "{0} ranks, fixed"}
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: auto; padding: 1rem }
h1 { font-size: 1.5rem } table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { padding: .25rem .6rem; border-bottom: 1px solid #8886; text-align: left }
img { max-width: 100%; image-rendering: pixelated } img.plot { image-rendering: auto }
.pair { display: flex; gap: .5rem; align-items: center; flex-wrap: wrap }
"""
# Axis of points, what stands on the x axis, and its value of a result.
PLOTS = {
    "gap": ("negative minus positive prompt (tokens)", lambda r: mean(r["gaps"])),
    "guidance": ("guidance factor", lambda r: r["point"]["request"]["guidance"]),
    "steps": ("denoising steps", lambda r: r["point"]["request"]["steps"]),
    "frames": ("video rows (tokens)", lambda r: r["rows"]),
    "ranks": ("ranks that share a sequence", lambda r: r["point"]["ranks"]),
}


def shares(obeyed: list[list[bool]]) -> dict[str, float]:
    """Returns the share of videos in which each aspect is the caption's, and in which all are."""
    found = {name: mean(video[i] for video in obeyed) for i, name in enumerate(ASPECTS)}
    return {**found, "all": mean(all(video) for video in obeyed)}


def headline(record: dict[str, Any]) -> str:
    """Returns what the page says first."""
    first = record["results"][0]
    ranks = first["point"]["ranks"]
    said = [f"{RUNS[name].format(ranks)} {shares(first[name]['obeyed'])['all']:.0%}"
            for name in RUNS]  # fmt: skip
    changed = {name: mean(first[name]["changed"]) for name in ("unfixed", "fixed")}
    return (
        f"Captions obeyed: {', '.join(said)}. Colour, form or direction changed in "
        f"{changed['unfixed']:.0%} of videos unfixed, in {changed['fixed']:.0%} fixed."
    )


def decibels(values: list[float | None]) -> str:
    """Returns a mean PSNR, of the videos that differ by more than rounding."""
    known = [value for value in values if value is not None]
    return f"{mean(known):.1f} dB" if known else "-"


def similarity(values: list[float | None]) -> str:
    """Returns a mean SSIM, if it was measured."""
    return "-" if None in values else f"{mean(values):.3f}"


def table(head: list[str], rows: list[list[Any]]) -> str:
    """Returns an HTML table."""
    lines = [["th", head], *(["td", row] for row in rows)]
    body = ("".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in row) for tag, row in lines)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in body) + "</table>"


HEAD = ["ranks", "gap, tokens", "obeyed on one rank", "obeyed unfixed", "obeyed fixed",
        "changed unfixed", "PSNR unfixed", "SSIM unfixed", "PSNR fixed"]  # fmt: skip


def figures(result: dict[str, Any]) -> list[str]:
    """Returns the cells of one point, as HEAD names them."""
    lowest, highest = min(result["gaps"]), max(result["gaps"])
    unfixed = result["unfixed"]
    return [
        str(result["point"]["ranks"]),
        f"{lowest}" if lowest == highest else f"{lowest} to {highest}",
        *(f"{shares(result[name]['obeyed'])['all']:.0%}" for name in RUNS),
        f"{mean(unfixed['changed']):.0%}",
        decibels(unfixed["psnr"]),
        similarity(unfixed["ssim"]),
        decibels(result["fixed"]["psnr"]),
    ]


def on_axis(record: dict[str, Any], axis: str) -> list[dict[str, Any]]:
    """Returns the results of one axis."""
    return [r for r in record["results"] if r["point"]["axis"].split(",")[0] == axis]


def configurations(record: dict[str, Any]) -> list[list[str]]:
    """Returns a row for each official configuration, with what was measured of its padding."""
    measured = {
        (r["point"]["ranks"], r["point"]["request"]["together"]): r
        for r in on_axis(record, "configuration")
    }
    rows = []
    for name, sizes in CONFIGURATIONS.items():
        ranks, together = padded_like(sizes)
        pads = ["text to the longer prompt" * together, "tail and video to a multiple of P"]
        pads = ", ".join(filter(None, pads)) if ranks > 1 else "nothing"
        result = measured.get((ranks, together))
        cells = figures(result)[2:] if result else ["-"] * (len(HEAD) - 2)
        rows.append([name, str(sizes), str(ranks), pads, *cells])
    return rows


def _uri(image: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def pictures(first: dict[str, Any], run: str) -> np.ndarray:
    """Returns the headline's kept frames, uint8 [requests, T, SIDE, SIDE, 3]."""
    frames = np.frombuffer(base64.b64decode(first["pictures"][run]), np.uint8)
    return frames.reshape(len(first["asked"]), -1, SIDE, SIDE, 3)


def strip(frames: np.ndarray, scale: int = 6) -> bytes:
    """Returns frames uint8 [T, H, W, 3] side by side as a PNG."""
    from PIL import Image

    padded = np.pad(frames, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=128)
    image = Image.fromarray(np.concatenate(list(padded), 1))
    buffer = io.BytesIO()
    image.resize((image.width * scale, image.height * scale), 0).save(buffer, "PNG")
    return buffer.getvalue()


def animation(frames: np.ndarray, scale: int = 8) -> bytes:
    """Returns frames uint8 [T, H, W, 3] as a GIF that repeats."""
    from PIL import Image

    images = [Image.fromarray(frame).resize((scale * frame.shape[1], scale * frame.shape[0]), 0)
              for frame in frames]  # fmt: skip
    return gif(images, 350)


def _plot(draw, size: tuple[float, float]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=110, layout="constrained")
    draw(figure)
    buffer = io.BytesIO()
    # Without the time and version that would make each file another.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def curves(record: dict[str, Any]) -> bytes:
    """Returns the plot of obeyed captions and PSNR over each axis, as a PNG."""
    axes = {name: on_axis(record, name) for name in PLOTS}
    axes = {name: results for name, results in axes.items() if results}

    def draw(figure):
        grid = figure.subplots(2, len(axes), squeeze=False, sharey="row")
        for column, (name, results) in enumerate(axes.items()):
            title, value = PLOTS[name]
            results = sorted(results, key=value)
            x = [value(r) for r in results]
            above, below = grid[0][column], grid[1][column]
            for run, mark in (("one", "o-"), ("fixed", "x--"), ("unfixed", "s-")):
                above.plot(x, [100 * shares(r[run]["obeyed"])["all"] for r in results], mark,
                           label=RUNS[run].format("P"))  # fmt: skip
            psnrs = [[p for p in r["unfixed"]["psnr"] if p is not None] for r in results]
            known = [(at, mean(p)) for at, p in zip(x, psnrs) if p]
            below.plot(*zip(*known), "s-", color="C2") if known else None
            below.set_xlabel(title, fontsize=8)
        grid[0][0].set_ylabel("captions obeyed (%)")
        grid[0][0].set_ylim(-5, 105)
        grid[1][0].set_ylabel("unfixed, PSNR (dB)")
        grid[0][0].legend(fontsize=7)

    return _plot(draw, (2.6 * max(1, len(axes)), 5))


def masses(record: dict[str, Any]) -> bytes:
    """Returns the plot of the zero keys' share for each layer and head, as a PNG."""
    measured = np.array(record["results"][0]["mass"]["measured"])

    def draw(figure):
        axes = figure.subplots()
        image = axes.imshow(100 * measured, aspect="auto", vmin=0, vmax=100, cmap="magma")
        axes.set(xlabel="query head", ylabel="layer", yticks=range(len(measured)))
        figure.colorbar(image, label="softmax weight of zero keys (%)")

    return _plot(draw, (8, 2.6))


def places(record: dict[str, Any]) -> bytes:
    """Returns the figure of which key sits where, before and after the fix, as a PNG."""
    first = record["results"][0]
    ranks, lengths, rows = first["point"]["ranks"], first["tokens"][0], first["rows"]
    slots, video = (-(-n // ranks) * ranks for n in (max(lengths), rows))
    kinds = {"text": "C0", "video": "C1", "zero": "0.8"}

    def draw(figure):
        axes = figure.subplots()
        for y, (role, length) in enumerate(zip(("negative", "positive"), lengths)):
            for state, parts in (
                ("unfixed", _blocks(length, slots, rows, video, ranks)),
                ("fixed", [("video", rows), ("text", length)]),
            ):
                left, at = 0, 2 * y + (state == "fixed")
                for kind, width in parts:
                    axes.barh(at, width, left=left, color=kinds[kind], edgecolor="white", lw=0.5)
                    left += width
                axes.text(left + 8, at, f"{role} prompt, {state}: {left} keys", va="center")
        axes.set(yticks=[], xlim=(0, 1.6 * (slots + video)),
                 xlabel="place among the keys that each query attends to")  # fmt: skip
        axes.invert_yaxis()
        axes.legend([axes.barh(0, 0, color=c) for c in kinds.values()], kinds, loc="lower right")

    return _plot(draw, (9, 2.8))


def _blocks(length: int, slots: int, rows: int, video: int, ranks: int) -> list[tuple[str, int]]:
    """What follows what behind the all-to-all: each rank's shard of the text, then the video's."""
    found = []
    for rank in range(ranks):
        for kind, real, padded in (("text", length, slots), ("video", rows, video)):
            share = padded // ranks
            there = min(max(real - rank * share, 0), share)
            found += [(kind, there), ("zero", share - there)]
    return found


def html(record: dict[str, Any]) -> str:
    """Returns the page."""
    first, training = record["results"][0], record["weights"]
    ranks, parts = first["point"]["ranks"], []
    for i, scene in enumerate(first["asked"]):
        parts.append(f"<h3>{escape('a {} {} moving {}'.format(*scene))}</h3>")
        for name, title in RUNS.items():
            frames, said = pictures(first, name)[i], title.format(ranks)
            images = f'<img src="{_uri(animation(frames), "gif")}" alt="{said}, animated">'
            images += f'<img src="{_uri(strip(frames), "png")}" alt="{said}, all frames">'
            parts.append(f'<div class="pair">{images}<span>{escape(said)}</span></div>')
    plots = [(curves, "Captions obeyed and PSNR over each axis"), (masses, "Share of zero keys")]
    drawn = {title: f'<p><img class="plot" src="{_uri(draw(record), "png")}" alt="{title}"></p>'
             for draw, title in plots}  # fmt: skip
    points = [[r["point"]["axis"], r["point"]["label"], *figures(r)] for r in record["results"]]
    facts = {
        "weights": f"this project's own tiny model, trained for {training.get('seconds')} s, "
        f"{training.get('steps')} steps on {training.get('device')}, "
        f"commit {training.get('commit')}; nothing is said of released models",
        "run in": f"{record['dtype']} on {record['device']}, {record['threads']} threads",
        "date": record["date"], "commit": record["commit"], "command": record["command"],
    }  # fmt: skip
    return "\n".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">',
            f"<title>Deviation</title><style>{STYLE}</style>",
            f"<h1>{escape(headline(record))}</h1>",
            "<p>A tiny Cosmos3 that has learned moving forms, asked for the same videos three "
            "times with the same seeds. An aspect is read off the frames.</p>",
            table(["aspect", *(title.format(ranks) for title in RUNS.values())],
                  [[name, *(f"{shares(first[run]['obeyed'])[name]:.0%}" for run in RUNS)]
                   for name in (*ASPECTS, "all")]),
            "<h2>The same requests</h2>", *parts,
            "<h2>What it depends on</h2>", drawn[plots[0][1]],
            table(["axis", "at", *HEAD], points),
            "<h2>Zero keys in the softmax</h2>", drawn[plots[1][1]],
            f"<p>Measured against n / (n + sum exp(logits)) in float64, for each query: at most "
            f"{first['mass']['farthest']:.1e} apart.</p>",
            "<h2>The official configurations</h2><p>Laid out as upstream's files do, run with "
            "this model and the headline's prompts.</p>",
            table(["file", "layout", "P", "padded", *HEAD[2:]], configurations(record)),
            "<h2>How this was measured</h2>", table(["what", "which"], list(facts.items())),
            "<h2>Checks</h2>", table(["status", "check", "measured", "limit"], record["checks"]),
            "</html>",
        )
    )  # fmt: skip
