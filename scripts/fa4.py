# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Which FlashAttention-4 there is: by its distribution, and by importing it.

`flash_attn.cute` is not enough to go by: flash-attn 2.8.3 ships a package of that name that is not
FlashAttention-4, and a wheel for another CUDA fails only when it is imported. Standard library
only.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from functools import lru_cache

DISTRIBUTION = "flash-attn-4"
# The release that the pinned TensorRT-LLM asks for.
PINNED = "4.0.0b19"
# What the backend calls, with the parameter that makes a batch of unequal prompts exact.
_PROBE = """
import inspect
from flash_attn.cute.interface import _flash_attn_fwd
import flash_attn.cute
missing = {"seqused_k"} - set(inspect.signature(_flash_attn_fwd).parameters)
if missing:
    raise ImportError(f"{flash_attn.cute.__path__[0]} takes no {', '.join(missing)}")
"""


def version() -> str | None:
    """Returns the installed version of FlashAttention-4, or None; imports nothing."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def problem() -> str | None:
    """Returns why FlashAttention-4 cannot be used here, with what would help; None if it can.

    The import is tried in a process of its own, since it reads switches that a backend sets first.
    """
    found = version()
    if found is None:
        other = ""
        try:
            other = f" (flash-attn {importlib.metadata.version('flash-attn')} is something else)"
        except importlib.metadata.PackageNotFoundError:
            pass
        return f"{DISTRIBUTION} is not installed{other}; install {DISTRIBUTION}=={PINNED}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_real_path())},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    except subprocess.TimeoutExpired:
        return f"{DISTRIBUTION} {found} took more than five minutes to import; install it anew"
    if done.returncode == 0:
        return None
    said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"{DISTRIBUTION} {found} does not import ({said}); install it anew for this torch"


def _real_path() -> list[str]:
    """PYTHONPATH without the embedded host, whose kernels have the package's name."""
    return [
        place
        for place in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if place and not place.rstrip("/").endswith("host/cpu_kernels")
    ]
