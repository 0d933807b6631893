# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The independent reference: diffusers' ``Cosmos3OmniTransformer``, one call for each prompt.

Nothing is padded or batched. The joint sequence is laid out by diffusers' own pipeline methods;
only the class that holds them is not built, since it wants a tokenizer and a VAE.

Legend: C latent channels, T x H x W latent frames, rows and columns.
"""

import math
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import torch
from cosmos3_weights import UNUSED, RandomWeights
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3OmniTransformer

# Decoded frames for each latent frame; the pipeline reads it off the VAE.
TEMPORAL_COMPRESSION = 4


@dataclass
class OracleVelocity:
    """Velocities of one sample.

    Attributes:
        video: [C, T, H, W]; 0 in given frames, for which diffusers predicts nothing.
        sound: [sound_dim, T_sound] or None.
        action: [T_action, action_dim] or None; 0 in given actions.
    """

    video: torch.Tensor
    sound: torch.Tensor | None = None
    action: torch.Tensor | None = None


@cache
def _pipeline_module():
    """Import diffusers' pipeline module, which imports transformers only for its tokenizer."""
    placeholder = types.ModuleType("transformers")
    placeholder.AutoTokenizer = placeholder.BatchEncoding = object
    try:
        import transformers  # noqa: F401
    except ImportError:
        sys.modules["transformers"] = placeholder
    try:
        from diffusers.pipelines.cosmos import pipeline_cosmos3_omni
    finally:
        if sys.modules.get("transformers") is placeholder:
            del sys.modules["transformers"]
    return pipeline_cosmos3_omni


def build_oracle(
    config: dict,
    seed: int | None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    weights=None,
) -> Cosmos3OmniTransformer:
    """Build the reference model.

    Args:
        config: diffusers' fields.
        seed: of the random weights, as ``init_random_weights`` takes it; unused with ``weights``.
        dtype: of weights and activations. The time embedder stays float32 (float64 for float64)
            and the rotary frequencies are float32 always: both would lose digits otherwise.
        device: where the model is made and run. A CPU and a GPU draw different random weights.
        weights: maps diffusers' names to tensors, instead of random ones.

    Raises:
        ValueError: ``weights`` lacks a tensor or has one of another shape.
    """
    # On "meta" nothing is allocated or initialised that is overwritten below.
    with torch.device("meta"):
        oracle = Cosmos3OmniTransformer(**config)
    oracle.lm_head = torch.nn.Identity()
    torch.nn.Module.to(oracle, dtype)  # not ModelMixin.to, which warns about the next line
    oracle.time_embedder.to(torch.float64 if dtype == torch.float64 else torch.float32)
    oracle.to_empty(device=device)
    rotary = oracle.rotary_emb
    exponent = torch.arange(0, config["head_dim"], 2, dtype=torch.float32) / config["head_dim"]
    # On the CPU for every device: at positions near 15000 one last bit moves an angle by 1e-3.
    rotary.inv_freq = (1.0 / (oracle.config.rope_theta**exponent)).to(device)
    if weights is None:
        weights = RandomWeights(config, seed, dtype, device)
    oracle.requires_grad_(False).eval()
    for name, parameter in oracle.named_parameters():
        if name in UNUSED:
            parameter.fill_(1.0)
            continue
        if name not in weights:
            raise ValueError(f"the weights lack {name}, which this configuration needs")
        tensor = weights[name]
        if tensor.shape != parameter.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected {tuple(parameter.shape)}"
            )
        parameter.copy_(tensor)
    return oracle


