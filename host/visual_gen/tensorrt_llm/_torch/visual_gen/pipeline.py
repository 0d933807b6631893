# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What every VisualGen pipeline shares: start-up, graphs, the denoising loop, shutdown.

As careless as upstream's: graphs are made at start-up and cleared in cleanup() alone, nothing is
cleared or refreshed between requests, and what a graph returns is not copied.

Legend: B batch, [negative, positive] or the positive alone; C, T, H, W of the latents.
"""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .cuda_graph_runner import CUDAGraphRunner, CUDAGraphRunnerConfig


class PipelineOffloader:
    """Keeps the components of its stages in main memory while nobody uses them."""

    def __init__(self, pipeline: "BasePipeline") -> None:
        """Read what ``pipeline_config.cpu_offload`` asks for."""
        self._pipeline = pipeline
        self._enabled = pipeline.pipeline_config.cpu_offload.enable

    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names of components, stage by stage; none when offloading is off."""
        return self._pipeline.default_offload_stages() if self._enabled else ()

    @contextlib.contextmanager
    def context_if_requested(self, name: str):
        """A context in which the component of that name is on the pipeline's device."""
        if name not in itertools.chain(*self.stages()):
            yield
            return
        module = self._pipeline.offload_pipeline_components()[name]
        module.to(self._pipeline.device)
        try:
            yield
        finally:
            module.to("cpu")


