# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Two GPUs against one over NCCL, and graphs with the exchange inside."""

import json

import pytest
import torch
from bench import step

from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

from . import passing_parity, require
from .test_graphs import build, graphed, request

pytestmark = pytest.mark.gpu(2)


@pytest.mark.parametrize(
    "backend, dtype", [("FA4", "bfloat16"), ("VANILLA", "bfloat16"), ("VANILLA", "float32")]
)
def test_parity_command_on_two_gpus(backend, dtype, tmp_path):
    require(backend)
    # 1023 rows: two ranks do not divide them.
    report = passing_parity(
        tmp_path / "report", "--device", "cuda", "--size", "nano-4l", "--dtype", dtype,
        "--backend", backend, "--video", "3,22,62", "--steps", "1",
    )  # fmt: skip
    assert "H200" in json.dumps(report) or "NVIDIA" in json.dumps(report)


@pytest.mark.parametrize("backend", ["FA4", "VANILLA"])
def test_graph_with_nccl_inside_vs_eager(backend):
    require(backend)
    record = step.run("nano-4l", backend, 1024, ranks=2, repeats=2)
    assert record["graph_bit_equal"], "replayed and eager differ"
    assert max(record["relative_to_loop"]["ours"]) < 2e-2 < record["relative_to_loop"]["unfixed"][0]


def _alternate(rank, world_size, device, case):
    """Two prompts of one bucket in turn, and back to the first by assignment, all replayed."""
    mapping = VisualGenMapping(world_size=world_size, rank=rank, ulysses_size=world_size)
    transformer = build(case["backend"], mapping=mapping)
    runner, forward = graphed(transformer)
    requests = [request(lengths, seed=n) for n, lengths in enumerate([(30, 700), (650, 9)])]
    expected, saved = [], []
    for arguments in requests:
        transformer.reset_cache()
        expected.append(transformer(**arguments).video)
        saved.append((transformer.cached_kv, transformer.cached_freqs_gen))
    equal = []
    for n in (0, 1, 0):
        transformer.reset_cache()
        equal.append(torch.equal(forward(**requests[n]).video, expected[n]))
    # As the transfer pipeline does, which keeps the text of each guidance branch.
    for n in (1, 0, 1):
        transformer.cached_kv, transformer.cached_freqs_gen = saved[n]
        equal.append(torch.equal(forward(**requests[n]).video, expected[n]))
    graphs = len(runner.graphs)
    runner.clear()
    return {"equal": equal, "graphs": graphs, "same": torch.equal(*expected)}


@pytest.mark.parametrize("backend", ["FA4", "VANILLA"])
def test_graph_with_nccl_inside_over_prompts_and_branches_vs_eager(backend):
    require(backend)
    found = step.on_ranks(_alternate, 2, {"device": "cuda", "backend": backend})
    assert not found["same"], "a stale graph would go unseen"
    assert found["equal"] == [True] * 6 and found["graphs"] == 1, found
