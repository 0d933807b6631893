# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Replays of the whole transformer against eager forwards, bit for bit.

The host's runner refreshes tensors and nothing else, as upstream's does, and its CPU double of a
graph reads by address. Fields: B batch, L prompt lengths.
"""

import contextlib
import dataclasses
import gc
import inspect
import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from support import attend  # noqa: F401 (registers backends that nobody knows)
from support.checks import host
from support.model import ModelCase, build_host

from tensorrt_llm._torch.visual_gen.cuda_graph_runner import CUDAGraphRunner, CUDAGraphRunnerConfig
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_graph, transformer_cosmos3
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_graph import GraphInputs, _Copies
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import Cosmos3VFMTransformer

SMALL = (
    ("num_hidden_layers", 1),
    ("hidden_size", 32),
    ("num_attention_heads", 2),
    ("num_key_value_heads", 1),
    ("intermediate_size", 32),
)
CASE = ModelCase(overrides=SMALL)
VIDEOS = [(3, 5, 6), (7, 4, 3), (1, 2, 2)]


def graphed(case=CASE, max_bytes=2**40):
    """A transformer, a runner that knows it, and its forward behind the runner."""
    transformer = host(case)
    transformer.graph_inputs = GraphInputs(max_bytes)
    runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
    transformer.register_cuda_graph_extra_key_fns(runner)
    return transformer, runner, runner.wrap(transformer.forward)


def answer(forward, inputs):
    """Velocities by modality, or what a ValueError said."""
    try:
        output = forward(**inputs)
    except ValueError as error:
        return {"error": str(error)}
    return {name: x.clone() for name, x in vars(output).items() if x is not None}


def same(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(x, expected[name]) if isinstance(x, torch.Tensor) else x == expected[name]
        for name, x in found.items()
    )


def check_request(transformer, forward, inputs, steps=1):
    """Compares a request through the runner with an eager one; returns the eager answer."""
    answers = []
    for call in (forward, transformer.forward):
        transformer.reset_cache()
        answers.append([answer(call, inputs) for _ in range(steps)])
    for found, expected in zip(*answers):
        assert same(found, expected), "a replay is not what an eager forward gives"
    return answers[1][-1]


def of(lengths, columns=None, **fields):
    """Inputs with other prompts, padded by the caller to `columns`, as the pipeline pads them."""
    inputs = dataclasses.replace(CASE, lengths=lengths, **fields).inputs()
    for name in ("text_ids", "text_mask"):
        missing = 0 if columns is None else columns - inputs[name].shape[1]
        inputs[name] = F.pad(inputs[name], (0, missing))
    return inputs


# --------------------------------------------------------- every argument of forward

MODALITIES = {
    "video": dataclasses.replace(CASE, given_frames=(0,)),
    "controls": dataclasses.replace(CASE, controls=2, share=False),
    "sound": dataclasses.replace(CASE, model="omni", sound_rows=5),
    "action": dataclasses.replace(CASE, model="omni", action_rows=4, given_actions=(0,)),
    "sound-action": dataclasses.replace(CASE, model="omni", sound_rows=5, action_rows=4),
    "edge": dataclasses.replace(CASE, model="edge"),
    "fa4": dataclasses.replace(CASE, backend="FA4", controls=1),
    "grouped": dataclasses.replace(CASE, backend="DENSE-HND"),
}


def _draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9))


@contextlib.contextmanager
def _offload(part):
    assert part in ("reasoner", "generator")
    yield


# What each argument is changed to, from what it was. An argument that is missing here fails.
CHANGES = {
    "hidden_states": [lambda x: x.flip(0) * 1.5],
    "timestep": [lambda x: x + 100],
    "raw_timestep": [lambda x: x + 100],
    "text_ids": [lambda x: (x + 1) % 1000],
    "text_mask": [lambda x: x.flip(0), lambda x: None],
    "video_shape": [lambda x: (x[0], x[2], x[1])],
    "offload_context": [lambda x: _offload],
    "fps": [lambda x: 24.0, lambda x: None],
    "noisy_frame_mask": [
        lambda x: torch.tensor([1.0, 1.0, 0.0]).expand(2, 3).reshape(2, 1, 3, 1, 1).clone(),
        lambda x: None,
    ],
    "audio_latents": [lambda x: _draw(2, 6, 5), lambda x: None],
    "action_latents": [lambda x: _draw(2, 4, 5), lambda x: None],
    "action_domain_ids": [lambda x: torch.tensor([3, 2]), lambda x: None],
    "action_noisy_mask": [
        lambda x: torch.tensor([1.0, 0.0, 1.0, 1.0]).expand(2, 4)[..., None].clone(),
        lambda x: None,
    ],
    "action_start_frame_offset": [lambda x: 3],
    "action_fps": [lambda x: 8.0],
    "control_latents": [
        lambda x: [_draw(2, 8, *CASE.video) for _ in x or [0]],
        lambda x: _draw(2, 8, *CASE.video),
        lambda x: [],
        lambda x: None,
    ],
    "transfer_share_vision_temporal_positions": [lambda x: True],
    "kwargs": [lambda x: 3, lambda x: torch.ones(2)],
}
# Where an argument changes the answer; everywhere if it is not here.
MATTERS_IN = {
    "timestep": (),
    "offload_context": (),
    "kwargs": (),
    "transfer_share_vision_temporal_positions": ("controls",),
    **{
        f"action_{name}": ("action", "sound-action")
        for name in ("domain_ids", "noisy_mask", "start_frame_offset", "fps")
    },
}


def _alike(old, new):
    """Whether one graph answers both: tensors of equal shapes, or lists of them."""
    if isinstance(old, list) and isinstance(new, list):
        return 0 < len(old) == len(new) and all(map(_alike, old, new))
    both = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    return both and old.shape == new.shape


def check_argument(name, modality, which=0, in_place=False):
    """Two requests that differ in one argument alone, and the first one again."""
    case = MODALITIES[modality]
    transformer, runner, forward = graphed(case)
    inputs = case.inputs()
    # The keyword that stands for all those that forward ignores.
    argument = "something" if name == "kwargs" else name
    old = inputs.get(argument)
    new = CHANGES[name][which](old)
    first = check_request(transformer, forward, inputs)
    if in_place:
        for target, value in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (old, new))):
            target.copy_(value)
    else:
        inputs = inputs | {argument: new}
    other = check_request(transformer, forward, inputs)
    differs = not all(x is None or isinstance(x, list) and not x for x in (old, new))
    if differs and modality in MATTERS_IN.get(name, MODALITIES):
        assert not same(first, other), "blind: the argument changes nothing"
    if _alike(old, new) and (name, modality) != ("text_mask", "grouped"):
        assert len(runner.graphs) == 1, "another graph: nothing was replayed"
    check_request(transformer, forward, case.inputs())


def _walk():
    given = {modality: case.inputs() for modality, case in MODALITIES.items()}
    for name in list(inspect.signature(Cosmos3VFMTransformer.forward).parameters)[1:]:
        for which, change in enumerate(CHANGES.get(name, [None])):
            for modality, inputs in given.items():
                yield pytest.param(name, modality, which, False, id=f"{name}-{which}-{modality}")
                old = inputs.get(name)
                if change and _alike(old, change(old)):
                    ident = f"{name}-{which}-{modality}-in-place"
                    yield pytest.param(name, modality, which, True, id=ident)


@pytest.mark.parametrize(("name", "modality", "which", "in_place"), _walk())
def test_graph_request_with_another_argument_vs_eager(name, modality, which, in_place):
    assert name in CHANGES, f"forward has a new argument {name}: say here what it changes"
    check_argument(name, modality, which, in_place)


@pytest.mark.parametrize("value", [object(), {"a": torch.ones(1)}, [torch.ones(1), None]], ids=str)
def test_graph_argument_that_would_be_stale_vs_refusal(value):
    _, runner, forward = graphed()
    with pytest.raises(ValueError, match="fps of type .* would be stale in a CUDA graph; pass a"):
        forward(**CASE.inputs() | {"fps": value})
    assert not runner.graphs


def test_graph_given_by_default_or_by_name_vs_eager():
    """An argument may be left out in one request, and be given its default in another."""
    transformer, runner, forward = graphed()
    inputs = CASE.inputs()
    for changes in ({}, {"noisy_frame_mask": None, "control_latents": None}, {}):
        check_request(transformer, forward, inputs | changes)
    assert len(runner.graphs) == 1


def test_graph_positional_arguments_vs_eager():
    transformer, runner, forward = graphed()
    for lengths in ((7, 19), (19, 7)):
        inputs = of(lengths)
        values = list(inputs.values())
        assert list(inputs) == list(inspect.signature(transformer.forward).parameters)[:6] + ["fps"]
        transformer.reset_cache()
        found = answer(lambda **kw: forward(*values[:6], **kw), {"fps": 24.0})
        transformer.reset_cache()
        assert same(found, answer(transformer.forward, inputs | {"fps": 24.0}))
    assert len(runner.graphs) == 1


# ------------------------------------------------------------------- prompts and caches


def check_prompts(case=CASE):
    """Prompts of equal shapes in turn, two steps each, and what a saved branch gives again."""
    transformer, runner, forward = graphed(case)
    branches = []
    for lengths in [(7, 19), (19, 7), (300, 2), (7, 19)]:
        inputs = of(lengths, 310)
        check_request(transformer, forward, inputs, steps=2)
        branches.append((inputs, transformer.cached_kv, transformer.cached_freqs_gen))
    for inputs, text, freqs in branches + branches[::-1]:
        answers = []
        for call in (forward, transformer.forward):
            transformer.cached_kv, transformer.cached_freqs_gen = text, freqs
            answers.append(answer(call, inputs))
        assert same(*answers), "a branch that was swapped in by assignment"
    return len(runner.graphs)


def test_graph_prompts_in_turn_vs_eager():
    assert check_prompts() == 2, "one graph serves a bucket"


def test_graph_prompts_in_turn_of_a_grouped_backend_vs_eager():
    """Lengths are baked into its launches: they are part of the key."""
    assert check_prompts(dataclasses.replace(CASE, backend="DENSE-NHD")) == 3


def test_graph_hundred_prompts_vs_few_captures():
    transformer, runner, forward = graphed()
    draw = random.Random(5)
    prompts = [(draw.randint(20, 1200),) for _ in range(99)] + [(1200,)]
    for passed in range(2):
        for number, lengths in enumerate(prompts):
            inputs = of(lengths, 1300, video=(1, 4, 4))
            before = len(runner.graphs)
            transformer.reset_cache()
            found = answer(forward, inputs)
            assert not passed or len(runner.graphs) == before, "captured in steady state"
            if number % 10 == 0:
                transformer.reset_cache()
                assert same(found, answer(transformer.forward, inputs)), lengths
    assert 2 <= len(runner.graphs) <= 5


def test_graph_samples_selected_in_mid_request_vs_eager():
    """Newer code cuts the caches to the conditional half, once guidance is off."""
    transformer, runner, forward = graphed()
    answers = []
    for call in (forward, transformer.forward, forward):
        transformer.reset_cache()
        inputs = CASE.inputs()
        both = answer(call, inputs)
        transformer.cached_kv = transformer.cached_kv.select(slice(1, None))
        transformer.cached_freqs_gen = tuple(x[1:] for x in transformer.cached_freqs_gen)
        half = {n: x[1:] if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
        answers.append((both, answer(call, half)))
    for found in (answers[0], answers[2]):
        assert all(same(x, expected) for x, expected in zip(found, answers[1]))
    assert len(runner.graphs) == 2
    torch.testing.assert_close(answers[1][1]["video"], answers[1][0]["video"][1:])


@pytest.mark.parametrize("modality", ["video", "sound", "action"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_transformer_plain_list_in_cached_kv_vs_refusal(graph, modality):
    """Code that cuts the cache by itself leaves no lengths behind."""
    case = MODALITIES[modality]
    transformer, _, forward = graphed(case)
    call = forward if graph else transformer.forward
    transformer.reset_cache()
    call(**case.inputs())
    transformer.cached_kv = [(k[1:], v[1:]) for k, v in transformer.cached_kv]
    with pytest.raises(ValueError, match=r"cached_kv is a list, .* select\(samples\)"):
        call(**case.inputs())


@pytest.mark.parametrize("mask", [None, float("nan"), 0.5], ids=str)
def test_graph_bad_mask_vs_eager_refusal(mask):
    transformer, runner, forward = graphed()
    inputs = CASE.inputs()
    inputs["text_mask"] = None if mask is None else inputs["text_mask"] * mask
    refusal = check_request(transformer, forward, inputs)
    assert "text_mask" in refusal["error"] and not runner.graphs


# ------------------------------------------------------------------------ what copies cost


def test_graph_inputs_past_their_bytes_vs_least_recently_used():
    transformer, runner, forward = graphed()
    requests = [dataclasses.replace(CASE, video=video).inputs() for video in VIDEOS]
    sizes = []
    for inputs in requests:
        check_request(transformer, forward, inputs)
        sizes.append(transformer.graph_inputs.nbytes)
    # The text's copies are shared, but for the lengths; room for two of the three requests.
    transformer, runner, forward = graphed(max_bytes=sizes[1])
    captured = []
    for index in (0, 1, 0, 2, 0, 1):
        before = set(runner.graphs)
        check_request(transformer, forward, requests[index])
        captured.append(not set(runner.graphs) <= before)
        assert transformer.graph_inputs.nbytes <= sizes[1]
        for kept in (runner.graph_outputs, runner._graph_output_refs, runner.static_inputs):
            assert set(kept) == set(runner.graphs), "what a dropped graph wrote to is still held"
    # The third takes the place of the second, which was used before the first.
    assert captured == [True, True, False, True, False, True]


def test_graph_inputs_of_one_request_vs_bytes_too_few_for_it():
    """The request's own copies stay whatever the bound: it would have no place to read at."""
    transformer, runner, forward = graphed(max_bytes=1)
    for index in (0, 1, 0):
        inputs = dataclasses.replace(CASE, video=VIDEOS[index], controls=1).inputs()
        check_request(transformer, forward, inputs, steps=2)
        assert len(runner.graphs) == 1


