# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph's double on the CPU: the operators of one call, run again on the same tensors.

Like a graph it runs no Python of the function, reads and writes at the addresses of its capture,
and refuses host reads while it captures.
"""

from collections.abc import Callable
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


def _refuse(*args) -> None:
    raise RuntimeError("a host read in a captured function: a graph cannot replay it")


class RecordedGraph:
    """What :func:`record` recorded; the methods of ``torch.cuda.CUDAGraph`` that runners call."""

    def __init__(self) -> None:
        """Make an empty graph."""
        self.calls: list[tuple[Callable, tuple, dict, list[torch.Tensor]]] = []

    def replay(self) -> None:
        """Run all operators again, each into the tensors that it returned at capture."""
        for operator, args, kwargs, outputs in self.calls:
            result = operator(*args, **kwargs)
            for leaf in tree_leaves(result):
                # What an exchange between ranks returns beside its tensors: wait for it.
                if isinstance(leaf, torch.ScriptObject):
                    leaf.wait()
            for old, new in zip(outputs, _tensors(result)):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def pool(self) -> None:
        """Return no memory to share."""

    def reset(self) -> None:
        """Forget them."""
        self.calls.clear()


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        masks = [x for x in tree_leaves(args[1:]) if getattr(x, "dtype", None) is torch.bool]
        if operator in HOST_READS or (operator is torch.ops.aten.index.Tensor and masks):
            _refuse()
        result = operator(*args, **kwargs)
        self.graph.calls.append((operator, args, kwargs, _tensors(result)))
        return result


def record(fn: Callable, args: list, kwargs: dict) -> tuple[RecordedGraph, Any]:
    """Call a function and record it.

    Returns:
        The graph, and what the function returned: tensors that a replay writes.

    Raises:
        RuntimeError: the function reads a tensor's value on the host.
    """
    graph = RecordedGraph()
    with recording(graph):
        return graph, fn(*args, **kwargs)


@contextmanager
def recording(graph: RecordedGraph, pool=None):
    """Record into a graph what runs inside, as ``torch.cuda.graph`` captures."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda.is_current_stream_capturing", lambda: True))
        for name in ("tolist", "numpy"):  # These are no operators.
            stack.enter_context(mock.patch.object(torch.Tensor, name, _refuse))
        stack.enter_context(_Recorder(graph))
        yield


def replace_cuda_graphs() -> None:
    """Stand in for CUDA graphs in this process, for a runner that knows no other."""
    torch.cuda.CUDAGraph, torch.cuda.graph = RecordedGraph, recording
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
