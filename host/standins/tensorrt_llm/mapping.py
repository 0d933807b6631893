# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the LLM side's ``Mapping``: only what tensor parallelism needs here."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Mapping:
    """This rank's place in the tensor-parallel group.

    Attributes:
        world_size: processes in all.
        rank: this process.
        tp_size: tensor-parallel size; 1 means that every weight is whole.
        tp_rank: this process's place in its tensor-parallel group.
        tp_group: the global ranks of that group.
        tp_group_pg: its torch.distributed process group, or None when ``tp_size`` is 1.
    """

    world_size: int = 1
    rank: int = 0
    tp_size: int = 1
    tp_rank: int = 0
    tp_group: list[int] = field(default_factory=lambda: [0])
    tp_group_pg: Any = None

    def __post_init__(self) -> None:
        """Refuse a place outside the group."""
        if self.tp_size < 1 or not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(
                f"tp_rank={self.tp_rank} does not lie in a group of tp_size={self.tp_size}; "
                "expected 0 <= tp_rank < tp_size"
            )
