# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The host's transformer on one rank against diffusers', one unpadded call for each prompt."""

from dataclasses import replace

import pytest
import torch
from support.model import ModelCase, run_host, run_oracle
from support.tiers import AGAINST_FLOAT32, REDUCTION_ORDER, assert_within, worst_sample

# Two float32 implementations that add in another order: 1e-6 over 4 layers. A handful of action
# or sound values averages less of it away.
VIDEO = 2e-6
OTHERS = REDUCTION_ORDER[torch.float32]
# The oracle takes the variance of its norms in float32 whatever the dtype.
FLOAT64 = 5e-7

CASES = {
    "video": ModelCase(),
    "fps-none": ModelCase(fps=None),
    "image": ModelCase(video=(1, 6, 4)),
    "odd-size": ModelCase(video=(2, 5, 7)),
    "len1x300": ModelCase(lengths=(1, 300)),
    "equal": ModelCase(lengths=(13, 13)),
    "bucket-edge": ModelCase(lengths=(256, 257)),
    "three-prompts": ModelCase(lengths=(3, 40, 11)),
    "given-frame": ModelCase(given_frames=(0,)),
    "sound": ModelCase(model="omni", sound_rows=7),
    "action": ModelCase(model="omni", action_rows=8, given_actions=(0, 3)),
    "sound-action": ModelCase(model="omni", sound_rows=5, action_rows=4),
    "control": ModelCase(controls=1),
    "two-controls-own-positions": ModelCase(controls=2, share=False),
    "edge": ModelCase(model="edge"),
    "edge-action": ModelCase(model="edge-action", action_rows=4),
    "no-spatial-reset": ModelCase(
        overrides=(("unified_3d_mrope_reset_spatial_ids", False),), controls=1, share=False
    ),
    "no-fps-modulation": ModelCase(overrides=(("enable_fps_modulation", False),)),
    "bias": ModelCase(overrides=(("attention_bias", True),)),
    "no-grouping": ModelCase(overrides=(("num_key_value_heads", 16),)),
}


@pytest.mark.parametrize("text_kv", ["exact", "padded"])
@pytest.mark.parametrize("backend", ["VANILLA", "FA4"])
@pytest.mark.parametrize("name", CASES)
def test_transformer_velocity_vs_diffusers(name, backend, text_kv):
    # On one rank the old path loops over the samples and is exact too.
    case = replace(CASES[name], backend=backend)
    expected = run_oracle(case)
    found = run_host(case, text_kv=text_kv)
    assert found.keys() == expected.keys()
    for modality, velocity in found.items():
        limit = VIDEO if modality == "video" else OTHERS
        distance = assert_within(velocity, expected[modality], limit, f"{name} {modality}")
        print(f"{name} {backend} {text_kv} {modality}: {distance:.2e}")


@pytest.mark.parametrize("name", ["video", "edge", "sound-action"])
def test_transformer_float64_vs_diffusers(name):
    case = replace(CASES[name], dtype=torch.float64)
    expected = run_oracle(case)
    for modality, velocity in run_host(case).items():
        assert_within(velocity, expected[modality], FLOAT64, f"{name} {modality}")


def test_transformer_bfloat16_vs_float32_oracle():
    exact = run_oracle(CASES["video"])["video"]
    case = replace(CASES["video"], dtype=torch.bfloat16)
    noise = worst_sample(run_oracle(case)["video"], exact)
    ours = worst_sample(run_host(case)["video"], exact)
    assert ours <= AGAINST_FLOAT32 * noise, f"error {ours:.3g}, diffusers in bfloat16 {noise:.3g}"
