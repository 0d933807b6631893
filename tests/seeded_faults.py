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
from dataclasses import dataclass
from typing import Callable

import pytest
import torch
from support import checks
from support.cases import AttentionCase, Layout
from support.model import ModelCase

from tensorrt_llm._torch.visual_gen.models.cosmos3 import key_prefix, text_cache
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import TextAttention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TextKV,
    TextKVLayout,
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


def review(change: Callable) -> Patch:
    """Patches TextKV.attach; change(text, view) returns the view that the adapter gets."""
    attach = TextKV.attach

    def broken(self, hidden_states, video_rows):
        return tuple(change(self, view) for view in attach(self, hidden_states, video_rows))

    return lambda patch: patch.setattr(TextKV, "attach", broken)


def relengthen(change: Callable) -> Patch:
    """As review, for the lengths alone."""
    return review(
        lambda text, view: dataclasses.replace(
            view, key_lengths=change(text, view.key_lengths).to(torch.int32).contiguous()
        )
    )


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
    def padded(self, video_rows):
        context = self.row_size * self.col_size * self.ring_size
        gathered = self.row_size if self.row_size * self.col_size > 1 else 1
        size = context * self.ulysses_size
        return -(-video_rows // size) * self.ulysses_size * gathered

    patch.setattr(TextKVLayout, "local_video_rows", padded)


def text_before_video(patch: pytest.MonkeyPatch) -> None:
    def swapped(k, v, text, sequence_dim):
        pairs = []
        for video, own in ((k, text.k), (v, text.v)):
            own = own.transpose(1, 2) if sequence_dim == 2 else own
            video = video.narrow(sequence_dim, 0, text.video_rows)
            pairs.append(torch.cat([own, video], dim=sequence_dim))
        return tuple(pairs)

    patch.setattr(key_prefix, "append_text", swapped)


def tail_filled(value: float) -> Patch:
    """Rows past the lengths are left as uninitialised memory may be."""
    build = TextKV.build.__func__

    def broken(cls, *args, **kwargs):
        text = build(cls, *args, **kwargs)
        for tensor in text.keys + text.values:
            for sample, length in enumerate(text.local_lengths):
                tensor[sample, length:] = value
        return text

    return lambda patch: patch.setattr(TextKV, "build", classmethod(broken))


def lengths_outside(patch: pytest.MonkeyPatch) -> None:
    """The lengths are kept beside the cache, where saving and restoring it does not reach."""
    build, attach = TextKV.build.__func__, TextKV.attach
    kept = {}

    def broken_build(cls, layers, lengths, layout=TextKVLayout()):
        kept["lengths"] = tuple(lengths)
        return build(cls, layers, lengths, layout)

    def broken_attach(self, hidden_states, video_rows):
        self.lengths = kept["lengths"]
        self._views.clear()
        return attach(self, hidden_states, video_rows)

    patch.setattr(TextKV, "build", classmethod(broken_build))
    patch.setattr(TextKV, "attach", broken_attach)


def views_of_all_texts(patch: pytest.MonkeyPatch) -> None:
    """Views are cached by the number of video rows, for all texts together."""
    attach, shared = TextKV.attach, {}

    def broken(self, hidden_states, video_rows):
        lengths = tuple(v.key_lengths for v in attach(self, hidden_states, video_rows))
        first = shared.setdefault(video_rows, lengths)
        return tuple(
            dataclasses.replace(view, key_lengths=old)
            for view, old in zip(attach(self, hidden_states, video_rows), first)
        )

    patch.setattr(TextKV, "attach", broken)


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
    read = text_cache.read_text_lengths
    patch.setattr(text_cache, "read_text_lengths", lambda mask: (max(read(mask)),) * mask.shape[0])


def drop_vanilla_mask(patch: pytest.MonkeyPatch) -> None:
    forward = key_prefix.VanillaAttention.forward

    def broken(self, q, k, v, key_padding_mask=None, **kwargs):
        return forward(self, q, k, v, **kwargs)

    patch.setattr(key_prefix.VanillaAttention, "forward", broken)


def drop_fa4_lengths(patch: pytest.MonkeyPatch) -> None:
    launch = key_prefix.flash_attn4._flash_attn_fwd

    def broken(q, k, v, seqused_k=None, **kwargs):
        return launch(q, k, v, **kwargs)

    patch.setattr(key_prefix.flash_attn4, "_flash_attn_fwd", broken)


def text_in_every_column(patch: pytest.MonkeyPatch) -> None:
    build = TextKV.build.__func__

    def broken(cls, layers, lengths, layout=TextKVLayout()):
        text = build(cls, layers, lengths, dataclasses.replace(layout, col_size=1, col_rank=0))
        text.layout = layout
        return text

    patch.setattr(TextKV, "build", classmethod(broken))
    patch.setattr(TextKV, "local_lengths", property(lambda self: self.lengths))


def unguarded(out, lse):
    """exp(-inf - -inf): what a sample without keys gives when nobody guards it."""
    nan = torch.full_like(lse, math.nan)
    empty = lse == -math.inf
    out = torch.where(empty.transpose(1, 2)[..., None], nan.transpose(1, 2)[..., None], out)
    return out, torch.where(empty, nan, lse)


def on_both(name: str, mistake: str, seed: Patch, **fields) -> dict[str, Fault]:
    """A fault of the adapter, which either backend's path must show."""
    return {
        f"{name}-{backend.lower()}": Fault(
            mistake, seed, attention(backend, **fields), caught_by="against per-sample attention"
        )
        for backend in ("VANILLA", "FA4")
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
    **on_both("text-twice", "the text is appended twice", rebuild(text_twice)),
    **on_both(
        "neighbours-heads", "the text heads are those of the next rank", rebuild(neighbours_heads)
    ),
    **on_both("length-too-long", "one padding row counts", relengthen(lambda text, n: n + 1)),
    **on_both("length-too-short", "one token is missing", relengthen(lambda text, n: n - 1)),
    **on_both("video-padding", "rows that pad the video are left in", video_padding),
    **on_both(
        "video-row-missing",
        "one video row too many is cut off",
        review(
            lambda text, view: dataclasses.replace(
                view, video_rows=view.video_rows - 1, key_lengths=view.key_lengths - 1
            )
        ),
    ),
    **on_both(
        "other-samples-length",
        "a sample gets the length of the other one",
        relengthen(lambda text, n: n.flip(0)),
    ),
    **on_both(
        "other-samples-text",
        "a sample gets the text of the other one",
        review(lambda text, view: dataclasses.replace(view, k=view.k.flip(0), v=view.v.flip(0))),
    ),
    **on_both(
        "longest-length-for-all",
        "every sample gets the longest length: the padded launch",
        relengthen(lambda text, n: n.max().expand_as(n)),
    ),
    **on_both(
        "text-before-video",
        "text stands before the video while lengths count a prefix",
        text_before_video,
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
        "VANILLA ignores the key-padding mask, as unknown keywords are",
        drop_vanilla_mask,
        attention("VANILLA"),
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
        review(
            lambda text, view: (
                dataclasses.replace(
                    view, key_lengths=torch.full_like(view.key_lengths, view.video_rows)
                )
                if text.layout.col_rank == 1
                else view
            )
        ),
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
        review(
            lambda text, view: dataclasses.replace(
                view,
                ring_blocks=tuple(
                    dataclasses.replace(block, k=view.k, v=view.v, key_lengths=view.key_lengths)
                    for block in view.ring_blocks
                ),
            )
        ),
        attention("FA4", RING, video_rows=28),
    ),
    "ring-blocks-in-another-order": Fault(
        "the valid rows of a block are those of another rank's",
        review(lambda text, view: dataclasses.replace(view, ring_blocks=view.ring_blocks[::-1])),
        attention("FA4", Layout(ring=4), video_rows=27),
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
