# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Requests on several ranks: against one rank, refused alike, and ended alike."""

import gc
import multiprocessing
import os
import tempfile
import time
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cosmos3_requests import TYPES, clip, forward_arguments, growth, picture
from parity.judge import FORWARD_LIMIT, SEEN_LIMIT, relative
from support.pipelines import MODEL, answer, build, request_of, runner_of, stepped

from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

pytestmark = pytest.mark.gloo

LAYOUTS = {
    "ulysses2": {"ulysses_size": 2},
    "cfg2": {"cfg_size": 2},
    "cfg2-ulysses2": {"cfg_size": 2, "ulysses_size": 2},
    "ulysses4": {"ulysses_size": 4},
    "ring2": {"ring_size": 2},
}
SECONDS = 60.0


def _ranks_of(layout):
    return 4 if layout in ("cfg2-ulysses2", "ulysses4") else 2


def _mapping(rank, layout):
    return VisualGenMapping(world_size=dist.get_world_size(), rank=rank, **LAYOUTS[layout])


def _logic_answer(rank, layout, request, graphs, text_kv):
    backend = "FA4" if layout == "ring2" else "VANILLA"
    mapping = _mapping(rank, layout)
    pipeline = build(graphs=graphs, mapping=mapping, backend=backend, text_kv=text_kv)
    pipeline.warmup()
    found = answer(pipeline, request)
    pipeline.cleanup()
    return {name: x.clone() for name, x in found.items()}


def _errors(found, expected):
    """How far each step of every stream is off."""
    steps = [name for name in expected if name.startswith("step")]
    return [relative(found[name], expected[name]) for name in steps]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TYPES)
def test_request_on_ranks_vs_one_rank(ranks, kind, layout):
    request, graphs = request_of(kind), layout == "ulysses2"
    expected = answer(build(), request)
    found = ranks.run(_ranks_of(layout), _logic_answer, layout, request, graphs, "exact")
    limit = FORWARD_LIMIT["float32"] * growth(request)
    for values in found:
        assert max(_errors(values, expected)) <= limit
        assert max(_errors(values, found[0])) == 0.0
    shown = "image" if kind == "t2i" else "video"
    assert (found[0][shown].int() - expected[shown].int()).abs().max() <= 1


@pytest.mark.parametrize("kind", TYPES)
def test_request_on_ranks_unfixed_is_seen(ranks, kind):
    request = request_of(kind)
    found = ranks.run(4, _logic_answer, "ulysses4", request, False, "padded")[0]
    assert max(_errors(found, answer(build(), request))) > SEEN_LIMIT


GIVEN = {"action_mode": "forward_dynamics"}
OTHER = clip(0, 9, 32, 96)
WRONG = {
    "guidance": ("t2v", {"guidance_scale": -1.0}, "guidance_scale=-1.0; expected 0 or more"),
    "guidance-nan": ("t2v", {"guidance_scale": float("nan")}, "guidance_scale=nan"),
    "interval": (
        "transfer",
        {"transfer_config": {"control_guidance_interval": (700.0, 300.0)}},
        "wrong way round",
    ),
    "frames": ("t2v", {"num_frames": 193}, "this model takes 1 to 189"),
    "chunk": (
        "transfer",
        {"transfer_config": {"num_video_frames_per_chunk": 193}},
        "this model takes 1 to 189",
    ),
    "overlap": ("transfer", {"transfer_config": {"num_conditional_frames": 5}}, "expected 0 to 4"),
    "control-size": ("transfer", {"transfer_config": {"hints": {"edge": OTHER}}}, "same size"),
    "control-file": ("transfer", {"transfer_config": {"hints": {"edge": b"mp4"}}}, "cannot be"),
    "no-control": ("transfer", {"transfer_config": {"hints": {}}}, "without a control"),
    "image-size": ("i2v", {"image": picture(32, 96)}, "same size"),
    "pixels": ("t2v", {"height": 65}, "multiples of 16"),
    "image-to-action": ("action", {"image": None}, "needs an image"),
    "action-shape": ("action", GIVEN | {"action": [[0.0] * 9] * 3}, "action has shape"),
    "action-mode": ("action", {"action_mode": "inverse"}, "action_mode='inverse'"),
    "transfer-audio": ("transfer", {"enable_audio": True}, "neither an image nor audio"),
}


