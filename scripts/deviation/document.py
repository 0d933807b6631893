# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Make docs/deviation.md and its pictures from a result: `python -m deviation.document [FILE]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from string import Template

import numpy as np
from bench.readme import markdown_table
from hostpath import ROOT

from deviation import page

RESULT = ROOT / "results" / "deviation-cpu.json"
TEXT = Template("""# What the bug does to a video

$headline That is a tiny model of this project's own, trained for this; nothing is said of the \
released models.

![$asked: on one rank, on $ranks ranks unfixed, and fixed](deviation-frames.png)

All frames of the first request that one rank obeys; the rows are one rank, $ranks ranks unfixed, \
$ranks ranks fixed.

## How it works

Each video token attends to the video and to its own prompt. Guidance runs two prompts as one \
batch, here of $negative and $positive tokens, beside $rows video rows. When P ranks share the \
sequence, unfixed releases fill the shorter prompt up with zeros to the longer, both to a multiple \
of P, and cut text and video into P parts each. Behind the all-to-all every rank sees all of it, \
zeros included. A zero key has logit 0 and takes e^0 from the softmax: n of them take \
n / (n + sum exp(logits)). Rows that pad the video have zero keys too, and values that are not \
zero behind the first layer.

![Which key sits where on $ranks ranks](deviation-places.png)

Here zero keys take between $low and $high of the softmax, by layer and head; the formula is off \
by at most $farthest.

The fix keeps the text whole on every rank, cut to the rank's heads, and appends it behind the \
all-to-all where the video's padding was cut off. What counts is then a prefix, and its length \
goes to the kernel. In the figure nothing grey is left.

## Results

Weights: trained on $trained. Run in $dtype on $device. A video has $rows rows. \
An aspect counts as obeyed if the judge reads it off the frames; *obeyed* wants all three. The \
headline asks for captions of all lengths in turn, any other point for short ones, unless it says \
otherwise. A dash in place of decibels: no pixel differs by half a step of 8 bits.

$table

*gap* is the negative prompt's length minus the positive one's; *cause* takes the parts of the \
padding one by one. The official configurations, with this model and the headline's prompts:

$configurations

## How to get it again

`make deviation` on a CPU, no GPU needed; `build/deviation/report.html` has moving pictures and \
plots. It goes on where it was interrupted. P ranks are computed in one process; a test holds \
this to real ranks over gloo. On one or two GPUs, and with real weights (`--checkpoint DIR`), \
`make parity` compares velocities; what it measures of videos, `make parity ARGS=--help` says. \
`make train` makes the weights again.

Made by `python -m deviation.document` from `$file`: commit $commit, $date.
""")


def documents(path: Path = RESULT) -> dict[str, str | bytes]:
    """Returns the text or picture of each file under docs/."""
    record = json.loads(path.read_text(encoding="utf-8"))
    first, training = record["results"][0], record["weights"]
    mass = np.array(first["mass"]["measured"])
    points = [[r["point"]["axis"], r["point"]["label"], *page.figures(r)]
              for r in record["results"] if r["point"]["axis"] != "configuration"]  # fmt: skip
    negative, positive = first["tokens"][0]
    best = [all(obeyed) for obeyed in first["one"]["obeyed"]].index(True)
    text = TEXT.substitute(
        headline=page.headline(record), ranks=first["point"]["ranks"], rows=first["rows"],
        asked="a {} {} moving {}".format(*first["asked"][best]),
        negative=negative, positive=positive,
        low=f"{mass.min():.0%}", high=f"{mass.max():.0%}",
        farthest=f"{first['mass']['farthest']:.0e}",
        trained=f"{training['device']}, {training['seconds']} s, {training['steps']} steps",
        dtype=record["dtype"], device=record["device"], commit=record["commit"],
        date=record["date"], file=f"results/{path.name}",
        table=markdown_table(
            {"title": "", "columns": ["axis", "at", *page.HEAD], "rows": points}
        ),
        configurations=markdown_table({
            "title": "", "columns": ["file", "layout", "P", "padded", *page.HEAD[2:]],
            "rows": page.configurations(record),
        }),
    )  # fmt: skip
    rows = np.stack([page.pictures(first, run)[best] for run in page.RUNS], 1)
    gap = ((0, 0), (0, 0), (0, 1), (0, 0), (0, 0))
    frames = np.pad(rows, gap, constant_values=128).reshape(len(rows), -1, *rows.shape[3:])
    return {
        "deviation.md": text,
        "deviation-frames.png": page.strip(frames),
        "deviation-places.png": page.places(record),
    }


def main() -> int:
    """Writes the files."""
    for name, content in documents(Path(sys.argv[1]) if sys.argv[1:] else RESULT).items():
        content = content.encode() if isinstance(content, str) else content
        (ROOT / "docs" / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
