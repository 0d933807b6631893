# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph's double on the CPU: the operators of one call, run again on the same tensors.

Like a graph it runs no Python of the function, reads and writes at the addresses of its capture,
and refuses host reads while it captures.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# What has to know values to know its result or its result's shape.
HOST_READS = (
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
)


def reads_host(operator: Callable, args: tuple) -> bool:
    """Whether an operator needs values on the host: one of HOST_READS, or an index by a mask."""
    masks = (getattr(x, "dtype", None) is torch.bool for x in tree_leaves(args[1:]))
    return operator in HOST_READS or (operator is aten.index.Tensor and any(masks))


def _refuse(*args) -> None:
    raise RuntimeError("a host read in a captured function: a graph cannot replay it")


class RecordedGraph:
    """What :func:`record` recorded; the methods of ``torch.cuda.CUDAGraph`` that runners call."""

    def __init__(self) -> None:
        """Make an empty graph."""
        self.calls: list[tuple[Callable, tuple, dict, list[torch.Tensor]]] = []

    def replay(self) -> None:
        """Run all operators again, each into the tensors that it returned at capture."""
        under_way = []
        for operator, args, kwargs, outputs in self.calls:
            if operator.namespace != "c10d":
                # Sends and receives between ranks begin together, as they did.
                while under_way:
                    under_way.pop().wait()
            result = operator(*args, **kwargs)
            # What an exchange returns beside its tensors.
            under_way += [x for x in tree_leaves(result) if isinstance(x, torch.ScriptObject)]
            for old, new in zip(outputs, _tensors(result)):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        while under_way:
            under_way.pop().wait()

    def pool(self) -> None:
        """Return no memory to share."""

    def reset(self) -> None:
        """Forget them."""
        self.calls.clear()


class Recorder(TorchDispatchMode):
    """Records the operators that run into a graph."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if reads_host(operator, args):
            _refuse()
        result = operator(*args, **kwargs)
        self.graph.calls.append((operator, args, kwargs, _tensors(result)))
        return result


class Counter(TorchDispatchMode):
    """Counts launches of kernels, and reads on the host of values that are not there yet.

    On a CPU nothing else tells where a tensor is, so what was moved to "cpu" by name is there.

    Args:
        kernels: functions to count calls of, as (where they are kept, name).
    """

    def __init__(self, *kernels: tuple[Any, str]) -> None:
        super().__init__()
        self.launches = self.reads = 0
        # Some of these are no operators.
        methods = [(torch.Tensor, name) for name in ("tolist", "numpy", "cpu", "to")]
        self._names = {self._read: methods, self._launch: kernels}
        self._patches = ExitStack()

    def __enter__(self) -> "Counter":
        for wrapper, names in self._names.items():
            for where, name in names:
                patch = mock.patch.object(where, name, wrapper(name, getattr(where, name)))
                self._patches.enter_context(patch)
        return super().__enter__()

    def __exit__(self, *error) -> None:
        self._patches.close()
        super().__exit__(*error)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.reads += reads_host(operator, args) and not hasattr(args[0], "on_host")
        return operator(*args, **(kwargs or {}))

    def _launch(self, name: str, kernel: Callable) -> Callable:
        def call(*args, **kwargs):
            self.launches += 1
            return kernel(*args, **kwargs)

        return call

    def _read(self, name: str, method: Callable) -> Callable:
        def call(tensor, *args, **kwargs):
            result = method(tensor, *args, **kwargs)
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, str)]
            if name != "to" or "cpu" in given:
                self.reads += not hasattr(tensor, "on_host")
                if isinstance(result, torch.Tensor):
                    result.on_host = True
            return result

        return call


@contextmanager
def recorded_graphs() -> Iterator[None]:
    """Put the double in place of CUDA graphs, for a runner that knows of GPUs alone."""
    idle = {"synchronize": lambda: None, "empty_cache": lambda: None}
    with mock.patch.multiple("torch.cuda", CUDAGraph=RecordedGraph, graph=recording, **idle):
        yield


@contextmanager
def recording(graph: RecordedGraph, pool: None = None) -> Iterator[None]:
    """Record into a graph what runs inside, as ``torch.cuda.graph`` captures.

    Raises:
        RuntimeError: a tensor's value is read on the host.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda.is_current_stream_capturing", lambda: True))
        for name in ("tolist", "numpy"):  # These are no operators.
            stack.enter_context(mock.patch.object(torch.Tensor, name, _refuse))
        stack.enter_context(Recorder(graph))
        yield


def record(fn: Callable, args: list, kwargs: dict) -> tuple[RecordedGraph, Any]:
    """Call a function and record it.

    Returns:
        The graph, and what the function returned: tensors that a replay writes.
    """
    graph = RecordedGraph()
    with recording(graph):
        return graph, fn(*args, **kwargs)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
