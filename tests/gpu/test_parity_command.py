# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity command where two ranks share one GPU, and ranks that fail."""

import time

import pytest
import torch
from bench import step

from . import passing_parity

pytestmark = pytest.mark.gpu(1)


def test_parity_command_on_a_shared_gpu(tmp_path):
    # 20 rows, of which two ranks hold 10 each, and 45, which they do not divide.
    for video in ("1,8,10", "5,6,6"):
        options = ("--share-gpu", "--video", video, "--steps", "1")
        machine = passing_parity(tmp_path / video, *options)["machine"]
        assert (machine["device"], machine["devices"], machine["processes"]) == ("cuda", 1, "gloo")


@pytest.mark.parametrize("layout, ranks", [("ulysses=2", 2), ("cfg=2,ulysses=2", 4)])
def test_bfloat16_on_several_ranks_is_bit_equal_to_one(tmp_path, layout, ranks):
    report = passing_parity(
        tmp_path / "report", "--share-gpu", "--size", "nano-4l", "--dtype", "bfloat16", "--layout",
        layout, "--video", "1,14,14", "--prompt-tokens", "30,700", "--steps", "1", "--no-oracle",
    )  # fmt: skip
    assert report["settings"]["ranks"] == ranks and report["matrix_products"]["uneven"] == []
    held = [check for check in report["checks"] if check["name"].startswith("fixed-vs-one/")]
    assert held and all(check["measured"] == check["limit"] == 0.0 for check in held)


def _raise_with_a_graph(rank, world_size, device, case):
    x = torch.ones(8, device=device)
    torch.distributed.all_reduce(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.distributed.all_reduce(x)
    graph.replay()
    raise RuntimeError("on purpose")


def test_rank_that_raises_while_a_graph_holds_nccl_work_ends():
    started = time.monotonic()
    ranks = min(torch.cuda.device_count(), 2)
    with pytest.raises(Exception, match="exit code 1"):
        step.on_ranks(_raise_with_a_graph, ranks, {"device": "cuda"})
    assert time.monotonic() - started < 60
