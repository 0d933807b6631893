# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Observe: what a step launches and reads back, and whether replayed graphs answer the request.

Three requests of one shape go through the runner that comes with the transformer: in the second the
two prompts change places, in the third control latents alone are others. Without a GPU the host's
double of a graph takes a graph's place; it reads by address too.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from hostpath import ROOT
from torch.utils._python_dispatch import TorchDispatchMode

from parity.outside import PACKAGE

REQUESTS = ("first", "prompts", "controls")
DOUBLE = "host/visual_gen/tensorrt_llm/_torch/visual_gen/recorded_graph.py"


def observe(model, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Observes one rank's model.

    Args:
        model: parity.worker's, with weights.
        inputs: Those of one of its cases.

    Returns:
        "launches" of an attention kernel per layer and "host_reads", both of one step that is not
        the first of its request. "replay": REQUESTS -> relative L2 distance of the replayed from
        the eager answer, infinite for NaN; None where nothing was captured, and "refused" says why.
    """
    transformer = model.model
    requests = list(_requests(model, inputs))
    forward = functools.partial(type(transformer).forward, transformer)
    with _Counter() as counter:
        expected = [_answer(transformer, forward, request) for request in requests]
        counter.launches = counter.reads = 0
        forward(**requests[-1])
    found = {
        "launches": counter.launches / len(transformer.gen_layers),
        "host_reads": counter.reads,
        "replay": None,
        "refused": _refused(model, counter.reads),
    }
    if not found["refused"]:
        try:
            found["replay"] = _replay(transformer, requests, expected, model.device)
        except RuntimeError as error:
            found["refused"] = f"the capture failed: {error}"
    transformer.reset_cache()
    return found


def _requests(model, inputs) -> Iterator[dict[str, Any]]:
    changed = inputs | {name: inputs[name].flip(0) for name in ("text_ids", "text_mask")}
    latents = inputs["latents"].to(model.device, model.dtype)
    for prompts, factor in ((inputs, 0.5), (changed, 0.5), (inputs, -1.0)):
        model.begin(prompts)
        arguments = model.arguments(latents, 500)
        yield arguments | {"control_latents": [factor * arguments["hidden_states"]]}


def _answer(transformer, forward, request) -> torch.Tensor:
    transformer.reset_cache()
    # A replay's output lies in its graph.
    return forward(**request).video.clone()


def _refused(model, reads: int) -> str:
    if reads:
        return f"{reads} host reads a step, which no graph can be captured with"
    distributed = torch.distributed.is_initialized()
    if model.device.type == "cuda" and distributed and torch.distributed.get_backend() == "gloo":
        return "an exchange through gloo is no part of a CUDA graph"
    return ""


def _replay(transformer, requests, expected, device) -> dict[str, float]:
    module = importlib.import_module(f"{PACKAGE}.cuda_graph_runner")
    runner = module.CUDAGraphRunner(module.CUDAGraphRunnerConfig(use_cuda_graph=True))
    on_cpu = device.type == "cpu"
    if on_cpu:
        # There is no free memory of a GPU to take a share of.
        os.environ.setdefault("TLLM_COSMOS3_GRAPH_INPUT_BYTES", str(1 << 30))
    with recorded_graphs() if on_cpu else nullcontext():
        transformer.register_cuda_graph_extra_key_fns(runner)
        forward = runner.wrap(transformer.forward)
        try:
            answers = [_answer(transformer, forward, request) for request in requests]
        finally:
            # NCCL waits for ever to end a communicator that a living graph uses.
            runner.clear()
    return {name: _off(*pair) for name, *pair in zip(REQUESTS, answers, expected)}


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    error = float((found - expected).norm() / expected.norm())
    return math.inf if math.isnan(error) else error


def _double():
    """Returns the module of the host's double, which no checkout has."""
    spec = importlib.util.spec_from_file_location("recorded_graph", ROOT / DOUBLE)
    module = sys.modules.get(spec.name)
    if module is None:
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@contextmanager
def recorded_graphs() -> Iterator[None]:
    """Puts the host's double in place of CUDA graphs, where there is no GPU."""
    double = _double()

    class Graph(double.RecordedGraph):
        def pool(self):
            return None

    @contextmanager
    def capture(graph, pool=None):
        capturing = mock.patch("torch.cuda.is_current_stream_capturing", lambda: True)
        with capturing, double.Recorder(graph):
            yield

    idle = {"synchronize": lambda: None, "empty_cache": lambda: None}
    with mock.patch.multiple("torch.cuda", CUDAGraph=Graph, graph=capture, **idle):
        yield


class _Counter(TorchDispatchMode):
    """Counts launches of attention kernels, and reads of values that are not on the host yet."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.reads = 0
        self._reads_host = _double().reads_host
        self._patches = ExitStack()

    def __enter__(self):
        fa4 = importlib.import_module(f"{PACKAGE}.attention_backend.flash_attn4")
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        kernels = [(F, "scaled_dot_product_attention"), (cudnn, "default")]
        # None where FA4 is not installed.
        kernels += [(fa4, "_flash_attn_fwd")] * bool(fa4._flash_attn_fwd)
        for where, name in kernels:
            self._patch(where, name, self._launch)
        for name in ("tolist", "numpy", "cpu", "to"):  # These are no operators, on a CPU at least.
            self._patch(torch.Tensor, name, self._method)
        return super().__enter__()

    def __exit__(self, *error):
        self._patches.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.reads += self._reads_host(operator, args) and not hasattr(args[0], "on_host")
        return operator(*args, **(kwargs or {}))

    def _patch(self, where, name: str, wrapper: Callable) -> None:
        wrapped = getattr(where, name)

        def function(*args, **kwargs):  # A method, which no partial is.
            return wrapper(name, wrapped, *args, **kwargs)

        self._patches.enter_context(mock.patch.object(where, name, function))

    def _launch(self, name, kernel, *args, **kwargs):
        self.launches += 1
        return kernel(*args, **kwargs)

    def _method(self, name, method, tensor, *args, **kwargs):
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
        result = method(tensor, *args, **kwargs)
        if name == "to" and "cpu" not in given:
            return result
        self.reads += not hasattr(tensor, "on_host")
        if isinstance(result, torch.Tensor):
            # On a CPU nothing else tells a tensor of the host from one of the device.
            result.on_host = True
        return result
