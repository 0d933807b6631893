# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Unit tests of Cosmos3's text K/V: what is cached, and attention to video and text.

Run with:
    pytest tests/unittest/_torch/visual_gen/test_cosmos3_text_kv.py -v
"""

import os
from types import SimpleNamespace

os.environ["TLLM_DISABLE_MPI"] = "1"

import pytest
import torch

from tensorrt_llm._torch.visual_gen.attention_backend.interface import (
    AttentionBackend,
    AttentionTensorLayout,
)
from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import install_text_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_cache import install_text_graph_key
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TEXT_BUCKET,
    TextKV,
    TextKVLayout,
    read_text_lengths,
)

pytestmark = [pytest.mark.cosmos3, pytest.mark.cpu_only]

# Large but finite, wherever nothing valid stands.
POISON = 1e4


def _text_layers(lengths, heads, head_dim=16, rows=300, layers=2):
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(layers):
        pair = [torch.randn(len(lengths), rows, heads, head_dim, generator=generator) for _ in "kv"]
        for tensor in pair:
            for sample, length in enumerate(lengths):
                tensor[sample, length:] = POISON
        pairs.append(tuple(pair))
    return pairs


def test_text_kv_keeps_own_heads_and_zeros_vs_source():
    lengths = (7, 190)
    layers = _text_layers(lengths, heads=4)
    for rank in range(2):
        text = TextKV.build(layers, lengths, TextKVLayout(ulysses_rank=rank, ulysses_size=2))
        assert text.keys[0].shape == (2, 2 * TEXT_BUCKET, 2, 16)
        for (source, _), kept in zip(layers, text.keys):
            for sample, length in enumerate(lengths):
                own = source[sample, :length, 2 * rank : 2 * rank + 2]
                assert torch.equal(kept[sample, :length], own)
                assert not kept[sample, length:].any()


@pytest.mark.parametrize("lengths", [(0, 3), (-1, 3), (3, 301), (3,), (3, 3, 3)])
def test_text_kv_refuses_lengths(lengths):
    with pytest.raises(ValueError, match="length"):
        TextKV.build(_text_layers((3, 3), heads=4), lengths)


def test_text_kv_refuses_head_split():
    with pytest.raises(ValueError, match="4 text K/V heads"):
        TextKV.build(_text_layers((3, 3), heads=4), (3, 3), TextKVLayout(ulysses_size=3))


@pytest.mark.parametrize("change", ["layers", "heads", "layout"])
def test_text_kv_refuses_another_model(change):
    text = TextKV.build(_text_layers((3, 3), heads=4), (3, 3))
    attention = SimpleNamespace(
        local_num_key_value_heads=2 if change == "heads" else 4, head_dim=16
    )
    gen_layers = [SimpleNamespace(cross_attention=attention)] * (3 if change == "layers" else 2)
    layout = TextKVLayout(ulysses_size=2) if change == "layout" else TextKVLayout()
    with pytest.raises(ValueError, match="call reset_cache"):
        text.require_fit(gen_layers, layout)


@pytest.mark.parametrize(
    "mask, message",
    [
        ([[1, 1, 0], [0, 0, 0]], "row 1 .* empty"),
        ([[1, 0, 1], [1, 1, 0]], "row 0 is not ones followed by zeros"),
        ([[0, 1, 1], [1, 1, 0]], "row 0 is not ones followed by zeros"),
    ],
)
def test_read_text_lengths_refuses(mask, message):
    with pytest.raises(ValueError, match=message):
        read_text_lengths(torch.tensor(mask))


@pytest.mark.parametrize("lengths", [(7, 19), (1, 300), (128, 128)])
@pytest.mark.parametrize("heads", [(8, 2), (4, 4)])
def test_text_attention_vs_float64_per_sample(heads, lengths):
    rows, padding, head_dim = 27, 1, 16
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, count, rows + padding, head_dim, generator=generator)
        for count in (heads[0], heads[1], heads[1])
    )
    k[:, :, rows:], v[:, :, rows:] = POISON, POISON
    layers = _text_layers(lengths, heads[1], layers=1)
    text = TextKV.build(layers, lengths).attach(q, video_rows=rows)[0]
    attn = install_text_attention(
        create_attention(
            "VANILLA", layer_idx=0, num_heads=heads[0], head_dim=head_dim, num_kv_heads=heads[1]
        )
    )
    out = attn.forward(q, k, v, text=text)
    for b, length in enumerate(lengths):
        keys, values = (
            torch.cat([video[b, :, :rows], source[b, :length].transpose(0, 1)], dim=1)
            .repeat_interleave(heads[0] // heads[1], dim=0)
            .double()
            for video, source in zip((k, v), layers[0])
        )
        logits = q[b].double() @ keys.transpose(1, 2) / head_dim**0.5
        expected = logits.softmax(-1) @ values
        error = (out[b] - expected).norm() / expected.norm()
        assert error < 1e-5, f"sample {b}: relative error {error:.3g}"


class _NoLengths(AttentionBackend):
    num_heads = num_kv_heads = head_dim = 8
    scale = 1.0

    @property
    def preferred_layout(self):
        return AttentionTensorLayout.NHD

    def forward(self, q, k=None, v=None, **kwargs):
        return q


def test_install_refuses_backend_without_lengths():
    with pytest.raises(ValueError, match="_NoLengths takes no key lengths"):
        install_text_attention(_NoLengths())


class _Runner:
    def __init__(self):
        self.key_fns, self.cleared = {}, 0

    def register_extra_key_fn(self, name, fn):
        self.key_fns[name] = fn

    def clear(self):
        self.cleared += 1


class _Transformer(torch.nn.Module):
    cached_kv = None

    def register_cuda_graph_extra_key_fns(self, runner):
        runner.register_extra_key_fn("fps", lambda **kwargs: 24.0)


def test_graph_key_changes_with_text():
    transformer, runner = _Transformer(), _Runner()
    install_text_graph_key(transformer)
    transformer.register_cuda_graph_extra_key_fns(runner)
    assert set(runner.key_fns) == {"fps", "text"}
    layers = _text_layers((3, 5), heads=4)
    first, second = (TextKV.build(layers, (3, 5)) for _ in range(2))
    transformer.cached_kv = first
    key = runner.key_fns["text"]()
    assert runner.key_fns["text"]() == key
    transformer.cached_kv = second
    assert runner.key_fns["text"]() != key
    transformer.cached_kv = first
    assert runner.key_fns["text"]() == key
