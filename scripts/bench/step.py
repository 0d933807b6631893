# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Questions (b) and (c): a layer and a denoising step on several ranks, and the bytes exchanged.

Variants share one set of weights: the unfixed text path, exact text K/V with one attention launch
per sample behind the all-to-all (what others do), exact text K/V as it is here, and the same
replayed from a CUDA graph.

Fields: B batch, S video rows, P ranks, H query heads, D head_dim.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Latent (T, H, W) of 2 x 2 patches: 37440 rows are 93 frames of 480p, 1024 a square image.
VIDEOS = {37440: (24, 60, 104), 1024: (1, 64, 64), 16: (1, 8, 8)}
LENGTHS = (30, 700)
VARIANTS = ("unfixed", "loop", "ours")
# Longer sequences are not bound by launches.
GRAPH_ROWS = 4096
# A case takes two minutes at most; a rank that hangs outside a collective has no other end.
CASE_SECONDS = 900


class LoopKeyPrefix:
    """The comparison: each sample's keys cut to its own length, one launch for each sample."""

    def __init__(self, backend, lengths):
        self.backend = backend
        self.lengths = lengths

    def forward(self, q, k, v, text):
        """Takes and returns what the adapter's key-prefix attention does."""
        dim = 2 if self.backend.preferred_layout.name == "HND" else 1
        text_k, text_v = text.k, text.v
        if dim == 2:
            text_k, text_v = text_k.transpose(1, 2), text_v.transpose(1, 2)
        outs = []
        for b, length in enumerate(self.lengths):
            one = slice(b, b + 1)
            rows = text.video_rows
            keys = [k[one].narrow(dim, 0, rows), text_k[one].narrow(dim, 0, length)]
            values = [v[one].narrow(dim, 0, rows), text_v[one].narrow(dim, 0, length)]
            outs.append(self.backend.forward(q[one], torch.cat(keys, dim), torch.cat(values, dim)))
        return torch.cat(outs)


