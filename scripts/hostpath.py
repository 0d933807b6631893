# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Put the embedded host and the overlay on the import path of this process and its children."""

import importlib.machinery
import os
import sys
from pathlib import Path

import fa4

ROOT = Path(__file__).resolve().parent.parent


def roots(flash_attn: str = "auto") -> list[Path]:
    """Return the import roots in the order in which they are searched.

    Args:
        flash_attn: "auto" takes the real package if it is installed and a GPU is there, else the
            plain-torch kernels; "cpu" forces the latter, "real" the former.

    Raises:
        ValueError: another value, or "real" where flash-attn-4 is not installed.
    """
    if flash_attn not in ("auto", "cpu", "real"):
        raise ValueError(f"flash_attn={flash_attn!r}; expected 'auto', 'cpu' or 'real'")
    paths = [ROOT / "overlay", ROOT / "host" / "visual_gen", ROOT / "host" / "standins"]
    installed = fa4.version() is not None
    if flash_attn == "real" and not installed:
        raise ValueError(f"flash_attn='real', but {fa4.problem()}, or use 'cpu'")
    if flash_attn == "auto" and installed:
        import torch

        installed = torch.cuda.is_available()
    if flash_attn != "cpu" and installed:
        return paths
    return [*paths, ROOT / "host" / "cpu_kernels"]


def activate(flash_attn: str = "auto") -> list[Path]:
    """Make ``import tensorrt_llm...`` find the overlay and the host, here and in children.

    Sets ``sys.path``, ``PYTHONPATH`` and ``TLLM_DISABLE_MPI=1``. Calling it again changes nothing.

    Returns:
        The roots, first searched first.

    Raises:
        ValueError: as roots(), or a real TensorRT-LLM is installed in this interpreter.
    """
    paths = roots(flash_attn)
    # A package with an __init__ wins over namespace packages, wherever it stands on the path.
    installed = importlib.machinery.PathFinder.find_spec("tensorrt_llm", sys.path)
    if installed is not None and installed.origin is not None:
        raise ValueError(
            f"{installed.origin} is installed and would be imported in place of the embedded host; "
            "use an environment without tensorrt_llm, such as the .venv that make env creates"
        )
    ours = [str(p) for p in paths]
    sys.path[:] = ours + [p for p in sys.path if p not in ours]
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    os.environ["PYTHONPATH"] = os.pathsep.join(ours + [p for p in inherited if p not in ours])
    os.environ["TLLM_DISABLE_MPI"] = "1"
    return paths