def pack_prompt(
    oracle: Cosmos3OmniTransformer,
    latents: torch.Tensor,
    token_ids: Sequence[int],
    fps: float | None = None,
    *,
    given_frames: Sequence[int] = (),
    sound: torch.Tensor | None = None,
    sound_fps: float | None = None,
    action: torch.Tensor | None = None,
    given_actions: Sequence[int] = (),
    action_fps: float | None = None,
    controls: Sequence[torch.Tensor] = (),
    share_temporal_positions: bool = True,
) -> dict:
    """Lay one sample out as the arguments of the oracle's forward, but for the timesteps.

    The segments come from diffusers' pipeline. Controls, which its pipeline does not have, are
    vision items without a noisy frame in front of the video.

    Args:
        oracle: the model.
        latents: [C, T, H, W].
        token_ids: the prompt, without padding.
        fps: frames per second of the decoded video; None counts frames.
        given_frames: indices of latent frames that are conditions and not noise.
        sound: [sound_dim, T_sound].
        sound_fps: sound frames per second; the configuration's when None.
        action: [T_action, action_dim].
        given_actions: indices of actions that are conditions.
        action_fps: actions per second; ``fps`` when None.
        controls: latents shaped like ``latents``.
        share_temporal_positions: whether controls stand at the video's positions, or each vision
            item starts where the last ended.

    Returns:
        Keyword arguments; each modality's timesteps are missing.
    """
    module = _pipeline_module()
    pipeline = module.Cosmos3OmniPipeline
    device = latents.device
    # All that the methods below read of a pipeline.
    holder = SimpleNamespace(transformer=oracle, vae_scale_factor_temporal=TEMPORAL_COMPRESSION)
    text = pipeline._prepare_text_segment(holder, list(token_ids), device)
    start = text["vision_start_temporal_offset"]
    position = text["und_len"]
    positions = [text["text_mrope_ids"]]
    packed = {
        "input_ids": text["input_ids"],
        "text_indexes": text["text_indexes"],
        "und_len": text["und_len"],
    }

    vision_keys = ("vision_token_shapes", "vision_noisy_frame_indexes")
    index_keys = ("vision_sequence_indexes", "vision_mse_loss_indexes")
    vision = {key: [] for key in (*vision_keys, *index_keys)}
    items = [(x, range(x.shape[1])) for x in controls] + [(latents, given_frames)]
    offset = start
    for item, given in items:
        segment = pipeline._prepare_vision_segment(
            holder,
            input_vision_tokens=item.unsqueeze(0),
            has_image_condition=bool(len(given)),
            mrope_offset=offset,
            vision_fps=fps,
            curr=position,
            device=device,
            condition_frame_indexes=list(given),
        )
        for key in vision_keys:
            vision[key].extend(segment[key])
        for key in index_keys:
            vision[key].append(segment[key])
        positions.append(segment["vision_mrope_ids"])
        position += segment["num_vision_tokens"]
        if not share_temporal_positions:
            offset = math.ceil(segment["vision_mrope_ids"].max().item()) + 1
    packed.update(vision)
    packed.update({key: torch.cat(vision[key]) for key in index_keys})
    packed["vision_tokens"] = [item.unsqueeze(0) for item, _ in items]

    if sound is not None:
        segment = pipeline._prepare_sound_segment(
            holder,
            input_sound_tokens=sound,
            mrope_offset=start,
            sound_fps=float(oracle.config.sound_latent_fps if sound_fps is None else sound_fps),
            curr=position,
            device=device,
        )
        positions.append(segment.pop("sound_mrope_ids"))
        position += segment.pop("sound_len")
        packed.update(segment, sound_tokens=[sound])
    if action is not None:
        segment = pipeline._prepare_action_segment(
            holder,
            input_action_tokens=action,
            condition_frame_indexes=list(given_actions),
            mrope_offset=start,
            action_fps=fps if action_fps is None else action_fps,
            curr=position,
            device=device,
        )
        positions.append(segment.pop("action_mrope_ids"))
        position += segment.pop("action_len")
        segment.pop("num_noisy_action_tokens")
        packed.update(segment, action_tokens=[action])
    packed["position_ids"] = torch.cat(positions, dim=1)
    packed["sequence_length"] = position
    return packed


@torch.no_grad()
def oracle_velocity(
    oracle: Cosmos3OmniTransformer,
    latents: torch.Tensor,
    token_ids: Sequence[int],
    raw_timestep: float,
    fps: float | None = None,
    *,
    action_domain_id: int | None = None,
    **layout,
) -> OracleVelocity:
    """Predict the velocities of one sample.

    Args:
        oracle: the model.
        latents: [C, T, H, W] in the model's dtype.
        token_ids: the prompt, without padding.
        raw_timestep: 0 to 1000.
        fps: frames per second of the decoded video; None counts frames.
        action_domain_id: the embodiment, needed with ``action``.
        **layout: the other arguments of :func:`pack_prompt`.

    Returns:
        The video's velocity, and sound's and action's where there are any.

    Raises:
        ValueError: ``action`` without ``action_domain_id``.
    """
    packed = pack_prompt(oracle, latents, token_ids, fps, **layout)
    device = latents.device
    if "action_tokens" in packed:
        if action_domain_id is None:
            raise ValueError("action needs action_domain_id, the index of its embodiment")
        packed["action_domain_ids"] = [torch.tensor(action_domain_id, device=device)]
    for name in ("vision", "sound", "action"):
        noisy = packed.get(f"{name}_mse_loss_indexes")
        if noisy is not None:
            packed[f"{name}_timesteps"] = torch.full((len(noisy),), raw_timestep, device=device)
    sample, sound, action = oracle(**packed, return_dict=False)
    return OracleVelocity(
        video=sample[-1][0],
        sound=None if sound is None else sound[0],
        action=None if action is None else action[0],
    )
