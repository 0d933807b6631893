# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Where the adapter goes in a chain of wrappers, and which backends it refuses."""

import re

import pytest
from support import attend
from support.cases import AttentionCase

from tensorrt_llm._torch.visual_gen.attention_backend.interface import AttentionTensorLayout
from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.attention_backend.vanilla import VanillaAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_ring
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import (
    TextAttention,
    install_text_attention,
)

SIZES = {"layer_idx": 0, "num_heads": 4, "head_dim": 8, "num_kv_heads": 2}


class Wrapper:
    """As the contract describes a wrapper: what it wraps is in inner_backend."""

    preferred_layout = AttentionTensorLayout.NHD

    def __init__(self, inner_backend):
        self.inner_backend = inner_backend


class Ring:
    """RingAttention keeps what it wraps in inner, and calls it once for each block of keys."""

    preferred_layout = AttentionTensorLayout.NHD

    def __init__(self, inner):
        self.inner = inner
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            setattr(self, name, getattr(inner, name))


class ReducedPrecisionVanilla(VanillaAttention):
    """A subclass may override forward and lose the mask: it is not trusted by its parent's name."""


@pytest.mark.parametrize("backend", attend.CPU_BACKENDS)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_install_text_attention_place_vs_leaf(depth, backend):
    leaf = create_attention(backend, **SIZES)
    chain = [leaf]
    for _ in range(depth):
        chain.append(Wrapper(chain[-1]))
    head = install_text_attention(chain[-1])
    if depth:
        assert head is chain[-1], "the wrapper stays the head of the chain"
    found = head
    for wrapper in chain[:0:-1]:
        assert found is wrapper, "wrappers keep their order"
        found = found.inner_backend
    assert type(found) is TextAttention and found.backend is leaf


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", ["CUTEDSL", "CUDNN", "FLASHINFER"])
def test_install_text_attention_refusal_vs_backend_without_lengths(name, depth):
    leaf = create_attention(name, **SIZES)
    attn = leaf
    for _ in range(depth):
        attn = Wrapper(attn)
    with pytest.raises(ValueError) as caught:
        install_text_attention(attn)
    for pattern in (type(leaf).__name__, "takes no key lengths", "use FA4 or VANILLA"):
        assert re.search(pattern, str(caught.value))
    innermost = attn
    while hasattr(innermost, "inner_backend"):
        innermost = innermost.inner_backend
    assert innermost is leaf, "a refused chain is left as it was"


def test_install_text_attention_refusal_vs_subclass():
    with pytest.raises(ValueError, match="ReducedPrecisionVanilla .*use FA4 or VANILLA"):
        install_text_attention(Wrapper(ReducedPrecisionVanilla(**SIZES)))


@pytest.mark.parametrize("outer", [lambda x: x, Wrapper], ids=["ring", "ulysses-ring"])
def test_install_text_attention_refusal_vs_ring(outer):
    leaf = create_attention("VANILLA", **SIZES)
    ring = Ring(leaf)
    with pytest.raises(ValueError, match="Ring .*once for each block.*use Ulysses or Attention2D"):
        install_text_attention(outer(ring))
    assert ring.inner is leaf


@pytest.mark.parametrize("outer", [False, True], ids=["ring", "ulysses-ring"])
def test_install_text_attention_in_a_ring_vs_place(outer):
    """The ring's own module puts one adapter before the ring, and one where each block arrives."""
    leaf = create_attention("FA4", **SIZES)
    ring = Ring(leaf)
    head = text_ring.install_text_attention(Wrapper(ring) if outer else ring)
    found = head.inner_backend if outer else head
    assert type(found) is text_ring.RingTextAttention and found.ring is ring
    assert type(ring.inner) is text_ring.RingBlockAttention and ring.inner.backend is leaf
    for name in ("num_heads", "num_kv_heads", "head_dim", "preferred_layout"):
        assert getattr(found, name) == getattr(ring, name)


@pytest.mark.parametrize("name", ["CUTEDSL", "CUDNN", "FLASHINFER"])
def test_install_text_attention_in_a_ring_refusal_vs_backend_without_lengths(name):
    ring = Ring(create_attention(name, **SIZES))
    with pytest.raises(ValueError, match="takes no key lengths.*use FA4 or VANILLA"):
        text_ring.install_text_attention(ring)


@pytest.mark.parametrize("backend", attend.CPU_BACKENDS)
def test_install_text_attention_of_the_ring_without_one_vs_leaf(backend):
    """Without a ring in the chain it does what the plain function does."""
    leaf = create_attention(backend, **SIZES)
    wrapper = Wrapper(leaf)
    assert text_ring.install_text_attention(wrapper) is wrapper
    assert type(wrapper.inner_backend) is TextAttention and wrapper.inner_backend.backend is leaf
    assert type(text_ring.install_text_attention(create_attention(backend, **SIZES))) is (
        TextAttention
    )


def test_install_text_attention_twice_vs_refusal():
    """A second adapter would append the text again."""
    attn = install_text_attention(Wrapper(create_attention("VANILLA", **SIZES)))
    with pytest.raises(ValueError, match="TextAttention takes no key lengths"):
        install_text_attention(attn)


def test_compute_backend_heads_vs_layout():
    case = AttentionCase(layout=attend.Layout(ulysses=2, tp=2), heads=16, kv_heads=8)
    backend = attend.compute_backend(case)
    assert (backend.num_heads, backend.num_kv_heads) == (4, 2)
