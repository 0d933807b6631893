# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity command where two ranks share one GPU."""

import pytest

from . import passing_parity

pytestmark = pytest.mark.gpu(1)


def test_parity_command_on_a_shared_gpu(tmp_path):
    # 20 rows, of which two ranks hold 10 each, and 45, which they do not divide.
    for video in ("1,8,10", "5,6,6"):
        options = ("--share-gpu", "--video", video, "--steps", "1")
        machine = passing_parity(tmp_path / video, *options)["machine"]
        assert (machine["device"], machine["devices"], machine["processes"]) == ("cuda", 1, "gloo")
