# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""No host reads, few captures, no recompilation: what holds over many prompts on a GPU.

Fields: B batch, L prompt lengths, S_text padded text rows.
"""

import random
import warnings

import pytest
import torch
from cosmos3_weights import init_random_weights
from support.model import TINY
from support.tiers import assert_bitwise

from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.cuda_graph_runner import CUDAGraphRunner
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TEXT_BUCKET
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import Cosmos3VFMTransformer

from . import require

pytestmark = pytest.mark.gpu(1)

# Heads of 128, which FA4 and cuDNN take, and enough rows that VANILLA folds.
CONFIG = TINY | {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rope_axes_dim": (24, 20, 20),
    "num_hidden_layers": 2,
}
VIDEO = (2, 64, 64)
TEXT_ROWS = 1280

backends = pytest.mark.parametrize("backend", ["FA4", "VANILLA"])


def build(backend, text_kv="exact", mapping=None):
    require(backend)
    config = DiffusionModelConfig.from_diffusers(
        CONFIG, backend=backend, dtype=torch.bfloat16, visual_gen_mapping=mapping
    )
    with torch.device("cuda"):
        transformer = Cosmos3VFMTransformer(config, text_kv=text_kv)
    init_random_weights(transformer, 0)
    return transformer


def request(lengths, seed=0, step=0):
    """Arguments of one denoising step; prompts are padded to one length, as the pipeline does."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    batch = len(lengths)
    ids = torch.randint(0, 1000, (batch, TEXT_ROWS), generator=generator, device="cuda")
    positions = torch.arange(TEXT_ROWS, device="cuda")
    latents = torch.randn(batch, 8, *VIDEO, generator=generator, device="cuda")
    raw = torch.full((batch,), 900.0 - step, device="cuda")
    return {
        "hidden_states": latents.to(torch.bfloat16).roll(step, dims=3),
        "timestep": raw,
        "raw_timestep": raw,
        "text_ids": ids,
        "text_mask": (positions < torch.tensor(lengths, device="cuda")[:, None]).long(),
        "video_shape": VIDEO,
        "fps": 24.0,
    }


def graphed(transformer):
    runner = CUDAGraphRunner()
    transformer.register_cuda_graph_extra_key_fns(runner)
    return runner, runner.wrap(transformer.forward)


@backends
def test_steps_after_the_first_read_nothing_back(backend):
    transformer = build(backend)
    steps = [request((30, 700), step=n) for n in range(3)]
    transformer(**steps[0])
    transformer(**steps[1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        transformer(**steps[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # The unfixed forward reads lengths back in every step; the check above can see it.
    padded = build(backend, text_kv="padded")
    padded(**steps[0])
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            padded(**steps[1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [w for w in caught if "synchronizing" in str(w.message)], "the check is blind"


@backends
def test_hundred_prompts_share_a_graph_per_bucket_vs_eager(backend):
    transformer = build(backend)
    transformer.text_buffers.max_buffers = 10
    runner, forward = graphed(transformer)
    draw = random.Random(5)
    buckets, last = set(), None
    for number in range(100):
        lengths = (draw.randint(5, 1200), draw.randint(5, 1200))
        buckets.add(-(-max(lengths) // TEXT_BUCKET))
        transformer.reset_cache()
        arguments = request(lengths, seed=number % 7)
        replayed = forward(**arguments).video
        assert_bitwise(replayed, transformer(**arguments).video, f"prompt {number}, {lengths}")
        assert last is None or not torch.equal(replayed, last), "another prompt's video"
        last = replayed
    assert len(runner.graphs) <= len(buckets), "more captures than buckets"


@backends
def test_alternating_prompts_vs_eager(backend):
    transformer = build(backend)
    runner, forward = graphed(transformer)
    first, second = request((30, 700), seed=1), request((650, 9), seed=2)
    for arguments in (first, second, first):
        transformer.reset_cache()
        replayed = forward(**arguments).video
        transformer.reset_cache()
        assert_bitwise(replayed, transformer(**arguments).video, f"{backend} replayed")
    assert len(runner.graphs) == 1


def test_evicted_buffer_takes_its_graphs_along():
    transformer = build("VANILLA")
    transformer.text_buffers.max_buffers = 2
    runner, forward = graphed(transformer)
    for longest in (100, 200, 300, 100):
        transformer.reset_cache()
        arguments = request((5, longest))
        assert_bitwise(forward(**arguments).video, transformer(**arguments).video, str(longest))
        assert len(transformer.text_buffers.buffers) == len(runner.graphs) <= 2


def test_prompt_beyond_the_largest_buffer_runs_eagerly():
    transformer = build("VANILLA")
    transformer.text_buffers.max_text_rows = 256
    runner, forward = graphed(transformer)
    for lengths, captured in (((5, 100), 1), ((5, 700), 1), ((5, 90), 1), ((9, 200), 2)):
        transformer.reset_cache()
        arguments = request(lengths)
        assert_bitwise(forward(**arguments).video, transformer(**arguments).video, str(lengths))
        assert len(runner.graphs) == captured


@backends
def test_compiled_layers_do_not_care_about_prompts(backend):
    transformer, eager = build(backend), build(backend)
    torch._dynamo.reset()
    for layer in transformer.gen_layers:
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False)
    counters = torch._dynamo.utils.counters
    after_first = None
    for number, lengths in enumerate([(30, 700), (650, 9), (700, 700), (641, 1)]):
        for step in range(2):
            arguments = request(lengths, seed=number, step=step)
            if step == 0:
                transformer.reset_cache()
                eager.reset_cache()
            found, expected = transformer(**arguments).video, eager(**arguments).video
            error = (found - expected).float().norm() / expected.float().norm()
            # Fused pointwise operations round less often than eager bf16 ones.
            assert error < 2e-2, f"{lengths} step {step}: {error:.3g}"
            graphs = counters["stats"]["unique_graphs"]
            after_first = graphs if after_first is None else after_first
            assert graphs == after_first, f"recompiled for {lengths} step {step}"
