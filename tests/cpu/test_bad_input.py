# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a user can get wrong: a ValueError that names the value, what was expected, what to do."""

import re

import pytest
import torch

from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TextKV,
    TextKVLayout,
    read_text_lengths,
)


def layers(batch=2, rows=20, kv_heads=4, dtype=torch.float32, device="cpu"):
    shape = (batch, rows, kv_heads, 3)
    return [tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in "KV") for _ in range(2)]


def attach(batch=2, dtype=torch.float32, device="cpu", video_rows=9, own_device="cpu"):
    text = TextKV.build(layers(device=own_device), (7, 19))
    return text.attach(torch.zeros(batch, 9, 5, dtype=dtype, device=device), video_rows)


def with_layer(index, which, tensor):
    pairs = layers()
    pair = list(pairs[index])
    pair[which] = tensor
    pairs[index] = tuple(pair)
    return pairs


# Name: (the mistake, the value, what was expected, what would work), the last three as patterns.
MISTAKES = {
    "mask-one-dimension": (
        lambda: read_text_lengths(torch.ones(5)),
        r"\(5,\)",
        r"must be \[B, S_text\]",
        r"pass one row",
    ),
    "mask-three-dimensions": (
        lambda: read_text_lengths(torch.ones(1, 2, 5)),
        r"\(1, 2, 5\)",
        r"must be \[B, S_text\]",
        r"pass one row",
    ),
    "mask-left-padded": (
        lambda: read_text_lengths(torch.tensor([[1, 1, 0], [0, 1, 1]])),
        r"row 1",
        r"ones followed by zeros",
        r"pad prompts on the right",
    ),
    "mask-with-hole": (
        lambda: read_text_lengths(torch.tensor([[1, 0, 1], [1, 1, 1]])),
        r"row 0",
        r"ones followed by zeros",
        r"without holes",
    ),
    "mask-empty-prompt": (
        lambda: read_text_lengths(torch.tensor([[1, 1, 0], [0, 0, 0]])),
        r"row 1 has no token",
        r"empty",
        r"at least one token",
    ),
    "mask-without-columns": (
        lambda: read_text_lengths(torch.ones(2, 0)),
        r"row 0 has no token",
        r"empty",
        r"at least one token",
    ),
    "lengths-over-rows": (
        lambda: TextKV.build(layers(), (7, 21)),
        r"length 21 of sample 1",
        r"\[1, 20\]",
        r"pad or truncate",
    ),
    "lengths-negative": (
        lambda: TextKV.build(layers(), (-1, 19)),
        r"length -1 of sample 0",
        r"\[1, 20\]",
        r"pad or truncate",
    ),
    "lengths-zero": (
        lambda: TextKV.build(layers(), (0, 19)),
        r"length 0 of sample 0",
        r"\[1, 20\]",
        r"pad or truncate",
    ),
    "lengths-of-wrong-batch": (
        lambda: TextKV.build(layers(), (7, 19, 3)),
        r"3 text lengths \[7, 19, 3\]",
        r"batch of 2",
        r"one length for each sample",
    ),
    "lengths-none": (
        lambda: TextKV.build(layers(), ()),
        r"0 text lengths \[\]",
        r"batch of 2",
        r"one length for each sample",
    ),
    "layers-none": (
        lambda: TextKV.build([], (7, 19)),
        r"no layers",
        r"expected one \(K, V\)",
        r"for each",
    ),
    "layers-differ-in-batch": (
        lambda: TextKV.build(with_layer(1, 0, torch.zeros(3, 20, 4, 3)), (7, 19)),
        r"text K of layer 1 is .*\(3, 20, 4, 3\)",
        r"layer 0 is .*\(2, 20, 4, 3\)",
        r"must agree",
    ),
    "layers-differ-in-heads": (
        lambda: TextKV.build(with_layer(1, 1, torch.zeros(2, 20, 2, 3)), (7, 19)),
        r"text V of layer 1 is .*\(2, 20, 2, 3\)",
        r"layer 0 is .*\(2, 20, 4, 3\)",
        r"must agree",
    ),
    "layers-differ-in-dtype": (
        lambda: TextKV.build(with_layer(0, 1, torch.zeros(2, 20, 4, 3).double()), (7, 19)),
        r"text V of layer 0 is .*float64",
        r"layer 0 is .*float32",
        r"must agree",
    ),
    "layers-differ-in-device": (
        lambda: TextKV.build(with_layer(1, 0, torch.zeros(2, 20, 4, 3, device="meta")), (7, 19)),
        r"text K of layer 1 is .*meta",
        r"layer 0 is .*cpu",
        r"must agree",
    ),
    "heads-do-not-divide": (
        lambda: TextKV.build(layers(), (7, 19), TextKVLayout(ulysses_size=3)),
        r"4 text K/V heads",
        r"Ulysses size 3",
        r"sizes that divide them: \[1, 2, 4\]",
    ),
    "more-ranks-than-heads": (
        lambda: TextKV.build(layers(), (7, 19), TextKVLayout(ulysses_size=8)),
        r"4 text K/V heads",
        r"Ulysses size 8",
        r"sizes that divide them: \[1, 2, 4\]",
    ),
    "attach-to-another-batch": (
        lambda: attach(batch=1),
        r"sequence is \(1, ",
        r"holds .* = \(2, ",
        r"call reset_cache\(\)",
    ),
    "attach-to-another-dtype": (
        lambda: attach(dtype=torch.float64),
        r"sequence is .*float64",
        r"holds .*float32",
        r"call reset_cache\(\)",
    ),
    "attach-to-another-device": (
        lambda: attach(device="meta"),
        r"sequence is .*meta",
        r"holds .*cpu",
        r"call reset_cache\(\)",
    ),
    "attach-without-video": (
        lambda: attach(video_rows=0),
        r"video_rows is 0",
        r"needs a row",
        r"generation sequence",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_text_kv_refusal_vs_value_expected_remedy(name):
    mistake, *patterns = MISTAKES[name]
    with pytest.raises(ValueError) as caught:
        mistake()
    message = str(caught.value)
    for pattern in patterns:
        assert re.search(pattern, message, re.DOTALL), f"{pattern!r} is not in: {message}"
