# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the device-mesh helpers: where the process keeps its mesh."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class DeviceMeshTopologyImpl:
    """Base of layouts; the process has one mesh, which they share."""

    device_mesh: DeviceMesh | None = None
    tp_mesh: DeviceMesh | None = None


class SingleProcessGroup:
    """Stands for the group of one process where torch.distributed has none to offer."""

    @staticmethod
    def get_group():
        """Return the world if this process is alone in it, else a placeholder."""
        if dist.is_initialized() and dist.get_world_size() == 1:
            return dist.group.WORLD
        return SingleProcessGroup()

    @staticmethod
    def rank() -> int:
        """Return this process's place in the group."""
        return 0

    @staticmethod
    def size() -> int:
        """Return the number of processes in the group."""
        return 1


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
