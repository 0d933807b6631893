# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Requests as a pipeline makes them, and what has to hold over many of them, on any device.

Fields: B batch, L prompt lengths, S_text padded text rows.
"""

import random
from collections.abc import Callable, Iterable, Iterator

import torch
from cosmos3_weights import init_random_weights

from support.model import TINY
from support.tiers import assert_bitwise

# Heads of 128, which FA4 and cuDNN take.
CONFIG = TINY | {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rope_axes_dim": (24, 20, 20),
    "num_hidden_layers": 2,
}
TEXT_ROWS = 1280
# 2048 rows, enough that VANILLA folds, and 64, on which it masks.
VIDEO, IMAGE = (2, 64, 64), (1, 16, 16)


class Serving:
    """A transformer, and requests to it.

    Args:
        transformer: The host's or a checkout's.
        videos: Shapes of the latents of its requests; the first is what a request has by default.
    """

    def __init__(self, transformer, videos=(VIDEO, IMAGE)):
        self.transformer, self.videos = transformer, videos
        weight = next(x for x in transformer.gen_layers.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    @classmethod
    def host(cls, backend, device="cpu", dtype=torch.float32, text_kv="exact", mapping=None):
        """Serves the host's transformer with random weights of one seed, on a CPU with IMAGE."""
        from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
        from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
            Cosmos3VFMTransformer,
        )

        config = DiffusionModelConfig.from_diffusers(
            CONFIG, backend=backend, dtype=dtype, visual_gen_mapping=mapping
        )
        with torch.device(device):
            transformer = Cosmos3VFMTransformer(config, text_kv=text_kv)
        init_random_weights(transformer, 0)
        return cls(transformer, (IMAGE,) if device == "cpu" else (VIDEO, IMAGE))

    def request(self, lengths, seed=0, step=0, video=None, controls=()) -> dict:
        """Arguments of one denoising step; prompts are padded to one length, as pipelines do.

        Args:
            lengths: L.
            seed: Of the tokens and latents.
            step: Number of the step, whose latents are others.
            video: (T, H, W) of the latents.
            controls: Seeds of control latents, which come in a list of new tensors.
        """
        video = video or self.videos[0]
        generator = torch.Generator(self.device).manual_seed(seed)
        batch = len(lengths)

        def normal(generator):
            shape = (batch, CONFIG["latent_channel"], *video)
            return torch.randn(shape, generator=generator, device=self.device).to(self.dtype)

        shape = (batch, TEXT_ROWS)
        ids = torch.randint(0, 1000, shape, generator=generator, device=self.device)
        positions = torch.arange(TEXT_ROWS, device=self.device)
        raw = torch.full((batch,), 900.0 - step, device=self.device)
        arguments = {
            "hidden_states": normal(generator).roll(step, dims=3),
            "timestep": raw,
            "raw_timestep": raw,
            "text_ids": ids,
            "text_mask": (positions < torch.tensor(lengths, device=self.device)[:, None]).long(),
            "video_shape": video,
            "fps": 24.0,
        }
        if controls:
            arguments["control_latents"] = [normal(generator.manual_seed(s)) for s in controls]
        return arguments

    def eager(self, arguments: dict) -> torch.Tensor:
        """The velocity of a new request's first step, whatever forward is wrapped in."""
        self.transformer.reset_cache()
        return type(self.transformer).forward(self.transformer, **arguments).video

    def graphs(self):
        """Wraps forward in a runner, as pipelines do, on the instance; returns the runner."""
        from tensorrt_llm._torch.visual_gen.cuda_graph_runner import (
            CUDAGraphRunner,
            CUDAGraphRunnerConfig,
        )

        runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
        if self.device.type == "cpu" and hasattr(self.transformer, "graph_inputs"):
            # There is no free memory of a GPU to take a share of. An unpatched side has none.
            self.transformer.graph_inputs.max_bytes = 1 << 30
        self.transformer.register_cuda_graph_extra_key_fns(runner)
        self.transformer.forward = runner.wrap(self.transformer.forward)
        return runner

    def in_turn(self) -> Iterator[dict]:
        """Requests with prompts in turn, and then with controls alone in turn, and back again."""
        plan = [((30, 700), 2), ((41, 650), 3), ((1000, 40), 4), ((30, 700), 2), ((5, 7), 6)]
        for video in self.videos:
            for lengths, seed in [*plan, plan[1]]:
                yield self.request(lengths, seed, video=video)
        for controls in ((0,), (50,), (0,), (90,), (0, 1), (50, 1), (1, 0)):
            yield self.request((30, 700), 2, controls=controls)


