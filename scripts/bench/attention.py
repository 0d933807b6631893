# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Question (a): what one attention costs, at the leaf, on one rank.

Fields: B batch, S video rows, L text lengths, T text rows, H query heads, H_kv K/V heads,
D head_dim.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tensorrt_llm._torch.visual_gen.attention_backend import flash_attn4
from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import TextAttention, append_text
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV

from .timing import graphed, time_variants

VIDEO_ROWS = (1024, 4096, 16384, 37440)
LENGTHS = ((30, 700), (700, 700), (1, 4096))
HEADS = ((16, 4), (32, 8))
HEAD_DIM = 128


class Inputs:
    """One set of random inputs: video q, k, v in NHD, and text of two lengths.

    Args:
        video_rows: S.
        lengths: L of each sample.
        heads: (H, H_kv).
        dtype: Of all tensors.
        device: Of all tensors.
        seed: Of the random numbers.
    """

    def __init__(self, video_rows, lengths, heads, dtype, device, seed):
        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(rows, count):
            shape = (len(lengths), rows, count, HEAD_DIM)
            return torch.randn(shape, generator=generator, device=device, dtype=dtype)

        self.q = normal(video_rows, heads[0])
        self.k, self.v = (normal(video_rows, heads[1]) for _ in range(2))
        self.source = tuple(normal(max(lengths), heads[1]) for _ in range(2))
        self.views = TextKV.build([self.source], lengths).views(video_rows)[0]
        (view,) = self.views
        self.key_lengths = view.key_lengths
        self.appended = tuple(
            append_text(video, text, video_rows)
            for video, text in ((self.k, view.k), (self.v, view.v))
        )
        # The unfixed path: zeros past each prompt, the longest one rounded up to two ranks.
        rows = -(-max(lengths) // 2) * 2
        self.padded = tuple(x[:, :rows] for x in (view.k, view.v))


def variants(backend, inputs: list[Inputs], lengths) -> dict[str, object]:
    """Returns the competitors for one backend, each a callable on the number of an input set."""
    adapter = TextAttention(backend)
    heads_first = backend.preferred_layout.name == "HND"

    def attend(call, *tensors, **kwargs):
        """Calls with NHD tensors in the backend's layout, as the attention module does."""
        if not heads_first:
            return call(*tensors, **kwargs)
        return call(*(x.transpose(1, 2) for x in tensors), **kwargs).transpose(1, 2)

    def chosen(i):
        return inputs[i % len(inputs)]

    def unfixed(i):
        x = chosen(i)
        keys, values = (torch.cat(pair, 1) for pair in zip(x.padded, (x.k, x.v)))
        return attend(backend.forward, x.q, keys, values)

    def loop(i):
        x, outs = chosen(i), []
        for b, length in enumerate(lengths):
            text = (part[b : b + 1, :length] for part in x.source)
            video = (part[b : b + 1] for part in (x.k, x.v))
            keys, values = (torch.cat(pair, 1) for pair in zip(text, video))
            outs.append(attend(backend.forward, x.q[b : b + 1], keys, values))
        return torch.cat(outs)

    def ours(i):
        x = chosen(i)
        return attend(adapter.forward, x.q, x.k, x.v, text=iter(x.views))

    def mask(i):
        x = chosen(i)
        pairs = zip((x.k, x.v), (x.views[0].k, x.views[0].v))
        keys, values = (append_text(*pair, x.k.shape[1]) for pair in pairs)
        valid = torch.arange(keys.shape[1], device=keys.device) < x.key_lengths[:, None]
        options = {"attn_mask": valid[:, None, None], "scale": backend.scale, "enable_gqa": True}
        return attend(F.scaled_dot_product_attention, x.q, keys, values, **options)

    def ideal(i):
        x = chosen(i)
        if heads_first:
            return attend(backend.forward, x.q, *x.appended)
        options = {"softmax_scale": backend.scale, "num_splits": 1}
        return flash_attn4._flash_attn_fwd(
            x.q, *x.appended, seqused_k=x.key_lengths, **options
        )[0]  # fmt: skip

    found = {"unfixed": unfixed, "loop": loop, "ours": ours, "ideal": ideal}
    if heads_first:
        found["mask"] = mask
    return found


def reference(inputs: Inputs, lengths, rows: int = 64) -> torch.Tensor:
    """Exact attention of the first `rows` queries in float64, [B, rows, H, D]."""
    outs = []
    for b, length in enumerate(lengths):
        q = inputs.q[b, :rows].double()
        k = torch.cat([inputs.k[b], inputs.source[0][b, :length]]).double()
        v = torch.cat([inputs.v[b], inputs.source[1][b, :length]]).double()
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.stack(outs)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 error of `found`, NaN and infinity included."""
    return float((found.double() - expected).norm() / expected.norm())


def run(
    backends=("FA4", "VANILLA"),
    video_rows=VIDEO_ROWS,
    lengths=LENGTHS,
    heads=HEADS,
    dtype=torch.bfloat16,
    device="cuda",
    repeats=15,
    graphs=True,
    progress=print,
) -> list[dict]:
    """Checks and times every case; returns one record for each."""
    records = []
    for name in backends:
        for head_counts in heads:
            backend = create_attention(
                name, layer_idx=0, num_heads=head_counts[0], head_dim=HEAD_DIM,
                num_kv_heads=head_counts[1],
            )  # fmt: skip
            for rows in video_rows:
                for lens in lengths:
                    # Several sets, so that small problems do not find their inputs in the cache.
                    sets = max(2, min(8, (64 << 20) // (rows * head_counts[0] * HEAD_DIM * 4)))
                    inputs = [
                        Inputs(rows, lens, head_counts, dtype, device, seed=i) for i in range(sets)
                    ]
                    competitors = variants(backend, inputs, lens)
                    expected = reference(inputs[0], lens)
                    errors = {}
                    for variant, call in competitors.items():
                        out = call(0)
                        assert bool(out.isfinite().all()), f"{name} {variant} is not finite"
                        errors[variant] = relative(out[:, :64], expected)
                    record = {
                        "backend": name, "heads": head_counts, "video_rows": rows,
                        "lengths": lens, "input_sets": sets, "error": errors,
                        "eager": time_variants(competitors, device, repeats),
                    }  # fmt: skip
                    if graphs and device == "cuda" and rows <= 4096:
                        replays = {k: graphed(c, sets) for k, c in competitors.items()}
                        record["graph"] = time_variants(replays, device, repeats)
                    records.append(record)
                    line = ", ".join(
                        f"{k} {v['median_ms']:.3f}" for k, v in record["eager"].items()
                    )
                    errs = ", ".join(f"{k} {v:.1e}" for k, v in errors.items())
                    progress(f"{name} H{head_counts} S={rows} L={lens}: {line} ms; error {errs}")
    return records
