# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Questions (b) and (c): a layer and a denoising step on several ranks, and the bytes exchanged."""

from __future__ import annotations

import row_products
import torch
import torch.distributed as dist

from .models import LENGTHS, Models
from .ranks import counted_bytes, on_ranks, together_ms
from .timing import in_turn, summary

VARIANTS = ("unfixed", "loop", "ours")
# Ours with matrix products that do not depend on the number of rows.
INVARIANT = "row-invariant"
# Longer sequences are not bound by launches.
GRAPH_ROWS = 4096


def run(case: dict, ranks: int) -> dict:
    """Measures one case (see Models) on `ranks` processes and returns its record."""
    return on_ranks(_measure, ranks, case)


def _measure(rank, ranks, device, case):
    models = Models(case, rank, ranks, device)
    layers = len(models.fixed.gen_layers)
    record = dict(case, ranks=ranks, lengths=LENGTHS, layers=layers)
    outputs = {}
    for variant in VARIANTS:
        outputs[variant] = models.step(variant, 0)
        assert bool(outputs[variant].isfinite().all()), f"{variant} is not finite"
        with counted_bytes() as sent:
            models.step(variant, 0)
        record.setdefault("bytes_sent_per_layer", {})[variant] = sent["all_to_all_single"] // layers
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            models.step(variant, 1)
            peak = torch.tensor(torch.cuda.max_memory_allocated(), device=device)
            dist.all_reduce(peak, dist.ReduceOp.MAX)
            record.setdefault("peak_bytes", {})[variant] = int(peak)
    exact = outputs["loop"].double()
    record["relative_to_loop"] = {
        name: [float((o - e).norm() / e.norm()) for o, e in zip(outputs[name].double(), exact)]
        for name in ("unfixed", "ours")
    }
    variants = VARIANTS
    if device.type == "cuda":
        variants += (INVARIANT,)
        record["matrix_products_ms"] = _matrix_products_ms(models)
    if case["video_rows"] <= GRAPH_ROWS:
        replayed = models.step("graph", 0).clone()
        record["graph_bit_equal"] = bool(torch.equal(replayed, models.step("ours", 0)))
        variants += ("graph",)
    samples = {variant: [] for variant in variants}
    for variant, repeat in in_turn(variants, case["repeats"]):
        name = "ours" if variant == INVARIANT else variant
        if variant == INVARIANT:
            row_products.set_invariant()
        samples[variant].append(together_ms(lambda v=name, n=repeat: models.step(v, n), device))
        if variant == INVARIANT:
            row_products.set_default()
    record["step"] = {variant: summary(values) for variant, values in samples.items()}
    record["layer"] = _layer(models, case, device)
    # NCCL waits for ever to end a communicator that a living graph still uses.
    models.runner.clear()
    return record


def _matrix_products_ms(models) -> float:
    """Time of the linear layers' kernels in one step, which neither path nor graph changes."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        models.step("ours", 2)
        torch.cuda.synchronize()
    products = ("aten::mm", "aten::addmm", "aten::bmm")
    events = [e for e in profile.key_averages() if e.key in products]
    return sum(e.self_device_time_total for e in events) / 1e3


def _layer(models, case, device):
    """Times one generation layer on this rank's rows."""
    inputs, samples = {}, {variant: [] for variant in VARIANTS}
    for variant in VARIANTS:
        layer = models.select(variant).gen_layers[0]
        keep = {}
        handle = layer.register_forward_pre_hook(
            lambda module, args, kwargs, keep=keep: keep.update(args=args, kwargs=kwargs),
            with_kwargs=True,
        )
        models.step(variant, 0)
        handle.remove()
        inputs[variant] = (layer, keep["args"], keep["kwargs"])
    calls = 1 if case["video_rows"] > 10000 else 10

    def run(variant):
        layer, args, kwargs = inputs[variant]
        models.select(variant)
        for _ in range(calls):
            layer(*args, **kwargs)

    for variant, _ in in_turn(VARIANTS, 2 * case["repeats"]):
        samples[variant].append(together_ms(lambda v=variant: run(v), device) / calls)
    return {variant: summary(values) for variant, values in samples.items()}