class Models:
    """The fixed and the unfixed transformer on the same weights, and the text of two prompts."""

    def __init__(self, size, backend, video_rows, device, dtype, layout, rank, world_size):
        from cosmos3_weights import RandomWeights
        from parity.sizes import SIZES, full_config

        from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
        from tensorrt_llm._torch.visual_gen.cuda_graph_runner import CUDAGraphRunner
        from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
        from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
            Cosmos3VFMTransformer,
        )

        config = full_config(SIZES[size])
        mapping = VisualGenMapping(world_size=world_size, rank=rank, **layout)
        settings = DiffusionModelConfig.from_diffusers(
            config, backend=backend, dtype=dtype, visual_gen_mapping=mapping
        )
        with torch.device(device):
            self.fixed = Cosmos3VFMTransformer(settings)
        self.fixed.load_weights(RandomWeights(config, 0, dtype, device))
        with torch.device("meta"):
            self.padded = Cosmos3VFMTransformer(settings, text_kv="padded")
        self.padded.load_state_dict(self.fixed.state_dict(), assign=True)
        self.adapters = [_adapter(layer.cross_attention) for layer in self.fixed.gen_layers]
        self.ours = [adapter.key_prefix for adapter in self.adapters]
        self.loop = [LoopKeyPrefix(adapter.backend, LENGTHS) for adapter in self.adapters]

        generator = torch.Generator(device=device).manual_seed(1)
        batch, rows = len(LENGTHS), -(-max(LENGTHS) // 128) * 128
        self.latents = torch.randn(
            batch, config["latent_channel"], *VIDEOS[video_rows],
            generator=generator, device=device, dtype=dtype,
        )  # fmt: skip
        self.ids = torch.randint(
            config["vocab_size"], (batch, rows), generator=generator, device=device
        )
        self.mask = (
            torch.arange(rows, device=device) < torch.tensor(LENGTHS, device=device)[:, None]
        )
        # Graphs of the fixed transformer, once for every shape; see text_buffers.
        self.runner = CUDAGraphRunner()
        self.fixed.register_cuda_graph_extra_key_fns(self.runner)
        self.graphed = self.runner.wrap(self.fixed.forward)

    def select(self, variant):
        """Returns the transformer of a variant."""
        if variant == "unfixed":
            return self.padded
        if variant == "graph":
            return self.graphed
        for adapter, path in zip(self.adapters, self.loop if variant == "loop" else self.ours):
            adapter.key_prefix = path
        return self.fixed

    def step(self, variant, number):
        """One denoising step; the latents differ from step to step."""
        raw = torch.full((len(LENGTHS),), 900.0 - number, device=self.latents.device)
        return self.select(variant)(
            hidden_states=self.latents.roll(number, dims=3),
            timestep=raw / 1000,
            raw_timestep=raw,
            text_ids=self.ids,
            text_mask=self.mask,
            video_shape=tuple(self.latents.shape[2:]),
            fps=24.0,
        ).video


def _adapter(attention):
    link = attention.attn
    while not hasattr(link, "key_prefix"):
        link = link.inner_backend
    return link


@contextlib.contextmanager
def counted_bytes():
    """Counts what this rank sends to other ranks, in bytes by collective."""
    sent: Counter = Counter()
    originals = {}

    def counting(name, bytes_of):
        original = getattr(dist, name)
        originals[name] = original

        def wrapper(*args, **kwargs):
            sent[name] += bytes_of(*args, **kwargs)
            return original(*args, **kwargs)

        setattr(dist, name, wrapper)

    def share(tensor, group):
        size = dist.get_world_size(group)
        return tensor.numel() * tensor.element_size() * (size - 1) // size

    counting("all_to_all_single", lambda out, x, *a, group=None, **k: share(x, group))
    counting(
        "all_gather_into_tensor",
        lambda out, x, *a, group=None, **k: (
            x.numel() * x.element_size() * (dist.get_world_size(group) - 1)
        ),
    )
    counting("all_gather", lambda outs, x, *a, group=None, **k: x.numel() * x.element_size())
    try:
        yield sent
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _timed(run, device) -> float:
    """Milliseconds of one call between two barriers."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e3


def _summary(samples) -> dict[str, float]:
    ordered = torch.tensor(sorted(samples), dtype=torch.float64)
    low, median, high = torch.quantile(ordered, torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
    return {"median_ms": median, "low_ms": low, "high_ms": high, "repeats": len(samples)}


def _rank(rank, world_size, port, work, case, results):
    import hostpath

    hostpath.activate()
    device = torch.device(case["device"], rank if case["device"] == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world_size,
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    try:
        with torch.no_grad():
            record = work(rank, world_size, device, case)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # Not by way of destructors: NCCL waits for ever for work that a living graph holds.
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        results.put(record)


def _measure(rank, world_size, device, case):
    dtype = getattr(torch, case["dtype"])
    models = Models(
        case["size"], case["backend"], case["video_rows"], device, dtype,
        {"ulysses_size": world_size}, rank, world_size,
    )  # fmt: skip
    layers = len(models.fixed.gen_layers)
    record = dict(case, ranks=world_size, lengths=LENGTHS, layers=layers, step={}, layer={})
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
        record["matrix_products_ms"] = _matrix_products_ms(models)
    if device.type == "cuda" and case["video_rows"] <= GRAPH_ROWS:
        models.select("ours")
        replayed = models.step("graph", 0)
        record["graph_bit_equal"] = bool(torch.equal(replayed, models.step("ours", 0)))
        variants += ("graph",)
    samples = {variant: [] for variant in variants}
    for repeat in range(case["repeats"]):
        shift = repeat % len(variants)
        for variant in variants[shift:] + variants[:shift]:
            samples[variant].append(_timed(lambda v=variant, n=repeat: models.step(v, n), device))
    record["step"] = {variant: _summary(values) for variant, values in samples.items()}
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
        model = models.select(variant)
        layer = model.gen_layers[0]
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

    for repeat in range(2 * case["repeats"]):
        for variant in VARIANTS:
            samples[variant].append(_timed(lambda v=variant: run(v), device) / calls)
    return {variant: _summary(values) for variant, values in samples.items()}


def run(
    size,
    backend,
    video_rows,
    ranks=2,
    device="cuda",
    dtype="bfloat16",
    repeats=7,
) -> dict:
    """Measures one case on `ranks` processes and returns its record; raises as on_ranks does."""
    case = {
        "size": size, "backend": backend, "video_rows": video_rows, "device": device,
        "dtype": dtype, "repeats": repeats,
    }  # fmt: skip
    return on_ranks(_measure, ranks, case)


def on_ranks(work, ranks: int, case: dict) -> dict:
    """Calls a function on every rank of a process group, one GPU each or all on the CPU.

    Args:
        work: Called with (rank, ranks, device, case), without gradients; importable by name. It
            has to release its CUDA graphs.
        ranks: Processes.
        case: What to work on; its "device" is "cuda" or "cpu".

    Returns:
        What rank 0 returned.

    Raises:
        TimeoutError: The ranks did not end within CASE_SECONDS; they have been ended.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    spawned = mp.spawn(_rank, args=(ranks, port, work, case, results), nprocs=ranks, join=False)
    deadline = time.monotonic() + CASE_SECONDS
    while not spawned.join(timeout=1.0):
        if time.monotonic() > deadline:
            for process in spawned.processes:
                process.kill()
            raise TimeoutError(f"{case}: no end in {CASE_SECONDS} s")
    return results.get()
