# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for small helpers of the PyTorch backend."""

import torch


def relu2(x: torch.Tensor) -> torch.Tensor:
    """Return ``relu(x)`` squared, the Edge recipe's activation."""
    return torch.square(torch.relu(x))


class Fp4QuantizedTensor:
    """A type that upper layers test for; the host never makes one."""


def make_weak_ref(value):
    """Return ``value`` itself: a graph's outputs then live as long as the graph does."""
    return value


if not torch.backends.cuda.is_built():
    # A CPU build of PyTorch raises; a CUDA build, which upstream always has, says False.
    torch.cuda.is_current_stream_capturing = lambda: False
