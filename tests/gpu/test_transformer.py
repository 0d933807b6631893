# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The whole host transformer on a GPU: against diffusers, through CUDA graphs, and at real widths.

Tiny widths and float32 through VANILLA, so that what is seen is exactness and not noise.
"""

import resource
from dataclasses import replace

import pytest
import torch
from cosmos3_oracle import build_oracle, oracle_velocity
from cosmos3_weights import RandomWeights, init_random_weights
from support.model import ModelCase, build_host
from support.tiers import REDUCTION_ORDER, assert_within

from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.cuda_graph_runner import CUDAGraphRunner, CUDAGraphRunnerConfig
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
    Cosmos3VFMTransformer,
)

pytestmark = pytest.mark.gpu(1)

CASES = {
    "video": ModelCase(),
    "sound-action": ModelCase(model="omni", sound_rows=5, action_rows=4, given_actions=(0,)),
    "sound": ModelCase(model="omni", sound_rows=5),
    "action": ModelCase(model="omni", action_rows=4, given_actions=(0,)),
    "edge": ModelCase(model="edge"),
    "control": ModelCase(controls=1, share=False),
}


@pytest.fixture(autouse=True)
def full_float32():
    # TF32 would move rotary angles at positions near 15000, and every product.
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def fields(output):
    found = {name: getattr(output, name) for name in ("video", "audio", "action")}
    return {name: x for name, x in found.items() if x is not None}


@pytest.mark.parametrize("name", CASES)
def test_transformer_on_gpu_velocity_vs_diffusers(name):
    case = CASES[name]
    found = case.noisy_only(fields(build_host(case, device="cuda")(**case.inputs("cuda"))))
    # The values are drawn on the CPU for both, since a GPU draws others.
    weights = RandomWeights(case.config, case.seed)
    oracle = build_oracle(case.config, None, device="cuda", weights=weights)
    drawn = case.latents()
    for b, length in enumerate(case.lengths):
        velocity = oracle_velocity(
            oracle,
            drawn["video"][b].cuda(),
            drawn["ids"][b, :length].tolist(),
            drawn["timesteps"][b].item(),
            case.fps,
            sound=drawn["sound"][b].cuda() if case.sound_rows else None,
            action=drawn["action"][b].cuda() if case.action_rows else None,
            given_actions=case.given_actions,
            action_domain_id=drawn["domains"][b].item() if case.action_rows else None,
            controls=[x[b].cuda() for x in drawn["controls"]],
            share_temporal_positions=case.share,
        )
        expected = {"video": velocity.video, "audio": velocity.sound, "action": velocity.action}
        for modality, x in found.items():
            what = f"{name} sample {b} {modality}"
            limit = REDUCTION_ORDER[torch.float32]
            assert_within(x[b : b + 1], expected[modality][None], limit, what)


@pytest.mark.parametrize("name", ["video", "sound", "action", "control"])
def test_graph_replay_over_prompts_and_branches_vs_eager(name):
    # The second prompt has the first one's shapes: an unkeyed graph would answer with the first.
    first = replace(CASES[name], dtype=torch.bfloat16)
    second = replace(first, lengths=(23, 4), seed=first.seed)
    inputs = [case.inputs("cuda") for case in (first, second)]
    for arguments in inputs:
        # Prompts come padded to one length: the shapes of arguments are part of the key.
        for name in ("text_ids", "text_mask"):
            missing = 64 - arguments[name].shape[1]
            arguments[name] = torch.nn.functional.pad(arguments[name], (0, missing))
    later = [x | {"hidden_states": x["hidden_states"] * 0.5} for x in inputs]
    eager = build_host(first, device="cuda")
    expected = []
    for steps in zip(inputs, later):
        eager.reset_cache()
        expected.append([fields(eager(**step)) for step in steps])

    transformer = build_host(first, device="cuda")
    runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
    transformer.register_cuda_graph_extra_key_fns(runner)
    forward = runner.wrap(transformer.forward)
    saved = []
    for steps, wanted in zip(zip(inputs, later), expected):
        transformer.reset_cache()
        for step, want in zip(steps, wanted):
            for modality, x in fields(forward(**step)).items():
                assert_within(x, want[modality], 1e-6, f"{name} {modality}")
        saved.append((transformer.cached_kv, transformer.cached_freqs_gen))
    assert len(runner.graphs) == 1, "prompts of one bucket share a graph"
    # Back and forth between the two prompts, as branches of guidance: replays only.
    for _ in range(2):
        for state, step, wanted in zip(saved, later, expected):
            transformer.cached_kv, transformer.cached_freqs_gen = state
            for modality, x in fields(forward(**step)).items():
                assert_within(x, wanted[1][modality], 1e-6, f"{name} {modality} again")
    assert len(runner.graphs) == 1


def test_capture_of_the_old_path_fails():
    """It reads lengths back in every step, which is why a release has no graphs of it."""
    case = ModelCase()
    transformer = build_host(case, text_kv="padded", device="cuda")
    runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
    # Worded differently from one torch to the next.
    with pytest.raises(RuntimeError, match="captur"):
        runner.wrap(transformer.forward)(**case.inputs("cuda"))
    torch.cuda.synchronize()
    assert not runner.graphs


def test_nano_widths_are_made_on_the_gpu_alone():
    config = DiffusionModelConfig.from_diffusers(
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 1,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "latent_channel": 48,
            "latent_patch_size": 2,
        },
        dtype=torch.bfloat16,
    )
    torch.empty(1, device="cuda")
    host_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        transformer = Cosmos3VFMTransformer(config)
    model = sum(p.numel() * p.element_size() for p in transformer.parameters())
    init_random_weights(transformer, 0)
    peak = torch.cuda.max_memory_allocated() - before
    host = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host_before) * 1024
    # The largest tensor is drawn in float32 and rounded, before it is copied in.
    largest = 151936 * 4096
    assert peak <= model + 7 * largest, f"peak {peak >> 20} MiB for a model of {model >> 20} MiB"
    assert host < model // 4, f"host memory grew by {host >> 20} MiB"
