# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to a pipeline with graphs: each is answered as by a process that never had another."""

import asyncio
import dataclasses
import gc
import pickle
import weakref
from unittest import mock

import pytest
import torch
from cosmos3_requests import TYPES, chunks, clip, forward_arguments, picture, upsampled
from support import pipelines
from support.pipelines import (
    SHAPE,
    SIZE,
    answer,
    answer_of_a_fresh_process,
    build,
    equal,
    interrupt,
    request_of,
    runner_of,
)

LONG = " ".join(f"Then comes scene {i}." for i in range(120))
TURNED = {"height": SIZE["width"], "width": SIZE["height"]}
CLIPS = {seed: clip(seed, 9, SIZE["height"], SIZE["width"]) for seed in range(4)}
EDGE = {"hints": {"edge": CLIPS[0]}}
GIVEN = {"action_mode": "forward_dynamics", "action": [[0.1] * 9] * 4}
OTHER_ACTIONS = GIVEN | {"action": [[0.2] * 9] * 4}
# What the second request of a pair changes, by what it is called.
EVERYWHERE = {
    "prompt": {"prompt": "A blue whale dives."},
    "bucket": {"prompt": LONG},
    "negative": {"negative_prompt": "blurry, dark, shaky"},
    "seed": {"seed": 1},
    "size": TURNED,
    "fps": {"frame_rate": 16.0},
    "guidance": {"guidance_scale": 3.0},
    "positive-alone": {"guidance_scale": 1.0},
    "steps": {"num_inference_steps": 3},
}
BESIDES = {
    "i2v": {"given": {"image": picture(64, 96, 3)}},
    "action": {
        "given": {"image": picture(64, 96, 3)},
        "domain": {"domain_id": 2},
        "action-fps": {"action_fps": 12.0},
        "given-actions": GIVEN,
    },
    "transfer": {
        "controls": {"transfer_config": EDGE},
        "control-values": {"transfer_config": {"hints": {"edge": CLIPS[2], "depth": CLIPS[3]}}},
        "control-order": {"transfer_config": {"hints": {"edge": CLIPS[1], "depth": CLIPS[0]}}},
        "control-guidance": {"transfer_config": {"control_guidance": 2.0}},
        "control-interval": {"transfer_config": {"control_guidance_interval": (0.0, 700.0)}},
        "positions": {"transfer_config": {"share_vision_temporal_positions": False}},
        "guidance": {"transfer_config": {"guidance_scale": 5.0}},
        "positive-alone": {"transfer_config": {"guidance_scale": 1.0}},
    },
}
OTHER_TYPES = [("t2v", "audio"), ("i2v", "action"), ("t2v", "i2v"), ("t2v", "t2i")]


def _pairs():
    """Every type with every change, and types with one another: (first, second) by name."""
    for kind in TYPES:
        for name, changes in (EVERYWHERE | BESIDES.get(kind, {})).items():
            # An image has no frame rate.
            if (kind, name) == ("t2i", "fps"):
                continue
            changes = dict(changes)
            if kind == "action" and name == "fps":
                changes["action_fps"] = 24.0
            yield f"{kind}-{name}", request_of(kind), request_of(kind, **changes)
    yield "action-actions", request_of("action", **GIVEN), request_of("action", **OTHER_ACTIONS)
    for one, other in OTHER_TYPES:
        yield f"{one}-or-{other}", request_of(one), request_of(other)


PAIRS = {name: pair for name, *pair in _pairs()}


ANSWERS = {}


def _fresh(request):
    """What a process answers that is started for this request alone."""
    key = pickle.dumps(request)
    if key not in ANSWERS:
        ANSWERS[key] = answer_of_a_fresh_process(request)
    return ANSWERS[key]


@pytest.fixture(scope="module")
def served():
    """One pipeline with graphs, warmed up, that answers all that follows."""
    pipeline = build(graphs=True)
    pipeline.warmup()
    yield pipeline
    pipeline.cleanup()


@pytest.mark.parametrize("pair", PAIRS)
def test_request_pairs_vs_fresh_processes(served, pair):
    first, second = PAIRS[pair]
    expected = [_fresh(first), _fresh(second)]
    assert not equal(*expected), "two requests, one answer: a stale one would go unseen"
    for request, wanted in zip((first, second, first), (*expected, expected[0])):
        assert equal(answer(served, request), wanted)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("error", [RuntimeError("died"), asyncio.CancelledError()], ids=repr)
