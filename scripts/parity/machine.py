# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and whether a run fits into it."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any

import torch
from cosmos3_weights import weight_shapes

# A process before it holds any weight: the interpreter, torch, diffusers; measured.
PROCESS_BYTES = 500 << 20
# Activations and what kernels need, on top of weights.
ACTIVATION_BYTES = {"cpu": 200 << 20, "cuda": 4 << 30}


def check_memory(
    config: dict[str, Any], size: str, bytes_each: int, device: str, ranks: int, shared: bool
) -> None:
    """Refuses runs whose weights would not fit, before a rank finds out.

    Args:
        config: Fields of the diffusers config.json.
        size: For messages.
        bytes_each: Of one weight.
        device: "cpu" or "cuda".
        ranks: Processes.
        shared: Whether they share one GPU.

    Raises:
        ValueError: What is needed, what is there, and what would work.
    """
    parameters = sum(math.prod(shape) for shape in weight_shapes(config).values())
    several = parameters * bytes_each + ACTIVATION_BYTES[device]
    # Beside a bfloat16 run there is one in float32.
    one = max(several, parameters * 4 + ACTIVATION_BYTES[device])
    if device == "cuda":
        available = torch.cuda.get_device_properties(0).total_memory
        needed, what = max(one, several * (ranks if shared else 1)), "one GPU"
    else:
        # The driver is one more process.
        available = available_memory()
        needed = PROCESS_BYTES + max(one + PROCESS_BYTES, ranks * (several + PROCESS_BYTES))
        what = f"{ranks} ranks" if ranks > 1 else "one rank"
    if needed > available:
        raise ValueError(
            f"--size {size} with {bytes_each} bytes a weight needs about {needed / 2**30:.1f} GiB "
            f"for {what}, and {available / 2**30:.1f} GiB are there; use fewer --ranks, a smaller "
            "--size or --dtype, or a machine with more memory."
        )


def available_memory() -> int:
    """Returns the bytes of main memory that can still be used, container limits included."""
    available = 1 << 62
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    if not (group / "memory.max").exists():
        group = group / "memory"
    ceiling = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
    if ceiling.strip().isdigit() and used.strip().isdigit():
        # File pages that nobody has touched lately are given back on demand.
        idle = sum(
            int(line.split()[1])
            for line in _read(group / "memory.stat").splitlines()
            if line.startswith("inactive_file ")
        )
        available = min(available, int(ceiling) - int(used) + idle)
    return available


def resident_bytes(pid: int | str = "self") -> int:
    """Returns the bytes of a process in memory, shared pages included; 0 when it is gone."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def usable_cores() -> int:
    """Returns the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_facts(device: str, exchange: str, ranks: int) -> dict[str, Any]:
    """Returns what a result file says about the machine.

    Args:
        device: "cpu" or "cuda".
        exchange: What carried tensors between ranks: "NCCL", where each had a GPU, or "gloo".
        ranks: Processes.
    """
    models = (x for x in _read("/proc/cpuinfo").splitlines() if x.startswith("model name"))
    processor = next(models, "").partition(":")[2].strip() or platform.machine()
    gpus = 0 if device == "cpu" else ranks if exchange == "NCCL" else 1
    return {
        "device": device,
        "device_name": f"{torch.cuda.get_device_name(0)} x {gpus}" if gpus else processor,
        "devices": gpus or None,
        "processor": processor,
        "cores": usable_cores(),
        "system": platform.platform(),
        "processes": exchange,
    }


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