def _logic_wrong(rank, kind, changes, model):
    pipeline = build(mapping=_mapping(rank, "ulysses2"), model=model)
    dist.barrier()
    started = time.monotonic()
    try:
        pipeline.forward(**forward_arguments(request_of(kind, **changes)))
    finally:
        assert time.monotonic() - started < 20.0, "it waited for another rank"


def _refused(ranks, message, *args):
    for outcome in ranks.outcomes(2, _logic_wrong, *args):
        assert outcome.error == "ValueError" and message in outcome.message, outcome


@pytest.mark.parametrize("name", WRONG)
def test_request_that_is_wrong_is_refused_on_every_rank(ranks, name):
    kind, changes, message = WRONG[name]
    _refused(ranks, message, kind, changes, MODEL)


@pytest.mark.parametrize("kind, part", [("audio", "sound_gen"), ("action", "action_gen")])
def test_request_for_a_missing_part_is_refused_on_every_rank(ranks, kind, part):
    _refused(ranks, part, kind, {}, MODEL | {part: False})


def _logic_media_on_one_rank(rank):
    pipeline = build(mapping=_mapping(rank, "ulysses2"))
    size = (32, 96) if rank else (64, 96)
    pipeline.forward(**forward_arguments(request_of("i2v", image=picture(*size))))


def test_media_that_one_rank_cannot_read_end_the_request_on_all(ranks):
    first, second = ranks.outcomes(2, _logic_media_on_one_rank)
    assert (first.error, second.error) == ("RuntimeError", "ValueError")
    assert "another rank" in first.message


def _serve(rank, folder, dies):
    """A server's process: start-up, a request that may die on rank 1, and shutdown."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=4 * SECONDS),
    )
    pipeline = build(graphs=True, mapping=_mapping(rank, "ulysses2"))
    transformer = weakref.ref(pipeline.transformer)
    steps = []

    def watch(scheduler, latents):
        steps.append(None)
        if dies and rank == 1 and len(steps) == 2:
            raise RuntimeError("this rank dies")

    try:
        pipeline.warmup()
        assert runner_of(pipeline).graphs
        with stepped(watch):
            # With steps to come, in which the other rank waits for this one.
            pipeline.forward(**forward_arguments(request_of("t2v", num_inference_steps=4)))
    finally:
        inputs = pipeline.transformer.graph_inputs
        pipeline.cleanup()
        dist.destroy_process_group()
        left = [len(runner_of(pipeline).graphs), inputs.nbytes, dist.is_initialized()]
    del pipeline
    gc.collect()
    Path(folder, f"left{rank}").write_text(f"{[*left, transformer()]}")


def _processes(folder, dies):
    """Starts both ranks and returns their exit codes; None for one that does not end in time."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_serve, args=(rank, folder, dies)) for rank in (0, 1)]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for process in processes:
        process.start()
    # Two interpreters' start included, of a few seconds.
    deadline = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def test_shutdown_leaves_no_graph_no_buffer_no_group_and_no_transformer():
    with tempfile.TemporaryDirectory() as folder:
        assert _processes(folder, dies=False) == [0, 0]
        for rank in (0, 1):
            assert Path(folder, f"left{rank}").read_text() == "[0, 0, False, None]"


def test_rank_that_raises_while_graphs_hold_collectives_ends_all():
    with tempfile.TemporaryDirectory() as folder:
        codes = _processes(folder, dies=True)
        assert None not in codes, f"a rank still waits: {codes}"
        assert codes == [1, 1]
        assert not list(Path(folder).glob("left*"))
