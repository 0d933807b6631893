# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Answer repeated forwards of the same shapes from captured CUDA graphs."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

WARM_UP_RUNS = 2


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]  # what the graph reads; overwritten before each replay
    outputs: list[torch.Tensor]
    output_values: list[Any]  # the leaves of the result, tensors replaced by None
    output_spec: Any


class CUDAGraphRunner:
    """Captures a function once for each key, and replays it on a key that it has seen.

    The key is the shape, dtype and device of each tensor argument, the value of each other
    argument, and what the registered functions return. A replay runs no Python but these
    functions: whatever else the function reads, it reads at the addresses of the capture.

    Attributes:
        enabled: False calls every wrapped function as it is.
        graphs: what has been captured, by key.
    """

    def __init__(self, enabled: bool = True) -> None:
        """Make an empty runner; without a GPU it is never enabled."""
        self.enabled = enabled and torch.cuda.is_available()
        self.graphs: dict[Hashable, _Captured] = {}
        self._extra_key_fns: dict[str, Callable[..., Hashable]] = {}
        self._pool = None

    def register_extra_key_fn(self, name: str, fn: Callable[..., Hashable]) -> None:
        """Add to the key what ``fn`` returns; it is called with the function's arguments.

        Args:
            name: of this part of the key; a second function of that name replaces the first.
            fn: called before every capture and replay, outside of any graph.
        """
        self._extra_key_fns[name] = fn

    def clear(self) -> None:
        """Forget all graphs and free their memory."""
        self.graphs.clear()
        self._pool = None

    def _key(self, leaves: list[Any], spec: Any, args: tuple, kwargs: dict) -> Hashable:
        extra = tuple((name, fn(*args, **kwargs)) for name, fn in self._extra_key_fns.items())
        values = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                values.append((tuple(leaf.shape), leaf.dtype, leaf.device))
            elif isinstance(leaf, Hashable):
                values.append(leaf)
            else:
                raise ValueError(
                    f"an argument of type {type(leaf).__name__} can be neither a tensor nor a part "
                    "of the graph's key; pass tensors and hashable values"
                )
        return (tuple(values), str(spec), extra)

    def wrap(self, fn: Callable) -> Callable:
        """Return ``fn`` with graphs.

        The outputs are copies, so that they outlive the next replay. ``fn`` may return any
        nesting of tensors and other values that pytree knows, or a dataclass of tensors.
        """

        def run(*args, **kwargs):
            if not self.enabled:
                return fn(*args, **kwargs)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            key = self._key(leaves, spec, args, kwargs)
            captured = self.graphs.get(key)
            if captured is None:
                captured = self.graphs[key] = self._capture(fn, leaves, spec)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            for static, given in zip(captured.inputs, tensors):
                static.copy_(given)
            captured.graph.replay()
            fresh = iter([x.clone() for x in captured.outputs])
            values = [
                next(fresh) if is_tensor else value for is_tensor, value in captured.output_values
            ]
            return _unflatten(values, captured.output_spec)

        return run

    def _capture(self, fn: Callable, leaves: list[Any], spec: Any) -> _Captured:
        static = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(static, spec)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                fn(*args, **kwargs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            result = fn(*args, **kwargs)
        values, output_spec = _flatten(result)
        return _Captured(
            graph=graph,
            inputs=[x for x in static if isinstance(x, torch.Tensor)],
            outputs=[x for x in values if isinstance(x, torch.Tensor)],
            output_values=[
                (True, None) if isinstance(x, torch.Tensor) else (False, x) for x in values
            ],
            output_spec=output_spec,
        )


def _flatten(result: Any) -> tuple[list[Any], Any]:
    # TransformerOutput is a plain dataclass, which pytree takes for one leaf.
    if hasattr(result, "__dataclass_fields__"):
        names = list(result.__dataclass_fields__)
        return [getattr(result, name) for name in names], (type(result), names)
    values, spec = pytree.tree_flatten(result)
    return values, (None, spec)


def _unflatten(values: list[Any], spec: Any) -> Any:
    kind, detail = spec
    if kind is None:
        return pytree.tree_unflatten(values, detail)
    return kind(**dict(zip(detail, values)))
