# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Timing of several variants of one computation, interleaved in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Callable

import torch


class Marks:
    """Points in time on the device, or on the host where that is a CPU; no point waits.

    Args:
        device: "cuda" or "cpu".
    """

    def __init__(self, device: str):
        self.device = device
        self.marks: list = []

    def add(self) -> None:
        """Marks this point."""
        if self.device == "cuda":
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def elapsed_ms(self) -> list[float]:
        """Waits for the last point; returns the milliseconds from each one to the next."""
        pairs = list(zip(self.marks, self.marks[1:]))
        if self.device == "cuda":
            self.marks[-1].synchronize()
            return [start.elapsed_time(end) for start, end in pairs]
        return [(end - start) * 1e3 for start, end in pairs]


def elapsed_ms(run: Callable[[], object], device: str) -> float:
    """Milliseconds of one call."""
    marks = Marks(device)
    marks.add()
    run()
    marks.add()
    return marks.elapsed_ms()[0]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Returns median_ms, low_ms and high_ms (the quartiles) and the number of repeats."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median_ms": median, "low_ms": low, "high_ms": high, "repeats": len(samples)}


def in_turn(names: Sequence[str], repeats: int) -> Iterator[tuple[str, int]]:
    """Yields (name, number of the repeat); every name comes behind every other in some repeat."""
    for repeat in range(repeats):
        shift = repeat % len(names)
        for name in [*names[shift:], *names[:shift]]:
            yield name, repeat


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
        repeats: Samples of each variant, at least 2.
        sample_ms: Least duration of one sample; short calls are batched up to it.

    Returns:
        For each variant what summary() says, and calls_per_sample.
    """

    def sample(name: str, first: int, count: int) -> float:
        def run():
            for i in range(first, first + count):
                variants[name](i)

        return elapsed_ms(run, device) / count

    calls = {}
    for name in variants:
        sample(name, 0, 2)
        calls[name] = max(1, int(sample_ms / max(sample(name, 0, 3), 1e-3)))
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for name, repeat in in_turn(list(variants), repeats):
        samples[name].append(sample(name, repeat * calls[name], calls[name]))
    return {k: summary(v) | {"calls_per_sample": calls[k]} for k, v in samples.items()}


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
