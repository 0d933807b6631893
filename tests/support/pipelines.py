# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A small pipeline of the host, requests to it, and pipelines that are wrong in a known way."""

import multiprocessing
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from cosmos3_components import ChatTokenizer, make_pipeline
from cosmos3_requests import Request, forward_arguments, make_request
from cosmos3_weights import init_random_weights
from diffusers import UniPCMultistepScheduler
from torch.utils._pytree import tree_map_only

from support.model import OMNI

MODEL = OMNI | {"num_hidden_layers": 2, "action_dim": 9}
# 2 x 3 video rows in each of two latent frames; a number that 2 ranks divide and 4 do not.
SIZE = {"height": 64, "width": 96, "num_frames": 5}
SHAPE = tuple(SIZE.values())


class SmallTokenizer(ChatTokenizer):
    """Maps all ids into a vocabulary of 1000."""

    def apply_chat_template(self, *args, **kwargs):
        return [token % 997 for token in super().apply_chat_template(*args, **kwargs)]

    def convert_tokens_to_ids(self, token):
        return 998


def build(graphs=False, mapping=None, model=MODEL, backend="VANILLA", **transformer_kwargs):
    """A pipeline on the CPU in float32, with the weights of one seed."""
    from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig

    config = DiffusionModelConfig.from_diffusers(
        model, backend=backend, dtype=torch.float32, visual_gen_mapping=mapping
    )
    pipeline = make_pipeline(config, "cpu", (SHAPE,) if graphs else None, **transformer_kwargs)
    pipeline.tokenizer = SmallTokenizer()
    pipeline.tokenizer.eos_token_id, pipeline.tokenizer.pad_token_id = 999, 0
    init_random_weights(pipeline.transformer, 0)
    return pipeline


def runner_of(pipeline):
    return pipeline._cuda_graph_runners["transformer"]


def request_of(kind: str, **changes) -> Request:
    """A request of the small size, in two steps."""
    return make_request(kind, **{**SIZE, "num_inference_steps": 2, **changes})


@contextmanager
def stepped(watch):
    """Calls watch(scheduler, latents after the step) with every step of any scheduler."""
    step = UniPCMultistepScheduler.step

    def observed(scheduler, *args, **kwargs):
        result = step(scheduler, *args, **kwargs)
        watch(scheduler, result[0])
        return result

    with mock.patch.object(UniPCMultistepScheduler, "step", observed):
        yield


def answer(pipeline, request: Request) -> dict[str, torch.Tensor]:
    """The latents after every step of every stream, and what the request returns."""
    steps = []
    with stepped(lambda scheduler, latents: steps.append(latents.clone())):
        output = pipeline.forward(**forward_arguments(request))
    found = {f"step{number}": latents for number, latents in enumerate(steps)}
    for name in ("video", "image", "audio", "action"):
        if getattr(output, name) is not None:
            found[name] = getattr(output, name)
    return found


def _answer_into(path: str, request: Request) -> None:
    torch.save(answer(build(), request), path)


def answer_of_a_fresh_process(request: Request) -> dict[str, torch.Tensor]:
    """What a process answers that was started for this request alone."""
    context = multiprocessing.get_context("forkserver")
    # As support.ranks does: all share one server, which has imported everything and run nothing.
    context.set_forkserver_preload(["support.preload"])
    with TemporaryDirectory() as folder:
        path = f"{folder}/answer.pt"
        process = context.Process(target=_answer_into, args=(path, request))
        process.start()
        process.join()
        assert process.exitcode == 0
        return torch.load(path)


def interrupt(pipeline, request: Request, error: BaseException) -> None:
    """Ends a request with an error after its first step of two."""

    def watch(scheduler, latents):
        raise error

    with stepped(watch):
        try:
            pipeline.forward(**forward_arguments(request))
        except type(error):
            return
    raise AssertionError("the request was not interrupted")


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether two answers are the same to the last bit."""
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def blind(pipeline):
    """Graphs read what they read at capture, but for arguments that are tensors."""
    inputs = pipeline.transformer.graph_inputs
    runner_of(pipeline)._extra_key_fns.clear()
    inputs.read = lambda tensors: tensors
    return pipeline


def forgetful(pipeline):
    """Nothing resets the caches of a request."""
    pipeline.transformer.reset_cache = lambda: None
    return pipeline


def deaf(pipeline):
    """A replay refreshes nothing at all."""
    runner = runner_of(pipeline)
    capture = runner._capture

    def baked(key, fn, args, kwargs):
        capture(key, fn, args, kwargs)
        # What is refreshed from now on, nobody reads.
        given = runner.static_inputs[key]
        runner.static_inputs[key] = tree_map_only(torch.Tensor, torch.clone, given)

    runner._capture = baked
    return pipeline
