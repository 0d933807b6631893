# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes that one could make in this code, each with the check that must catch it.

A fault is seeded in the ranks, by patching, and the check that the ordinary tests use is run on
them. It must fail by its numbers (ToleranceError): a fault that crashes shows nothing about what
the tests can see.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from dataclasses import dataclass
from typing import Callable

import pytest
import torch
from support import checks
from support.cases import AttentionCase, Layout
from support.model import ModelCase

from tensorrt_llm._torch.visual_gen.attention_backend.vanilla import VanillaAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_attention, transformer_cosmos3
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import TextAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TextKV,
    TextKVLayout,
    TextKVView,
)
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
    Cosmos3LanguageModel,
    Cosmos3VFMTransformer,
)

ULYSSES = Layout(ulysses=2)
MESH = Layout(rows=2, cols=2)
RING = Layout(ring=2)

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        mistake: What someone got wrong.
        seed: Breaks the code in the process in which it is called.
        check: Takes `run`, and must raise ToleranceError.
        caught_by: What the error's message must contain.
    """

    mistake: str
    seed: Patch
    check: Callable
    caught_by: str = ""


def attention(backend: str, layout: Layout = ULYSSES, **fields) -> Callable:
    """The check of one attention on the ranks of a layout."""
    dtype = fields.pop("dtype", torch.float64)
    case = AttentionCase(layout=layout, backend=backend, dtype=dtype, **fields)
    return functools.partial(checks.check_attention, case=case)


def transformer(**fields) -> Callable:
    """The check of the whole transformer on Ulysses ranks."""
    fields.setdefault("layout", ULYSSES)
    return functools.partial(checks.check_transformer, case=ModelCase(**fields))


def rebuild(change: Callable) -> Patch:
    """Patches TextKV.build; change(layers, lengths, layout) returns what it is called with."""
    build = TextKV.build.__func__

    def broken(cls, layers, lengths, layout=TextKVLayout()):
        return build(cls, *change(layers, tuple(lengths), layout))

    return lambda patch: patch.setattr(TextKV, "build", classmethod(broken))


def reblock(change: Callable) -> Patch:
    """Patches TextKV.views; change(text, views) returns a layer's views, one for each block."""
    views = TextKV.views

    def broken(self, *args):
        return tuple(change(self, layer) for layer in views(self, *args))

    return lambda patch: patch.setattr(TextKV, "views", broken)


def review(change: Callable) -> Patch:
    """As reblock, for a rank's own block alone: the one that the text joins."""
    return reblock(lambda text, views: (change(text, views[0]), *views[1:]))


def lengthen(view: TextKVView, lengths) -> TextKVView:
    """The view with other text lengths, for kernels and for dense launches."""
    counts = torch.tensor([view.video_rows + n for n in lengths], dtype=torch.int32)
    return dataclasses.replace(view, key_lengths=counts, text_lengths=tuple(lengths))


def relengthen(change: Callable) -> Patch:
    """As review; change(lengths) returns a rank's own text lengths."""
    return review(lambda text, view: lengthen(view, change(view.text_lengths)))


def reattend(change: Callable) -> Patch:
    """Patches TextAttention.forward_with_lse; change(out, lse) returns what it returns."""
    forward = TextAttention.forward_with_lse

    def broken(self, q, k, v, **kwargs):
        return change(*forward(self, q, k, v, **kwargs))

    return lambda patch: patch.setattr(TextAttention, "forward_with_lse", broken)


def text_twice(layers, lengths, layout):
    doubled = []
    for pair in layers:
        new = []
        for x in pair:
            wide = torch.cat([x, x], dim=1)
            for sample, length in enumerate(lengths):
                wide[sample, length : 2 * length] = x[sample, :length]
            new.append(wide)
        doubled.append(tuple(new))
    return doubled, tuple(2 * length for length in lengths), layout


def neighbours_heads(layers, lengths, layout):
    rank = (layout.ulysses_rank + 1) % layout.ulysses_size
    return layers, lengths, dataclasses.replace(layout, ulysses_rank=rank)


