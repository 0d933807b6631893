# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The leaf adapter alone, on one rank, against float64 attention over exactly the valid keys.

Fields: B batch, S video rows, T text rows, H query heads, H_kv K/V heads, D head_dim.
"""

import dataclasses

import pytest
import torch
from support import attend
from support.attend import ALL_BACKENDS, CPU_BACKENDS, FA4, LSE_BACKENDS
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
from tensorrt_llm._torch.visual_gen.attention_backend.vanilla import VanillaAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import (
    KERNELS,
    TextAttention,
    install_text_attention,
    lengths_in_shapes,
)
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKVLayout

HEADS = {"heads8x4": (8, 4), "heads8x2": (8, 2), "heads4x1": (4, 1), "heads4x4": (4, 4)}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
# Zero rows behind the video, as another layout's padding would leave them: cut by video_rows.
TAIL_ROWS = 5


def adapter(case: AttentionCase) -> TextAttention:
    return install_text_attention(attend.compute_backend(case))


def run(attn, q, k, v, views, with_lse=False):
    return attend.call(attn, q, k, v, text=iter(views), with_lse=with_lse)


def views_of(case: AttentionCase, drawn, layout=TextKVLayout()):
    return attend.text_of(case, drawn, layout).views(case.video_rows)[0]


def with_tail(x: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.cat([x, x.new_full((x.shape[0], TAIL_ROWS, *x.shape[2:]), fill)], dim=1)


def reference(case: AttentionCase, **options):
    return per_sample_attention(*case.tensors().values(), case.lengths, **options)


def unfixed(case: AttentionCase):
    """The padded path as two ranks would compute it: their rounding pads equal prompts too."""
    return padded_attention(*case.tensors().values(), case.lengths, ranks=2)


@DTYPES
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_text_attention_output_vs_per_sample(backend, lengths, heads, dtype):
    case = AttentionCase(
        lengths=lengths, heads=heads[0], kv_heads=heads[1], backend=backend, dtype=dtype
    )
    drawn, bound = case.tensors(), REDUCTION_ORDER[dtype]
    expected, expected_lse = reference(case)
    q, k, v = drawn["q"], with_tail(drawn["k"], POISON), with_tail(drawn["v"], POISON)
    attn, views = adapter(case), views_of(case, drawn)

    out = run(attn, q, k, v, views)
    assert out.dtype == dtype
    assert_within(out, expected, bound, "output")
    if backend != "VANILLA":
        out, lse = run(attn, q, k, v, views, with_lse=True)
        assert_within(out, expected, bound, "output beside the LSE")
        assert_same_lse(lse, expected_lse, bound * 10, "LSE")
    assert_sees_the_bug(unfixed(case), expected, bound)


@pytest.mark.parametrize("backend", attend.DENSE)
@pytest.mark.parametrize(
    "lengths", [(7,), (13, 13), (7, 19), (7, 19, 7, 1, 19)], ids=lambda x: "x".join(map(str, x))
)
def test_text_attention_any_backend_vs_a_launch_for_each_length(lengths, backend):
    """Whatever a backend does with keywords: it is given exactly the keys that count."""
    case = AttentionCase(lengths=lengths, backend=backend)
    drawn, attn = case.tensors(), adapter(case)
    k, v = with_tail(drawn["k"], POISON), with_tail(drawn["v"], POISON)
    out = run(attn, drawn["q"], k, v, views_of(case, drawn))
    assert_within(out, reference(case)[0], REDUCTION_ORDER[case.dtype], "output")
    rows = case.video_rows
    sizes = [[lengths.count(n), rows, rows + n] for n in dict.fromkeys(lengths)]
    assert attn.backend.launches == [(size, size) for size in sizes]
    if not attn.backend.lse:
        with pytest.raises(NotImplementedError, match="returns no LSE"):
            run(attn, drawn["q"], k, v, views_of(case, drawn), with_lse=True)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_text_attention_poisoned_padding_vs_zeros(lengths, backend):
    """What the padding slots hold does not change one bit of the result."""
    case = AttentionCase(lengths=lengths, backend=backend, dtype=torch.float32)
    drawn, attn = case.tensors(), adapter(case)
    q, k, v = (drawn[name] for name in "qkv")
    text = attend.text_of(case, drawn)
    views = text.views(case.video_rows)[0]
    clean = run(attn, q, with_tail(k, 0.0), with_tail(v, 0.0), views)
    for sample, length in enumerate(lengths):
        text.data[0, :, sample, length:] = POISON
        text.data[1, :, sample, length:] = -POISON
    for fill in (POISON, -POISON):
        found = run(attn, q, with_tail(k, fill), with_tail(v, fill), views)
        assert_bitwise(found, clean, "poisoned padding")
    # The poison is strong enough: the same rows with a length one too large are far off.
    longer = dataclasses.replace(
        views[0],
        key_lengths=views[0].key_lengths + 1,
        text_lengths=tuple(n + 1 for n in views[0].text_lengths),
    )
    assert_sees_the_bug(run(attn, q, k, v, [longer]), clean, REDUCTION_ORDER[torch.float32])


def test_padded_reference_nothing_padded_vs_per_sample():
    """The control: without padding the bug's own reference is right, so padding is all it shows."""
    case = AttentionCase(lengths=(14, 14), video_rows=28)
    assert_within(unfixed(case), reference(case)[0], REDUCTION_ORDER[torch.float64], "no padding")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_text_attention_low_precision_vs_loop(backend, lengths, dtype):
    """Judged by the error of the single-GPU loop, one launch for each sample in the same dtype."""
    case = AttentionCase(lengths=lengths, backend=backend, dtype=dtype)
    drawn = case.tensors()
    expected, _ = reference(case)
    out = run(adapter(case), drawn["q"], drawn["k"], drawn["v"], views_of(case, drawn))
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


