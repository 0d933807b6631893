# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a run on a checkout's own files changes about them from outside, and says so.

The files name bfloat16 and CUDA in places. A float32 comparison with diffusers, or a run without a
GPU, needs these few things otherwise; a bfloat16 run on GPUs changes nothing.
"""

from __future__ import annotations

import functools
import math
from contextlib import ExitStack
from importlib import import_module

import torch
import torch.distributed
import torch.distributed.device_mesh

PACKAGE = "tensorrt_llm._torch.visual_gen"
HALF = (torch.float16, torch.bfloat16)
# As long as the process.
_KEPT = ExitStack()


def before_import(device: torch.device, dtype: torch.dtype, backend: str) -> list[str]:
    """Prepares torch, and FA4's cast, before the layout and the model are made.

    Args:
        device: Of this rank.
        dtype: Of the model.
        backend: Attention backend.

    Returns:
        What was changed, one line for each thing.
    """
    if device.type == "cuda":
        return []
    notes = ["process groups: made for the CPU where the files say CUDA or NCCL"]
    mesh, distributed = torch.distributed.device_mesh, torch.distributed
    mesh.init_device_mesh = functools.partial(_mesh_on_cpu, mesh.init_device_mesh)
    distributed.new_group = functools.partial(_group_on_cpu, distributed.new_group)
    if backend == "FA4" and dtype not in HALF:
        module = import_module(f"{PACKAGE}.attention_backend.flash_attn4")
        module.FlashAttn4Attention._prepare_inputs = _as_they_are
        notes.append(
            f"FA4: its plain-torch double takes {_name(dtype)} as it is; the cast to bfloat16 for "
            "the GPU kernel is left out"
        )
    return notes


def before_pipeline(device: torch.device, graphs: bool) -> list[str]:
    """Prepares torch for a pipeline, with or without graphs; returns what was changed."""
    if device.type == "cuda":
        return []
    torch.compiler.set_stance("force_eager")
    notes = ["torch.compile: off, which only the conversion of frames to 8 bits asks for"]
    if graphs:
        _KEPT.enter_context(import_module(f"{PACKAGE}.recorded_graph").recorded_graphs())
        notes.append("CUDA graphs: their operators are recorded, and run again where they lie")
    return notes


def _mesh_on_cpu(make, device_type, *args, **kwargs):
    return make("cpu", *args, **kwargs)


def _group_on_cpu(make, *args, backend=None, **kwargs):
    return make(*args, backend="gloo" if backend else None, **kwargs)


def _as_they_are(self, q, k, v, attention_mask):
    # What the method returns besides: whether the mask is causal, and the dtype to cast back to.
    return q, k, v, getattr(attention_mask, "name", "FULL") == "CAUSAL", q.dtype


def before_loading(model, dtype: torch.dtype, device: torch.device) -> list[str]:
    """Gives a new model the dtype of the run, so that loading its weights rounds nothing.

    Args:
        model: The checkout's transformer, without weights.
        dtype: Of the run.
        device: Of the model.

    Returns:
        What was changed, one line for each thing.
    """
    notes = []
    if dtype not in HALF:
        for module in model.modules():
            # Norms and projections cast their weights to this after loading.
            if getattr(module, "dtype", None) is torch.bfloat16:
                module.dtype = dtype
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        notes.append(f"weights: kept in {_name(dtype)} where the files say bfloat16")
        notes += _remake_tables(dict(model.named_modules()), model, dtype, device)
    return notes


def _remake_tables(modules, model, dtype: torch.dtype, device: torch.device) -> list[str]:
    """Computes the tables of the time embedder and of the rotary embedding as diffusers does."""
    notes = []
    embedder = modules.get("time_embedder")
    if hasattr(embedder, "freqs"):
        half = len(embedder.freqs)
        powers = -math.log(10000) * torch.arange(half, dtype=torch.float32, device="cpu") / half
        embedder.freqs = torch.exp(powers).to(device, dtype)
        notes.append(
            "time embedder: frequency table made anew in float32, it is bfloat16 in the files "
            "(worth 1e-4 against diffusers)"
        )
    rotary = modules.get("language_model.rotary_emb")
    if hasattr(rotary, "inv_freq") and device.type == "cuda":
        config = model.model_config.pretrained_config
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu")
        rotary.inv_freq = (1.0 / config.rope_theta ** (exponent / config.head_dim)).to(device)
        notes.append(
            "rotary frequencies: made on the CPU; a last bit that a GPU rounds otherwise moves an "
            "angle at position 15000 by 1e-3"
        )
    return notes


def after_loading(model, dtype: torch.dtype) -> None:
    """Takes back the one cast that the files make whatever a module's dtype says."""
    if dtype == torch.float64:
        model.time_embedder.to(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