def test_graph_inputs_cleared_vs_no_bytes():
    """Nor does the text that was captured hold them: callers save it, with its branch."""
    transformer, runner, forward = graphed()
    transformer.reset_cache()
    forward(**dataclasses.replace(CASE, controls=2).inputs())
    copies = [weakref.ref(x) for c in transformer.graph_inputs._copies.values() for x in c.tensors]
    assert transformer.graph_inputs.nbytes > 0 and len(copies) == 6
    gc.disable()
    try:
        runner.clear()
        assert transformer.graph_inputs.nbytes == 0
        assert all(copy() is None for copy in copies), "something still holds a copy"
    finally:
        gc.enable()


def test_graph_inputs_bytes_vs_variable_and_free_memory(monkeypatch):
    said = []
    monkeypatch.setattr(text_graph.logger, "info", said.append)
    monkeypatch.setenv("TLLM_COSMOS3_GRAPH_INPUT_BYTES", str(3 * 2**20))
    transformer, _, forward = graphed(max_bytes=None)
    forward(**CASE.inputs())
    assert transformer.graph_inputs.max_bytes == 3 * 2**20
    assert len(said) == 2 and said[0].startswith("Cosmos3 graph input text[(2, 1")
    assert said[0].endswith("0 of 3145728 bytes before")

    monkeypatch.delenv("TLLM_COSMOS3_GRAPH_INPUT_BYTES")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 5000))
    monkeypatch.setattr(text_graph.torch, "tensor", lambda x, device: torch.as_tensor(x))
    assert text_graph._default_bytes() == 100


