# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Question (a): what one attention costs, at the leaf, on one rank.

Fields: B batch, S video rows, L text lengths, T text rows, H query heads, H_kv K/V heads,
D head_dim.
"""

from __future__ import annotations

import math

import torch

from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.key_prefix import append_text, launch_fa4
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import TextAttention
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
        self.text = TextKV.build([self.source], lengths)
        self.view = self.text.attach(self.q, video_rows)[0]
        # The unfixed path: zeros past each prompt, the longest one rounded up to two ranks.
        rows = -(-max(lengths) // 2) * 2
        self.padded = tuple(torch.zeros_like(x[:, :1]).repeat(1, rows, 1, 1) for x in self.source)
        for sample, length in enumerate(lengths):
            for padded, source in zip(self.padded, self.source):
                padded[sample, :length] = source[sample, :length]


def variants(backend, inputs: list[Inputs], lengths) -> dict[str, object]:
    """Returns the competitors for one backend, each a callable on the number of an input set."""
    adapter = TextAttention(backend)
    heads_first = backend.preferred_layout.name == "HND"
    dim = 2 if heads_first else 1

    def layout(x):
        return x.transpose(1, 2) if heads_first else x

    sets = [
        (layout(x.q), layout(x.k), layout(x.v), x.view, tuple(layout(p) for p in x.padded))
        for x in inputs
    ]
    appended = [append_text(k, v, view, dim) for _, k, v, view, _ in sets]

    def unfixed(i):
        q, k, v, _, (text_k, text_v) = sets[i % len(sets)]
        return backend.forward(q, torch.cat([text_k, k], dim), torch.cat([text_v, v], dim))

    def loop(i):
        q, k, v, _, (text_k, text_v) = sets[i % len(sets)]
        outs = []
        for b, length in enumerate(lengths):
            one = slice(b, b + 1)
            keys = torch.cat([text_k[one].narrow(dim, 0, length), k[one]], dim)
            values = torch.cat([text_v[one].narrow(dim, 0, length), v[one]], dim)
            outs.append(backend.forward(q[one], keys, values))
        return torch.cat(outs)

    def ours(i):
        q, k, v, view, _ = sets[i % len(sets)]
        return adapter.forward(q, k, v, text=view)

    def mask(i):
        q, k, v, view, _ = sets[i % len(sets)]
        k, v = append_text(k, v, view, dim)
        valid = torch.arange(k.shape[dim], device=k.device) < view.key_lengths[:, None]
        return backend.forward(q, k, v, key_padding_mask=valid)

    def ideal(i):
        (q, _, _, view, _), (k, v) = sets[i % len(sets)], appended[i % len(sets)]
        if heads_first:
            return backend.forward(q, k, v)
        return launch_fa4(q, k, v, view.key_lengths, backend.scale, False)[0]

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
                        out = out.transpose(1, 2) if backend.preferred_layout == "HND" else out
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
