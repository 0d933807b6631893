# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Timing of several variants of one computation, interleaved in one run."""

from __future__ import annotations

import statistics
import time
from typing import Callable

import torch


def _elapsed_ms(run: Callable[[int], object], first: int, count: int, device: str) -> float:
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for i in range(first, first + count):
            run(i)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count
    begin = time.perf_counter()
    for i in range(first, first + count):
        run(i)
    return (time.perf_counter() - begin) * 1e3 / count


def time_variants(
    variants: dict[str, Callable[[int], object]],
    device: str,
    repeats: int = 15,
    sample_ms: float = 10.0,
) -> dict[str, dict[str, float]]:
    """Times variants in turn, so that clocks and heat meet all of them alike.

    Args:
        variants: Name to a callable that runs once on input set number i.
        device: "cuda" times with events, "cpu" with the host's clock.
        repeats: Samples of each variant.
        sample_ms: Least duration of one sample; short calls are batched up to it.

    Returns:
        For each variant: median_ms, low_ms and high_ms (the quartiles), calls per sample.
    """
    calls = {}
    for name, run in variants.items():
        _elapsed_ms(run, 0, 2, device)
        once = _elapsed_ms(run, 0, 3, device)
        calls[name] = max(1, int(sample_ms / max(once, 1e-3)))
    samples: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for repeat in range(repeats):
        # Every variant runs behind every other one in some repeat.
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            count = calls[name]
            samples[name].append(_elapsed_ms(variants[name], repeat * count, count, device))
    result = {}
    for name, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        result[name] = {
            "median_ms": median,
            "low_ms": low,
            "high_ms": high,
            "repeats": len(values),
            "calls_per_sample": calls[name],
        }
    return result


def graphed(run: Callable[[int], object], sets: int) -> Callable[[int], object]:
    """Returns a callable that replays a CUDA graph of `run` for each of `sets` input sets."""
    graphs = []
    for i in range(sets):
        run(i)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(i)
        graphs.append(graph)
    return lambda i: graphs[i % sets].replay()