@pytest.mark.parametrize("columns", [3, 5, 6, 7])
def test_graph_long_prompt_over_columns_vs_eager(columns):
    """No column is refused a graph because the bucket's rows do not divide by their number."""

    class Column(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.graph_inputs = GraphInputs(2**40)

        def prepare_graph_inputs(self, hidden_states):
            return {"text": self.text.tensors(27)}, None

        def forward(self, hidden_states):
            (view,) = self.text.views(27, self.graph_inputs.read)[0]
            return hidden_states.sum() * (view.k.sum() - view.v.sum() * view.key_lengths.sum())

    column = Column()
    runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
    column.graph_inputs.register(column, runner)
    forward = runner.wrap(column.forward)
    for length in (4096, 3500):
        pair = tuple(_draw(1, 4096, 1, 2) for _ in "KV")
        column.text = TextKV.build([pair], (length,), TextKVLayout(col_size=columns, cp_rank=1))
        hidden = torch.ones(1, 3)
        assert torch.equal(forward(hidden).clone(), column.forward(hidden))
    assert len(runner.graphs) == 1


# ---------------------------------------------------------------------- modes and owners


def check_modes():
    """Warm-up runs under no_grad, requests under inference_mode, and either may come first."""
    transformer, runner, forward = graphed()
    with torch.no_grad():
        check_request(transformer, forward, of((7, 19)))
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            check_request(transformer, forward, of((19, 7)))
    assert len(runner.graphs) == 1
    # Copies that a capture under inference_mode made are refilled under no_grad.
    with torch.inference_mode():
        check_request(transformer, forward, of((7, 19), video=VIDEOS[1]))
    (request_key,) = runner._extra_key_fns.values()
    with torch.no_grad():
        transformer.reset_cache()
        request_key(**of((19, 7), video=VIDEOS[1]))


def test_graph_inference_mode_and_no_grad_vs_eager():
    check_modes()


def test_graph_captures_that_the_caller_forbids_vs_forbidden():
    transformer, runner, forward = graphed()
    runner.allow_capture = False
    for lengths in [(7, 19), (1200, 3), (19, 7)]:
        check_request(transformer, forward, of(lengths))
        assert not runner.allow_capture and not runner.graphs
        assert transformer.graph_inputs.nbytes == 0
    runner.allow_capture = True
    check_request(transformer, forward, of((7, 19), 40))
    runner.allow_capture = False
    # What is captured is replayed; another shape is not captured.
    for inputs in (of((19, 7), 40), of((19, 7), 40, controls=1), of((300, 2))):
        check_request(transformer, forward, inputs)
    assert len(runner.graphs) == 1 and not runner.allow_capture


def test_graph_without_its_key_vs_refusal():
    """A runner that nobody told of the text would replay the first prompt's for all others."""
    transformer = host(CASE)
    forward = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True)).wrap(transformer.forward)
    with pytest.raises(RuntimeError, match=r"call register_cuda_graph_extra_key_fns\(runner\)"):
        forward(**CASE.inputs())