class BasePipeline(nn.Module):
    """A transformer behind a denoising loop.

    Attributes:
        transformer: made by :meth:`_init_transformer`; graphs wrap the INSTANCE's forward.
        offloader: gives contexts for components that may be in main memory.
        skip_uncond_at_scale_one: outside a guidance interval, run the positive prompt alone on its
            half of the caches, as newer upstream can; off, as there.
    """

    def __init__(self, pipeline_config) -> None:
        """Make the transformer and then, before weights are loaded, the runner around it."""
        super().__init__()
        self.pipeline_config = pipeline_config
        self._device = torch.device(pipeline_config.device)
        self._cuda_graph_runners: dict[str, CUDAGraphRunner] = {}
        self.offloader = PipelineOffloader(self)
        self.skip_uncond_at_scale_one = False
        self.transformer: nn.Module | None = None
        self.vae: nn.Module | None = None
        self.tokenizer: Any = None
        self.scheduler: Any = None
        self._init_transformer()
        self._setup_cuda_graphs()

    def _init_transformer(self) -> None:
        raise NotImplementedError

    def _run_warmup(self, height: int, width: int, num_frames: int, steps: int) -> None:
        raise NotImplementedError

    def default_offload_stages(self) -> tuple[tuple[str, ...], ...]:
        """Components that offloading keeps in main memory."""
        return ()

    def offload_pipeline_components(self) -> dict[str, nn.Module]:
        """Components by name."""
        return {}

    @property
    def rank(self) -> int:
        """Of the whole world."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def device(self) -> torch.device:
        """Where requests run."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """Of latents."""
        return self.pipeline_config.torch_dtype

    def _setup_cuda_graphs(self) -> None:
        if not self.pipeline_config.cuda_graph.enable:
            return
        if self.offloader.stages():
            raise NotImplementedError("CUDA graphs and offloading exclude each other; disable one")
        runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
        self.transformer.register_cuda_graph_extra_key_fns(runner)
        self.transformer.forward = runner.wrap(self.transformer.forward)
        self._cuda_graph_runners["transformer"] = runner

    @contextlib.contextmanager
    def disallow_cuda_graph_capture(self):
        """A context in which what has not been captured runs eagerly."""
        runners = self._cuda_graph_runners.values()
        before = [runner.allow_capture for runner in runners]
        for runner in runners:
            runner.allow_capture = False
        try:
            yield
        finally:
            for runner, allowed in zip(runners, before):
                runner.allow_capture = allowed

    def warmup(self) -> None:
        """Run two steps of every configured shape; several ranks do so once without capturing."""
        shapes = self.pipeline_config.warmup_shapes
        if dist.is_initialized() and dist.get_world_size() > 1:
            with self.disallow_cuda_graph_capture():
                for shape in shapes:
                    self._run_warmup(*shape, steps=2)
        for shape in shapes:
            self._run_warmup(*shape, steps=2)

    def cleanup(self) -> None:
        """Release the graphs; called before the process group ends."""
        for runner in self._cuda_graph_runners.values():
            runner.clear()

    # ---------------------------------------------------------------- denoising

    def _branches(self, guidance_scale: float, tensors: dict[str, tuple]) -> tuple[bool, dict]:
        """Return whether guidance is split over ranks, and this rank's part of the tensors.

        Args:
            guidance_scale: of the request.
            tensors: by name, of the positive and the negative prompt, [1, ...].
        """
        vgm = self.pipeline_config.visual_gen_mapping
        split = vgm is not None and vgm.cfg_size > 1 and guidance_scale > 1.0
        if split:
            return True, {name: pair[vgm.cfg_rank] for name, pair in tensors.items()}
        if guidance_scale > 1.0:
            return False, {name: torch.cat([no, yes]) for name, (yes, no) in tensors.items()}
        return False, {name: positive for name, (positive, _) in tensors.items()}

    def denoise(
        self,
        latents: torch.Tensor,
        scheduler,
        guidance_scale: float,
        forward_fn: Callable,
        extra_cfg_tensors: dict[str, tuple[torch.Tensor, torch.Tensor]],
        extra_streams: dict[str, tuple[torch.Tensor, Any]] | None = None,
        guidance_interval: tuple[float, float] | None = None,
        post_step_fn: Callable | None = None,
    ):
        """Denoise latents and the streams beside them.

        Args:
            latents: [1, C, T, H, W].
            scheduler: set to its timesteps.
            guidance_scale: at most 1 for the positive prompt alone.
            forward_fn: called with (latents, streams by name, step, timesteps [B], this rank's
                extra tensors); returns velocities, or those and a dictionary of the streams'.
            extra_cfg_tensors: by name, of the positive and the negative prompt.
            extra_streams: by name, latents and a scheduler of their own.
            guidance_interval: timesteps within which guidance_scale holds; it is 1 outside.
            post_step_fn: takes and returns latents and streams, after every step.

        Returns:
            The latents, with the streams' beside them where there are any.
        """
        split, extras = self._branches(guidance_scale, extra_cfg_tensors)
        both = guidance_scale > 1.0 and not split
        streams = {name: stream for name, (stream, _) in (extra_streams or {}).items()}
        halves: dict[bool, tuple] = {}
        for step, t in enumerate(scheduler.timesteps):
            low, high = guidance_interval or (float("-inf"), float("inf"))
            scale = guidance_scale if low <= t.item() <= high else 1.0
            pair = both and not (self.skip_uncond_at_scale_one and scale == 1.0)
            mine = extras
            if both and self.skip_uncond_at_scale_one:
                self._take_cache(halves, pair)
                mine = extras if pair else {name: x[1:] for name, x in extras.items()}
            copies = 2 if pair else 1
            given = {name: torch.cat([x] * copies) for name, x in streams.items()}
            video_in = torch.cat([latents] * copies) if pair else latents
            result = forward_fn(video_in, given, step, t.expand(len(video_in)), mine)
            if both and self.skip_uncond_at_scale_one:
                halves[pair] = (self.transformer.cached_kv, self.transformer.cached_freqs_gen)
            noise, noises = result if isinstance(result, tuple) else (result, {})
            found = {"": noise, **noises}
            if split:
                found = {name: self._gathered(x, scale) for name, x in found.items()}
            elif pair:
                halved = {name: x.chunk(2) for name, x in found.items()}
                found = {name: no + scale * (yes - no) for name, (no, yes) in halved.items()}
            latents = scheduler.step(found.pop(""), t, latents, return_dict=False)[0]
            for name, x in found.items():
                own = extra_streams[name][1]
                streams[name] = own.step(x, t, streams[name], return_dict=False)[0]
            if post_step_fn is not None:
                latents, streams = post_step_fn(latents, streams)
        return (latents, streams) if extra_streams else latents

    def _gathered(self, noise: torch.Tensor, scale: float) -> torch.Tensor:
        vgm = self.pipeline_config.visual_gen_mapping
        parts = [torch.empty_like(noise, memory_format=torch.contiguous_format) for _ in range(2)]
        dist.all_gather(parts, noise.contiguous(), group=vgm.cfg_group)
        positive, negative = parts
        return negative + scale * (positive - negative)

    def _take_cache(self, halves: dict[bool, tuple], pair: bool) -> None:
        """Put the caches of both prompts, or of the positive one, in their place."""
        kept = halves.get(pair, (None, None))
        if not pair and kept[0] is None and True in halves:
            text, tables = halves[True]
            kept = (text.select(slice(1, 2)), tuple(x[1:] for x in tables))
        self.transformer.cached_kv, self.transformer.cached_freqs_gen = kept

    def decode_latents(self, latents: torch.Tensor, decode_fn: Callable):
        """Decode on rank 0; None elsewhere."""
        return decode_fn(latents) if self.rank == 0 else None
