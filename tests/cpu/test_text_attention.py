# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The leaf adapter alone, on one rank, against float64 attention over exactly the valid keys.

Fields: B batch, S video rows, T text rows, H query heads, H_kv K/V heads, D head_dim.
"""

import dataclasses

import pytest
import torch
from support import attend
from support.cases import LENGTHS, POISON, AttentionCase
from support.reference import attention, padded_attention, per_sample_attention
from support.tiers import (
    AGAINST_FLOAT32,
    REDUCTION_ORDER,
    assert_bitwise,
    assert_same_lse,
    assert_sees_the_bug,
    assert_within,
    worst_sample,
)

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask
from tensorrt_llm._torch.visual_gen.attention_backend.interface import AttentionTensorLayout
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import TextAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout

HEADS = {"heads8x4": (8, 4), "heads8x2": (8, 2), "heads4x1": (4, 1), "heads4x4": (4, 4)}
DTYPES = [torch.float32, torch.float64]
# Zero rows behind the video, as another layout's padding would leave them: cut by video_rows.
TAIL_ROWS = 5


BACKENDS = attend.CPU_BACKENDS


def adapter(case: AttentionCase) -> TextAttention:
    return attend.install(attend.compute_backend(case))


def view_of(case: AttentionCase, drawn, layout=TextKVLayout()):
    text = TextKV.build([(drawn["text_k"], drawn["text_v"])], case.lengths, layout)
    return text.attach(drawn["q"].flatten(2), video_rows=case.video_rows)[0]


def with_tail(x: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.cat([x, x.new_full((x.shape[0], TAIL_ROWS, *x.shape[2:]), fill)], dim=1)


def reference(case: AttentionCase):
    drawn = case.tensors()
    names = ("q", "k", "v", "text_k", "text_v")
    return per_sample_attention(*(drawn[name] for name in names), case.lengths)


def unfixed(case: AttentionCase):
    """The padded path as two ranks would compute it: their rounding pads equal prompts too."""
    drawn = case.tensors()
    names = ("q", "k", "v", "text_k", "text_v")
    return padded_attention(*(drawn[name] for name in names), case.lengths, ranks=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_output_vs_per_sample(backend, lengths, heads, dtype):
    case = AttentionCase(
        lengths=lengths, heads=heads[0], kv_heads=heads[1], backend=backend, dtype=dtype
    )
    drawn, bound = case.tensors(), REDUCTION_ORDER[dtype]
    expected, expected_lse = reference(case)
    q, k, v = drawn["q"], with_tail(drawn["k"], POISON), with_tail(drawn["v"], POISON)
    attn, view = adapter(case), view_of(case, drawn)

    out = attend.call(attn, q, k, v, text=view)
    assert out.dtype == dtype
    assert_within(out, expected, bound, "output")
    out, lse = attend.call(attn, q, k, v, text=view, with_lse=True)
    assert_within(out, expected, bound, "output beside the LSE")
    assert_same_lse(lse, expected_lse, bound * 10, "LSE")
    assert_sees_the_bug(unfixed(case), expected, bound)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_text_attention_poisoned_padding_vs_zeros(lengths, backend):
    """What the padding slots hold does not change one bit of the result."""
    case = AttentionCase(lengths=lengths, backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    attn, clean, poisoned = adapter(case), view_of(case, drawn), view_of(case, drawn)
    for sample, length in enumerate(lengths):
        poisoned.k[sample, length:] = POISON
        poisoned.v[sample, length:] = -POISON
    results = []
    for view, fill in ((clean, 0.0), (poisoned, POISON), (poisoned, -POISON)):
        k, v = with_tail(drawn["k"], fill), with_tail(drawn["v"], fill)
        out, lse = attend.call(attn, drawn["q"], k, v, text=view, with_lse=True)
        results.append((attend.call(attn, drawn["q"], k, v, text=view), out, lse))
    for result in results[1:]:
        for found, expected in zip(result, results[0]):
            assert_bitwise(found, expected, "poisoned padding")
    # The poison is strong enough: the same rows with a length one too large are far off.
    poisoned.key_lengths = poisoned.key_lengths + 1
    assert_sees_the_bug(
        attend.call(attn, drawn["q"], drawn["k"], drawn["v"], text=poisoned),
        results[0][0],
        REDUCTION_ORDER[torch.float32],
    )


def test_padded_reference_nothing_padded_vs_per_sample():
    """The control: without padding the bug's own reference is right, so padding is all it shows."""
    case = AttentionCase(lengths=(14, 14), video_rows=28)
    assert_within(unfixed(case), reference(case)[0], REDUCTION_ORDER[torch.float64], "no padding")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_low_precision_vs_loop(backend, lengths, dtype):
    """Judged by the error of the single-GPU loop, one launch for each sample in the same dtype."""
    case = AttentionCase(lengths=lengths, backend=backend, dtype=dtype)
    drawn = case.tensors()
    expected, _ = reference(case)
    out = attend.call(adapter(case), drawn["q"], drawn["k"], drawn["v"], text=view_of(case, drawn))
    backend = attend.compute_backend(case)
    loop = torch.cat(
        [
            attend.call(
                backend,
                drawn["q"][b : b + 1],
                torch.cat([drawn["k"][b : b + 1], drawn["text_k"][b : b + 1, :n]], dim=1),
                torch.cat([drawn["v"][b : b + 1], drawn["text_v"][b : b + 1, :n]], dim=1),
            )
            for b, n in enumerate(lengths)
        ]
    )
    bound = AGAINST_FLOAT32 * worst_sample(loop, expected)
    assert_within(out, expected, bound, "against float64, twice the loop's own error")
    assert_sees_the_bug(unfixed(case), expected, bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_no_valid_key_vs_zero_and_minus_infinity(backend, dtype):
    """A column of 3 x 2 ranks may hold no video row and no token of a prompt of length 1."""
    case = AttentionCase(lengths=(1, 6), video_rows=1, backend=backend, dtype=dtype)
    drawn = case.tensors()
    layout = TextKVLayout(row_size=1, col_size=3, col_rank=2)
    view = view_of(case, drawn, layout)
    assert view.video_rows == 0 and view.key_lengths.tolist() == [0, 2]
    out, lse = attend.call(
        adapter(case), drawn["q"], drawn["k"], drawn["v"], text=view, with_lse=True
    )
    assert (out[0] == 0).all() and (lse[0] == float("-inf")).all()
    owned = slice(2, 6, 3)
    expected, expected_lse = attention(
        drawn["q"][1], drawn["text_k"][1, owned], drawn["text_v"][1, owned]
    )
    bound = REDUCTION_ORDER[dtype]
    assert_within(out[1:], expected[None], bound, "the sample that has keys")
    assert_same_lse(lse[1:], expected_lse[None], bound * 10, "its LSE")


@pytest.mark.parametrize("cols", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_columns_merged_vs_per_sample(backend, cols):
    """Partial results of all columns, merged by their LSEs, are attention over every key once."""
    case = AttentionCase(lengths=(1, 19), video_rows=5, backend=backend)
    drawn = case.tensors()
    expected, expected_lse = reference(case)
    outs, lses = [], []
    for column in range(cols):
        layout = TextKVLayout(row_size=1, col_size=cols, col_rank=column)
        chunk = [x.chunk(cols, dim=1)[column] for x in (drawn["k"], drawn["v"])]
        # chunk() may give fewer rows to the last: that is the padding that the sharder adds.
        rows = -(-case.video_rows // cols)
        k, v = (with_tail(x, POISON)[:, :rows] for x in chunk)
        out, lse = attend.call(
            adapter(case), drawn["q"], k, v, text=view_of(case, drawn, layout), with_lse=True
        )
        outs.append(out)
        lses.append(lse)
    weights = torch.softmax(torch.stack(lses), dim=0).transpose(2, 3)[..., None]
    merged = (torch.stack(outs) * weights).sum(dim=0)
    assert_within(merged, expected, REDUCTION_ORDER[torch.float64], "merged columns")
    assert_same_lse(
        torch.logsumexp(torch.stack(lses), dim=0), expected_lse, 1e-11, "LSE over all columns"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_attributes_vs_backend(backend):
    case = AttentionCase(backend=backend)
    inner = attend.compute_backend(case)
    attn = TextAttention(inner)
    for name in ("num_heads", "num_kv_heads", "head_dim", "scale", "preferred_layout"):
        assert getattr(attn, name) == getattr(inner, name)
    assert attn.support_lse() and attn.backend is inner
    assert isinstance(attn.preferred_layout, AttentionTensorLayout)


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_scale_vs_backend_scale(backend):
    """The backend's own scale is used, not one worked out from head_dim."""
    case = AttentionCase(backend=backend)
    drawn = case.tensors()
    inner = attend.compute_backend(case)
    inner.scale = 0.5
    names = ("q", "k", "v", "text_k", "text_v")
    expected, _ = per_sample_attention(*(drawn[n] for n in names), case.lengths, scale=0.5)
    out = attend.call(
        TextAttention(inner), drawn["q"], drawn["k"], drawn["v"], text=view_of(case, drawn)
    )
    assert_within(out, expected, REDUCTION_ORDER[torch.float64], "another scale")


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_more_samples_vs_per_sample(backend):
    lengths = (3, 130, 1, 64, 13)
    case = AttentionCase(lengths=lengths, video_rows=9, backend=backend)
    drawn = case.tensors()
    out = attend.call(adapter(case), drawn["q"], drawn["k"], drawn["v"], text=view_of(case, drawn))
    expected, _ = reference(case)
    assert_within(out, expected, REDUCTION_ORDER[torch.float64], "five prompts")
    assert_sees_the_bug(unfixed(case), expected, REDUCTION_ORDER[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_attention_more_queries_vs_per_sample(backend):
    """Rows that pad the queries are answered too, with finite values; nobody reads them."""
    case = AttentionCase(backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    expected, _ = reference(case)
    q, k, v = (with_tail(drawn[name], 0.0) for name in "qkv")
    out = attend.call(adapter(case), q, k, v, text=view_of(case, drawn))
    assert out.shape == q.shape and torch.isfinite(out).all()
    assert_within(out[:, :-TAIL_ROWS], expected, REDUCTION_ORDER[torch.float32], "real rows")


@pytest.mark.parametrize(
    "mask", [PredefinedAttentionMask.CAUSAL, torch.ones(2, 2)], ids=["causal", "tensor"]
)
@pytest.mark.parametrize("method", ["forward", "forward_with_lse"])
def test_text_attention_mask_refusal_vs_full(mask, method):
    case = AttentionCase()
    drawn = case.tensors()
    attn = adapter(case)
    q, k, v = (drawn[name].transpose(1, 2) for name in "qkv")
    with pytest.raises(ValueError, match="(?s)attention_mask .* pass FULL"):
        getattr(attn, method)(q, k, v, text=view_of(case, drawn), attention_mask=mask)


def test_text_attention_without_text_vs_refusal():
    """Nothing may attend without text by accident: the keyword has no default."""
    drawn = AttentionCase().tensors()
    q, k, v = (drawn[name].transpose(1, 2) for name in "qkv")
    with pytest.raises(TypeError, match="text"):
        adapter(AttentionCase()).forward(q, k, v)


def test_text_attention_views_of_two_videos_vs_per_sample():
    """Two resolutions on one text: each view keeps its own lengths."""
    case = AttentionCase()
    drawn = case.tensors()
    text = TextKV.build([(drawn["text_k"], drawn["text_v"])], case.lengths)
    for rows in (27, 9, 27):
        small = dataclasses.replace(case, video_rows=rows)
        q, k, v = (drawn[name][:, :rows] for name in "qkv")
        view = text.attach(q.flatten(2), video_rows=rows)[0]
        expected, _ = per_sample_attention(q, k, v, drawn["text_k"], drawn["text_v"], case.lengths)
        out = attend.call(adapter(small), q, k, v, text=view)
        assert_within(out, expected, REDUCTION_ORDER[torch.float64], f"{rows} rows")
