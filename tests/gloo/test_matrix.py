# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Every layout with everything that shares the generation sequence, on a whole model.

Each cell compares P ranks with one rank and with diffusers in float32 and float64, and the unfixed
path on the same ranks, which must be wrong wherever anything is padded.
"""

import dataclasses
import itertools

import pytest
import torch
from support.cases import Layout
from support.checks import check_branches, check_transformer
from support.model import ModelCase

pytestmark = pytest.mark.gloo

DTYPES = (torch.float32, torch.float64)
LAYOUTS = [
    Layout(ulysses=2),
    Layout(ulysses=4),
    Layout(rows=1, cols=2),
    Layout(rows=2, cols=1),
    Layout(rows=2, cols=2),
    Layout(rows=2, cols=3),
    Layout(rows=2, cols=2, ulysses=2),
    Layout(ring=2),
    Layout(ring=4),
    Layout(ring=2, ulysses=2),
    Layout(tp=2),
    Layout(tp=2, ulysses=2),
    Layout(cfg=2, ulysses=2),
]
# Rows that no rank count here divides, where the modality leaves a choice; lengths far apart.
MODALITIES = {
    "video": ModelCase(lengths=(1, 140), video=(3, 5, 6)),
    "given-frames": ModelCase(lengths=(19, 7), video=(5, 4, 5), given_frames=(0, 2)),
    "controls-shared": ModelCase(lengths=(7, 19), video=(1, 5, 6), controls=2),
    "controls-own-positions": ModelCase(lengths=(7, 19), controls=1, share=False),
    "sound": ModelCase(model="omni", lengths=(30, 5), sound_rows=5),
    "action": ModelCase(model="omni", lengths=(5, 30), action_rows=4, given_actions=(0,)),
    "edge": ModelCase(model="edge", lengths=(7, 131)),
    "edge-action": ModelCase(model="edge-action", lengths=(9, 4), action_rows=2),
    "four-samples": ModelCase(lengths=(3, 61, 17, 128), video=(1, 5, 9)),
}


def _cells() -> list:
    cells = []
    for layout, (name, case) in itertools.product(LAYOUTS, MODALITIES.items()):
        # Attention2D and ring need an LSE, which VANILLA has not.
        alone = layout.ring * layout.rows * layout.cols == 1
        backend = "VANILLA" if alone and name != "sound" else "FA4"
        layers = (("num_hidden_layers", 2),)
        cell = dataclasses.replace(case, layout=layout, backend=backend, overrides=layers)
        cells.append(pytest.param(cell, id=f"{layout}-{name}-{backend.lower()}"))
    return cells


@pytest.mark.parametrize("case", _cells())
def test_matrix_velocity_vs_one_rank_and_diffusers(ranks, case):
    for dtype in DTYPES:
        check_transformer(ranks.run, dataclasses.replace(case, dtype=dtype))


@pytest.mark.parametrize("layout", [Layout(ulysses=2), Layout(rows=1, cols=2)], ids=str)
def test_branches_with_control_on_and_off_vs_diffusers(ranks, layout):
    """The transfer pipeline: branches differ in prompts and in whether they see the control."""
    case = ModelCase(layout=layout, backend="FA4", controls=1)
    off = dataclasses.replace(case, lengths=(130, 2), controls=0)
    check_branches(ranks.run, (case, off, dataclasses.replace(case, lengths=(19, 7))))
