# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the LLM side's ``Mapping``: only what tensor parallelism needs here."""

from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm._torch.device_mesh import DeviceMeshTopologyImpl


@dataclass
class Mapping:
    """This rank's place in the tensor-parallel group.

    Attributes:
        world_size: processes in all.
        rank: this process.
        tp_size: tensor-parallel size; 1 means that every weight is whole.
        tp_rank: this process's place in its tensor-parallel group; from ``rank`` when None.
        tp_group: the global ranks of that group.
        tp_group_pg: its torch.distributed process group, or None when ``tp_size`` is 1. When left
            out it is the "tp" axis of the process's device mesh, if there is one.
    """

    world_size: int = 1
    rank: int = 0
    tp_size: int = 1
    tp_rank: int | None = None
    tp_group: list[int] = field(default_factory=lambda: [0])
    tp_group_pg: Any = None

    def __post_init__(self) -> None:
        """Complete what was left out, and refuse a place outside the group."""
        if self.tp_rank is None:
            self.tp_rank = self.rank % max(1, self.tp_size)
        mesh = DeviceMeshTopologyImpl.device_mesh
        if self.tp_group_pg is None and self.tp_size > 1 and mesh is not None:
            self.tp_group_pg = mesh["tp"].get_group()
        if self.tp_size < 1 or not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(
                f"tp_rank={self.tp_rank} does not lie in a group of tp_size={self.tp_size}; "
                "expected 0 <= tp_rank < tp_size"
            )
