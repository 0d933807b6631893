# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the hand-over of process groups to compiled kernels, of which there are none."""


def init_pg(world_group, local_group, abi: str) -> None:
    """Do nothing."""


def shutdown_pg() -> None:
    """Do nothing."""
