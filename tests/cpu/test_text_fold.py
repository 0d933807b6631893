# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""When VANILLA's text is folded in, as far as no GPU is needed: the choice and its probe.

The kernel itself is tests/gpu's.
"""

import pytest
import torch
import torch.nn.functional as F

from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_fold


class OnGPU:
    """What the choice of a path asks of a query or key tensor."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, heads=32, rows=37440, dtype=torch.bfloat16, head_dim=128):
        self.shape, self.dtype = torch.Size((2, heads, rows, head_dim)), dtype


@pytest.fixture
def machine(monkeypatch):
    """A machine that can fold; returns the arguments of each probe."""
    probes = []
    monkeypatch.setattr(text_fold, "triton", object())
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: True)
    monkeypatch.setattr(text_fold, "_probe", lambda *args: probes.append(args) or True)
    return probes


@pytest.mark.parametrize("rows", [1, 127, 128, 256, 37440])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}, {"head_dim": 96}], ids=str)
def test_can_fold_text_some_heads_vs_all_heads(machine, rows, options):
    """Ranks with fewer heads and padded rows take the path of one rank, or round otherwise."""
    for ranks in (1, 2, 4, 8):
        q = OnGPU(32 // ranks, -(-rows // ranks) * ranks, **options)
        k = OnGPU(8 // ranks, -(-rows // ranks) * ranks, **options)
        assert text_fold.can_fold_text(q, k, rows) == (rows >= 128 and not options)
        expected = [(q.device, torch.bfloat16, 32 // ranks, 8 // ranks, 128)]
        assert machine[-1:] == (expected if rows >= 128 and not options else [])


@pytest.mark.parametrize("missing", ["triton", "cudnn", "probe", "gpu"])
def test_can_fold_text_machine_that_cannot_vs_mask(machine, monkeypatch, missing):
    if missing == "triton":
        monkeypatch.setattr(text_fold, "triton", None)
    elif missing == "cudnn":
        # Asked at every call: a user may switch cuDNN off for some time.
        monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
    elif missing == "probe":
        monkeypatch.setattr(text_fold, "_probe", lambda *args: False)
    else:
        monkeypatch.setattr(OnGPU, "is_cuda", False)
    assert not text_fold.can_fold_text(OnGPU(), OnGPU(8), 37440)


def _folded(q, k, v, text_k, text_v, key_lengths, video_rows, scale):
    """What a machine without a fault computes."""
    keys = torch.cat((k, text_k.transpose(1, 2)), 2)
    values = torch.cat((v, text_v.transpose(1, 2)), 2)
    mask = torch.arange(keys.shape[2]) < key_lengths[:, None]
    return F.scaled_dot_product_attention(
        q, keys, values, mask[:, None, None], scale=scale, enable_gqa=True
    )


def _raises(*args):
    raise RuntimeError("No execution plans support the graph")


PROBES = {
    "right": (_folded, None),
    "text-of-another-sample": (
        lambda q, k, v, tk, tv, n, *rest: _folded(q, k, v, tk, tv, n.flip(0), *rest),
        "off float32",
    ),
    "nan": (lambda *args: _folded(*args) * float("nan"), "is nan off float32"),
    "raises": (_raises, "raises RuntimeError: No execution plans"),
}


@pytest.mark.parametrize("name", PROBES)
def test_probe_result_vs_float32_and_one_warning(monkeypatch, name):
    fold, reason = PROBES[name]
    said, calls = [], []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(text_fold.logger, "warning", said.append)
    counted = lambda *args: calls.append(1) or fold(*args)  # noqa: E731
    monkeypatch.setattr(text_fold, "attend_and_fold_text", counted)
    text_fold._probe.cache_clear()
    try:
        for _ in range(2):
            for heads in (8, 4):
                found = text_fold._probe(torch.device("cpu"), torch.bfloat16, heads, 2, 64)
                assert found is (reason is None)
        assert len(calls) == 2, "once for each device, dtype and head count"
        assert len(said) == (0 if reason is None else 2)
        assert all(reason in line and "masks padded text" in line for line in said)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(AssertionError, match="before a capture"):
            text_fold._probe(torch.device("cpu"), torch.float16, 8, 2, 64)
    finally:
        text_fold._probe.cache_clear()
