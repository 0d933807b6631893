# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The cached text K/V: what each rank keeps, how much of it, and which lengths go with it.

Fields: B batch, T text rows, S video rows, H_kv K/V heads, D head_dim.
"""

from types import SimpleNamespace

import pytest
import torch
from support.cases import LENGTHS, Layout
from support.reference import round_up

from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TEXT_BUCKET,
    TextKV,
    TextKVLayout,
    read_text_lengths,
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
    assert len(text) == 2 and text.lengths == lengths
    for layer, (source_k, source_v) in enumerate(layers):
        for kept, whole in ((text.keys[layer], source_k), (text.values[layer], source_v)):
            assert kept.is_contiguous() and kept.dtype == whole.dtype
            for sample, length in enumerate(lengths):
                assert torch.equal(kept[sample, :length], whole[sample, :length])
                assert (kept[sample, length:] == 0).all(), "pad rows must be zeros"


def test_text_kv_prompt_that_fills_all_rows_vs_source():
    layers = source((24, 5), rows=24)
    text = TextKV.build(layers, (24, 5))
    assert torch.equal(text.keys[0][0, :24], layers[0][0][0])


def test_text_kv_is_a_copy_vs_overwritten_source():
    layers = source((4, 2))
    text = TextKV.build(layers, (4, 2))
    before = text.keys[0].clone()
    layers[0][0].fill_(5.0)
    assert torch.equal(text.keys[0], before)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_text_kv_head_blocks_vs_source(size):
    lengths = (5, 2)
    layers = source(lengths, kv_heads=8)
    shares = [
        TextKV.build(layers, lengths, layout_of(Layout(ulysses=size), ulysses_rank=rank))
        for rank in range(size)
    ]
    for share in shares:
        assert share.keys[0].shape[2] == 8 // size
    for layer, (source_k, source_v) in enumerate(layers):
        for kept, whole in (
            (torch.cat([s.keys[layer] for s in shares], dim=2), source_k),
            (torch.cat([s.values[layer] for s in shares], dim=2), source_v),
        ):
            for sample, length in enumerate(lengths):
                assert torch.equal(kept[sample, :length], whole[sample, :length])


@pytest.mark.parametrize(
    ("longest", "rows"), [(1, 128), (127, 128), (128, 128), (129, 256), (256, 256), (257, 384)]
)
def test_text_kv_bucket_vs_multiple_of_128(longest, rows):
    text = TextKV.build(source((1, longest)), (1, longest))
    assert TEXT_BUCKET == 128
    assert text.keys[0].shape[1] == rows == text.values[1].shape[1]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("cols", [1, 2, 3, 4])
def test_text_kv_columns_vs_whole_text(cols, lengths):
    layers = source(lengths, layers=1, kv_heads=1, head_dim=1)
    shares = [
        TextKV.build(layers, lengths, layout_of(Layout(cols=cols), cp_rank=column))
        for column in range(cols)
    ]
    assert len({share.keys[0].shape for share in shares}) == 1, "shapes differ between columns"
    assert shares[0].keys[0].shape[1] == -(-round_up(max(lengths), TEXT_BUCKET) // cols)
    for sample, length in enumerate(lengths):
        owned = [s.keys[0][sample, : s.local_lengths[sample], 0, 0].tolist() for s in shares]
        found = [value for rows in owned for value in rows]
        expected = layers[0][0][sample, :length, 0, 0].tolist()
        assert sorted(found) == expected, "each text key once, over all columns"
        counts = [len(rows) for rows in owned]
        assert max(counts) - min(counts) <= 1, "columns share the text evenly"
        for share in shares:
            assert (share.keys[0][sample, share.local_lengths[sample] :] == 0).all()


def test_text_kv_columns_vs_rows_of_a_column():
    """Ranks of one column hold the same text rows, whichever row of the mesh they are in."""
    lengths = (7, 19)
    layers = source(lengths)
    mesh = Layout(rows=2, cols=3)
    for column in range(3):
        first, second = (
            TextKV.build(layers, lengths, layout_of(mesh, cp_rank=row * 3 + column))
            for row in range(2)
        )
        assert torch.equal(first.keys[0], second.keys[0])
        assert first.local_lengths == second.local_lengths


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_text_kv_bytes_vs_unfixed_share(size, lengths):
    layers, kv_heads, head_dim = 3, 8, 4
    text = TextKV.build(
        [(k.float(), v.float()) for k, v in source(lengths, layers, kv_heads, head_dim)],
        lengths,
        layout_of(Layout(ulysses=size), ulysses_rank=size - 1),
    )
    # K and V of all layers, 4 bytes an element, the samples of the batch.
    row_bytes = 2 * layers * len(lengths) * kv_heads * head_dim * 4
    unfixed_share = round_up(max(lengths), size) // size * row_bytes
    bucket = TEXT_BUCKET * row_bytes // size
    assert text.nbytes <= unfixed_share + bucket
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in text.keys}
    storages |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in text.values}
    assert sum(storages.values()) == text.nbytes, "a view keeps more memory alive than it shows"


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_text_kv_video_rows_vs_simulated_sharding(layout):
    """Marks the valid rows of a padded sequence, shards and gathers the marks, and counts."""
    size, ulysses, cp_size = layout.sequence_size, layout.ulysses, layout.ring * layout.rows
    cp_size *= layout.cols
    for video_rows in [1, 2, 3, 5, 7, 8, 9, 23, 24, 25, 27, 28, 63, 64, 100]:
        padded = round_up(video_rows, size)
        marks = torch.arange(padded) < video_rows
        # Sequence rank order is context-parallel outer, Ulysses inner; the all-to-all gathers
        # the shards of one Ulysses group in rank order.
        chunks = marks.chunk(size)
        gathered = [torch.cat(chunks[c * ulysses : (c + 1) * ulysses]) for c in range(cp_size)]
        one = layout_of(layout)
        counts = [one.chunk_video_rows(video_rows, chunk) for chunk in range(cp_size)]
        assert counts == [int(chunk.sum()) for chunk in gathered]
        assert sum(counts) == video_rows
        for cp_rank in range(cp_size):
            local = layout_of(layout, cp_rank=cp_rank).local_video_rows(video_rows)
            if layout.rows * layout.cols > 1:
                column = cp_rank % layout.cols
                keys = torch.cat([gathered[r * layout.cols + column] for r in range(layout.rows)])
            else:
                keys = gathered[cp_rank]
            assert local == int(keys.sum())
            assert keys[:local].all(), "valid rows must be a prefix of what the backend is given"


def test_text_kv_layout_without_mapping_vs_single_rank():
    assert TextKVLayout.from_mapping(None) == TextKVLayout() == layout_of(Layout())
    assert TextKVLayout().local_video_rows(27) == 27


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_text_kv_key_lengths_vs_video_plus_text(lengths):
    text = TextKV.build(source(lengths), lengths, layout_of(Layout(ulysses=2), ulysses_rank=1))
    hidden = torch.zeros(len(lengths), 14, 6, dtype=torch.float64)
    views = text.attach(hidden, video_rows=27)
    assert len(views) == len(text)
    for layer, view in enumerate(views):
        assert view.k is text.keys[layer] and view.v is text.values[layer]
        assert view.video_rows == 27
        assert view.key_lengths.dtype == torch.int32 and view.key_lengths.is_contiguous()
        assert view.key_lengths.tolist() == [27 + length for length in lengths]


def test_text_kv_columns_key_lengths_vs_own_share():
    """A prompt of one token is in column 0 only, and 5 rows leave the last of 6 chunks empty."""
    mesh = Layout(rows=2, cols=3)
    lengths = (1, 8)
    expected = {0: [2 + 1, 2 + 3], 1: [2 + 0, 2 + 3], 2: [1 + 0, 1 + 2]}
    for column, key_lengths in expected.items():
        text = TextKV.build(source(lengths), lengths, layout_of(mesh, cp_rank=column))
        view = text.attach(torch.zeros(2, 1, 6, dtype=torch.float64), video_rows=5)[0]
        assert view.key_lengths.tolist() == key_lengths


def test_text_kv_attach_twice_vs_first():
    """A denoise step makes nothing new: a captured graph reads the tensors of the first."""
    text = TextKV.build(source((7, 19)), (7, 19))
    hidden = torch.zeros(2, 9, 6, dtype=torch.float64)
    first = text.attach(hidden, video_rows=9)
    other = text.attach(hidden, video_rows=8)
    again = text.attach(hidden, video_rows=9)
    assert again[0].key_lengths is first[0].key_lengths
    assert other[0].key_lengths.tolist() == [15, 27]
    assert first[0].key_lengths.tolist() == [16, 28]


def test_text_kv_swapped_by_assignment_vs_own_lengths():
    """The transfer pipeline keeps one cache for each branch and swaps them by assignment."""
    model = SimpleNamespace(cached_kv=None)
    hidden = torch.zeros(2, 9, 6, dtype=torch.float64)
    branches = []
    for lengths in [(7, 19), (300, 1), (2, 2)]:
        model.cached_kv = TextKV.build(source(lengths), lengths)
        model.cached_kv.attach(hidden, video_rows=9)
        branches.append((lengths, model.cached_kv))
    for lengths, saved in branches + branches[::-1]:
        model.cached_kv = saved
        view = model.cached_kv.attach(hidden, video_rows=9)[0]
        assert view.key_lengths.tolist() == [9 + length for length in lengths]
        assert view.k is saved.keys[0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_read_text_lengths_vs_made_mask(lengths, dtype):
    mask = torch.zeros(len(lengths), max(lengths) + 2, dtype=dtype)
    for sample, length in enumerate(lengths):
        mask[sample, :length] = 1
    found = read_text_lengths(mask)
    assert found == lengths
    assert all(type(length) is int for length in found)


def test_read_text_lengths_full_rows_vs_row_count():
    assert read_text_lengths(torch.ones(3, 11)) == (11, 11, 11)


@pytest.mark.parametrize(
    "rank, own, passing",
    [(0, 3, [2, 3]), (1, 3, [3, 2]), (2, 2, [3, 3])],
    ids="rank{}".format,
)
def test_text_kv_ring_blocks_vs_order_of_passing(rank, own, passing):
    """8 rows over three ranks are 3, 3 and 2; block r - 1 reaches rank r first, then r - 2."""
    layout = layout_of(Layout(ring=3), cp_rank=rank)
    text = TextKV.build(source((7, 19)), (7, 19), layout)
    for view in text.views(8):
        assert view.video_rows == own and view.key_lengths.tolist() == [own + 7, own + 19]
        assert [block.video_rows for block in view.ring_blocks] == passing
        for block, rows in zip(view.ring_blocks, passing):
            assert block.key_lengths.tolist() == [rows, rows]
            assert block.key_lengths.dtype == torch.int32
            assert block.k.shape == block.v.shape == (2, 0, 4, 3), "only the own block has text"


def test_text_kv_without_ring_vs_no_blocks():
    text = TextKV.build(source((7, 19)), (7, 19), layout_of(Layout(ulysses=2)))
    assert text.layout.ring_rank == 0 and text.views(8)[0].ring_blocks == ()


def test_text_kv_serials_vs_numbers_never_used_again():
    serials = [TextKV.build(source((7, 19)), (7, 19)).serial for _ in range(3)]
    assert len(set(serials)) == 3 and serials == sorted(serials)


def test_text_kv_refreshed_views_vs_new_lengths_at_old_addresses():
    text = TextKV.build(source((7, 19)), (7, 19))
    before = [text.views(rows)[0].key_lengths for rows in (8, 30)]
    addresses = [lengths.data_ptr() for lengths in before]
    text.lengths = (19, 2)
    text.refresh_views()
    assert [lengths.tolist() for lengths in before] == [[27, 10], [49, 32]]
    after = [text.views(rows)[0].key_lengths.data_ptr() for rows in (8, 30)]
    assert after == addresses


def gen_layers(count=2, kv_heads=4, head_dim=3):
    attention = SimpleNamespace(local_num_key_value_heads=kv_heads, head_dim=head_dim)
    return [SimpleNamespace(cross_attention=attention) for _ in range(count)]


@pytest.mark.parametrize("size", [1, 2])
def test_text_kv_that_fits_vs_accepted(size):
    layout = layout_of(Layout(ulysses=size))
    TextKV.build(source((7, 19)), (7, 19), layout).require_fit(gen_layers(), layout)


@pytest.mark.parametrize(
    "layers, layout, held, expected",
    [
        (gen_layers(3), Layout(ulysses=2), "ulysses_size=2, 2, 2, 3", "ulysses_size=2, 3, 2, 3"),
        (
            gen_layers(kv_heads=8),
            Layout(ulysses=2),
            "ulysses_size=2, 2, 2, 3",
            "ulysses_size=2, 2, 4, 3",
        ),
        (
            gen_layers(head_dim=5),
            Layout(ulysses=2),
            "ulysses_size=2, 2, 2, 3",
            "ulysses_size=2, 2, 2, 5",
        ),
        (gen_layers(), Layout(), "ulysses_size=2, 2, 2, 3", "one rank, 2, 4, 3"),
        (
            gen_layers(),
            Layout(rows=1, cols=2, ulysses=2),
            "ulysses_size=2, 2, 2, 3",
            "ulysses_size=2 col_size=2, 2, 2, 3",
        ),
    ],
    ids=["layers", "heads", "head_dim", "one-rank", "mesh"],
)
def test_text_kv_of_another_model_or_layout_vs_refusal(layers, layout, held, expected):
    text = TextKV.build(source((7, 19)), (7, 19), layout_of(Layout(ulysses=2)))
    with pytest.raises(ValueError, match=r"reset_cache\(\)") as refusal:
        text.require_fit(layers, layout_of(layout))
    assert f"({held})" in str(refusal.value) and f"({expected})" in str(refusal.value)