def test_transformer_dropped_vs_freed_without_gc():
    """A transformer holds gigabytes, and its runner may lie on it."""
    transformer = build_host(CASE)
    transformer.graph_inputs.max_bytes = 2**40
    transformer.runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
    transformer.register_cuda_graph_extra_key_fns(transformer.runner)
    transformer.runner.wrap(transformer.forward)(**CASE.inputs())
    assert len(transformer.runner.graphs) == 1
    alive = weakref.ref(transformer)
    gc.disable()
    try:
        del transformer
        assert alive() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------------- seeded faults

_fill = _Copies.fill


def _not_refilled(name, which=None):
    """Copies of this name are in the key, and keep (some of) the first request's contents."""

    def fill(self, tensors):
        before = [x.clone() for x in self.tensors]
        again = bool(self.sources)
        _fill(self, tensors)
        for i, (copy, old) in enumerate(zip(self.tensors, before)):
            if again and self.name == name and which in (None, i):
                copy.copy_(old)

    return lambda patch: patch.setattr(_Copies, "fill", fill)


def _same_list_not_refilled(patch):
    patch.setattr(_Copies, "fill", lambda self, new: None if self.holds(new) else _fill(self, new))


def _lengths_not_in_the_key(patch):
    patch.setattr(transformer_cosmos3, "lengths_in_shapes", lambda attn: False)


