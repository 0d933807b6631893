# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One denoising step of a whole tiny model: on the host under any layout, and on the oracle.

A case is plain data that pickles, so that each rank makes the same weights and inputs for itself.
Fields: B batch, C latent channels, T x H x W latent frames, rows and columns.
"""

from dataclasses import dataclass, replace

import torch
from cosmos3_oracle import build_oracle, oracle_velocity
from cosmos3_sizes import EDGE_RECIPE
from cosmos3_weights import init_random_weights

from support import mappings
from support.cases import Layout

# Widths of a model that runs in milliseconds; every odd ratio of the real ones is kept.
TINY = {
    "hidden_size": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "rope_axes_dim": (4, 2, 2),
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "latent_channel": 8,
    "latent_patch_size": 2,
    "patch_latent_dim": 32,
}
ACTION = {"action_gen": True, "action_dim": 5, "num_embodiment_domains": 4}
OMNI = TINY | ACTION | {"sound_gen": True, "sound_dim": 6}
EDGE = TINY | EDGE_RECIPE | {"latent_channel": 48, "patch_latent_dim": 192}
MODELS = {"tiny": TINY, "omni": OMNI, "edge": EDGE, "edge-action": EDGE | ACTION}


@dataclass(frozen=True)
class ModelCase:
    """One forward of a model.

    Attributes:
        model: A name in MODELS.
        overrides: Fields of its configuration to change, as pairs.
        layout: Parallel axes.
        lengths: Prompt length of each sample.
        video: (T, H, W) of the latents.
        fps: Of the decoded video, or None.
        given_frames: Latent frames that are conditions.
        sound_rows: Sound frames; 0 for none.
        action_rows: Actions; 0 for none.
        given_actions: Actions that are conditions.
        controls: Number of control latents.
        share: Whether controls stand at the video's positions.
        backend: A name of create_attention(), or one of support.attend.DENSE.
        dtype: Of the model.
        seed: Of weights and inputs.
    """

    model: str = "tiny"
    overrides: tuple[tuple[str, object], ...] = ()
    layout: Layout = Layout()
    lengths: tuple[int, ...] = (7, 19)
    video: tuple[int, int, int] = (3, 5, 6)
    fps: float | None = 16.0
    given_frames: tuple[int, ...] = ()
    sound_rows: int = 0
    action_rows: int = 0
    given_actions: tuple[int, ...] = ()
    controls: int = 0
    share: bool = True
    backend: str = "VANILLA"
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def __str__(self) -> str:
        plain = ModelCase()
        rows = self.video[0] * -(-self.video[1] // 2) * -(-self.video[2] // 2)
        parts = [self.model, str(self.layout), "len" + "x".join(map(str, self.lengths))]
        parts.append(f"video{rows}")
        for name in ("given_frames", "sound_rows", "action_rows", "controls"):
            value = getattr(self, name)
            if value != getattr(plain, name):
                count = len(value) if isinstance(value, tuple) else value
                parts.append(f"{name.split('_')[0]}{count}")
        if not self.share:
            parts.append("ownpositions")
        parts += [f"{name}{value}" for name, value in self.overrides]
        return "-".join([*parts, self.backend.lower(), str(self.dtype).removeprefix("torch.")])

    @property
    def config(self) -> dict:
        """Diffusers' fields."""
        return MODELS[self.model] | dict(self.overrides)

    def single(self) -> "ModelCase":
        """The same case on one rank."""
        return replace(self, layout=Layout())

    def latents(self) -> dict[str, torch.Tensor]:
        """Draws the clean and noisy latents of all samples, and the prompts' token ids."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        batch, config = len(self.lengths), self.config

        def draw(*shape):
            return torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(
                self.dtype
            )

        drawn = {"video": draw(config["latent_channel"], *self.video)}
        drawn["controls"] = [
            draw(config["latent_channel"], *self.video) for _ in range(self.controls)
        ]
        if self.sound_rows:
            drawn["sound"] = draw(config["sound_dim"], self.sound_rows)
        if self.action_rows:
            drawn["action"] = draw(self.action_rows, config["action_dim"])
            domains = config["num_embodiment_domains"]
            drawn["domains"] = torch.arange(batch) % domains
        rows = max(self.lengths) + 5
        drawn["ids"] = torch.randint(0, config["vocab_size"], (batch, rows), generator=generator)
        drawn["timesteps"] = torch.linspace(300.0, 700.0, batch)
        return drawn

    def inputs(self, device="cpu") -> dict:
        """Arguments of the host's forward; the prompts' padding slots hold real token ids."""
        drawn = self.latents()
        ids = drawn["ids"]
        mask = torch.zeros_like(ids)
        for sample, length in enumerate(self.lengths):
            mask[sample, :length] = 1
        arguments = {
            "hidden_states": drawn["video"],
            "timestep": drawn["timesteps"],
            "raw_timestep": drawn["timesteps"],
            "text_ids": ids,
            "text_mask": mask,
            "video_shape": self.video,
            "fps": self.fps,
        }
        batch = len(self.lengths)
        if self.given_frames:
            noisy = torch.ones(batch, 1, self.video[0], 1, 1)
            noisy[:, :, list(self.given_frames)] = 0
            arguments["noisy_frame_mask"] = noisy
        if self.controls:
            arguments["control_latents"] = drawn["controls"]
            arguments["transfer_share_vision_temporal_positions"] = self.share
        if self.sound_rows:
            arguments["audio_latents"] = drawn["sound"]
        if self.action_rows:
            arguments["action_latents"] = drawn["action"]
            arguments["action_domain_ids"] = drawn["domains"]
            if self.given_actions:
                noisy = torch.ones(batch, self.action_rows, 1)
                noisy[:, list(self.given_actions)] = 0
                arguments["action_noisy_mask"] = noisy

        def move(value):
            if isinstance(value, torch.Tensor):
                return value.to(device)
            return [move(x) for x in value] if isinstance(value, list) else value

        return {name: move(value) for name, value in arguments.items()}

    def noisy_only(self, output: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Zeroes the velocities of given frames and actions, which mean nothing."""
        output = {name: tensor.clone() for name, tensor in output.items()}
        output["video"][:, :, list(self.given_frames)] = 0
        if "action" in output:
            output["action"][:, list(self.given_actions)] = 0
        return output


