# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A checkout's transformer behind its graph runner and compiled: `real_graphs.py DEVICE BACKEND`.

PYTHONPATH holds the staged checkout and its stand-ins. Prints the number of graphs; an exception
says what was not the eager forward, or compiled too often.
"""

import sys

import torch
from cosmos3_sizes import full_config
from parity import outside
from parity.checkpoint import random_weights

from support.serving import (
    CONFIG,
    IMAGE,
    VIDEO,
    Serving,
    assert_bounded_compilation,
    assert_replays_vs_eager,
)
from support.tiers import assert_within


def main(device: str, backend: str) -> None:
    """Runs prompts and controls in turn through the runner, and then compiled layers."""
    torch.set_grad_enabled(False)
    outside.before_import(torch.device(device), torch.bfloat16, backend)
    if device == "cpu":
        from tensorrt_llm._torch.visual_gen.recorded_graph import replace_cuda_graphs

        replace_cuda_graphs()
    from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
    from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
        Cosmos3VFMTransformer,
    )

    fields = full_config(CONFIG)
    config = DiffusionModelConfig.from_diffusers(fields, backend=backend, dtype=torch.bfloat16)
    with torch.device(device):
        transformer = Cosmos3VFMTransformer(config)
    transformer.load_weights(random_weights(fields, 0, device))
    transformer.post_load_weights()
    transformer = transformer.to(device).eval()
    serving = Serving(transformer, (IMAGE,) if device == "cpu" else (VIDEO, IMAGE))
    runner = serving.graphs()
    assert_replays_vs_eager(serving, serving.in_turn())
    print(len(runner.graphs))
    runner.clear()
    videos = [(1, 8, 8), (1, 32, 32), IMAGE, (3, 10, 6)]
    assert_bounded_compilation(
        serving, "aot_eager", lambda *pair: assert_within(*pair[:2], 2e-2, pair[2]), videos
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