def video_padding(patch: pytest.MonkeyPatch) -> None:
    video_rows = TextKVLayout.video_rows

    def padded(self, rows):
        size = self.row_size * self.col_size * self.ring_size * self.ulysses_size
        return video_rows(self, -(-rows // size) * size)

    patch.setattr(TextKVLayout, "video_rows", padded)


def text_before_video(patch: pytest.MonkeyPatch) -> None:
    def swapped(video, text, video_rows):
        return torch.cat([text, video[:, :video_rows]], dim=1)

    patch.setattr(text_attention, "append_text", swapped)


def tail_filled(value: float) -> Patch:
    """Rows past the lengths are left as uninitialised memory may be."""
    build = TextKV.build.__func__

    def broken(cls, *args, **kwargs):
        text = build(cls, *args, **kwargs)
        for sample, length in enumerate(text.local_lengths):
            text.data[:, :, sample, length:] = value
        return text

    return lambda patch: patch.setattr(TextKV, "build", classmethod(broken))


def lengths_outside(patch: pytest.MonkeyPatch) -> None:
    """The lengths are kept beside the cache, where saving and restoring it does not reach."""
    build, views, kept = TextKV.build.__func__, TextKV.views, {}

    def broken_build(cls, layers, lengths, layout=TextKVLayout()):
        kept["lengths"] = tuple(lengths)
        return build(cls, layers, lengths, layout)

    def broken_views(self, *args):
        return views(TextKV(self.data, kept["lengths"], self.layout), *args)

    patch.setattr(TextKV, "build", classmethod(broken_build))
    patch.setattr(TextKV, "views", broken_views)


def views_of_all_texts(patch: pytest.MonkeyPatch) -> None:
    """Lengths are cached by the number of video rows, for all texts together."""
    tensors, shared = TextKV.tensors, {}

    def broken(self, video_rows):
        data, lengths = tensors(self, video_rows)
        return data, shared.setdefault(video_rows, lengths)

    patch.setattr(TextKV, "tensors", broken)


def selected_without_lengths(patch: pytest.MonkeyPatch) -> None:
    """Some samples of the tensors, and the lengths as they were."""

    def broken(self, samples):
        data = self.data[:, :, samples]
        return TextKV(data, self.lengths[: data.shape[2]], self.layout)

    patch.setattr(TextKV, "select", broken)


def rope_from_padded_length(patch: pytest.MonkeyPatch) -> None:
    compute = Cosmos3VFMTransformer._compute_rope_freqs

    def broken(self, text_mask, *args, **kwargs):
        return compute(self, torch.ones_like(text_mask), *args, **kwargs)

    patch.setattr(Cosmos3VFMTransformer, "_compute_rope_freqs", broken)


def text_tower_of_the_other_sample(patch: pytest.MonkeyPatch) -> None:
    forward = Cosmos3LanguageModel.forward

    def broken(self, *args, **kwargs):
        return [(k.flip(0), v.flip(0)) for k, v in forward(self, *args, **kwargs)]

    patch.setattr(Cosmos3LanguageModel, "forward", broken)


def lengths_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The longest length for every sample: what a dense launch without lengths amounts to."""
    module = transformer_cosmos3
    read = module.read_text_lengths
    patch.setattr(module, "read_text_lengths", lambda mask: (max(read(mask)),) * mask.shape[0])


def drop_vanilla_mask(patch: pytest.MonkeyPatch) -> None:
    def broken(q, k, v, mask, **kwargs):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **kwargs)

    unmasked = types.SimpleNamespace(scaled_dot_product_attention=broken)
    patch.setattr(text_attention, "F", unmasked)


def hand_vanilla_the_mask(patch: pytest.MonkeyPatch) -> None:
    """The mask is a keyword of the backend's, which a revision that takes **kwargs drops."""

    def forward(self, q, k, v, **kwargs):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def attend(q, k, v, text_k, text_v, key_lengths, video_rows, scale, with_lse):
        backend = VanillaAttention(num_heads=q.shape[2], head_dim=q.shape[3])
        pairs = ((k, text_k), (v, text_v))
        k, v = (text_attention.append_text(*pair, video_rows) for pair in pairs)
        mask = torch.arange(k.shape[1]) < key_lengths[:, None]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return backend.forward(q, k, v, key_padding_mask=mask).transpose(1, 2), None

    patch.setattr(VanillaAttention, "forward", forward)
    patch.setitem(text_attention.KERNELS, VanillaAttention, (attend, None))


def drop_fa4_lengths(patch: pytest.MonkeyPatch) -> None:
    launch = text_attention.flash_attn4._flash_attn_fwd

    def broken(q, k, v, seqused_k=None, **kwargs):
        return launch(q, k, v, **kwargs)

    patch.setattr(text_attention.flash_attn4, "_flash_attn_fwd", broken)


def unknown_backend_with_lengths(patch: pytest.MonkeyPatch) -> None:
    """One launch with a mask, which a backend that does not know the keyword ignores."""

    def broken(backend, q, k, v, text, with_lse, **kwargs):
        k = text_attention.append_text(k, text.k, text.video_rows)
        v = text_attention.append_text(v, text.v, text.video_rows)
        mask = torch.arange(k.shape[1]) < text.key_lengths[:, None]
        return backend.forward(q, k, v, key_padding_mask=mask), None

    patch.setattr(text_attention, "attend_by_length", broken)


def groups_in_their_own_order(patch: pytest.MonkeyPatch) -> None:
    """Samples come back in the order of their groups."""
    attend = text_attention.attend_by_length

    def broken(backend, q, k, v, text, with_lse, **kwargs):
        out, lse = attend(backend, q, k, v, text, with_lse, **kwargs)
        order = sorted(range(len(out)), key=lambda i: text.text_lengths.index(text.text_lengths[i]))
        return out[order], lse

    patch.setattr(text_attention, "attend_by_length", broken)


def text_in_every_column(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TextKVLayout, "text_rows", lambda self, length: slice(0, length, 1))
    # The rows that a column makes room for are too few for all of it.
    build = TextKV.build.__func__

    def broken(cls, layers, lengths, layout=TextKVLayout()):
        text = build(cls, layers, lengths, dataclasses.replace(layout, col_size=1))
        return TextKV(text.data, lengths, layout)

    patch.setattr(TextKV, "build", classmethod(broken))


def unguarded(out, lse):
    """exp(-inf - -inf): what a sample without keys gives when nobody guards it."""
    nan = torch.full_like(lse, math.nan)
    empty = lse == -math.inf
    out = torch.where(empty.transpose(1, 2)[..., None], nan.transpose(1, 2)[..., None], out)
    return out, torch.where(empty, nan, lse)


KNOWN = ("VANILLA", "FA4")


def on_each(name: str, mistake: str, seed: Patch, backends=(*KNOWN, "DENSE-HND")) -> dict:
    """A fault of the adapter, which every backend's path must show."""
    return {
        f"{name}-{backend.lower()}": Fault(
            mistake, seed, attention(backend), caught_by="against per-sample attention"
        )
        for backend in backends
    }


_BRANCHES = functools.partial(
    checks.check_branches,
    cases=tuple(
        ModelCase(layout=ULYSSES, lengths=lengths) for lengths in ((7, 19), (130, 2), (19, 7))
    ),
)

# A column that holds no key of a sample: one video row in four chunks, a prompt of one token.
_EMPTY_COLUMN = {"layout": MESH, "lengths": (1, 19), "video_rows": 1}

FAULTS: dict[str, Fault] = {
    **on_each("text-twice", "the text is appended twice", rebuild(text_twice)),
    **on_each(
        "neighbours-heads", "the text heads are those of the next rank", rebuild(neighbours_heads)
    ),
    **on_each(
        "length-too-long",
        "one padding row counts",
        relengthen(lambda lengths: [n + 1 for n in lengths]),
    ),
    **on_each(
        "length-too-short",
        "one token is missing",
        relengthen(lambda lengths: [n - 1 for n in lengths]),
    ),
    **on_each("video-padding", "rows that pad the video are left in", video_padding),
    **on_each(
        "video-row-missing",
        "one video row too many is cut off",
        review(
            lambda text, view: dataclasses.replace(
                view, video_rows=view.video_rows - 1, key_lengths=view.key_lengths - 1
            )
        ),
    ),
    **on_each(
        "other-samples-length",
        "a sample gets the length of the other one",
        relengthen(lambda lengths: lengths[::-1]),
    ),
    **on_each(
        "other-samples-text",
        "a sample gets the text of the other one",
        review(lambda text, view: dataclasses.replace(view, k=view.k.flip(0), v=view.v.flip(0))),
    ),
    **on_each(
        "longest-length-for-all",
        "every sample gets the longest length: the padded launch",
        relengthen(lambda lengths: [max(lengths)] * len(lengths)),
    ),
    **on_each(
        "text-before-video",
        "text stands before the video while lengths count a prefix",
        text_before_video,
        KNOWN,
    ),
    "padded-rows-nan-vanilla": Fault(
        "padded rows are uninitialised, and a NaN in them times weight 0 is NaN",
        tail_filled(math.nan),
        attention("VANILLA"),
        caught_by="nan",
    ),
    "padded-rows-not-zeroed": Fault(
        "padded rows keep what the text tower or the allocator left in them",
        tail_filled(1e4),
        functools.partial(checks.check_text_tail, case=AttentionCase(layout=ULYSSES)),
        caught_by="not zero",
    ),
    "mask-dropped-vanilla": Fault(
        "PyTorch's attention is called without the mask", drop_vanilla_mask, attention("VANILLA")
    ),
    "mask-handed-to-vanilla": Fault(
        "VANILLA is trusted to know the key-padding mask, and drops it as an unknown keyword",
        hand_vanilla_the_mask,
        attention("VANILLA"),
    ),
    "mask-handed-to-any-backend": Fault(
        "a backend that nobody knows is trusted to know the key-padding mask",
        unknown_backend_with_lengths,
        attention("DENSE-NHD"),
    ),
    "groups-not-scattered-back": Fault(
        "samples come back in the order of their groups of equal length",
        groups_in_their_own_order,
        attention("DENSE-NHD", lengths=(7, 19, 7)),
    ),
    "selected-without-lengths": Fault(
        "the conditional half of a batch gets the other half's lengths",
        selected_without_lengths,
        functools.partial(checks.check_selected, case=ModelCase(layout=ULYSSES)),
        caught_by="selected",
    ),
    "lengths-dropped-fa4": Fault(
        "FA4 is launched without lengths", drop_fa4_lengths, attention("FA4")
    ),
    "stale-lengths-outside-cache": Fault(
        "lengths live outside cached_kv and survive a switch of branches",
        lengths_outside,
        _BRANCHES,
        caught_by="restored",
    ),
    "stale-lengths-shared-views": Fault(
        "views are shared between the texts of several branches", views_of_all_texts, _BRANCHES
    ),
    "rope-from-padded-length": Fault(
        "the video's positions start behind the padded prompt",
        rope_from_padded_length,
        transformer(),
        caught_by="one rank against diffusers",
    ),
    "text-tower-samples-swapped": Fault(
        "the text tower's samples are mixed up",
        text_tower_of_the_other_sample,
        transformer(),
        caught_by="diffusers",
    ),
    "lengths-of-the-batch": Fault(
        "the longest prompt's length is cached for every sample",
        lengths_of_the_batch,
        transformer(),
        caught_by="diffusers",
    ),
    # In one column of a mesh of 2 x 2.
    "text-missing-in-a-column": Fault(
        "the text of one column is left out",
        review(lambda text, view: lengthen(view, (0, 0)) if text.layout.cp_rank % 2 == 1 else view),
        attention("FA4", MESH),
    ),
    "text-in-every-column": Fault(
        "every column appends the whole text",
        text_in_every_column,
        attention("FA4", MESH),
    ),
    "lse-base-2": Fault(
        "the LSE is a base-2 logarithm where the combination takes a natural one",
        reattend(lambda out, lse: (out, lse / math.log(2.0))),
        attention("FA4", MESH),
    ),
    "lse-scaled-twice": Fault(
        "the LSE is a natural logarithm where base 2 is converted",
        reattend(lambda out, lse: (out, lse * math.log(2.0))),
        attention("FA4", MESH),
    ),
    "minus-infinity-unguarded": Fault(
        "a sample without keys in a column turns into NaN",
        reattend(unguarded),
        attention("FA4", **_EMPTY_COLUMN),
        caught_by="nan",
    ),
    # In a ring of 2.
    "text-in-every-block": Fault(
        "the text joins every block that passes by",
        reblock(lambda text, views: (views[0],) * len(views)),
        attention("FA4", RING, video_rows=28),
    ),
    "ring-blocks-in-another-order": Fault(
        "the valid rows of a block are those of another rank's",
        reblock(lambda text, views: (views[0], *views[:0:-1])),
        attention("FA4", Layout(ring=4), video_rows=27),
    ),
    "ring-block-too-short": Fault(
        "a key of the second block is left out",
        reblock(
            lambda text, views: (
                views[0],
                dataclasses.replace(views[1], key_lengths=views[1].key_lengths - 1),
            )
        ),
        attention("FA4", RING),
    ),
    "video-padding-in-a-ring": Fault(
        "rows that pad the video are left in", video_padding, attention("FA4", RING)
    ),
    "video-padding-in-a-column": Fault(
        "rows that pad the video are left in", video_padding, attention("FA4", MESH)
    ),
}


def seeded(rank: int, name: str, function: Callable, *args):
    """Calls function in a rank with a fault seeded. Module-level, so that it pickles."""
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[name].seed(patch)
        checks._host.cache_clear()
        try:
            return function(rank, *args)
        finally:
            checks._host.cache_clear()