def mapping(case: ModelCase, rank: int):
    """The VisualGenMapping of the case's layout, or None on one rank. Collective."""
    return None if case.layout.world_size == 1 else mappings.mapping(case.layout, rank)


def build_host(case: ModelCase, rank: int = 0, text_kv: str = "exact", device: str = "cpu"):
    """The host's transformer with the case's weights, on this rank of the case's layout."""
    from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
    from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
        Cosmos3VFMTransformer,
    )

    config = DiffusionModelConfig.from_diffusers(
        case.config,
        backend=case.backend,
        dtype=case.dtype,
        visual_gen_mapping=mapping(case, rank),
    )
    with torch.device(device):
        transformer = Cosmos3VFMTransformer(config, text_kv=text_kv)
    init_random_weights(transformer, case.seed, "cpu")
    return transformer


def run_host(case: ModelCase, rank: int = 0, text_kv: str = "exact") -> dict[str, torch.Tensor]:
    """Velocities of all samples, given frames zeroed: video, and audio and action if there."""
    output = build_host(case, rank, text_kv)(**case.inputs())
    found = {name: getattr(output, name) for name in ("video", "audio", "action")}
    return case.noisy_only({name: x for name, x in found.items() if x is not None})


def run_oracle(case: ModelCase) -> dict[str, torch.Tensor]:
    """The same from diffusers, one call for each sample."""
    oracle = build_oracle(case.config, case.seed, case.dtype)
    drawn = case.latents()
    samples = []
    for b, length in enumerate(case.lengths):
        velocity = oracle_velocity(
            oracle,
            drawn["video"][b],
            drawn["ids"][b, :length].tolist(),
            drawn["timesteps"][b].item(),
            case.fps,
            given_frames=case.given_frames,
            sound=drawn["sound"][b] if case.sound_rows else None,
            action=drawn["action"][b] if case.action_rows else None,
            given_actions=case.given_actions,
            action_domain_id=drawn["domains"][b].item() if case.action_rows else None,
            controls=[x[b] for x in drawn["controls"]],
            share_temporal_positions=case.share,
        )
        samples.append(
            {"video": velocity.video, "audio": velocity.sound, "action": velocity.action}
        )
    return {
        name: torch.stack([sample[name] for sample in samples])
        for name in ("video", "audio", "action")
        if samples[0][name] is not None
    }
