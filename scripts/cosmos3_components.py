# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a Cosmos3 pipeline has beside its transformer, small and random, the same in every process.

The VAE and the scheduler are diffusers' own classes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hostpath import ROOT
from parity.prompts import VISION_START, chat_turn, tokenizer


def make_vae(latent_channel: int, dtype: torch.dtype, device: torch.device | str):
    """Returns a tiny AutoencoderKLWan: 4 frames to 1, 16 x 16 pixels to 1, random weights.

    Its latents have about unit variance, and what it decodes has contrast.
    """
    from diffusers import AutoencoderKLWan

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = AutoencoderKLWan(
            base_dim=8,
            z_dim=latent_channel,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            latents_mean=[0.0] * latent_channel,
            latents_std=[1.0] * latent_channel,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
        )
    with torch.no_grad():
        # Biases would be a picture of their own, and the four pixels of a patch a chequerboard.
        for name, parameter in vae.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        out = vae.decoder.conv_out.weight
        out.copy_(
            out.unflatten(0, (3, 4))
            .mean(1, keepdim=True)
            .expand(3, 4, *out.shape[1:])
            .flatten(0, 1)
        )
        out.mul_(4.0)
        vae.quant_conv.weight.mul_(8.0)
    # diffusers' own to() warns about layers that it has none of.
    return torch.nn.Module.to(vae, device, dtype).eval().requires_grad_(False)


def make_scheduler(steps: int | None = None):
    """Returns diffusers' UniPC scheduler on flow-matching sigmas, set to `steps` steps if given."""
    from diffusers import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    if steps is not None:
        scheduler.set_timesteps(steps)
    return scheduler


def make_pipeline(model_config, device, graphs=None, **transformer_kwargs):
    """Returns the importable pipeline with all components; its transformer has no weights yet.

    Args:
        model_config: DiffusionModelConfig of the transformer.
        device: Where requests run.
        graphs: (height, width, frames) of each shape that warmup() runs, for a pipeline with
            graphs; None for one without, whose warmup() does nothing.
        **transformer_kwargs: Passed to the transformer.
    """
    # What a checkout's pipeline imports, searched last, behind what is installed.
    sys.path.append(str(ROOT / "host" / "last"))
    os.environ["TRTLLM_DISABLE_COSMOS3_GUARDRAILS"] = "1"
    from tensorrt_llm._torch.visual_gen.config import DiffusionPipelineConfig, Switch
    from tensorrt_llm._torch.visual_gen.models.cosmos3.pipeline_cosmos3 import (
        Cosmos3OmniMoTPipeline,
    )

    switch, config = Switch(graphs is not None), model_config.pretrained_config
    with torch.device(device):
        pipeline = Cosmos3OmniMoTPipeline(
            DiffusionPipelineConfig(
                {"transformer": model_config}, device, switch, warmup_shapes=graphs or ()
            ),
            **transformer_kwargs,
        )
    # A checkout's transformer has none before the patches.
    inputs = getattr(pipeline.transformer, "graph_inputs", None)
    if inputs is not None and graphs is not None and torch.device(device).type == "cpu":
        # There is no free memory of a GPU to take a share of.
        inputs.max_bytes = 1 << 30
    with TemporaryDirectory() as folder:
        make_scheduler().save_pretrained(f"{folder}/scheduler")
        edge = getattr(config, "hidden_act", "silu") == "relu2"
        index = json.dumps({"use_native_flow_schedule": edge})
        Path(folder, "model_index.json").write_text(index)
        handed = ["vae", "tokenizer", "sound_tokenizer"]
        pipeline.load_standard_components(folder, torch.device(device), skip_components=handed)
    pipeline.vae = make_vae(config.latent_channel, model_config.torch_dtype, device)
    pipeline.tokenizer = ChatTokenizer()
    if pipeline.audio_gen:
        pipeline.audio_tokenizer = SoundDecoder(config.sound_dim)
    return pipeline


class ChatTokenizer:
    """Qwen's tokenizer, with the methods that pipelines call on transformers' class.

    Attributes:
        eos_token_id: Ends a turn.
        pad_token_id: Fills a row of ids.
    """

    def __init__(self):
        self.eos_token_id = tokenizer().im_end_id
        self.pad_token_id = 151643

    def apply_chat_template(
        self, conversations, tokenize=True, add_generation_prompt=True, return_dict=False
    ) -> list[int]:
        """Returns the ids of all turns and the opening of the assistant's."""
        turns = [(turn["role"], turn["content"]) for turn in conversations]
        return chat_turn(*turns)

    def convert_tokens_to_ids(self, token: str) -> int:
        """Returns the id of the token at which generation starts."""
        return {"<|vision_start|>": VISION_START}[token]


class SoundDecoder:
    """Stands for the sound tokenizer: a latent frame becomes its samples by one fixed matrix.

    Attributes:
        model_config: Samples per second, and the factors that multiply to samples per frame.
    """

    model_config = {"sampling_rate": 48000, "dec_strides": [2, 4, 5, 6, 8]}

    def __init__(self, sound_dim: int):
        generator = torch.Generator().manual_seed(0)
        self._matrix = torch.randn(sound_dim, 2 * 1920, generator=generator) / sound_dim**0.5

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Returns samples [B, 2, 1920 T] of latents [B, sound_dim, T]."""
        frames = latent.transpose(1, 2) @ self._matrix.to(latent)
        return frames.unflatten(2, (2, -1)).transpose(1, 2).flatten(2).tanh()
