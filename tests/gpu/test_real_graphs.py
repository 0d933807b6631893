# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A checkout's own transformer, patched, behind its own graph runner. Needs TRTLLM_DIR.

On the CPU with the double of a graph, on a GPU with graphs: what a replay reads is refreshed. And
layers compiled as pipelines do: few graphs, and none for a prompt.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from parity import real
from support.synthetic import CHECKOUT, ROOT

from . import require

pytestmark = pytest.mark.skipif(
    not CHECKOUT,
    reason="set TRTLLM_DIR to a TensorRT-LLM checkout at a commit in UPSTREAM, to run on its files",
)


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    return real.prepare(Path(CHECKOUT), build=tmp_path_factory.mktemp("build")).stages


def _run(stage, device, backend):
    roots = [stage, real.STAND_INS, ROOT / "scripts", ROOT / "tests"]
    if device == "cpu":
        roots.append(ROOT / "host" / "cpu_kernels")
    else:
        require(backend)
    environment = {"PYTHONPATH": os.pathsep.join(map(str, roots)), "TLLM_DISABLE_MPI": "1"}
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "real_graphs.py"), device, backend],
        capture_output=True,
        text=True,
        env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )


BACKENDS = pytest.mark.parametrize("backend", ["FA4", "VANILLA"])
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(1))])


@BACKENDS
@DEVICES
def test_requests_in_turn_and_compiled_vs_eager(stages, device, backend):
    done = _run(stages["fixed"], device, backend)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    # Three buckets of each video, and two numbers of controls.
    assert int(done.stdout.split()[-1]) == (5 if device == "cpu" else 8)


@BACKENDS
@DEVICES
def test_unpatched_second_request_vs_eager(stages, device, backend):
    """It is not captured, since it reads lengths, or answers with what the first one left."""
    done = _run(stages["unfixed"], device, backend)
    said = done.stderr[-3000:]
    refused = "host read in a captured function" in said or "capturing" in said
    assert done.returncode != 0 and (refused or "request 1, first step: not equal" in said), said
