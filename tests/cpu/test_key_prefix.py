# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels' entry points: attention over the first n_b keys of each sample.

Fields: B batch, S_q query rows, S_kv key rows, H query heads, H_kv K/V heads, D head_dim.
"""

import pytest
import torch
from support import attend
from support.reference import attention
from support.tiers import REDUCTION_ORDER, assert_bitwise, assert_same_lse, assert_within

from tensorrt_llm._torch.visual_gen.models.cosmos3 import fold_text, key_prefix
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKVView

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)
KEY_ROWS = 40
KEY_LENGTHS = (40, 17, 1, 0)


def operands(dtype, heads=4, kv_heads=2, query_rows=11, head_dim=8):
    """q, k, v as [B, H, S, D], one sample for each of KEY_LENGTHS, poison past the lengths."""
    generator = torch.Generator().manual_seed(1)
    batch = len(KEY_LENGTHS)
    q = torch.randn(batch, heads, query_rows, head_dim, generator=generator, dtype=dtype)
    k = torch.randn(batch, kv_heads, KEY_ROWS, head_dim, generator=generator, dtype=dtype)
    v = torch.randn(batch, kv_heads, KEY_ROWS, head_dim, generator=generator, dtype=dtype)
    for sample, length in enumerate(KEY_LENGTHS):
        k[sample, :, length:] = 1e4
        v[sample, :, length:] = 1e4
    return q, k, v, torch.tensor(KEY_LENGTHS, dtype=torch.int32)


def reference(q, k, v, scale):
    """Outputs [B, H, S_q, D] and LSEs [B, H, S_q]."""
    results = []
    for sample, length in enumerate(KEY_LENGTHS):
        rows = [x[sample].transpose(0, 1) for x in (q, k[:, :, :length], v[:, :, :length])]
        results.append(attention(*rows, scale))
    outs, lses = zip(*results)
    return torch.stack(outs).transpose(1, 2), torch.stack(lses)


@DTYPES
@pytest.mark.parametrize("block", [1, 3, 11, 1000], ids="block{}".format)
@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids="heads4x{}".format)
def test_blockwise_key_prefix_output_vs_per_sample(monkeypatch, kv_heads, block, dtype):
    q, k, v, key_lengths = operands(dtype, kv_heads=kv_heads)
    row_bytes = q.shape[0] * KEY_ROWS * dtype.itemsize
    monkeypatch.setattr(key_prefix, "HEAD_SCORE_BYTES", block * row_bytes)
    out, lse = key_prefix.blockwise_key_prefix(q, k, v, key_lengths, 0.3)
    expected, expected_lse = reference(q, k, v, 0.3)
    assert out.dtype == lse.dtype == dtype
    assert_within(out[:-1], expected[:-1], REDUCTION_ORDER[dtype], "output")
    assert_same_lse(lse, expected_lse, REDUCTION_ORDER[dtype] * 10, "LSE")
    assert (out[-1] == 0).all() and (lse[-1] == float("-inf")).all(), "no key: 0 and -inf"


@pytest.mark.parametrize("heads", [4, 2])
def test_blockwise_key_prefix_memory_vs_budget(monkeypatch, heads):
    """The scores held at once stay within each head's budget, and a head gets the same blocks
    however many there are: a rank with some of the heads has to round like one with all."""
    q, k, v, key_lengths = operands(torch.float32, heads=heads, query_rows=64)
    row_bytes = q.shape[0] * KEY_ROWS * 4
    monkeypatch.setattr(key_prefix, "HEAD_SCORE_BYTES", 5 * row_bytes)
    blocks = []
    logsumexp = torch.logsumexp
    monkeypatch.setattr(
        torch, "logsumexp", lambda x, dim: blocks.append(x.numel() * 4) or logsumexp(x, dim)
    )
    key_prefix.blockwise_key_prefix(q, k, v, key_lengths, 1.0)
    assert len(blocks) == 13 and max(blocks) <= 5 * row_bytes * heads


def test_blockwise_key_prefix_budget_below_a_row_vs_one_row_at_a_time(monkeypatch):
    q, k, v, key_lengths = operands(torch.float32, query_rows=6)
    monkeypatch.setattr(key_prefix, "HEAD_SCORE_BYTES", 1)
    blocks = []
    logsumexp = torch.logsumexp
    monkeypatch.setattr(
        torch, "logsumexp", lambda x, dim: blocks.append(x.numel()) or logsumexp(x, dim)
    )
    key_prefix.blockwise_key_prefix(q, k, v, key_lengths, 1.0)
    assert blocks == [q.shape[0] * q.shape[1] * KEY_ROWS] * 6


def test_blockwise_key_prefix_without_any_key_vs_zero_and_minus_infinity():
    """A ring's block may hold no row at all."""
    q, k, v, key_lengths = operands(torch.float32)
    out, lse = key_prefix.blockwise_key_prefix(
        q, k[:, :, :0], v[:, :, :0], torch.zeros_like(key_lengths), 1.0
    )
    assert (out == 0).all() and (lse == float("-inf")).all()