def _read_where_it_lies(name):
    def seed(patch):
        read = GraphInputs.read

        def broken(self, tensors):
            found = read(self, tensors)
            copies = [c for c in self._copies.values() if c.name == name]
            return tensors if any(found is c.tensors for c in copies) else found

        patch.setattr(GraphInputs, "read", broken)

    return seed


# Name: (how the code is broken, the check that has to fail).
GRAPH_FAULTS = {
    "text-not-refilled": (_not_refilled("text", 0), check_prompts),
    "lengths-not-refilled": (_not_refilled("text", 1), check_prompts),
    "rope-not-refilled": (_not_refilled("rope"), check_prompts),
    "text-read-where-it-lies": (_read_where_it_lies("text"), check_prompts),
    "rope-read-where-it-lies": (_read_where_it_lies("rope"), check_prompts),
    "controls-not-refilled": (
        _not_refilled("control_latents"),
        lambda: check_argument("control_latents", "controls"),
    ),
    "controls-read-where-they-lie": (
        _read_where_it_lies("control_latents"),
        lambda: check_argument("control_latents", "controls"),
    ),
    "controls-changed-in-place": (
        _same_list_not_refilled,
        lambda: check_argument("control_latents", "controls", in_place=True),
    ),
    "lengths-not-in-the-key": (
        _lengths_not_in_the_key,
        lambda: check_argument("text_mask", "grouped"),
    ),
}


@pytest.mark.parametrize("name", GRAPH_FAULTS)
def test_seeded_graph_fault_is_caught_vs_its_check(name, monkeypatch):
    seed, check = GRAPH_FAULTS[name]
    check()
    seed(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_seeded_copies_in_inference_mode_are_caught_vs_modes(monkeypatch):
    def init(self, name, tensors):
        self.name, self.sources, self.used = name, [], 0
        self.tensors = [torch.empty_like(tensor) for tensor in tensors]

    monkeypatch.setattr(_Copies, "__init__", init)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        check_modes()
