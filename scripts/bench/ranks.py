# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Work on several ranks, each a process of its own, and what they send to each other."""

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

from .timing import elapsed_ms

# A case takes minutes; a rank that hangs outside a collective has no other end.
CASE_SECONDS = 900


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


def together_ms(run, device: torch.device) -> float:
    """Milliseconds of one call that all ranks begin at the same time."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return elapsed_ms(run, device.type)


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