def assert_replays_vs_eager(serving: Serving, requests: Iterable[dict], what: str = "") -> None:
    """New requests through the wrapped forward, a first and a second step, and eagerly.

    Raises:
        ToleranceError: A replay is not equal to the eager forward, to the last bit.
        AssertionError: Two requests have one video, so that a stale one would go unseen.
    """
    last = None
    for number, arguments in enumerate(requests):
        expected = serving.eager(arguments)
        serving.transformer.reset_cache()
        for step in ("first", "second"):
            found = serving.transformer(**arguments).video
            assert_bitwise(found, expected, f"{what} request {number}, {step} step")
        assert last is None or not torch.equal(expected, last), "two requests, one video"
        last = expected


def assert_few_captures(serving: Serving, prompts: int) -> None:
    """Prompts of 20 to 1200 tokens: at most five captures, none when they come again."""
    runner = serving.graphs()
    draw = random.Random(5)
    pairs = [(draw.randint(20, 1200), draw.randint(20, 1200)) for _ in range(prompts)]
    captured, counts = _counted(runner), []
    for again in ("", "again, "):
        requests = (serving.request(pair, number) for number, pair in enumerate(pairs))
        assert_replays_vs_eager(serving, requests, again)
        counts.append(len(captured))
    assert counts[0] <= 5, f"{counts[0]} captures"
    assert counts[1] == counts[0], f"{counts[1] - counts[0]} captures in the second pass"
    inputs = serving.transformer.graph_inputs
    assert 0 < inputs.nbytes <= inputs.max_bytes
    runner.clear()
    assert inputs.nbytes == 0, "clear() frees the copies"


def _counted(runner) -> list:
    """Grows by one with each capture from now on; holds no key, which would keep copies alive."""
    captured, capture = [], runner._capture

    def counting(*args):
        captured.append(None)
        return capture(*args)

    runner._capture = counting
    return captured


def assert_modes_vs_eager(serving: Serving) -> None:
    """Warm-up under no_grad and requests under inference_mode, as pipelines have them."""
    runner = serving.graphs()
    plan = [
        (torch.no_grad, (30, 200)),
        (torch.inference_mode, (7, 220)),
        (torch.inference_mode, (7, 400)),
        (torch.no_grad, (9, 210)),
    ]
    for number, (mode, lengths) in enumerate(plan):
        with mode():
            requests = [serving.request(lengths, number)]
            assert_replays_vs_eager(serving, requests, f"{mode.__name__} {lengths}")
    assert len(runner.graphs) == 2


PROMPTS = [(30, 200), (300, 9), (7, 700)]
# 16 rows to 864, with 64 and 2048 among them.
VIDEOS = [(1, 8, 8), IMAGE, VIDEO, (1, 24, 8), (3, 10, 6), (6, 24, 24)]


def assert_bounded_compilation(
    serving: Serving, compiler: str, compare: Callable, videos=VIDEOS, breaks: bool = False
) -> None:
    """Layers compiled as pipelines do: prompts never make a graph, shapes two in all.

    Args:
        serving: Whose layers are compiled.
        compiler: torch.compile's backend.
        compare: Called with the compiled and the eager velocity, and what they are.
        videos: Shapes of latents, one after the other.
        breaks: Whether the attention's backend is one that compiled code calls from outside, so
            that a layer is several graphs.
    """
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    forwards = [layer.forward for layer in serving.transformer.gen_layers]
    graphs = []
    for video in videos:
        for number, lengths in enumerate(PROMPTS):
            arguments = serving.request(lengths, number, video=video)
            for layer, forward in zip(serving.transformer.gen_layers, forwards):
                layer.forward = forward
            expected = serving.eager(arguments)
            for layer, forward in zip(serving.transformer.gen_layers, forwards):
                layer.forward = torch.compile(forward, backend=compiler)
            compare(serving.eager(arguments), expected, f"{video} {lengths}")
            found = counters["stats"]["unique_graphs"]
            if number == 0:
                graphs.append(found)
            assert found == graphs[-1], f"prompt {lengths} made a graph at {video}"
    assert breaks or not counters["graph_break"], dict(counters["graph_break"])
    assert graphs[0] > 0, "nothing was compiled"
    assert graphs[-1] <= 2 * graphs[0], f"graphs after each shape: {graphs}"
