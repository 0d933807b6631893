# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to Cosmos3: text to video and to image, image to video, transfer, audio, actions.

What a request asks for comes by the names of upstream's ``forward``. Everything that can be wrong
about it is refused before the first exchange between ranks, on every rank alike.

Legend: C, T, H, W of the latents; a frame mask is [1, 1, T, 1, 1], 1 where a frame is noisy.
"""

import io
import json
import math

import numpy as np
import torch
import torch.distributed as dist
from diffusers import UniPCMultistepScheduler
from diffusers.utils.torch_utils import randn_tensor

from tensorrt_llm.media.decoding import decode_video_reference_window

from ...output import PipelineOutput
from ...pipeline import BasePipeline
from .transfer import Cosmos3TransferConfig
from .transformer_cosmos3 import Cosmos3VFMTransformer

# What a request gets that names no value. Timesteps within which an image's guidance holds.
MODES = {
    "video": {"flow_shift": None, "guidance_interval": None},
    "image": {"flow_shift": 3.0, "guidance_interval": (400.0, 1000.0)},
}
TRANSFER_FLOW_SHIFT = 10.0
# Frames of the longest video that released models are warmed up with, by recipe.
MOST_FRAMES = {"silu": 189, "relu2": 121}
ACTION_MODES = ("policy", "forward_dynamics")


class Cosmos3OmniMoTPipeline(BasePipeline):
    """The pipeline; its components are assigned after it is made, as loading does.

    Attributes:
        tokenizer: ``apply_chat_template``, ``eos_token_id``, ``pad_token_id`` and
            ``convert_tokens_to_ids``.
        vae: diffusers' ``AutoencoderKLWan``.
        audio_tokenizer: ``model_config`` and ``decode``, for a model with sound.
        modes: defaults by kind of output.
    """

    def __init__(self, pipeline_config, **transformer_kwargs) -> None:
        """Make the transformer with ``transformer_kwargs``, and its runner."""
        config = pipeline_config.primary_pretrained_config
        self.audio_gen = getattr(config, "sound_gen", False)
        self.action_gen = getattr(config, "action_gen", False)
        self._most_frames = MOST_FRAMES[getattr(config, "hidden_act", "silu")]
        self._transformer_kwargs = transformer_kwargs
        self._scheduler_cache: dict = {}
        super().__init__(pipeline_config)
        self.audio_tokenizer = None
        self.modes = {name: dict(values) for name, values in MODES.items()}

    def _init_transformer(self) -> None:
        self.transformer = Cosmos3VFMTransformer(
            self.pipeline_config.model_configs["transformer"], **self._transformer_kwargs
        )

    def default_offload_stages(self):
        """Each tower by itself."""
        return (("reasoner",), ("generator",))

    def offload_pipeline_components(self):
        """The layers of both towers."""
        model = self.transformer
        return {"reasoner": model.language_model.layers, "generator": model.gen_layers}

    def load_standard_components(self, checkpoint_dir: str, device, skip_components=()) -> None:
        """Load the scheduler; the others are assigned, whether they are to be skipped or not."""
        self.scheduler = UniPCMultistepScheduler.from_pretrained(
            checkpoint_dir, subfolder="scheduler"
        )
        self._base_scheduler = self.scheduler

    def _scheduler_for(self, flow_shift: float | None, stream: str = "video"):
        """The scheduler of that shift; streams have their own, since stepping changes them."""
        if (flow_shift, stream) not in self._scheduler_cache:
            changes = {} if flow_shift is None else {"flow_shift": flow_shift}
            base = self._base_scheduler
            made = type(base).from_config(base.config, **changes)
            self._scheduler_cache[flow_shift, stream] = made
        return self._scheduler_cache[flow_shift, stream]

    def _run_warmup(self, height: int, width: int, num_frames: int, steps: int) -> None:
        with torch.no_grad():
            self.forward(
                prompt="warmup",
                negative_prompt="",
                height=height,
                width=width,
                num_frames=num_frames,
                num_inference_steps=steps,
                guidance_scale=6.0,
                seed=42,
            )

    # ----------------------------------------------------------------- prompts

    def _with_metadata(self, text: str, image: bool, height, width, num_frames, frame_rate) -> str:
        """Add size and duration: as fields to a JSON object, and as sentences to other text."""
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            if not image:
                fields |= {"duration": f"{int(num_frames / frame_rate)}s", "fps": frame_rate}
            return json.dumps(fields | {"resolution": {"H": height, "W": width}})
        parts = [text.rstrip(". ")] if text.strip() else []
        if not image:
            parts.append(
                f"It lasts {num_frames / frame_rate:.1f} s at {frame_rate:g} frames a second"
            )
        parts.append(f"The {'image' if image else 'video'} has {height} x {width} pixels")
        return ". ".join(parts) + "."

    def _tokenize_prompt(self, text: str, max_sequence_length: int):
        """Return ids and mask [1, max_sequence_length]: the chat turn, cut to fit, and two more."""
        turn = [{"role": "user", "content": text}]
        ids = self.tokenizer.apply_chat_template(
            turn, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        ids = list(ids[: max_sequence_length - 2])
        ids += [self.tokenizer.eos_token_id]
        ids += [self.tokenizer.convert_tokens_to_ids("<|vision_start|>")]
        pad = max_sequence_length - len(ids)
        mask = [1] * len(ids) + [0] * pad
        ids += [self.tokenizer.pad_token_id or 0] * pad
        return tuple(torch.tensor([row], device=self.device) for row in (ids, mask))

    # ------------------------------------------------------------------ latents

    def _latent_shape(self, height: int, width: int, num_frames: int) -> tuple[int, ...]:
        time = (num_frames - 1) // self.vae.config.scale_factor_temporal + 1
        space = self.vae.config.scale_factor_spatial
        channels = self.transformer.settings.latent_channel
        return (1, channels, time, height // space, width // space)

    def _noise(self, shape, generator) -> torch.Tensor:
        return randn_tensor(shape, generator=generator, device=self.device, dtype=self.dtype)

    def _statistics(self) -> list[torch.Tensor]:
        config = self.vae.config
        return [
            torch.tensor(values, device=self.device, dtype=self.vae.dtype).view(1, -1, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        ]

    def _encode(self, frames: torch.Tensor) -> torch.Tensor:
        """Encode pixels [1, 3, frames, height, width] in [-1, 1]."""
        mean, std = self._statistics()
        latent = self.vae.encode(frames.to(self.vae.dtype)).latent_dist.mode()
        return ((latent - mean) / std).to(self.dtype)

    def _decode_raw(self, latents: torch.Tensor) -> torch.Tensor:
        mean, std = self._statistics()
        decoded = self.vae.decode(latents.to(self.vae.dtype) * std + mean, return_dict=False)[0]
        return decoded.clamp(-1, 1)

    @staticmethod
    def _to_uint8(pixels: torch.Tensor) -> torch.Tensor:
        """Return [1, frames, height, width, 3] from [1, 3, frames, height, width] in [-1, 1]."""
        return ((pixels.float() + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 4, 1)

    def _decode(self, latents: torch.Tensor) -> torch.Tensor:
        return self._to_uint8(self._decode_raw(latents))

    def _first_frame(self, image: bytes, height: int, width: int) -> torch.Tensor:
        """Return a picture as pixels [1, 3, 1, height, width] in [-1, 1]."""
        from PIL import Image

        picture = Image.open(io.BytesIO(image)).convert("RGB")
        if picture.size != (width, height):
            raise ValueError(
                f"the image is {picture.height} x {picture.width} (height x width) and the video "
                f"{height} x {width}; give one of the same size"
            )
        frames = torch.from_numpy(np.array(picture))[None]
        return self._to_pixels(frames.to(self.device))

    def _to_pixels(self, frames: torch.Tensor) -> torch.Tensor:
        """Return [1, 3, frames, height, width] in [-1, 1] from uint8 [frames, height, width, 3]."""
        return (frames.to(torch.float32) / 127.5 - 1).permute(3, 0, 1, 2)[None]

    def _given(self, clean: torch.Tensor, frames: int, generator):
        """Return latents whose first frames are given, their frame mask, and what is given."""
        noise = self._noise(clean.shape, generator)
        mask = torch.ones(1, 1, clean.shape[2], 1, 1, device=self.device, dtype=self.dtype)
        mask[:, :, :frames] = 0
        given = (1 - mask) * clean
        return given + mask * noise, mask, given

    # ------------------------------------------------------------------- checks

    def _check(self, *, guidance_scale, interval, num_frames, height, width) -> None:
        """Refuse what no model could be asked for."""
        if not (math.isfinite(guidance_scale) and guidance_scale >= 0):
            raise ValueError(f"guidance_scale={guidance_scale}; expected 0 or more, such as 6")
        if interval is not None and interval[0] > interval[1]:
            raise ValueError(
                f"the guidance interval {tuple(interval)} is the wrong way round; expected "
                f"{(interval[1], interval[0])}, the lower timestep first"
            )
        if not 1 <= num_frames <= self._most_frames:
            raise ValueError(
                f"num_frames={num_frames}; this model takes 1 to {self._most_frames} at a time"
            )
        multiple = self.vae.config.scale_factor_spatial
        if min(height, width) < multiple or height % multiple or width % multiple:
            raise ValueError(f"{height} x {width} pixels; expected multiples of {multiple}")

    def _check_parts(self, enable_audio, action_mode, transfer_config, image) -> None:
        """Refuse what this checkpoint has no weights for, and what does not go together."""
        if enable_audio and not self.audio_gen:
            raise ValueError("enable_audio=True, and this checkpoint has sound_gen=False")
        if action_mode is not None and not self.action_gen:
            raise ValueError(f"action_mode={action_mode!r}, and this checkpoint has no action_gen")
        if action_mode not in (None, *ACTION_MODES):
            raise ValueError(f"action_mode={action_mode!r}; the host has {ACTION_MODES}")
        if action_mode is not None and image is None:
            raise ValueError(f"action_mode={action_mode!r} needs an image")
        if transfer_config is not None and not transfer_config.hints:
            raise ValueError("a transfer request without a control; give one or more hints")
        extra = [image is not None, enable_audio, action_mode is not None]
        if transfer_config is not None and any(extra):
            raise ValueError("a transfer request takes neither an image nor audio nor actions")

    def _prepared(self, prepare):
        """Return what ``prepare`` does, or raise on every rank where it fails on one."""
        error, result = None, None
        try:
            result = prepare()
        except Exception as caught:
            error = caught
        failed = torch.tensor(float(error is not None), device=self.device)
        if dist.is_initialized():
            dist.all_reduce(failed)
        if error is not None:
            raise error
        if failed:
            raise RuntimeError("another rank could not prepare this request's media")
        return result

    # ------------------------------------------------------------------ forward

    @torch.inference_mode()
    def forward(
        self,
        prompt: str,
        negative_prompt: str = "",
        image: bytes | None = None,
        height: int = 720,
        width: int = 1280,
        num_frames: int | None = None,
        num_inference_steps: int = 35,
        guidance_scale: float = 6.0,
        seed: int = 42,
        max_sequence_length: int = 4096,
        frame_rate: float = 24.0,
        use_guardrails: bool = False,
        enable_audio: bool = False,
        output_type: str = "video",
        action_mode: str | None = None,
        domain_id: int = 0,
        raw_action_dim: int | None = None,
        action_chunk_size: int | None = None,
        action=None,
        action_resolution: int | None = None,
        action_fps: float | None = None,
        transfer_config: Cosmos3TransferConfig | None = None,
    ) -> PipelineOutput:
        """Answer one request.

        Args:
            prompt: what to show.
            negative_prompt: what not to.
            image: an encoded picture that the video begins with.
            height: in pixels.
            width: in pixels.
            num_frames: of the video; 1 for an image, one more than the actions for actions.
            num_inference_steps: of the schedule.
            guidance_scale: of the prompt over the negative one; transfer has its own.
            seed: of the noise.
            max_sequence_length: what prompts are padded to.
            frame_rate: frames per second.
            use_guardrails: must be False, there are none here.
            enable_audio: denoise a sound beside the video.
            output_type: "video" or "image".
            action_mode: "policy" for actions to find, "forward_dynamics" for given ones.
            domain_id: the embodiment.
            raw_action_dim: the embodiment's own width of an action.
            action_chunk_size: number of actions.
            action: [actions, raw_action_dim] for "forward_dynamics".
            action_resolution: upstream chooses a canvas by it; here height and width are said.
            action_fps: actions per second; the frame rate when None.
            transfer_config: controls, for a transfer request.

        Raises:
            ValueError: something is wrong about the request.
        """
        image_only = output_type == "image"
        if num_frames is None:
            num_frames = 1 if action_mode is None else action_chunk_size + 1
        mode = self.modes["image" if image_only else "video"]
        interval = mode["guidance_interval"]
        self._check_parts(enable_audio, action_mode, transfer_config, image)
        self._check(
            guidance_scale=guidance_scale,
            interval=interval,
            num_frames=1 if transfer_config else num_frames,
            height=height,
            width=width,
        )
        common = (height, width, num_inference_steps, seed, max_sequence_length, frame_rate)
        if transfer_config is not None:
            return self._forward_transfer(
                prompt, negative_prompt, guidance_scale, transfer_config, num_frames, *common
            )
        generator = torch.Generator(self.device).manual_seed(seed)
        shown = (image_only, height, width, num_frames, frame_rate)
        yes, no = (
            self._tokenize_prompt(self._with_metadata(text, *shown), max_sequence_length)
            for text in (prompt, negative_prompt)
        )
        shape = self._latent_shape(height, width, num_frames)
        mask = given = None

        def prepare():
            if image is None:
                return self._noise(shape, generator), None, None
            frame = self._first_frame(image, height, width)
            clean = self._encode(frame.expand(-1, -1, num_frames, -1, -1).contiguous())
            return self._given(clean, 1, generator)

        latents, mask, given = self._prepared(prepare)
        self.scheduler = self._scheduler_for(mode["flow_shift"])
        self.scheduler.set_timesteps(num_inference_steps, device=self.device)
        streams, action_arguments, anchor = {}, {}, None
        if action_mode is not None:
            stream, action_arguments, anchor = self._actions(
                action_mode, action_chunk_size, raw_action_dim, action, generator
            )
            action_arguments |= {"action_fps": action_fps or frame_rate}
            streams["action"] = stream
        elif enable_audio:
            config = self.audio_tokenizer.model_config
            samples = int(num_frames / frame_rate * config["sampling_rate"])
            rows = -(-samples // math.prod(config["dec_strides"]))
            width_ = self.transformer.settings.sound_dim
            streams["audio"] = self._noise((1, width_, rows), generator)
        stepped = {}
        for name, stream in streams.items():
            scheduler = self._scheduler_for(mode["flow_shift"], name)
            scheduler.set_timesteps(num_inference_steps, device=self.device)
            stepped[name] = (stream, scheduler)
        domains = torch.tensor([domain_id], device=self.device)

        def forward_fn(latent_input, extra_latents, step, timestep, extra):
            if action_mode is not None:
                action_arguments["action_domain_ids"] = domains.expand(len(latent_input))
            result = self.transformer(
                hidden_states=latent_input,
                timestep=timestep / self.scheduler.config.num_train_timesteps,
                raw_timestep=timestep,
                video_shape=tuple(shape[2:]),
                fps=frame_rate,
                noisy_frame_mask=mask,
                audio_latents=extra_latents.get("audio"),
                action_latents=extra_latents.get("action"),
                offload_context=self.offloader.context_if_requested,
                **extra,
                **action_arguments,
            )
            video = result.video if mask is None else result.video * mask
            if action_mode is not None:
                found = result.action * action_arguments["action_noisy_mask"]
                if raw_action_dim is not None:
                    found[..., raw_action_dim:] = 0
                return video, {"action": found}
            return (video, {"audio": result.audio}) if enable_audio else video

        def post_step(latents, streams):
            # Actions keep their frame by every step; a video's velocity is 0 there.
            noisy, clean = anchor
            streams["action"] = noisy * streams["action"] + (1 - noisy) * clean
            return mask * latents + given, streams

        self.transformer.reset_cache()
        found = self.denoise(
            latents=latents,
            scheduler=self.scheduler,
            guidance_scale=guidance_scale,
            forward_fn=forward_fn,
            extra_cfg_tensors={
                name: (yes[i], no[i]) for i, name in enumerate(("text_ids", "text_mask"))
            },
            extra_streams=stepped,
            guidance_interval=interval,
            post_step_fn=post_step if anchor else None,
        )
        latents, streams = found if stepped else (found, {})
        if mask is not None and anchor is None:
            latents[:, :, :1] = given[:, :, :1]
        video = self.decode_latents(latents, self._decode)
        if image_only:
            return PipelineOutput(image=None if video is None else video[:, 0])
        output = PipelineOutput(video=video, frame_rate=frame_rate)
        if "audio" in streams:
            output.audio = self.audio_tokenizer.decode(streams["audio"]).float()
            output.audio_sample_rate = self.audio_tokenizer.model_config["sampling_rate"]
        if "action" in streams:
            output.action = streams["action"][..., :raw_action_dim].float().cpu()
        return output

    def _actions(self, action_mode, count, raw_width, action, generator):
        """Return latents [1, actions, action_dim], the forward's arguments, and what is given."""
        width = self.transformer.settings.action_dim
        shape = (1, count, width)
        clean = torch.zeros(shape, device=self.device, dtype=self.dtype)
        noisy = torch.ones(1, count, 1, device=self.device, dtype=self.dtype)
        if action_mode == "forward_dynamics":
            values = torch.as_tensor(action, dtype=self.dtype, device=self.device)
            if values.shape != (count, raw_width) or raw_width > width:
                raise ValueError(
                    f"action has shape {tuple(values.shape)}; expected [action_chunk_size, "
                    f"raw_action_dim] = {[count, raw_width]}, at most {width} wide"
                )
            clean[0, :, :raw_width] = values
            noisy.zero_()
        noise = self._noise(shape, generator)
        if raw_width is not None:
            noise[..., raw_width:] = 0
        arguments = {"action_noisy_mask": noisy, "action_start_frame_offset": 1}
        return (1 - noisy) * clean + noisy * noise, arguments, (noisy, clean)

    # ----------------------------------------------------------------- transfer

    def _forward_transfer(
        self,
        prompt,
        negative_prompt,
        guidance_scale,
        config: Cosmos3TransferConfig,
        num_frames,
        height,
        width,
        steps,
        seed,
        max_sequence_length,
        frame_rate,
    ) -> PipelineOutput:
        """Answer a transfer request, chunk by chunk."""
        if config.guidance_scale is not None:
            guidance_scale = config.guidance_scale
        compression = self.vae.config.scale_factor_temporal
        chunk = -(-(config.num_video_frames_per_chunk - 1) // compression) * compression + 1
        self._check(
            guidance_scale=guidance_scale,
            interval=config.control_guidance_interval,
            num_frames=chunk,
            height=height,
            width=width,
        )
        keep = config.num_conditional_frames
        if not 0 <= keep < chunk:
            raise ValueError(f"num_conditional_frames={keep}; expected 0 to {chunk - 1}")
        limit = min(config.max_frames, config.num_frames or num_frames)

        def prepare():
            return [
                decode_video_reference_window(
                    hint.control,
                    first_frame=0,
                    last_frame=limit - 1,
                    target_h=height,
                    target_w=width,
                    device=self.device,
                )
                for hint in config.ordered_hints
            ]

        controls = [self._to_pixels(frames) for frames in self._prepared(prepare)]
        total = max(control.shape[2] for control in controls)
        chunks = 1 + max(0, -(-(total - chunk) // (chunk - keep)))
        frame_rate = config.fps or frame_rate
        self.scheduler = self._scheduler_for(config.flow_shift or TRANSFER_FLOW_SHIFT, "transfer")
        generator = torch.Generator(self.device).manual_seed(seed)
        texts = (config.emphasized_prompt(prompt), negative_prompt)
        yes, no = (self._tokenize_prompt(text, max_sequence_length) for text in texts)
        output, previous = [], None
        for number in range(chunks):
            start = number * (chunk - keep)
            # A new list of new tensors for every chunk.
            control_latents = [
                self._encode(_padded(control[:, :, start : start + chunk], chunk))
                for control in controls
            ]
            target, given = torch.zeros_like(_padded(controls[0], chunk)[:, :, :chunk]), 0
            if previous is not None and keep:
                given = keep
                target[:, :, :keep] = previous[:, :, -keep:]
                target[:, :, keep:] = target[:, :, keep - 1 : keep]
            frames = (given - 1) // compression + 1 if given else 0
            latents, mask, clean = self._given(self._encode(target), frames, generator)
            self.scheduler.set_timesteps(steps, device=self.device)
            latents = self.diffuse_transfer(
                latents=latents,
                timesteps=self.scheduler.timesteps,
                yes=yes,
                no=no,
                guidance_scale=guidance_scale,
                config=config,
                control_latents=control_latents,
                velocity_mask=mask,
                condition_latents=clean,
                frame_rate=frame_rate,
            )
            # Every rank decodes: the next chunk begins with this one's end.
            previous = self._decode_raw(latents)
            output.append(previous[:, :, given : given + total - sum(x.shape[2] for x in output)])
        video = self._to_uint8(torch.cat(output, dim=2)) if self.rank == 0 else None
        return PipelineOutput(video=video, frame_rate=frame_rate)

    def diffuse_transfer(
        self,
        *,
        latents,
        timesteps,
        yes,
        no,
        guidance_scale,
        config,
        control_latents,
        velocity_mask,
        condition_latents,
        frame_rate,
    ) -> torch.Tensor:
        """Denoise one chunk; the branches run one after the other, each on caches of its own."""
        caches: dict[str, tuple] = {}

        def branch(name, text, controls, timestep):
            model = self.transformer
            model.cached_kv, model.cached_freqs_gen = caches.get(name, (None, None))
            result = model(
                hidden_states=latents,
                timestep=timestep / self.scheduler.config.num_train_timesteps,
                raw_timestep=timestep,
                text_ids=text[0],
                text_mask=text[1],
                control_latents=controls,
                offload_context=self.offloader.context_if_requested,
                video_shape=tuple(latents.shape[2:]),
                fps=frame_rate,
                noisy_frame_mask=velocity_mask,
                transfer_share_vision_temporal_positions=config.share_vision_temporal_positions,
            )
            caches[name] = (model.cached_kv, model.cached_freqs_gen)
            # Not copied, as upstream does not: with graphs it is the next branch's too, where
            # both prompts are of one bucket.
            return result.video

        self.transformer.reset_cache()
        try:
            low, high = config.control_guidance_interval or (float("-inf"), float("inf"))
            for t in timesteps:
                timestep = t.expand(len(latents))
                control_scale = config.control_guidance if low <= t.item() <= high else 1.0
                full = branch("full", yes, control_latents, timestep)
                free = negative = None
                if control_scale != 1.0:
                    free = branch("free", yes, None, timestep)
                if guidance_scale > 1.0:
                    negative = branch("negative", no, control_latents, timestep)
                noise = full if free is None else free + control_scale * (full - free)
                if negative is not None:
                    noise = negative + guidance_scale * (noise - negative)
                noise = noise * velocity_mask
                latents = self.scheduler.step(noise, t, latents, return_dict=False)[0]
                latents = velocity_mask * latents + condition_latents
        finally:
            self.transformer.reset_cache()
        return latents


def _padded(frames: torch.Tensor, count: int) -> torch.Tensor:
    """Repeat the last of [1, 3, frames, ...] until there are ``count``."""
    missing = max(0, count - frames.shape[2])
    return torch.cat([frames, frames[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)
