# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Every way through the adapter on a GPU, against float64 and against one dense launch per sample.

Fields: B batch, S video rows, T text rows, H query heads, H_kv K/V heads, D head_dim.
"""

from dataclasses import replace

import pytest
import torch
from support import reference, tiers

from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.attention_backend.vanilla import VanillaInBlocks
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_attention, text_fold
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import TextAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout

from . import require

pytestmark = pytest.mark.gpu(1)

POISON = 3e4
PAIRS = [(1, 63), (63, 703), (113, 127), (127, 128), (128, 129), (703, 1), (129, 129)]
HEADS = [(8, 2), (4, 4), (16, 4)]
pairs = pytest.mark.parametrize("lengths", PAIRS, ids=lambda p: f"len{p[0]}x{p[1]}")
head_counts = pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"heads{h[0]}x{h[1]}")
backends = pytest.mark.parametrize("backend", ["FA4", "VANILLA"])


class Case:
    """Random video and text, with large finite numbers wherever nothing valid stands."""

    def __init__(self, backend, lengths, heads, rows=129, padding=3, dtype=torch.bfloat16, dim=128):
        require(backend)
        self.lengths, self.rows = lengths, rows
        generator = torch.Generator(device="cuda").manual_seed(7)

        def normal(count, n):
            return torch.randn(len(lengths), n, count, dim, generator=generator, device="cuda").to(
                dtype
            )

        total = rows + padding
        self.q, self.k, self.v = (normal(h, total) for h in (heads[0], heads[1], heads[1]))
        self.k[:, rows:], self.v[:, rows:] = POISON, POISON
        self.source = [normal(heads[1], max(lengths) + 5) for _ in range(2)]
        for sample, length in enumerate(lengths):
            for tensor in self.source:
                tensor[sample, length:] = POISON
        ((self.view,),) = TextKV.build([self.source], lengths).views(rows)
        self.backend = create_attention(
            backend, layer_idx=0, num_heads=heads[0], head_dim=dim, num_kv_heads=heads[1]
        )
        self.adapter = TextAttention(self.backend)
        self.heads_first = self.backend.preferred_layout.name == "HND"

    def layout(self, x):
        return x.transpose(1, 2) if self.heads_first else x

    def _call(self, forward):
        q, k, v = (self.layout(x) for x in (self.q, self.k, self.v))
        return forward(q, k, v, text=iter((self.view,)))

    def run(self):
        return self.layout(self._call(self.adapter.forward))[:, : self.rows]

    def run_with_lse(self):
        out, lse = self._call(self.adapter.forward_with_lse)
        return self.layout(out)[:, : self.rows], lse[..., : self.rows]

    def per_sample(self):
        """One dense launch of the backend for each sample: exact, and what one GPU does today."""
        outs = []
        for b, length in enumerate(self.lengths):
            one = slice(b, b + 1)
            k = torch.cat([self.k[one, : self.rows], self.source[0][one, :length]], 1)
            v = torch.cat([self.v[one, : self.rows], self.source[1][one, :length]], 1)
            q, k, v = (self.layout(x) for x in (self.q[one], k, v))
            outs.append(self.layout(self.backend.forward(q, k, v))[:, : self.rows])
        return torch.cat(outs)

    def valid(self):
        rows = self.rows
        return [x[:, :rows].cpu() for x in (self.q, self.k, self.v)] + [
            x.cpu() for x in self.source
        ]


@pairs
@head_counts
@backends
def test_text_attention_error_vs_float64(backend, heads, lengths):
    case = Case(backend, lengths, heads)
    expected, lse = reference.per_sample_attention(*case.valid(), lengths)
    own = tiers.worst_sample(case.per_sample().cpu(), expected)
    tiers.assert_within(
        case.run().cpu(), expected, tiers.AGAINST_FLOAT32 * own, f"{backend}, loop's own {own:.2e}"
    )
    if backend == "FA4":
        out, found_lse = case.run_with_lse()
        tiers.assert_within(out.cpu(), expected, tiers.AGAINST_FLOAT32 * own, "FA4 with LSE")
        # bf16 inputs are exact in both; the kernels' logits are float32 products of them.
        tiers.assert_same_lse(found_lse.cpu(), lse, 1e-4, "FA4")
    if lengths[0] != lengths[1]:
        padded = reference.padded_attention(*case.valid(), lengths, ranks=2)
        tiers.assert_sees_the_bug(padded, expected, 0.0)


@pairs
@head_counts
def test_fa4_bitwise_vs_dense_launch_per_sample(heads, lengths):
    case = Case("FA4", lengths, heads)
    tiers.assert_bitwise(case.run(), case.per_sample(), "FA4 output")
    out, lse = case.run_with_lse()
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        k = torch.cat([case.k[one, : case.rows], case.source[0][one, :length]], 1)
        v = torch.cat([case.v[one, : case.rows], case.source[1][one, :length]], 1)
        dense, dense_lse = case.backend.forward_with_lse(case.q[one], k, v)
        tiers.assert_bitwise(out[one], dense[:, : case.rows], "FA4 output with LSE")
        tiers.assert_bitwise(lse[one], dense_lse[..., : case.rows], "FA4 LSE")


@pairs
def test_vanilla_folds_text_vs_mask(lengths, monkeypatch):
    case = Case("VANILLA", lengths, (8, 2), rows=1000)
    folded = case.run()
    monkeypatch.setattr(text_attention, "can_fold_text", lambda *args: False)
    masked = case.run()
    expected, _ = reference.per_sample_attention(*case.valid(), lengths)
    own = tiers.worst_sample(masked.cpu(), expected)
    tiers.assert_within(folded.cpu(), expected, tiers.AGAINST_FLOAT32 * own, "folded")
    assert not torch.equal(folded, masked), "the mask ran twice: folding was not tested"


@pytest.mark.parametrize("rows", [127, 256, 1023])
@pytest.mark.parametrize(
    "backend, dtype",
    [("FA4", torch.bfloat16), ("VANILLA", torch.bfloat16), ("VANILLA", torch.float32)],
)
def test_text_attention_on_some_heads_vs_all_heads(backend, dtype, rows):
    """What a rank of Ulysses computes on its heads, and on rows that pad the video."""
    lengths, heads = (30, 700), (32, 8)
    case = Case(backend, lengths, heads, rows, padding=0, dtype=dtype)
    whole = case.run()
    for ranks in (2, 4, 8):
        part_heads, padding = tuple(count // ranks for count in heads), -rows % ranks
        part = Case(backend, lengths, part_heads, rows, padding, dtype)
        padded = [
            torch.nn.functional.pad(x, (0, 0, 0, 0, 0, padding)) for x in (case.q, case.k, case.v)
        ]
        for rank in (0, ranks - 1):
            part.q, part.k, part.v = (x.chunk(ranks, dim=2)[rank].contiguous() for x in padded)
            layout = TextKVLayout(ulysses_rank=rank, ulysses_size=ranks)
            ((part.view,),) = TextKV.build([case.source], lengths, layout).views(rows)
            found, expected = part.run(), whole.chunk(ranks, dim=2)[rank]
            what = f"rank {rank} of {ranks}"
            if dtype == torch.float32:
                # Matrix products, of as many rows as there are heads and padding rows.
                tiers.assert_within(found, expected, tiers.REDUCTION_ORDER[dtype], what)
            else:
                tiers.assert_bitwise(found, expected, what)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pairs
def test_vanilla_exact_dtypes_vs_float64(dtype, lengths):
    case = Case("VANILLA", lengths, (8, 2), dtype=dtype)
    expected, _ = reference.per_sample_attention(*case.valid(), lengths)
    tiers.assert_within(case.run().cpu(), expected, tiers.REDUCTION_ORDER[dtype], str(dtype))


def test_vanilla_float32_in_blocks_vs_mask(monkeypatch):
    """A class of its own, which the adapter serves with launches on exactly the valid keys."""
    case = Case("VANILLA", (30, 700), (8, 2), dtype=torch.float32)
    masked = case.run()
    monkeypatch.setattr(VanillaInBlocks, "HEAD_SCORE_BYTES", 1 << 13)
    case.adapter = TextAttention(VanillaInBlocks(num_heads=8, num_kv_heads=2, head_dim=128))
    blockwise = case.run()
    bound = tiers.REDUCTION_ORDER[torch.float32]
    tiers.assert_within(blockwise.cpu(), masked.cpu(), bound, "in blocks")
    assert not torch.equal(blockwise, masked), "the mask ran twice: blocks were not tested"


def test_fa4_zero_valid_keys_vs_definition():
    """A column of Attention2D may own neither video nor text of a sample."""
    case = Case("FA4", (1, 40), (8, 2))
    counts = torch.tensor([0, 40], dtype=torch.int32, device="cuda")
    case.view = replace(case.view, key_lengths=counts, video_rows=0)
    out, lse = case.run_with_lse()
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert bool((lse[0] == float("-inf")).all())
    assert bool(out.isfinite().all()) and bool(lse[1].isfinite().all())


CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention


def _raises(*args, **kwargs):
    raise RuntimeError("No execution plans support the graph")


def _lies(*args, attend=CUDNN.default, **kwargs):
    out, lse, *others = attend(*args, **kwargs)
    return out, lse + 1, *others


@pytest.mark.parametrize(
    "fault, reason", [(_raises, "raises RuntimeError: No execution"), (_lies, "off float32")]
)
def test_vanilla_where_cudnn_is_broken_vs_mask(monkeypatch, fault, reason):
    case = Case("VANILLA", (30, 700), (8, 2), rows=1000)
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(text_attention, "can_fold_text", lambda *args: False)
        masked = case.run()
    monkeypatch.setattr(text_fold.logger, "warning", said.append)
    monkeypatch.setattr(CUDNN, "default", fault)
    text_fold._probe.cache_clear()
    try:
        for _ in range(3):
            tiers.assert_bitwise(case.run(), masked, "the mask")
    finally:
        text_fold._probe.cache_clear()
    assert len(said) == 1 and reason in said[0], said


def test_fold_beyond_two_gigaelements_vs_its_last_rows():
    """64 heads of 128 and 270,000 rows: offsets pass 2^31 elements."""
    needed = 24 << 30
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free GPU memory")
    rows, heads, generator = 270_000, (64, 8), torch.Generator(device="cuda").manual_seed(3)

    def normal(count, n):
        options = {"dtype": torch.bfloat16, "generator": generator, "device": "cuda"}
        return torch.randn(1, n, count, 128, **options)

    q, k, v = (normal(count, rows).transpose(1, 2) for count in (heads[0], heads[1], heads[1]))
    text = normal(heads[1], 256), normal(heads[1], 256)
    lengths = torch.tensor([rows + 200], dtype=torch.int32, device="cuda")
    assert q.numel() > 2**31
    # From a multiple of the kernel's rows on, and with a few rows at the end.
    last = slice(rows // 128 * 128 - 128, None)
    few = text_fold.attend_and_fold_text(q[:, :, last], k, v, *text, lengths, rows, 128**-0.5)
    out = text_fold.attend_and_fold_text(q, k, v, *text, lengths, rows, 128**-0.5)
    # cuDNN may cut few queries' work another way, and round once more.
    tiers.assert_within(out[:, :, last], few, 2.0**-8, "the last rows")
    assert bool(out.isfinite().all())


@backends
def test_text_attention_repeats_bitwise(backend):
    case = Case(backend, (63, 703), (8, 2), rows=500)
    first = case.run()
    for _ in range(1000):
        assert torch.equal(case.run(), first)


@backends
def test_text_attention_short_query_vs_float64(backend):
    """Few query rows against many keys: where a heuristic would ask for split-KV."""
    case = Case(backend, (700, 30), (32, 8), rows=61)
    expected, _ = reference.per_sample_attention(*case.valid(), (700, 30))
    own = tiers.worst_sample(case.per_sample().cpu(), expected)
    tiers.assert_within(case.run().cpu(), expected, tiers.AGAINST_FLOAT32 * own, backend)


@backends
def test_text_attention_compiled_bitwise_vs_eager(backend):
    case = Case(backend, (30, 700), (8, 2))
    torch._dynamo.reset()

    def attend(q, k, v, view):
        # Work on both sides, so that a dropped launch cannot hide.
        return case.adapter.forward(q * 1, k, v, text=iter((view,))) + 0

    args = [case.layout(x) for x in (case.q, case.k, case.v)]
    eager = attend(*args, case.view)
    compiled = torch.compile(attend, fullgraph=True)
    tiers.assert_bitwise(compiled(*args, case.view), eager, f"{backend} compiled")
    counts = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    other = Case(backend, (65, 650), (8, 2))
    args = [other.layout(x) for x in (other.q, other.k, other.v)]
    tiers.assert_bitwise(
        compiled(*args, other.view), attend(*args, other.view), f"{backend} other prompts"
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counts, "recompiled"


@backends
def test_text_attention_graph_reads_lengths_at_replay(backend):
    case = Case(backend, (30, 700), (8, 2))
    case.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = case.run()
    other = Case(backend, (650, 65), (8, 2))
    case.view.k.copy_(other.view.k)
    case.view.v.copy_(other.view.v)
    case.view.key_lengths.copy_(other.view.key_lengths)
    graph.replay()
    tiers.assert_bitwise(captured, case.run(), f"{backend} replayed")
