# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The plain-torch double of FlashAttention-4, against torch's own attention, one sample a call."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.tiers import AGAINST_FLOAT32, REDUCTION_ORDER, relative_l2

# By path: where the real package is installed, its name means that one.
_FILE = Path(__file__).parents[2] / "host/cpu_kernels/flash_attn/cute/interface.py"
_spec = importlib.util.spec_from_file_location("cpu_flash_attn", _FILE)
kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernels)

NEG_INF = float("-inf")


def qkv(lengths, rows=9, heads=8, kv_heads=2, width=16, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def draw(s, h):
        shape = (len(lengths), s, h, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    keys = max(*lengths, 1)
    return draw(rows, heads), draw(keys, kv_heads), draw(keys, kv_heads)


def per_sample(q, k, v, lengths, causal=False):
    outputs = []
    for b, n in enumerate(lengths):
        one = [x[b : b + 1, : (None if x is q else n)].transpose(1, 2) for x in (q, k, v)]
        outputs.append(F.scaled_dot_product_attention(*one, enable_gqa=True, is_causal=causal))
    return torch.cat(outputs).transpose(1, 2)


@pytest.mark.parametrize("lengths", [(5, 30), (1, 12), (7, 7)], ids=lambda n: f"len{n[0]}x{n[1]}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_forward_key_prefix_vs_per_sample_sdpa(lengths, dtype):
    q, k, v = qkv(lengths, dtype=dtype)
    used = torch.tensor(lengths, dtype=torch.int32)
    for b, n in enumerate(lengths):
        k[b, n:] = v[b, n:] = float("nan")  # not read at all
    out, lse, *rest = kernels._flash_attn_fwd(q, k, v, seqused_k=used, return_lse=True)
    assert relative_l2(out, per_sample(q, k, v, lengths)) <= REDUCTION_ORDER[dtype]
    for b, n in enumerate(lengths):
        scores = torch.einsum("shd,thd->hst", q[b], k[b, :n].repeat_interleave(4, dim=1)) / 4
        assert relative_l2(lse[b], scores.logsumexp(-1)) <= REDUCTION_ORDER[dtype]
    assert (out.dtype, lse.dtype, rest) == (dtype, dtype, [None, None])


def test_forward_bfloat16_vs_float64():
    q, k, v = qkv((5, 30))
    used = torch.tensor((5, 30), dtype=torch.int32)
    exact = per_sample(q, k, v, (5, 30))
    low = [x.bfloat16() for x in (q, k, v)]
    noise = relative_l2(per_sample(*low, (5, 30)), exact)
    out, lse, *_ = kernels._flash_attn_fwd(*low, seqused_k=used, return_lse=True)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert relative_l2(out, exact) <= AGAINST_FLOAT32 * noise


def test_forward_causal_vs_sdpa():
    q, k, v = qkv((9, 9))
    out, lse, *_ = kernels._flash_attn_fwd(q, k, v, causal=True)
    assert lse is None
    assert relative_l2(out, per_sample(q, k, v, (9, 9), causal=True)) <= 1e-14


def test_forward_in_blocks_vs_one_block(monkeypatch):
    q, k, v = qkv((5, 30))
    whole = kernels._flash_attn_fwd(q, k, v, return_lse=True)[:2]
    monkeypatch.setattr(kernels, "SCORE_BYTES", 1)
    for found, expected in zip(kernels._flash_attn_fwd(q, k, v, return_lse=True), whole):
        assert relative_l2(found, expected) <= 1e-14


def test_forward_without_a_key_gives_zero_and_minus_infinity():
    q, k, v = qkv((0, 4))
    used = torch.tensor((0, 4), dtype=torch.int32)
    out, lse, *_ = kernels._flash_attn_fwd(q, k, v, seqused_k=used, return_lse=True)
    assert (out[0] == 0).all() and (lse[0] == NEG_INF).all()
    assert torch.isfinite(out[1]).all() and torch.isfinite(lse[1]).all()


def test_combine_parts_vs_whole():
    q, k, v = qkv((12, 12))
    whole, whole_lse, *_ = kernels._flash_attn_fwd(q, k, v, return_lse=True)
    parts = [slice(0, 5), slice(5, 5), slice(5, 12)]  # the middle one is empty
    results = []
    for part in parts:
        used = torch.full((2,), part.stop - part.start, dtype=torch.int32)
        keys = [x[:, part] if part.stop > part.start else x[:, :1] for x in (k, v)]
        results.append(kernels._flash_attn_fwd(q, *keys, seqused_k=used, return_lse=True)[:2])
    out = torch.stack([out for out, _ in results])
    lse = torch.stack([lse.transpose(1, 2) for _, lse in results])
    combined, combined_lse = kernels.flash_attn_combine(out, lse)
    assert relative_l2(combined, whole) <= 1e-14
    assert relative_l2(combined_lse, whole_lse.transpose(1, 2)) <= 1e-14
    nothing = torch.full_like(lse, NEG_INF)
    combined, combined_lse = kernels.flash_attn_combine(torch.zeros_like(out), nothing)
    assert (combined == 0).all() and (combined_lse == NEG_INF).all()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"window_size_left": 3}, "does not take window_size_left"),
        ({"seqused_k": torch.tensor([3, 4])}, "expected int32 .2."),
        ({"seqused_k": torch.tensor([3], dtype=torch.int32)}, "expected int32 .2."),
    ],
)
def test_forward_refuses_what_it_would_ignore(change, message):
    q, k, v = qkv((5, 30))
    with pytest.raises(ValueError, match=message):
        kernels._flash_attn_fwd(q, k, v, **change)
    with pytest.raises(ValueError, match="does not take cu_seqlens"):
        kernels.flash_attn_combine(q[None], q[None, ..., 0], cu_seqlens=q)
