# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the parity run changes about a model before it runs it."""

import pytest
import torch
from parity.worker import _split_rows
from support.model import ModelCase, build_host
from support.tiers import REDUCTION_ORDER, assert_within

from tensorrt_llm._torch.modules.linear import Linear


@pytest.mark.parametrize("parts", [2, 4])
def test_split_rows_velocity_vs_whole(parts):
    case = ModelCase(dtype=torch.float64, overrides=(("num_hidden_layers", 2),))
    inputs = case.inputs()
    expected = build_host(case).forward(**inputs).video
    transformer = build_host(case)
    seen = set()
    for module in transformer.gen_layers.modules():
        if isinstance(module, Linear):
            module.register_forward_pre_hook(lambda module, args: seen.add(args[0].shape[1]))
            whole = module.forward
            module.forward = lambda x, whole=whole: (seen.add(x.shape[1]), whole(x))[1]
    _split_rows(transformer.gen_layers, Linear, parts)
    found = transformer.forward(**inputs).video
    assert_within(found, expected, REDUCTION_ORDER[torch.float64], f"in {parts} parts")
    # 27 rows, padded to a multiple of the parts.
    assert seen == {27, -(-27 // parts)}


def test_split_rows_of_no_linear_layer_vs_refused():
    with pytest.raises(AssertionError, match="no linear layer"):
        _split_rows(torch.nn.ModuleList([torch.nn.Identity()]), Linear, 2)
