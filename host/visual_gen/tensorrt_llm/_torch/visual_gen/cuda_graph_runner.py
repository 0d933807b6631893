# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Answer repeated forwards of the same shapes from captured CUDA graphs."""

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensorrt_llm.logger import logger

WARM_UP_RUNS = 2


class CUDAGraphRunner:
    """Captures a function once for each key, and replays it on a key that it has seen.

    The key is the shape, dtype and device of each tensor argument, the value of each other
    argument, and for each registered function the pair of its name and what it returns. A replay
    runs no Python but these functions: whatever else the function reads, it reads at the
    addresses of the capture.

    Attributes:
        enabled: False calls every wrapped function as it is.
        allow_capture: False runs what has not been captured yet as it is.
        graphs: the captured graphs, by key.
        static_inputs: the tensors that each graph reads its arguments from, by key.
        graph_outputs: what each captured call returned, at the addresses that a replay writes.
    """

    def __init__(self, enabled: bool = True) -> None:
        """Make an empty runner; without a GPU it is never enabled."""
        self.enabled = enabled and torch.cuda.is_available()
        self.allow_capture = True
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.static_inputs: dict[Hashable, list[torch.Tensor]] = {}
        self.graph_outputs: dict[Hashable, Any] = {}
        # Upstream keeps weak references beside the outputs; who drops a graph drops these too.
        self._graph_output_refs: dict[Hashable, Any] = {}
        self._extra_key_fns: dict[str, Callable[..., Hashable]] = {}
        self._failed: set[Hashable] = set()
        self._pool = None

    def register_extra_key_fn(self, name: str, fn: Callable[..., Hashable]) -> None:
        """Add (name, what ``fn`` returns) to the key; it is called with the function's arguments.

        Args:
            name: of this part of the key; a second function of that name replaces the first.
            fn: called before every capture and replay, outside of any graph.
        """
        self._extra_key_fns[name] = fn

    def clear(self) -> None:
        """Forget all graphs and free their memory."""
        self.graphs.clear()
        self.static_inputs.clear()
        self.graph_outputs.clear()
        self._graph_output_refs.clear()
        self._failed.clear()
        self._pool = None

    def _key(self, leaves: list[Any], spec: Any, args: tuple, kwargs: dict) -> tuple:
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
        return (tuple(values), str(spec), *extra)

    def wrap(self, fn: Callable) -> Callable:
        """Return ``fn`` with graphs.

        The outputs are copies, so that they outlive the next replay. ``fn`` returns a nesting of
        tensors and other values that pytree knows, or a dataclass of such.
        """

        def run(*args, **kwargs):
            if not self.enabled:
                return fn(*args, **kwargs)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            key = self._key(leaves, spec, args, kwargs)
            if key not in self.graphs and not self._can_capture(key, fn, leaves, spec):
                return fn(*args, **kwargs)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            for static, given in zip(self.static_inputs[key], tensors):
                static.copy_(given)
            self.graphs[key].replay()
            return _copy(self.graph_outputs[key])

        return run

    def _can_capture(self, key: tuple, fn: Callable, leaves: list[Any], spec: Any) -> bool:
        """Capture, unless that is not allowed or failed before; a failure is told once."""
        if not self.allow_capture or key in self._failed:
            return False
        try:
            self._capture(key, fn, leaves, spec)
        except RuntimeError as error:  # what CUDA errors are in every torch
            self._failed.add(key)
            logger.warning(f"a CUDA graph could not be captured and is run eagerly: {error}")
            return False
        return True

    def _capture(self, key: tuple, fn: Callable, leaves: list[Any], spec: Any) -> None:
        static = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(static, spec)
        # On the stream of all other work, as upstream's runner warms up: an exchange between ranks
        # that changes streams has to be ordered alike on all of them.
        for _ in range(WARM_UP_RUNS):
            fn(*args, **kwargs)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            result = fn(*args, **kwargs)
        self.graphs[key] = graph
        self.static_inputs[key] = [x for x in static if isinstance(x, torch.Tensor)]
        self.graph_outputs[key] = result


def _copy(result: Any) -> Any:
    # TransformerOutput is a plain dataclass, which pytree takes for one leaf.
    if is_dataclass(result):
        return replace(
            result, **{field.name: _copy(getattr(result, field.name)) for field in fields(result)}
        )
    return pytree.tree_map_only(torch.Tensor, torch.clone, result)
