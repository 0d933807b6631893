# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for helpers of the package's top level."""

from contextlib import contextmanager


def torch_pybind11_abi() -> str:
    """Return what compiled code would have to agree on with torch; nothing here is compiled."""
    return ""


@contextmanager
def nvtx_range(name: str, color: str = "grey"):
    """Mark nothing: a context and a decorator, as profiling's is."""
    yield