def test_request_after_one_that_ended_in_the_middle_vs_fresh_process(served, kind, error):
    other = EVERYWHERE["prompt"] | EVERYWHERE["seed"]
    interrupt(served, request_of(kind), error)
    request = request_of(kind, **other)
    assert equal(answer(served, request), _fresh(request))


def _wrong(pipeline, pair) -> bool:
    """Whether a pipeline gets a pair wrong, without a word."""
    pipeline.warmup()
    return any(not equal(answer(pipeline, request), _fresh(request)) for request in PAIRS[pair])


# What only arguments that the runner does not refresh tell apart.
STALE = [f"{kind}-{name}" for kind in TYPES for name in ("prompt", "bucket", "fps")]
STALE.remove("audio-fps")  # A sound of another length.
STALE += ["t2v-negative", "transfer-control-values", "transfer-control-order", "action-action-fps"]


@pytest.mark.parametrize("pair", [name for name in STALE if name in PAIRS])
def test_request_pairs_see_graphs_that_are_blind(pair):
    assert _wrong(pipelines.blind(build(graphs=True)), pair)


# A transfer assigns the caches of every branch itself, and an image's shapes are refused.
CACHED = [f"{kind}-{name}" for kind in ("t2v", "i2v", "audio") for name in ("prompt", "bucket")]


@pytest.mark.parametrize("pair", CACHED)
def test_request_pairs_see_caches_that_are_never_reset(pair):
    assert _wrong(pipelines.forgetful(build(graphs=True)), pair)


@pytest.mark.parametrize("pair", ["t2v-seed", "i2v-given", "t2v-guidance", "action-given-actions"])
def test_request_pairs_see_graphs_that_refresh_nothing(pair):
    assert _wrong(pipelines.deaf(build(graphs=True)), pair)


@pytest.mark.parametrize("prompt", ["A red fox.", LONG], ids=["warm-bucket", "new-bucket"])
def test_first_request_after_warm_up_captures_one_graph_at_most(prompt):
    pipeline = build(graphs=True)
    pipeline.warmup()
    graphs = runner_of(pipeline).graphs
    assert len(graphs) == 1
    request = request_of("t2v", prompt=prompt, max_sequence_length=4096)
    assert equal(answer(pipeline, request), _fresh(request))
    assert len(graphs) == (1 if prompt != LONG else 2)


def test_warm_up_on_several_ranks_captures_in_its_second_pass():
    pipeline = build(graphs=True)
    runner, seen = runner_of(pipeline), []
    run = pipeline._run_warmup

    def watched(*shape, steps):
        run(*shape, steps=steps)
        seen.append((runner.allow_capture, len(runner.graphs)))

    pipeline._run_warmup = watched
    # All that a pipeline on one process reads of a group.
    with (
        mock.patch("torch.distributed.is_initialized", lambda: True),
        mock.patch("torch.distributed.get_world_size", lambda: 2),
        mock.patch("torch.distributed.get_rank", lambda: 0),
        mock.patch("torch.distributed.all_reduce", lambda tensor: None),
    ):
        pipeline.warmup()
    assert seen == [(False, 0), (True, 1)]


def test_cleanup_leaves_no_graph_no_buffer_and_no_transformer():
    pipeline = build(graphs=True)
    pipeline.warmup()
    answer(pipeline, request_of("transfer"))
    runner, inputs = runner_of(pipeline), pipeline.transformer.graph_inputs
    outputs = [weakref.ref(output.video) for output in runner.graph_outputs.values()]
    transformer = weakref.ref(pipeline.transformer)
    assert len(runner.graphs) > 1 and inputs.nbytes > 0 and all(x() is not None for x in outputs)
    pipeline.cleanup()
    gc.collect()
    kept = (runner.graphs, runner.graph_outputs, runner.static_inputs)
    assert not any(kept) and inputs.nbytes == 0
    assert all(x() is None for x in outputs)
    del pipeline, runner, kept
    gc.collect()
    assert transformer() is None


def test_transfer_takes_a_new_list_of_controls_for_each_chunk():
    pipeline = build()
    seen, run = [], pipeline.diffuse_transfer

    def watched(**arguments):
        seen.append(arguments["control_latents"])
        assert pipeline.transformer.cached_kv is None
        result = run(**arguments)
        assert pipeline.transformer.cached_kv is None
        return result

    pipeline.diffuse_transfer = watched
    request = request_of("transfer")
    video = pipeline.forward(**forward_arguments(request)).video
    assert len(seen) == chunks(request) == 2 and seen[0] is not seen[1]
    assert not torch.equal(seen[0][0], seen[1][0])
    assert video.shape == (1, 9, 64, 96, 3)