def test_blockwise_key_prefix_low_precision_vs_float32_scores():
    q, k, v, key_lengths = operands(torch.bfloat16)
    out, lse = key_prefix.blockwise_key_prefix(q, k, v, key_lengths, 0.3)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    expected, expected_lse = reference(q, k, v, 0.3)
    # One rounding to bfloat16 (8 bits) of what was computed in float32.
    assert_within(out[:-1], expected[:-1], 2.0**-8, "output")
    assert_same_lse(lse, expected_lse, 1e-5, "LSE")


class OnGPU:
    """What the choice of a path asks of a query tensor."""

    is_cuda = True

    def __init__(self, heads, rows, dtype=torch.bfloat16, head_dim=128):
        self.shape, self.dtype = torch.Size((2, heads, rows, head_dim)), dtype


@pytest.mark.parametrize("rows", [1, 127, 128, 256, 37440])
def test_reason_not_to_fold_on_some_heads_vs_all_heads(rows):
    """Ranks with fewer heads and padded rows take the path of one rank, or round otherwise."""
    text_k = torch.empty(2, 128, 8, 1)
    view = TextKVView(text_k, text_k, torch.empty(2, dtype=torch.int32), rows)
    for options in ({}, {"dtype": torch.float32}, {"head_dim": 96}):
        reasons = {
            fold_text.reason_not_to_fold(
                OnGPU(32 // ranks, -(-rows // ranks) * ranks, **options), view, None
            )
            for ranks in (1, 2, 4, 8)
        }
        assert len(reasons) == 1
        assert (reasons == {None}) == (rows >= 128 and not options), reasons


@DTYPES
@pytest.mark.parametrize("backend", [attend.CPU_BACKENDS[1]])
def test_fa4_key_prefix_output_vs_per_sample(backend, dtype):
    q, k, v, key_lengths = operands(dtype)
    rows_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    out, lse = key_prefix.fa4_key_prefix(*rows_first, key_lengths, 0.3, True)
    alone, nothing = key_prefix.fa4_key_prefix(*rows_first, key_lengths, 0.3, False)
    assert torch.equal(alone, out) and nothing.numel() == 0
    expected, expected_lse = reference(q, k, v, 0.3)
    out = out.transpose(1, 2)
    assert_within(out[:-1], expected[:-1], REDUCTION_ORDER[dtype], "output")
    assert_same_lse(lse, expected_lse, REDUCTION_ORDER[dtype] * 10, "LSE")
    assert (out[-1] == 0).all() and (lse[-1] == float("-inf")).all(), "no key: 0 and -inf"


@pytest.mark.parametrize("return_lse", [True, False])
@pytest.mark.parametrize("backend", [attend.CPU_BACKENDS[1]])
def test_fa4_key_prefix_operator_vs_its_fake(backend, return_lse):
    """torch.compile sees the fake implementation: its shapes and dtypes must be the kernel's."""
    q, k, v, key_lengths = operands(torch.float32)
    rows_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    torch.library.opcheck(
        key_prefix.fa4_key_prefix,
        (*rows_first, key_lengths, 0.3, return_lse),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("return_lse", [True, False], ids=["lse", "nolse"])
def test_fa4_key_prefix_launch_vs_what_the_kernels_need(monkeypatch, return_lse):
    """What no CPU kernel can tell: one split, since a choice of more is refused on SM90."""
    launches = []

    def launch(q, k, v, **kwargs):
        launches.append(kwargs)
        return torch.zeros_like(q), q.new_zeros(q.shape[0], q.shape[2], q.shape[1]), None, None

    monkeypatch.setattr(key_prefix.flash_attn4, "_flash_attn_fwd", launch)
    q, k, v, key_lengths = operands(torch.float32)
    rows_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    key_prefix.fa4_key_prefix(*rows_first, key_lengths, 0.3, return_lse)
    (kwargs,) = launches
    assert kwargs["num_splits"] == 1 and kwargs["return_lse"] is return_lse
    assert kwargs.get("causal", False) is False and kwargs["softmax_scale"] == 0.3
    assert torch.equal(kwargs["seqused_k"], key_lengths)


@pytest.mark.parametrize("backend", [attend.CPU_BACKENDS[1]])
def test_fa4_key_prefix_compiled_vs_eager(backend):
    """Under torch.compile the launch stays in the graph, as one operator: no break, no tracing."""
    case = attend.AttentionCase(backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    attn = attend.install(attend.compute_backend(case))
    text = attend.TextKV.build([(drawn["text_k"], drawn["text_v"])], case.lengths)
    view = text.attach(drawn["q"].flatten(2), video_rows=case.video_rows)[0]
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def call(q, k, v):
        return attend.call(attn, q, k, v, text=view)

    operands = [drawn[name] for name in "qkv"]
    compiled = torch.compile(call, backend=keep, fullgraph=True)(*operands)
    assert_bitwise(compiled, call(*operands), "compiled")
    (graph,) = graphs
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert sum("fa4_key_prefix" in name for name in names) == 1, names


def test_fa4_key_prefix_without_kernel_vs_reason(monkeypatch):
    from tensorrt_llm._torch.visual_gen.attention_backend import flash_attn4

    monkeypatch.setattr(flash_attn4, "_flash_attn_fwd", None)
    monkeypatch.setattr(flash_attn4, "_flash_attn_fwd_import_error", ImportError("no such kernel"))
    q, k, v, key_lengths = operands(torch.float32)
    rows_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    with pytest.raises(ImportError, match="use VANILLA.*no such kernel"):
        key_prefix.fa4_key_prefix(*rows_first, key_lengths, 0.3, True)


@pytest.mark.parametrize("backend", attend.CPU_BACKENDS)
def test_key_prefix_lengths_overwritten_in_place_vs_rebuilt(backend):
    """Lengths are read from the device tensor at every call: nothing of them is kept."""
    case = attend.AttentionCase(backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    attn = attend.install(attend.compute_backend(case))
    text = attend.TextKV.build([(drawn["text_k"], drawn["text_v"])], case.lengths)
    view = text.attach(drawn["q"].flatten(2), video_rows=case.video_rows)[0]
    names = ("q", "k", "v")
    before = attend.call(attn, *(drawn[n] for n in names), text=view)
    own = view.key_lengths.clone()
    view.key_lengths.copy_(own.flip(0))
    changed = attend.call(attn, *(drawn[n] for n in names), text=view)
    view.key_lengths.copy_(own)
    again = attend.call(attn, *(drawn[n] for n in names), text=view)
    assert_bitwise(again, before, "the same lengths again")
    assert not torch.equal(changed, before)
