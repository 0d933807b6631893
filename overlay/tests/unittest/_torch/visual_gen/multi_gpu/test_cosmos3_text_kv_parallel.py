# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Cosmos3 under sequence parallelism equals one GPU for prompts of unequal length.

Classifier-free guidance runs the negative and the positive prompt as one batch. Text keys that pad
the shorter prompt, and rows that pad the video to a multiple of the rank count, must not count in
the softmax. Synthetic weights, no checkpoint.

Run with:
    pytest tests/unittest/_torch/visual_gen/multi_gpu/test_cosmos3_text_kv_parallel.py -v -s
"""

import os
import socket
from types import SimpleNamespace

os.environ["TLLM_DISABLE_MPI"] = "1"

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tensorrt_llm._torch.visual_gen.config import AttentionConfig, DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import Cosmos3VFMTransformer
from tensorrt_llm.models.modeling_utils import QuantConfig

pytestmark = pytest.mark.cosmos3

# bf16 on two ranks and on one differ by the order of sums in matrix products alone; one leaked
# key of this model moves the output by a percent and more.
MAX_RELATIVE_ERROR = 5e-3

_CONFIG = dict(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    latent_patch_size=2,
    latent_channel=4,
    position_embedding_type="unified_3d_mrope",
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    rope_scaling={"rope_type": "default", "mrope_section": [12, 10, 10]},
    rms_norm_eps=1e-6,
    vocab_size=1024,
    rope_theta=1_000_000.0,
    max_position_embeddings=32768,
    timestep_scale=0.001,
    base_fps=24.0,
    unified_3d_mrope_temporal_modality_margin=15000,
    enable_fps_modulation=True,
)
_MAX_TEXT_ROWS = 64


def _build(mapping: VisualGenMapping, device: torch.device) -> Cosmos3VFMTransformer:
    config = DiffusionModelConfig(
        pretrained_config=SimpleNamespace(**_CONFIG),
        quant_config=QuantConfig(),
        attention=AttentionConfig(backend="VANILLA"),
        visual_gen_mapping=mapping,
        skip_create_weights_in_init=False,
    )
    config.mapping = mapping.to_llm_mapping()
    model = Cosmos3VFMTransformer(config).to(device).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                noise *= parameter.shape[-1] ** -0.5
            else:
                noise = noise * 0.1 + (1.0 if "norm" in name else 0.0)
            parameter.copy_(noise)
    model.post_load_weights()
    return model


def _velocities(model: Cosmos3VFMTransformer, lengths, video_shape, device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    batch = len(lengths)
    latents = torch.randn(batch, 4, *video_shape, generator=generator)
    text_ids = torch.randint(1, 1000, (batch, _MAX_TEXT_ROWS), generator=generator)
    positions = torch.arange(_MAX_TEXT_ROWS)
    text_mask = (positions < torch.tensor(lengths)[:, None]).long()
    raw_timestep = torch.full((batch,), 500.0, device=device)
    model.reset_cache()
    with torch.inference_mode():
        return model(
            hidden_states=latents.to(device, torch.bfloat16),
            timestep=raw_timestep / 1000,
            raw_timestep=raw_timestep,
            text_ids=text_ids.to(device),
            text_mask=text_mask.to(device),
            video_shape=video_shape,
            fps=24.0,
        ).video.float()


def _logic_ulysses_equals_one_rank(rank, world_size, device, lengths, video_shape):
    single = _build(VisualGenMapping(world_size=1, rank=0), device)
    expected = _velocities(single, lengths, video_shape, device)
    parallel = _build(
        VisualGenMapping(world_size=world_size, rank=rank, ulysses_size=world_size), device
    )
    found = _velocities(parallel, lengths, video_shape, device)
    for sample in range(len(lengths)):
        error = (found[sample] - expected[sample]).norm() / expected[sample].norm()
        assert error <= MAX_RELATIVE_ERROR, (
            f"rank {rank}, sample {sample} of prompt lengths {lengths}, video {video_shape}: "
            f"relative error {error:.3g}, limit {MAX_RELATIVE_ERROR}"
        )


def _worker(rank, world_size, port, logic, args):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    try:
        logic(rank, world_size, torch.device("cuda", rank), *args)
    finally:
        dist.destroy_process_group()


def _run(world_size, logic, *args):
    if torch.cuda.device_count() < world_size:
        pytest.skip(f"needs {world_size} GPUs, found {torch.cuda.device_count()}")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(_worker, args=(world_size, port, logic, args), nprocs=world_size)


# Latent (T, H, W) of 2x2 patches: 16 rows divide by two ranks, 27 rows do not.
_DIVISIBLE = (1, 8, 8)
_ODD = (3, 6, 6)

CASES = {
    "unequal_lengths": ((7, 19), _DIVISIBLE),
    "unequal_lengths_odd_video": ((1, 40), _ODD),
    "equal_lengths_odd_video": ((12, 12), _ODD),
    "one_sample_odd_video": ((7,), _ODD),
}


@pytest.mark.parametrize("case", CASES)
def test_ulysses2_velocities_vs_one_gpu(case):
    _run(2, _logic_ulysses_equals_one_rank, *CASES[case])
