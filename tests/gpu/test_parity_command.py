# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity command where two ranks share one GPU."""

import json
import subprocess
import sys

import pytest
from hostpath import ROOT

pytestmark = pytest.mark.gpu(1)


def test_parity_command_on_a_shared_gpu(tmp_path):
    # 20 rows, of which two ranks hold 10 each, and 45, which they do not divide.
    for video in ("1,8,10", "5,6,6"):
        out = tmp_path / video
        command = [
            sys.executable, "-m", "parity", "--share-gpu", "--video", video, "--steps", "1",
            "--out", out,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert "FAIL" not in done.stdout and "PASS unfixed-seen" in done.stdout
        machine = json.loads((out / "parity.json").read_text())["machine"]
        assert (machine["device"], machine["devices"], machine["processes"]) == ("cuda", 1, "gloo")
