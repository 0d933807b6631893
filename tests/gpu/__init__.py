# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What several GPU tests ask for."""

import json
import subprocess
import sys
from pathlib import Path

import fa4
import pytest
import torch
from hostpath import ROOT
from support.serving import Serving


def require(backend: str) -> None:
    """Skips the test where the backend's kernels are not installed."""
    if backend == "FA4" and fa4.problem():
        pytest.skip(fa4.problem())


def serve(backend: str, **options) -> Serving:
    """Serves the host's transformer in bfloat16 on the GPU; options as Serving.host takes them."""
    require(backend)
    return Serving.host(backend, "cuda", torch.bfloat16, **options)


def passing_parity(out: Path, *options: str) -> dict:
    """Runs the parity command, which has to pass and to see the bug, and returns its report."""
    done = subprocess.run(
        [sys.executable, "-m", "parity", *options, "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    said = done.stdout + done.stderr[-2000:]
    assert done.returncode == 0, said
    assert "FAIL" not in done.stdout and "PASS unfixed-seen" in done.stdout, said
    return json.loads((out / "parity.json").read_text())
