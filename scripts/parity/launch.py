# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of one run, watches them, and ends all when one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.machine import resident_bytes, usable_cores

SCRIPTS = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.1
# Ranks that fail because another died need a moment to say so.
GRACE_SECONDS = 1.0
KILL_SECONDS = 5.0
# Lines of a dead rank's output that are shown.
TAIL_LINES = 25


class RunFailed(RuntimeError):
    """A process of a run died; the message holds which, how, and its last output."""


def launch(
    spec: dict[str, Any],
    folder: Path,
    on_poll: Callable[[int], None] = lambda forwards: None,
) -> dict[str, Any]:
    """Runs one spec on its ranks and waits for all of them.

    Args:
        spec: What parity.worker runs; "name", "ranks", "device" and "roots" are read here.
        folder: Empty or new; takes the spec, the logs and the results.
        on_poll: Called with the forwards done so far.

    Returns:
        {"ranks": what each rank reported, "peak_bytes": the largest sum of resident bytes,
        "seconds": wall time}.

    Raises:
        RunFailed: A rank died. The others have been ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    ranks = spec["ranks"]
    processes: list[subprocess.Popen] = []
    started = time.monotonic()
    peak = 0
    try:
        for rank in range(ranks):
            with open(folder / f"rank{rank}.log", "wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "parity.worker", str(folder), str(rank)],
                        env=_environment(spec, rank),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                break
            peak = max(peak, sum(resident_bytes(p.pid) for p in processes))
            on_poll(_forwards(folder))
            time.sleep(POLL_SECONDS)
        if any(process.returncode for process in processes):
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and any(p.poll() is None for p in processes):
                time.sleep(POLL_SECONDS)
            raise RunFailed(_cause(spec["name"], processes, folder))
    finally:
        _end(processes)
    reports = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {"ranks": reports, "peak_bytes": peak, "seconds": time.monotonic() - started}


def _environment(spec, rank) -> dict[str, str]:
    threads = max(1, usable_cores() // spec["ranks"])
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    path = [*spec["roots"], str(SCRIPTS)]
    return {
        # On one host the loopback interface is always there.
        "GLOO_SOCKET_IFNAME": "lo",
        # A thread that spins at a barrier holds up the one that it waits for, wherever other
        # programs want the cores too: five times slower on a busy machine.
        "OMP_WAIT_POLICY": "PASSIVE",
        # cuBLAS repeats a sum in the same order only with a workspace of a fixed size.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path + [p for p in inherited if p not in path]),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec["ranks"]),
        "TLLM_DISABLE_MPI": "1",
        "OMP_NUM_THREADS": str(threads),
    }


def _forwards(folder: Path) -> int:
    try:
        return int((folder / "progress").read_text() or 0)
    except (OSError, ValueError):
        return 0


def _cause(name, processes, folder) -> str:
    """Says which rank died first; those that a signal took come before those that complained."""
    dead = []
    for rank, process in enumerate(processes):
        if process.returncode:
            error = folder / f"rank{rank}.error"
            when = error.stat().st_mtime if error.exists() else 0.0
            dead.append((when, rank, process.returncode))
    _, rank, code = min(dead)
    how = f"exited with status {code}"
    if code < 0:
        names = {member.value: member.name for member in signal.Signals}
        how = f"was killed by {names.get(-code, f'signal {-code}')}"
        if code == -signal.SIGKILL:
            how += " (the kernel does so when memory runs out)"
    log = folder / f"rank{rank}.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])
    text = f"run {name}: rank {rank} of {len(processes)} {how}; the run was ended."
    return f"{text} Its last output:\n{tail}" if tail else f"{text} It had printed nothing."


def _end(processes) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + KILL_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
