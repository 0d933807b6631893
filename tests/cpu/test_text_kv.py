# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The cached text K/V: what each rank keeps, how much of it, and which lengths go with it.

Fields: B batch, T text rows, S video rows, H_kv K/V heads, D head_dim.
"""

import re
from types import SimpleNamespace

import pytest
import torch
from support.cases import LENGTHS, Layout
from support.reference import round_up

from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TextKV,
    TextKVLayout,
    attach_text,
    read_text_lengths,
    text_bucket,
)

# Large enough to be seen in any sum, and NaN to be seen in any product.
POISONS = [1e30, float("nan"), float("inf")]

# Context-parallel meshes times Ulysses, the shapes that the issues name and some odd ones.
LAYOUTS = [
    Layout(),
    Layout(ulysses=2),
    Layout(ulysses=4),
    Layout(ulysses=8),
    Layout(rows=1, cols=2),
    Layout(rows=2, cols=1),
    Layout(rows=2, cols=2),
    Layout(rows=2, cols=3),
    Layout(rows=3, cols=2),
    Layout(rows=2, cols=2, ulysses=2),
    Layout(ring=2),
    Layout(ring=4),
    Layout(ring=2, ulysses=2),
]


def source(lengths, layers=2, kv_heads=4, head_dim=3, poison=POISONS[0], rows=None):
    """The text tower's K/V. Every valid element is its own number, rows past a length poison."""
    rows = max(lengths) + 3 if rows is None else rows
    shape = (len(lengths), rows, kv_heads, head_dim)
    pairs = []
    for layer in range(2 * layers):
        tensor = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
        tensor = tensor + layer * 1e6
        for sample, length in enumerate(lengths):
            tensor[sample, length:] = poison
        pairs.append(tensor)
    return list(zip(pairs[::2], pairs[1::2]))


def layout_of(layout: Layout, ulysses_rank=0, cp_rank=0) -> TextKVLayout:
    """The layout of one rank, through the attributes that VisualGenMapping promises."""
    return TextKVLayout.from_mapping(
        SimpleNamespace(
            ulysses_rank=ulysses_rank,
            ulysses_size=layout.ulysses,
            ring_size=layout.ring,
            attn2d_row_size=layout.rows,
            attn2d_col_size=layout.cols,
            cp_rank=cp_rank,
        )
    )


