# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the enumeration that linear layers take; every member means NCCL or gloo here."""

from enum import IntEnum


class AllReduceStrategy(IntEnum):
    """How a row-parallel layer sums its parts; the host always calls torch.distributed."""

    NCCL = 0
    AUTO = 3
