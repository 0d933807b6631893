# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Two GPUs against one over NCCL, and graphs with the exchange inside."""

import json
import time

import pytest
import torch
from bench import request, step
from bench.ranks import on_ranks

from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

from . import passing_parity, require, serve

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


CASE = {"size": "nano-4l", "video_rows": 1024, "device": "cuda", "dtype": "bfloat16"}
CASE |= {"repeats": 2, "text_rows": 4096}
backends = pytest.mark.parametrize("backend", ["FA4", "VANILLA"])


@backends
def test_graph_with_nccl_inside_vs_eager(backend):
    require(backend)
    record = step.run(CASE | {"backend": backend}, ranks=2)
    assert record["graph_bit_equal"], "replayed and eager differ"
    assert max(record["relative_to_loop"]["ours"]) < 2e-2 < record["relative_to_loop"]["unfixed"][0]


def test_requests_of_every_variant_run_on_two_ranks():
    record = request.run(CASE | {"backend": "VANILLA"}, ranks=2)
    assert {"cfg2", "graph", "graph, new bucket"} < set(record["requests"][0]["times"])


def _alternate(rank, world_size, device, case):
    """Two prompts of one bucket in turn, and back to the first by assignment, all replayed."""
    mapping = VisualGenMapping(world_size=world_size, rank=rank, ulysses_size=world_size)
    serving = serve(case["backend"], mapping=mapping)
    transformer = serving.transformer
    runner = serving.graphs()
    requests = [serving.request(lengths, seed=n) for n, lengths in enumerate([(30, 700), (650, 9)])]
    expected, saved = [], []
    for arguments in requests:
        expected.append(serving.eager(arguments))
        saved.append((transformer.cached_kv, transformer.cached_freqs_gen))
    equal = []
    for n in (0, 1, 0):
        transformer.reset_cache()
        equal.append(torch.equal(transformer(**requests[n]).video, expected[n]))
    # As the transfer pipeline does, which keeps the text of each guidance branch.
    for n in (1, 0, 1):
        transformer.cached_kv, transformer.cached_freqs_gen = saved[n]
        equal.append(torch.equal(transformer(**requests[n]).video, expected[n]))
    graphs = len(runner.graphs)
    runner.clear()
    return {"equal": equal, "graphs": graphs, "same": torch.equal(*expected)}


@backends
def test_graph_with_nccl_inside_over_prompts_and_branches_vs_eager(backend):
    require(backend)
    found = on_ranks(_alternate, 2, {"device": "cuda", "backend": backend})
    assert not found["same"], "a stale graph would go unseen"
    assert found["equal"] == [True] * 6 and found["graphs"] == 1, found


def _repeat(rank, world_size, device, case):
    """How many of 100 requests equal the first, and whether another prompt's does."""
    mapping = VisualGenMapping(world_size=world_size, rank=rank, **case["layout"])
    serving = serve("FA4", mapping=mapping)
    first = serving.eager(serving.request((30, 700)))
    equal = sum(torch.equal(serving.eager(serving.request((30, 700))), first) for _ in range(100))
    return equal, torch.equal(serving.eager(serving.request((31, 700))), first)


@pytest.mark.parametrize("axis", ["ulysses_size", "tp_size", "attn2d_col_size", "ring_size"])
def test_requests_repeat_bitwise(axis):
    require("FA4")
    assert on_ranks(_repeat, 2, {"device": "cuda", "layout": {axis: 2}}) == (100, False)


def _fail(rank, world_size, device, case):
    mapping = VisualGenMapping(world_size=world_size, rank=rank, ulysses_size=world_size)
    serving = serve("VANILLA", mapping=mapping)
    serving.graphs()
    serving.transformer(**serving.request((30, 700)))
    raise RuntimeError("with graphs that hold NCCL work")


def test_ranks_that_raise_with_graphs_of_nccl_work_end():
    started = time.monotonic()
    with pytest.raises(Exception, match="exit code 1"):
        on_ranks(_fail, 2, {"device": "cuda"})
    assert time.monotonic() - started < 120