@pytest.mark.parametrize("copied", [False, True])
def test_transfer_from_graphs_is_wrong_where_branches_share_a_graph_unless_copied(copied):
    """A graph's output is the next replay's too, and upstream's branches keep it uncopied.

    Prompts of one bucket have one graph, so the negative branch's velocity replaces the positive's
    before guidance subtracts them. Whoever copies what the transformer returns is right.
    """
    pipeline = build(graphs=True)
    forward = pipeline.transformer.forward

    def copying(*args, **kwargs):
        result = forward(*args, **kwargs)
        return dataclasses.replace(result, video=result.video.clone())

    if copied:
        pipeline.transformer.forward = copying
    request = request_of("transfer") | {"prompt": "A red fox."}
    assert equal(answer(pipeline, request), _fresh(request)) == copied


@pytest.mark.parametrize("kind", ["t2i", "t2v", "audio", "action"])
@pytest.mark.parametrize("text_kv", ["exact", "padded"])
@pytest.mark.parametrize("interval", [(400.0, 1000.0), (400.0, 900.0), (0.0, 500.0)], ids=str)
def test_positive_half_outside_of_an_interval_vs_both_prompts(kind, text_kv, interval):
    request = request_of(kind, num_inference_steps=6)
    found = []
    for skipping in (False, True):
        pipeline = build(text_kv=text_kv)
        pipeline.skip_uncond_at_scale_one = skipping
        for mode in pipeline.modes.values():
            mode["guidance_interval"] = interval
        batches, forward = [], pipeline.transformer.forward

        def watched(*args, batches=batches, forward=forward, **kwargs):
            batches.append(len(kwargs["text_ids"]))
            return forward(*args, **kwargs)

        pipeline.transformer.forward = watched
        found.append(answer(pipeline, request))
        assert set(batches) == ({1, 2} if skipping else {2})
    both, half = found
    last = max((name for name in both if name.startswith("step")), key=lambda name: int(name[4:]))
    torch.testing.assert_close(half[last], both[last], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["t2v", "t2i"])
def test_guidance_interval_changes_the_answer(kind):
    request, answers = request_of(kind, num_inference_steps=6), []
    for interval in (None, (400.0, 1000.0), (900.0, 1000.0)):
        pipeline = build()
        pipeline.modes["image" if kind == "t2i" else "video"]["guidance_interval"] = interval
        answers.append(answer(pipeline, request))
    assert not equal(answers[0], answers[1]) and not equal(answers[1], answers[2])


def test_offloaded_towers_are_on_the_device_while_they_run():
    pipeline = build()
    pipeline.pipeline_config.cpu_offload.enable = True
    pipeline.offloader = type(pipeline.offloader)(pipeline)
    moves = []
    for name, tower in pipeline.offload_pipeline_components().items():
        tower.to = lambda place, name=name: moves.append((name, str(place)))
    pipeline._device = torch.device("cpu:0")
    request = request_of("t2v", num_inference_steps=1)
    assert equal(answer(pipeline, request), _fresh(request))
    assert moves == [(name, to) for name in ("reasoner", "generator") for to in ("cpu:0", "cpu")]


def test_graphs_with_offloading_are_refused():
    config = build().pipeline_config
    config.cpu_offload.enable = config.cuda_graph.enable = True
    with pytest.raises(NotImplementedError, match="exclude each other"):
        type(build())(config)


def test_unfixed_transformer_cannot_be_captured():
    with pytest.raises(RuntimeError, match="host read"):
        build(graphs=True, text_kv="padded").warmup()


def test_prompts_are_told_size_and_duration():
    pipeline = build()
    shown = (False, 64, 96, 48, 24.0)
    assert "64 x 96" in pipeline._with_metadata("A fox.", *shown)
    assert '"duration": "2s"' in pipeline._with_metadata('{"scene": "a fox"}', *shown)
    assert "frames a second" not in pipeline._with_metadata("A fox.", True, *shown[1:])
    ids, mask = pipeline._tokenize_prompt(LONG, 64)
    assert ids.shape == (1, 64) and mask.sum() == 64 and ids[0, -2:].tolist() == [999, 998]
    assert len(upsampled("A fox.").split()) > 200 and SHAPE == (64, 96, 5)
