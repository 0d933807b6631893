# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""What a replayed CUDA graph of Cosmos3 reads, made fresh for every request.

A replay runs no Python and reads at the addresses of its capture. The runner refreshes arguments
that are tensors, and keys graphs by their shapes. Everything else that forward reads is copied to
a fixed address here before the key is looked up (text K/V, lengths, RoPE tables, lists of control
latents), or is part of the key (numbers, flags, lengths that shapes depend on), or is refused.

Eager forwards read what they are given; only a capture reads the copies. Copies belong to the
graphs that read them: they stand in the graphs' keys, and go with the last of them.
"""

from __future__ import annotations

import inspect
import numbers
import os
import weakref
from typing import Hashable, Optional, Sequence

import torch
import torch.distributed as dist

from tensorrt_llm.logger import logger

# Bytes that copies may take on each GPU, and what they may take of the free memory by default.
BYTES_VARIABLE = "TLLM_COSMOS3_GRAPH_INPUT_BYTES"
FREE_MEMORY_SHARE = 0.1

_PART = "request"


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _Copies:
    """Some tensors' copies; made outside of inference mode, so that any mode can refill them."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]):
        self.name = name
        with torch.inference_mode(False):
            self.tensors = [torch.empty_like(tensor) for tensor in tensors]
        self.sources: list[weakref.ref] = []

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        return len(self.sources) == len(tensors) and all(
            source() is tensor for source, tensor in zip(self.sources, tensors)
        )

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, list(tensors))
        self.sources = [weakref.ref(tensor) for tensor in tensors]

    def __repr__(self) -> str:
        return f"graph input {self.name}{[tuple(tensor.shape) for tensor in self.tensors]}"


class GraphInputs:
    """The copies that a transformer's graphs read, and the part of the graph key that names them.

    Past `max_bytes` those used longest ago go, with their graphs, but never the request's own.

    Args:
        max_bytes: Bytes that copies may take on this GPU, the same on all ranks. By default what
            TLLM_COSMOS3_GRAPH_INPUT_BYTES says, or else a tenth of what the fullest GPU has free
            at the first request.
    """

    def __init__(self, max_bytes: Optional[int] = None):
        self.max_bytes = max_bytes
        self._copies: weakref.WeakValueDictionary[Hashable, _Copies] = weakref.WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(_nbytes(copies.tensors) for copies in self._copies.values())

    def register(self, transformer: torch.nn.Module, runner) -> None:
        """Makes the request a part of the key of the runner around a transformer's forward.

        The transformer's `prepare_graph_inputs` takes forward's arguments by name, does what a
        request does once, host reads included, and returns what forward reads of it besides
        (name -> tensors), and what a capture bakes in besides, hashable.
        """
        signature = inspect.signature(type(transformer).forward)
        # The runner holds the function, and the transformer may hold the runner.
        transformer, runner = weakref.proxy(transformer), weakref.proxy(runner)

        def request_key(*args, **kwargs) -> Hashable:
            bound = signature.bind(transformer, *args, **kwargs)
            bound.apply_defaults()
            arguments = {k: v for k, v in bound.arguments.items() if k not in ("self", "kwargs")}
            given, baked = _sort_arguments(arguments)
            kept, baked_too = transformer.prepare_graph_inputs(**arguments)
            return (self._load(runner, kept, given), baked, baked_too)

        runner.register_extra_key_fn(_PART, request_key)

    def read(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Returns where a forward reads these tensors: their copies in a capture, else themselves.

        Raises:
            RuntimeError: A capture would read tensors that the next request leaves behind.
        """
        if not (tensors and torch.cuda.is_current_stream_capturing()):
            return tensors
        for copies in self._copies.values():
            if copies.holds(tensors):
                return copies.tensors
        raise RuntimeError(
            f"a CUDA graph would read {[tuple(x.shape) for x in tensors]} where the next request "
            "does not write; call register_cuda_graph_extra_key_fns(runner) before it captures."
        )

    def _load(self, runner, kept: dict, given: dict) -> Hashable:
        """Puts the request where graphs read it; returns the copies, which name its graphs."""
        loaded = []
        for name, tensors in (kept | given).items():
            shape = (name, *((x.shape, x.dtype, x.device) for x in tensors))
            copies = self._copies.pop(shape, None)
            if copies is None:
                if not runner.allow_capture:
                    return "eager"  # No graph reads this shape, and none will be captured now.
                self._make_room(runner, _nbytes(tensors), loaded)
                copies = _Copies(name, tensors)
                logger.info(f"Cosmos3 {copies}: {self.nbytes} of {self.max_bytes} bytes before")
            self._copies[shape] = copies  # The last of them is the one used last.
            # What a caller holds may have changed in place.
            if name in given or not copies.holds(tensors):
                copies.fill(tensors)
            loaded.append(copies)
        return tuple(loaded)

    def _make_room(self, runner, needed: int, loaded: list[_Copies]) -> None:
        if self.max_bytes is None:
            self.max_bytes = _default_bytes()
        while self.nbytes + needed > self.max_bytes:
            oldest = next((key for key, value in self._copies.items() if value not in loaded), None)
            if oldest is None:
                break
            _drop_graphs(runner, self._copies.pop(oldest))


def _sort_arguments(arguments: dict[str, object]) -> tuple[dict, tuple]:
    """Sorts forward's arguments into sequences of tensors, to be copied, and values for the key.

    Raises:
        ValueError: An argument is neither of these nor a tensor, which the runner refreshes.
    """
    given, baked = {}, []
    for name, value in arguments.items():
        # Graphs and offloading, which the contexts are for, exclude each other.
        if isinstance(value, torch.Tensor) or name == "offload_context":
            continue
        items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if items and all(isinstance(item, torch.Tensor) for item in items):
            given[name] = items
        elif all(item is None or isinstance(item, (numbers.Number, str)) for item in items):
            baked.append((name, items))
        else:
            raise ValueError(
                f"{name} of type {type(value).__name__} would be stale in a CUDA graph; pass a "
                "tensor, a list of tensors or numbers, or run without graphs."
            )
    return given, tuple(baked)


def _drop_graphs(runner, copies: _Copies) -> None:
    """Releases the graphs that read these copies; the runner keeps all others."""
    for key in [key for key in runner.graphs if copies in dict(key)[_PART][0]]:
        runner.graphs.pop(key).reset()
        for kept in (runner.graph_outputs, runner._graph_output_refs, runner.static_inputs):
            kept.pop(key, None)


def _default_bytes() -> int:
    if BYTES_VARIABLE in os.environ:
        return int(os.environ[BYTES_VARIABLE])
    free = torch.tensor(torch.cuda.mem_get_info()[0], device="cuda")
    # Ranks that dropped different graphs would wait for each other in their exchanges.
    if dist.is_initialized():
        dist.all_reduce(free, op=dist.ReduceOp.MIN)
    return int(free.item() * FREE_MEMORY_SHARE)
