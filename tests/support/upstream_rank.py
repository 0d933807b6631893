# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One CPU rank of an upstream test that wants GPUs: `python upstream_rank.py TEST RANK STORE`.

Calls the test file's module-level logic for each of its cases on two gloo ranks, and prints the
outcome of each case as JSON: "passed", or what the assertion said.
"""

import importlib.util
import json
import sys
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
from parity import outside

WORLD_SIZE = 2


def main(path: str, rank: int, store: str) -> None:
    """Runs all cases on this rank."""
    device = torch.device("cpu")
    outside.before_import(device, torch.bfloat16, "VANILLA")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=120),
    )
    spec = importlib.util.spec_from_file_location("upstream_test", path)
    for module in ("text_kv", "text_attention", "text_fold", "text_graph"):
        name = f"tensorrt_llm._torch.visual_gen.models.cosmos3.{module}"
        if importlib.util.find_spec(name) is None:
            # The unpatched side has none of them, and has to show its numbers all the same.
            sys.modules[name] = mock.MagicMock()
    test = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(test)
    from tensorrt_llm._torch.device_mesh import DeviceMeshTopologyImpl

    outcomes = {}
    for name, arguments in test.CASES.items():
        # Each case is a process of its own upstream; the mesh is made once for each process.
        DeviceMeshTopologyImpl.device_mesh = test.VisualGenMapping.seq_mesh = None
        try:
            test._logic_ranks_equal_one(rank, WORLD_SIZE, device, *arguments)
            outcomes[name] = "passed"
        except (AssertionError, NotImplementedError, ValueError) as error:
            # Numbers that are off, or a layout that is refused.
            outcomes[name] = f"failed: {error}"
        dist.barrier()
    print(json.dumps(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