@DTYPES
@pytest.mark.parametrize("backend", LSE_BACKENDS)
def test_text_attention_no_valid_key_vs_zero_and_minus_infinity(backend, dtype):
    """A column of 3 x 2 ranks may hold no video row and no token of a prompt of length 1."""
    case = AttentionCase(lengths=(1, 6), video_rows=1, backend=backend, dtype=dtype)
    drawn = case.tensors()
    views = views_of(case, drawn, TextKVLayout(col_size=3, cp_rank=2))
    assert views[0].video_rows == 0 and views[0].key_lengths.tolist() == [0, 2]
    out, lse = run(adapter(case), drawn["q"], drawn["k"], drawn["v"], views, with_lse=True)
    assert (out[0] == 0).all() and (lse[0] == float("-inf")).all()
    owned = slice(2, 6, 3)
    expected, expected_lse = attention(
        drawn["q"][1], drawn["text_k"][1, owned], drawn["text_v"][1, owned]
    )
    bound = REDUCTION_ORDER[dtype]
    assert_within(out[1:], expected[None], bound, "the sample that has keys")
    assert_same_lse(lse[1:], expected_lse[None], bound * 10, "its LSE")


@pytest.mark.parametrize("cols", [2, 3])
@pytest.mark.parametrize("backend", LSE_BACKENDS)
def test_text_attention_columns_merged_vs_per_sample(backend, cols):
    """Partial results of all columns, merged by their LSEs, are attention over every key once."""
    case = AttentionCase(lengths=(1, 19), video_rows=5, backend=backend)
    drawn = case.tensors()
    expected, expected_lse = reference(case)
    outs, lses = [], []
    for column in range(cols):
        layout = TextKVLayout(col_size=cols, cp_rank=column)
        chunk = [x.chunk(cols, dim=1)[column] for x in (drawn["k"], drawn["v"])]
        # chunk() may give fewer rows to the last: that is the padding that the sharder adds.
        rows = -(-case.video_rows // cols)
        k, v = (with_tail(x, POISON)[:, :rows] for x in chunk)
        views = views_of(case, drawn, layout)
        out, lse = run(adapter(case), drawn["q"], k, v, views, with_lse=True)
        outs.append(out)
        lses.append(lse)
    weights = torch.softmax(torch.stack(lses), dim=0).transpose(2, 3)[..., None]
    merged = (torch.stack(outs) * weights).sum(dim=0)
    assert_within(merged, expected, REDUCTION_ORDER[torch.float64], "merged columns")
    assert_same_lse(
        torch.logsumexp(torch.stack(lses), dim=0), expected_lse, 1e-11, "LSE over all columns"
    )


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_text_attention_scale_vs_backend_scale(backend):
    """The backend's own scale is used, not one worked out from head_dim."""
    case = AttentionCase(backend=backend)
    drawn = case.tensors()
    inner = attend.compute_backend(case)
    inner.scale = 0.5
    attn = TextAttention(inner)
    for name in ("num_heads", "num_kv_heads", "head_dim", "scale", "preferred_layout"):
        assert getattr(attn, name) == getattr(inner, name)
    out = run(attn, drawn["q"], drawn["k"], drawn["v"], views_of(case, drawn))
    bound = REDUCTION_ORDER[torch.float64]
    assert_within(out, reference(case, scale=0.5)[0], bound, "another scale")


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_text_attention_more_samples_vs_per_sample(backend):
    case = AttentionCase(lengths=(3, 130, 1, 64, 13), video_rows=9, backend=backend)
    drawn = case.tensors()
    out = run(adapter(case), drawn["q"], drawn["k"], drawn["v"], views_of(case, drawn))
    expected, _ = reference(case)
    assert_within(out, expected, REDUCTION_ORDER[torch.float64], "five prompts")
    assert_sees_the_bug(unfixed(case), expected, REDUCTION_ORDER[torch.float64])


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_text_attention_more_queries_vs_per_sample(backend):
    """Rows that pad the queries are answered too, with finite values; nobody reads them."""
    case = AttentionCase(backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    q, k, v = (with_tail(drawn[name], 0.0) for name in "qkv")
    out = run(adapter(case), q, k, v, views_of(case, drawn))
    assert out.shape == q.shape and torch.isfinite(out).all()
    bound = REDUCTION_ORDER[torch.float32]
    assert_within(out[:, :-TAIL_ROWS], reference(case)[0], bound, "real rows")


def test_text_attention_vanilla_that_drops_its_mask_vs_per_sample(monkeypatch):
    """A class's name proves nothing about a keyword: some revisions' VANILLA takes **kwargs."""

    def forward(self, q, k, v, **kwargs):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    monkeypatch.setattr(VanillaAttention, "forward", forward)
    case = AttentionCase()
    drawn = case.tensors()
    operands = [drawn[name] for name in "qkv"]
    out = run(adapter(case), *operands, views_of(case, drawn))
    assert_within(out, reference(case)[0], REDUCTION_ORDER[case.dtype], "output")
    with pytest.raises(NotImplementedError, match="no LSE; use FA4"):
        run(adapter(case), *operands, views_of(case, drawn), with_lse=True)


def test_text_attention_causal_or_without_text_vs_refusal():
    """Nothing may attend otherwise, or without text, by accident: the keyword has no default."""
    drawn = AttentionCase().tensors()
    q, k, v = (drawn[name].transpose(1, 2) for name in "qkv")
    attn, views = adapter(AttentionCase()), views_of(AttentionCase(), drawn)
    with pytest.raises(AssertionError):
        attn.forward(q, k, v, text=iter(views), attention_mask=PredefinedAttentionMask.CAUSAL)
    with pytest.raises(TypeError, match="text"):
        attn.forward(q, k, v)


def test_text_attention_views_of_two_videos_vs_per_sample():
    """Two resolutions on one text: each view keeps its own lengths."""
    drawn = AttentionCase().tensors()
    text = attend.text_of(AttentionCase(), drawn)
    for rows in (27, 9, 27):
        q, k, v = (drawn[name][:, :rows] for name in "qkv")
        expected, _ = per_sample_attention(q, k, v, drawn["text_k"], drawn["text_v"], text.lengths)
        out = run(adapter(AttentionCase()), q, k, v, text.views(rows)[0])
        assert_within(out, expected, REDUCTION_ORDER[torch.float64], f"{rows} rows")


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_text_attention_lengths_overwritten_in_place_vs_rebuilt(backend):
    """Lengths are read from the device tensor at every call: nothing of them is kept."""
    case = AttentionCase(backend=backend, dtype=torch.float32)
    drawn, attn = case.tensors(), adapter(case)
    operands, views = [drawn[name] for name in "qkv"], views_of(case, drawn)
    before = run(attn, *operands, views)
    own = views[0].key_lengths.clone()
    views[0].key_lengths.copy_(own.flip(0))
    assert not torch.equal(run(attn, *operands, views), before)
    views[0].key_lengths.copy_(own)
    assert_bitwise(run(attn, *operands, views), before, "the same lengths again")


OPERATORS = [
    pytest.param("VANILLA", False, id="vanilla"),
    pytest.param("FA4", False, id="fa4", marks=FA4.marks),
    pytest.param("FA4", True, id="fa4-lse", marks=FA4.marks),
]


@pytest.mark.parametrize(("backend", "with_lse"), OPERATORS)
def test_attention_operator_vs_its_fake(backend, with_lse):
    """torch.compile sees the fake: shapes, dtypes and strides must be those of the kernel."""
    case = AttentionCase(backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    (view,) = views_of(case, drawn)
    # As VANILLA's HND operands come: rows that do not follow each other in memory.
    gapped = [drawn[n].transpose(1, 2).contiguous().transpose(1, 2) for n in "qkv"]
    _, operator = KERNELS[type(attend.compute_backend(case))]
    sizes = (view.key_lengths, view.video_rows, 0.3, with_lse)
    for operands in ([drawn[name] for name in "qkv"], gapped):
        arguments = (*operands, view.k, view.v, *sizes)
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
        real = operator(*arguments)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = operator(*(mode.from_tensor(x) for x in arguments[:6]), *sizes[1:])
        assert [x.stride() for x in fake] == [x.stride() for x in real]


@pytest.mark.parametrize("backend", [*CPU_BACKENDS, "DENSE-NHD"])
def test_text_attention_compiled_vs_eager(backend):
    """The launch stays in the graph, as one operator; that of an unknown backend outside of it."""
    case = AttentionCase(backend=backend, dtype=torch.float32)
    drawn = case.tensors()
    attn, views, graphs = adapter(case), views_of(case, drawn), []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def call(q, k, v):
        return run(attn, q, k, v, views)

    operands = [drawn[name] for name in "qkv"]
    torch._dynamo.reset()
    known = backend != "DENSE-NHD"
    compiled = torch.compile(call, backend=keep, fullgraph=known)(*operands)
    assert_bitwise(compiled, call(*operands), "compiled")
    names = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert sum("cosmos3.attend" in name for name in names) == known, names


@pytest.mark.parametrize("with_lse", [True, False], ids=["lse", "nolse"])
def test_fa4_launch_vs_what_the_kernels_need(monkeypatch, with_lse):
    """What no CPU kernel can tell: one split, since a choice of more is refused on SM90."""
    launches = []

    def launch(q, k, v, **kwargs):
        launches.append(kwargs)
        return torch.zeros_like(q), q.new_zeros(q.shape[0], q.shape[2], q.shape[1]), None, None

    monkeypatch.setattr(text_attention.flash_attn4, "_flash_attn_fwd", launch)
    case = AttentionCase(backend="FA4", dtype=torch.float32)
    drawn, views = case.tensors(), views_of(case, case.tensors())
    run(adapter(case), drawn["q"], drawn["k"], drawn["v"], views, with_lse)
    (kwargs,) = launches
    assert kwargs["num_splits"] == 1 and kwargs["return_lse"] is with_lse
    assert kwargs["causal"] is False and kwargs["softmax_scale"] == case.head_dim**-0.5
    assert torch.equal(kwargs["seqused_k"], views[0].key_lengths)


def test_fa4_without_kernel_vs_reason(monkeypatch):
    case = AttentionCase(backend="FA4")
    drawn, attn = case.tensors(), adapter(case)
    flash_attn4 = text_attention.flash_attn4
    monkeypatch.setattr(flash_attn4, "_flash_attn_fwd", None)
    monkeypatch.setattr(flash_attn4, "_flash_attn_fwd_import_error", ImportError("no such kernel"))
    with pytest.raises(ImportError, match="no such kernel"):
        run(attn, drawn["q"], drawn["k"], drawn["v"], views_of(case, drawn))


class Wrapper:
    """As the contract describes one: it keeps what it wraps in inner_backend, a ring in inner."""

    def __init__(self, wrapped, name="inner_backend"):
        setattr(self, name, wrapped)


@pytest.mark.parametrize("backend", ["VANILLA", "FA4", "CUTEDSL", "CUDNN", "FLASHINFER"])
@pytest.mark.parametrize("names", [(), ("inner",), ("inner", "inner_backend")], ids=str)
def test_install_text_attention_place_vs_leaf(names, backend):
    """Any backend is taken; whether lengths are in its shapes is read off the whole chain."""
    leaf = attend.compute_backend(AttentionCase(backend=backend))
    chain = [leaf]
    for name in names:
        chain.append(Wrapper(chain[-1], name))
    found = head = install_text_attention(chain[-1])
    for wrapper, name in zip(chain[:0:-1], names[::-1]):
        assert found is wrapper, "wrappers keep their order"
        found = getattr(found, name)
    assert type(found) is TextAttention and found.backend is leaf
    assert lengths_in_shapes(head) == (backend not in ("VANILLA", "FA4"))


def test_install_text_attention_subclass_vs_unknown_backend():
    """A subclass may override what its parent's kernel stands for: it is not trusted by name."""
    leaf = type("Reduced", (VanillaAttention,), {})(num_heads=4, head_dim=8)
    assert lengths_in_shapes(install_text_attention(leaf))
