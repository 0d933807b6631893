# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the communicator module: the plain sum by another path, and base classes."""

from tensorrt_llm._torch.distributed import AllReduce

__all__ = ["AllReduce", "Distributed", "TorchDist"]


class Distributed:
    """Base of communicators."""

    def __init__(self, mapping) -> None:
        """Remember the layout."""
        self.mapping = mapping


class TorchDist(Distributed):
    """The communicator over torch.distributed, as a base to derive from."""
