# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Answer repeated forwards of the same shapes from captured CUDA graphs.

As blind as upstream's: the key is made of the shapes of arguments that are tensors and of what
registered functions return, and a replay refreshes these tensors and nothing else. Lists, numbers
and whatever the function reads elsewhere are what they were at capture.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from .recorded_graph import RecordedGraph, record


@dataclass
class CUDAGraphRunnerConfig:
    """Configuration of a runner.

    Attributes:
        use_cuda_graph: False calls every wrapped function as it is.
    """

    use_cuda_graph: bool


class CUDAGraphRunner:
    """Captures a function once for each key, and replays it on a key that it has seen.

    Where there is no GPU, a capture records the operators that run, and a replay runs them again
    on the same tensors: it reads by address too.

    Attributes:
        enabled: False calls every wrapped function as it is.
        allow_capture: False runs what has not been captured yet as it is.
        graphs: the captured graphs, by key.
        graph_outputs: what each capture returned, at the addresses that a replay writes.
        static_inputs: positional and keyword arguments that each graph was captured with.
    """

    WARMUP_STEPS = 2

    def __init__(self, config: CUDAGraphRunnerConfig) -> None:
        """Make an empty runner."""
        self.enabled = config.use_cuda_graph
        self.allow_capture = True
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | RecordedGraph] = {}
        self.graph_outputs: dict[Hashable, Any] = {}
        self.static_inputs: dict[Hashable, tuple[list, dict]] = {}
        # Upstream keeps weak references beside the outputs; who drops a graph drops these too.
        self._graph_output_refs: dict[Hashable, Any] = {}
        self._extra_key_fns: dict[str, Callable[..., Hashable]] = {}
        self._pool = None

    def register_extra_key_fn(self, name: str, fn: Callable[..., Hashable]) -> None:
        """Add (name, what ``fn`` returns) to the key, unless that is None.

        Args:
            name: of this part of the key; a second function of that name replaces the first.
            fn: called with the function's arguments before every capture and replay.

        Raises:
            RuntimeError: graphs have been captured already.
        """
        if self.graphs:
            raise RuntimeError(f"key function {name!r} comes after the first capture")
        self._extra_key_fns[name] = fn

    def get_graph_key(self, *args, **kwargs) -> tuple:
        """Return the key of a call: ("arg0", shape), ..., (name, shape), ..., (name, value)."""
        named = [(f"arg{i}", x) for i, x in enumerate(args)] + sorted(kwargs.items())
        shapes = [(name, tuple(x.shape)) for name, x in named if isinstance(x, torch.Tensor)]
        extra = [(name, fn(*args, **kwargs)) for name, fn in sorted(self._extra_key_fns.items())]
        return (*shapes, *((name, value) for name, value in extra if value is not None))

    def clear(self) -> None:
        """Release all graphs and their memory."""
        for graph in self.graphs.values():
            graph.reset()
        for kept in (self.graphs, self.graph_outputs, self.static_inputs, self._graph_output_refs):
            kept.clear()
        self._pool = None

    def wrap(self, fn: Callable) -> Callable:
        """Return ``fn`` with graphs. Its output lies in the graph: clone what is kept."""

        def run(*args, **kwargs):
            if not self.enabled:
                return fn(*args, **kwargs)
            key = self.get_graph_key(*args, **kwargs)
            if key not in self.graphs:
                if not self.allow_capture:
                    return fn(*args, **kwargs)
                self._capture(key, fn, args, kwargs)
            static_args, static_kwargs = self.static_inputs[key]
            for static, given in zip(static_args, args):
                _refresh(static, given)
            for name, given in kwargs.items():
                _refresh(static_kwargs.get(name), given)
            self.graphs[key].replay()
            return self.graph_outputs[key]

        return run

    def _capture(self, key: tuple, fn: Callable, args: tuple, kwargs: dict) -> None:
        static_args = [_clone(x) for x in args]
        static_kwargs = {name: _clone(x) for name, x in kwargs.items()}
        # On the stream of all other work, as upstream's runner warms up: an exchange between ranks
        # that changes streams has to be ordered alike on all of them.
        for _ in range(self.WARMUP_STEPS):
            fn(*static_args, **static_kwargs)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        if torch.cuda.is_available():
            graph = torch.cuda.CUDAGraph()
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool):
                output = fn(*static_args, **static_kwargs)
        else:
            graph, output = record(fn, static_args, static_kwargs)
        self.graphs[key] = graph
        self.static_inputs[key] = (static_args, static_kwargs)
        self.graph_outputs[key] = self._graph_output_refs[key] = output


def _clone(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _refresh(static: Any, given: Any) -> None:
    if isinstance(given, torch.Tensor):
        static.copy_(given)
