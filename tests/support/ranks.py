# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Runs module-level functions on several gloo processes, many cases on one set of processes.

A process costs seconds of imports, a case milliseconds. So the processes stay, forked from a
server that has imported everything, and only the process group is made anew when a case needs
another number of ranks. A rank that raises ends the case for all within GRACE_S, with its own
traceback; one that dies or hangs does too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Optional

import hostpath
import torch
import torch.distributed as dist

# How long the other ranks have, after one failed, to report their own failure.
GRACE_S = 5.0
# The longest case takes a few seconds on 2 slow cores; what takes longer hangs.
TIMEOUT_S = 120.0


class RankError(RuntimeError):
    """A rank raised, died or hung; the message holds what it left behind."""


@dataclass
class Outcome:
    """What one rank reported.

    Attributes:
        value: What the function returned; None if it did not.
        error: Class name of what it raised, or "died", or "waiting"; None if it returned.
        message: The text of what it raised.
        trace: Its traceback, or where it hangs.
    """

    value: Any = None
    error: Optional[str] = None
    message: str = ""
    trace: str = ""


class Ranks:
    """A set of worker processes that grows to the largest number of ranks asked for."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["support.preload"])
        self._workers: list[tuple[Any, multiprocessing.connection.Connection]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._groups = 0
        self._world_size = 0

    def run(self, world_size: int, function: Callable, *args, timeout: float = TIMEOUT_S) -> list:
        """Calls function(rank, *args) on each rank and returns what they returned, in rank order.

        Args:
            world_size: Number of ranks.
            function: A module-level function; an initialised process group of world_size ranks is
                there when it runs.
            *args: Anything that pickles.
            timeout: Seconds until ranks that have not reported count as hanging.

        Raises:
            RankError: A rank raised, died or did not report in time.
        """
        outcomes = self.outcomes(world_size, function, *args, timeout=timeout)
        failed = [(rank, o) for rank, o in enumerate(outcomes) if o.error]
        if failed:
            # Ranks that wait for the one that failed are its victims: they come last.
            failed.sort(key=lambda item: item[1].error == "waiting")
            report = "\n".join(f"rank {rank}: {o.error}: {o.trace}" for rank, o in failed)
            raise RankError(report)
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self, world_size: int, function: Callable, *args, timeout: float = TIMEOUT_S
    ) -> list[Outcome]:
        """Like run, but returns failures too: how bad input is answered by each rank."""
        self._ensure(world_size)
        workers = self._workers[:world_size]
        if world_size != self._world_size:
            self._groups += 1
            self._world_size = world_size
        store = os.path.join(self._folder.name, f"store-{self._groups}")
        for _, connection in workers:
            connection.send_bytes(pickle.dumps((world_size, store, pickle.dumps((function, args)))))

        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + timeout
        while len(outcomes) < world_size:
            pending = {workers[r][1]: r for r in range(world_size) if r not in outcomes}
            left = max(0.0, deadline - time.monotonic())
            ready = multiprocessing.connection.wait(list(pending), left)
            if not ready:
                break
            for connection in ready:
                rank = pending[connection]
                try:
                    outcomes[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    workers[rank][0].join(1)
                    code = workers[rank][0].exitcode
                    outcomes[rank] = Outcome(error="died", trace=f"exit code {code}")
                if outcomes[rank].error:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        for rank in range(world_size):
            if rank not in outcomes:
                trace = self._stack(rank)
                outcomes[rank] = Outcome(
                    error="waiting", trace=f"did not report; it is at\n{trace}"
                )
        errors = {outcome.error for outcome in outcomes.values()}
        if errors & {"died", "waiting"}:
            self.close()
        elif errors != {None}:
            # All are back, but may have sent what nobody received: the next case gets a new group.
            self._world_size = 0
        return [outcomes[rank] for rank in range(world_size)]

    def close(self) -> None:
        """Ends the processes."""
        for process, connection in self._workers:
            connection.close()
            process.kill()
        for process, _ in self._workers:
            process.join()
        self._workers.clear()
        self._world_size = 0

    def _ensure(self, world_size: int) -> None:
        with _environment(
            # One thread a process, or they fight for the cores.
            OMP_NUM_THREADS="1",
            # The server that forks the workers imports support.preload by this.
            PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        ):
            for rank in range(len(self._workers), world_size):
                ours, theirs = self._context.Pipe()
                log = os.path.join(self._folder.name, f"stack-{rank}")
                process = self._context.Process(
                    target=_serve, args=(rank, theirs, log, list(sys.path)), daemon=True
                )
                process.start()
                theirs.close()
                self._workers.append((process, ours))

    def _stack(self, rank: int) -> str:
        """Asks a rank that does not report where it is."""
        log = Path(self._folder.name, f"stack-{rank}")
        try:
            os.kill(self._workers[rank][0].pid, signal.SIGUSR1)
        except OSError:
            return "(gone)"
        time.sleep(0.2)
        return log.read_text() if log.exists() else "(no stack)"


@contextlib.contextmanager
def _environment(**values: str):
    """Sets environment variables for processes that are started within."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(rank: int, connection, log: str, path: list[str]) -> None:
    """What a worker process does: one case after the other, until the test process goes away."""
    sys.path[:] = path
    # Ranks run on the CPU, whatever the test process has a GPU and kernels for.
    hostpath.activate("cpu")
    torch.set_num_threads(1)
    stack_file = open(log, "w")
    faulthandler.register(signal.SIGUSR1, file=stack_file, all_threads=False)
    current = None
    while True:
        try:
            world_size, store, call = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            # Not through atexit: a gloo group whose peers are gone may block there.
            os._exit(0)
        try:
            if store != current:
                if current is not None:
                    dist.destroy_process_group()
                # A file, not a port: no two test runs can collide.
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{store}",
                    rank=rank,
                    world_size=world_size,
                    timeout=timedelta(seconds=TIMEOUT_S),
                )
                current = store
            function, args = pickle.loads(call)
            outcome = Outcome(value=function(rank, *args))
            message = pickle.dumps(outcome)
        except BaseException as error:
            message = pickle.dumps(
                Outcome(
                    error=type(error).__name__, message=str(error), trace=traceback.format_exc()
                )
            )
        connection.send_bytes(message)
