# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the device-mesh helper."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def mesh_device_type() -> str:
    """Return where the default process group communicates: "cuda" under NCCL, else "cpu"."""
    if dist.is_initialized() and "nccl" in str(dist.get_backend()):
        return "cuda"
    if not dist.is_initialized() and torch.cuda.is_available():
        return "cuda"
    return "cpu"


def build_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Make the mesh, and with it one process group per axis. Collective: all ranks call it."""
    return init_device_mesh(mesh_device_type(), shape, mesh_dim_names=names)
