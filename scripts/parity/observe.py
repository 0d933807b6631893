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
import math
import os
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from parity.outside import PACKAGE

ANSWERS = ("first", "prompts", "controls")


def observe(model, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Observes one rank's model.

    Args:
        model: parity.worker's, with weights.
        inputs: Those of one of its cases.

    Returns:
        "launches" of an attention kernel per layer and "host_reads", both of one step that is not
        the first of its request. ANSWERS: relative L2 distance of the replayed from the eager
        ones, infinite for NaN; 0 where nothing was captured, for the reason in "refused".
    """
    transformer, requests = model.model, []
    latents = inputs["latents"].to(model.device, model.dtype)
    changed = inputs | {name: inputs[name].flip(0) for name in ("text_ids", "text_mask")}
    for prompts, factor in ((inputs, 0.5), (changed, 0.5), (inputs, -1.0)):
        model.begin(prompts)
        arguments = model.arguments(latents, 500)
        requests.append(arguments | {"control_latents": [factor * arguments["hidden_states"]]})
    eager = functools.partial(type(transformer).forward, transformer)
    fa4 = importlib.import_module(f"{PACKAGE}.attention_backend.flash_attn4")
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
    kernels = [(F, "scaled_dot_product_attention"), (cudnn, "default")]
    # None where FA4 is not installed.
    kernels += [(fa4, "_flash_attn_fwd")] * (fa4._flash_attn_fwd is not None)
    with _double().Counter(*kernels) as counter:
        expected = [_answer(transformer, eager, request) for request in requests]
        counter.launches = counter.reads = 0
        eager(**requests[-1])
    launches, reads = counter.launches / len(transformer.gen_layers), counter.reads
    found = {"launches": launches, "host_reads": reads} | dict.fromkeys(ANSWERS, 0.0)
    if reads:
        return found | {"refused": f"{reads} host reads a step, which no graph is made with"}
    try:
        return found | {"refused": ""} | _replay(transformer, requests, expected)
    except RuntimeError as error:
        return found | {"refused": f"the capture failed: {error}"}


def _answer(transformer, forward, request) -> torch.Tensor:
    transformer.reset_cache()
    # A replay's output lies in its graph.
    return forward(**request).video.clone()


def _replay(transformer, requests, expected) -> dict[str, float]:
    module = importlib.import_module(f"{PACKAGE}.cuda_graph_runner")
    runner = module.CUDAGraphRunner(module.CUDAGraphRunnerConfig(use_cuda_graph=True))
    on_gpu = expected[0].is_cuda
    if not on_gpu:
        # There is no free memory of a GPU to take a share of.
        os.environ.setdefault("TLLM_COSMOS3_GRAPH_INPUT_BYTES", str(1 << 30))
    with nullcontext() if on_gpu else _double().recorded_graphs():
        transformer.register_cuda_graph_extra_key_fns(runner)
        forward = runner.wrap(transformer.forward)
        try:
            answers = [_answer(transformer, forward, request) for request in requests]
        finally:
            # NCCL waits for ever to end a communicator that a living graph uses.
            runner.clear()
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(answers, expected)]
    errors = [math.inf if math.isnan(error) else error for error in errors]
    return dict(zip(ANSWERS, errors))


def _double():
    return importlib.import_module(f"{PACKAGE}.recorded_graph")