@pytest.mark.parametrize("poison", POISONS, ids=["poison1e30", "nan", "inf"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("spare", [0, 3], ids="spare{}".format)
def test_text_kv_rows_vs_source(lengths, poison, spare):
    """Also with a prompt at the maximum, which fills the text tower's rows."""
    layers = source(lengths, poison=poison, rows=max(lengths) + spare)
    text = TextKV.build(layers, lengths)
    assert len(text) == 2 and text.lengths == text.local_lengths == lengths
    assert text.data.is_contiguous() and text.data.dtype == torch.float64
    for kept, whole in zip(text, layers, strict=True):
        for x, source_x in zip(kept, whole, strict=True):
            assert x.shape[1] == text_bucket(max(lengths))
            for sample, length in enumerate(lengths):
                assert torch.equal(x[sample, :length], source_x[sample, :length])
                assert (x[sample, length:] == 0).all(), "pad rows must be zeros"


def test_text_kv_is_a_copy_vs_overwritten_source():
    layers = source((4, 2))
    text = TextKV.build(layers, (4, 2))
    before = text.data.clone()
    layers[0][0].fill_(5.0)
    assert torch.equal(text.data, before)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_text_kv_head_blocks_vs_source(size):
    lengths = (5, 2)
    layers = source(lengths, kv_heads=8)
    shares = [
        TextKV.build(layers, lengths, layout_of(Layout(ulysses=size), ulysses_rank=rank)).data
        for rank in range(size)
    ]
    # A view would keep the other ranks' heads alive.
    assert all(x.untyped_storage().nbytes() == shares[0].nbytes for x in shares)
    whole = torch.cat(shares, dim=4)
    assert torch.equal(whole, TextKV.build(layers, lengths).data)


def test_text_bucket_vs_few_sizes():
    buckets = [text_bucket(n) for n in range(1, 8193)]
    assert all(n <= rows for n, rows in enumerate(buckets, 1)) and buckets == sorted(buckets)
    assert all(text_bucket(rows) == rows for rows in buckets), "a bucket holds its own size"
    assert len(set(buckets[:1200])) <= 5, "as many captures as a run over such prompts may have"
    # Of every prompt but the short ones, at least half of the rows are its own.
    assert all(rows < 2 * n for n, rows in enumerate(buckets, 1) if n > 256)


@pytest.mark.parametrize("lengths", [*LENGTHS.values(), (4096, 5)], ids=str)
@pytest.mark.parametrize("cols", [1, 2, 3, 5, 6, 7])
def test_text_kv_columns_vs_whole_text(cols, lengths):
    """Columns that do not divide the bucket hold a row more, and all shapes stay equal."""
    layers = source(lengths, layers=1, kv_heads=1, head_dim=1)
    shares = [
        TextKV.build(layers, lengths, layout_of(Layout(cols=cols), cp_rank=column))
        for column in range(cols)
    ]
    assert {share.data.shape[3] for share in shares} == {-(-text_bucket(max(lengths)) // cols)}
    for sample, length in enumerate(lengths):
        owned = [s.data[0, 0, sample, : s.local_lengths[sample], 0, 0].tolist() for s in shares]
        expected = layers[0][0][sample, :length, 0, 0].tolist()
        assert sorted(sum(owned, [])) == expected, "each text key once, over all columns"
        counts = [len(rows) for rows in owned]
        assert max(counts) - min(counts) <= 1, "columns share the text evenly"
        for share in shares:
            assert (share.data[:, :, sample, share.local_lengths[sample] :] == 0).all()


def test_text_kv_columns_vs_rows_of_a_column():
    """Ranks of one column hold the same text rows, whichever row of the mesh they are in."""
    lengths, mesh = (7, 19), Layout(rows=2, cols=3)
    for column in range(3):
        first, second = (
            TextKV.build(source(lengths), lengths, layout_of(mesh, cp_rank=row * 3 + column))
            for row in range(2)
        )
        assert torch.equal(first.data, second.data)
        assert first.local_lengths == second.local_lengths


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_text_kv_video_rows_vs_simulated_sharding(layout):
    """Marks the valid rows of a padded sequence, shards and gathers the marks, and counts."""
    size, ulysses = layout.sequence_size, layout.ulysses
    chunks_of = size // ulysses
    for video_rows in [1, 2, 3, 5, 7, 8, 9, 23, 24, 25, 27, 28, 63, 64, 100]:
        marks = torch.arange(round_up(video_rows, size)) < video_rows
        # Sequence rank order is context-parallel outer, Ulysses inner; the all-to-all gathers
        # the shards of one Ulysses group in rank order.
        chunks = marks.chunk(size)
        gathered = [torch.cat(chunks[c * ulysses : (c + 1) * ulysses]) for c in range(chunks_of)]
        for cp_rank in range(chunks_of):
            if layout.ring > 1:
                # A rank's own block first, then what its predecessor passes on.
                blocks = [gathered[(cp_rank - step) % chunks_of] for step in range(chunks_of)]
            else:
                column = range(cp_rank % layout.cols, chunks_of, layout.cols)
                blocks = [torch.cat([gathered[chunk] for chunk in column])]
            local = layout_of(layout, cp_rank=cp_rank).video_rows(video_rows)
            assert local == tuple(int(keys.sum()) for keys in blocks)
            assert all(keys[:rows].all() for keys, rows in zip(blocks, local)), "not a prefix"


def test_text_kv_layout_without_mapping_vs_single_rank():
    assert TextKVLayout.from_mapping(None) == TextKVLayout() == layout_of(Layout())
    assert TextKVLayout().video_rows(27) == (27,)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_text_kv_key_lengths_vs_video_plus_text(lengths):
    text = TextKV.build(source(lengths), lengths, layout_of(Layout(ulysses=2), ulysses_rank=1))
    views = text.views(27)
    assert len(views) == len(text)
    for (view,), (k, v) in zip(views, text):
        assert view.k.data_ptr() == k.data_ptr() and torch.equal(view.k, k)
        assert view.v.data_ptr() == v.data_ptr() and torch.equal(view.v, v)
        assert view.video_rows == 27 and view.text_lengths == lengths
        assert view.key_lengths.dtype == torch.int32 and view.key_lengths.is_contiguous()
        assert view.key_lengths.tolist() == [27 + length for length in lengths]


def test_text_kv_columns_key_lengths_vs_own_share():
    """A prompt of one token is in column 0 only, and 5 rows leave the last of 6 chunks empty."""
    expected = {0: [2 + 1, 2 + 3], 1: [2 + 0, 2 + 3], 2: [1 + 0, 1 + 2]}
    for column, key_lengths in expected.items():
        layout = layout_of(Layout(rows=2, cols=3), cp_rank=column)
        (view,) = TextKV.build(source((1, 8)), (1, 8), layout).views(5)[0]
        assert view.key_lengths.tolist() == key_lengths
        assert [view.video_rows + n for n in view.text_lengths] == key_lengths


@pytest.mark.parametrize(
    "rank, rows", [(0, [3, 2, 3]), (1, [3, 3, 2]), (2, [2, 3, 3])], ids="rank{}".format
)
def test_text_kv_ring_blocks_vs_order_of_passing(rank, rows):
    """8 rows over three ranks are 3, 3 and 2; block r - 1 reaches rank r first, then r - 2."""
    text = TextKV.build(source((7, 19)), (7, 19), layout_of(Layout(ring=3), cp_rank=rank))
    for blocks in text.views(8):
        assert [block.video_rows for block in blocks] == rows
        assert blocks[0].key_lengths.tolist() == [rows[0] + 7, rows[0] + 19]
        for block, own in zip(blocks[1:], rows[1:]):
            assert block.key_lengths.tolist() == [own, own] and block.text_lengths == (0, 0)
            assert block.key_lengths.dtype == torch.int32 and block.key_lengths.is_contiguous()
            assert block.k.shape == block.v.shape == (2, 0, 4, 3), "only the own block has text"


def test_text_kv_views_twice_vs_first():
    """A denoise step makes nothing new: a captured graph reads the tensors of the first."""
    text = TextKV.build(source((7, 19)), (7, 19))
    first, other = text.views(9), text.views(8)
    assert text.views(9) is first
    assert other[0][0].key_lengths.tolist() == [15, 27]
    assert first[0][0].key_lengths.tolist() == [16, 28]


def test_text_kv_views_read_elsewhere_vs_there():
    """In a capture views are of the copies, and afterwards of the text's own tensors again."""
    text = TextKV.build(source((7, 19)), (7, 19))
    copies = [x.clone() for x in text.tensors(9)]
    for read, (data, lengths) in ((lambda _: copies, copies), (tuple, text.tensors(9))):
        for layer, (view,) in enumerate(text.views(9, read)):
            assert view.k.data_ptr() == data[0, layer].data_ptr()
            assert view.key_lengths.data_ptr() == lengths.data_ptr()


@pytest.mark.parametrize("samples", [slice(1, None), [1], [2, 0], range(3)], ids=str)
@pytest.mark.parametrize("layout", [Layout(), Layout(cols=2), Layout(ring=2)], ids=str)
def test_text_kv_select_vs_built_from_some(samples, layout):
    """The conditional half of a batch, as newer code cuts it in mid-request."""
    lengths, layers = (7, 19, 12), source((7, 19, 12))
    text = TextKV.build(layers, lengths, layout_of(layout))
    text.views(9)
    chosen = list(range(3))[samples] if isinstance(samples, slice) else list(samples)
    some = [tuple(x[chosen] for x in pair) for pair in layers]
    expected = TextKV.build(some, tuple(lengths[i] for i in chosen), layout_of(layout))
    found = text.select(samples)
    assert found.lengths == expected.lengths and found.layout == text.layout
    assert torch.equal(found.data, expected.data)
    for mine, wanted in zip(found.views(9)[0], expected.views(9)[0], strict=True):
        assert mine.key_lengths.tolist() == wanted.key_lengths.tolist()
        assert mine.text_lengths == wanted.text_lengths
    assert text.lengths == lengths, "the whole text may come back"


def test_text_kv_sequence_vs_pairs_of_layers():
    layers = source((20, 20), layers=3, rows=256, poison=0.0)
    text = TextKV.build(layers, (20, 20))
    for found, expected in ((list(text), layers), ([text[0], text[-1]], [layers[0], layers[2]])):
        for (k, v), (source_k, source_v) in zip(found, expected, strict=True):
            assert torch.equal(k, source_k) and torch.equal(v, source_v)
    with pytest.raises(IndexError):
        text[3]


MASKS = {
    "none": (None, "shape None; pass .B, S_text."),
    "one-dimension": (torch.ones(5), r"shape torch.Size\(\[5\]\); pass .B, S_text."),
    "three-dimensions": (torch.ones(1, 2, 5), r"shape torch.Size\(\[1, 2, 5\]\); pass"),
    "left-padded": (torch.tensor([[1, 1, 0], [0, 1, 1]]), "row 1 .*ones.*followed by zeros"),
    "hole": (torch.tensor([[1, 0, 1], [1, 1, 1]]), "row 0 .*without holes"),
    "nan": (torch.tensor([[1.0, float("nan"), 0], [1, 1, 1]]), "row 0 "),
    "nan-padding": (torch.tensor([[1.0, 1, float("nan")]]), "row 0 "),
    "half": (torch.tensor([[1, 1, 1], [1, 0.5, 0]]), "row 1 "),
    "two": (torch.tensor([[2, 1, 0]]), "row 0 "),
    "empty-prompt": (torch.tensor([[1, 1, 0], [0, 0, 0]]), "row 1 .* a token"),
    "no-columns": (torch.ones(2, 0), "row 0 .* a token"),
}


@pytest.mark.parametrize("name", MASKS)
def test_read_text_lengths_refusal_vs_value_expected_remedy(name):
    mask, pattern = MASKS[name]
    with pytest.raises(ValueError, match=pattern):
        read_text_lengths(mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [*LENGTHS.values(), (11, 11, 11)], ids=str)
def test_read_text_lengths_vs_made_mask(lengths, dtype):
    """Also where a row is full, and no padding ends it."""
    for columns in (max(lengths), max(lengths) + 2):
        mask = (torch.arange(columns) < torch.tensor(lengths)[:, None]).to(dtype)
        found = read_text_lengths(mask)
        assert found == lengths and all(type(length) is int for length in found)


def transformer(layers=2, kv_heads=4, head_dim=3, layout=Layout(), lengths=(7, 19)):
    """What attach_text asks of one; the text that it holds was made for ulysses_size=2."""
    attention = SimpleNamespace(local_num_key_value_heads=kv_heads, head_dim=head_dim)
    return SimpleNamespace(
        cached_kv=TextKV.build(source(lengths), lengths, layout_of(Layout(ulysses=2))),
        gen_layers=[SimpleNamespace(cross_attention=attention)] * layers,
        text_kv_layout=layout_of(layout),
    )


def hidden(batch=2, dtype=torch.float64, device="cpu"):
    return torch.zeros(batch, 14, 6, dtype=dtype, device=device)


U2 = Layout(ulysses=2)


def test_attach_text_that_fits_vs_its_views():
    model = transformer(layout=U2)
    assert attach_text(model, hidden(), 27) is model.cached_kv.views(27)


# Name: (the transformer, the sequence, (batch, dtype, layers, K/V heads, head_dim) that it needs).
MISFITS = {
    "batch": (transformer(layout=U2), hidden(3), (3, torch.float64, 2, 2, 3)),
    "dtype": (transformer(layout=U2), hidden(dtype=torch.float32), (2, torch.float32, 2, 2, 3)),
    "device": (transformer(layout=U2), hidden(device="meta"), (2, torch.float64, 2, 2, 3)),
    "layers": (transformer(3, layout=U2), hidden(), (2, torch.float64, 3, 2, 3)),
    "heads": (transformer(kv_heads=8, layout=U2), hidden(), (2, torch.float64, 2, 4, 3)),
    "head_dim": (transformer(head_dim=5, layout=U2), hidden(), (2, torch.float64, 2, 2, 5)),
    "one-rank": (transformer(), hidden(), (2, torch.float64, 2, 4, 3)),
    "mesh": (transformer(layout=Layout(cols=2, ulysses=2)), hidden(), (2, torch.float64, 2, 2, 3)),
    "ring": (transformer(layout=Layout(ring=2, ulysses=2)), hidden(), (2, torch.float64, 2, 2, 3)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_attach_text_of_another_request_vs_refusal(name):
    model, sequence, needs = MISFITS[name]
    with pytest.raises(ValueError, match=r"call reset_cache\(\)") as refusal:
        attach_text(model, sequence, 27)
    held, needed = str(refusal.value).split(" but ")
    assert (
        f"{(2, torch.float64, torch.device('cpu'), 2, 2, 3)} for {model.cached_kv.layout}" in held
    )
    assert f"{(*needs[:2], sequence.device, *needs[2:])} for {model.text_kv_layout}" in needed


@pytest.mark.parametrize(
    "cached", [None, [(1, 2)], ((1, 2), (3, 4))], ids=lambda x: type(x).__name__
)
def test_attach_text_that_has_no_lengths_vs_refusal(cached):
    model = transformer()
    model.cached_kv = cached
    name = re.escape(type(cached).__name__)
    with pytest.raises(ValueError, match=rf"a {name}, .* no prompt lengths; .*select\(samples\)"):
        attach_text(model, hidden(), 27)
