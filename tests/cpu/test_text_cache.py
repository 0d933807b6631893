# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Which CUDA graph may answer a request, without a GPU: a runner that remembers addresses.

A captured graph reads tensors at the addresses of its capture. The runner here remembers those
tensors under the key, and a replay is right if they hold the text of the request by then.
"""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.checks import host
from support.model import ModelCase

from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_buffers
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_buffers import (
    TextBuffer,
    TextBuffers,
    install_text_buffers,
)
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_cache import install_text_graph_key
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import TextKV, TextKVLayout

ROWS = {(3, 5, 6): 27, (7, 4, 3): 28, (1, 2, 2): 1}


class Runner:
    """What VisualGen's graph runner has, as far as the text's key needs it."""

    def __init__(self):
        self.allow_capture = True
        self.key_fns, self.graphs = {}, {}
        self.graph_outputs, self._graph_output_refs, self.static_inputs = {}, {}, {}
        self.cleared = 0

    def register_extra_key_fn(self, name, fn):
        self.key_fns[name] = fn

    def clear(self):
        self.cleared += 1
        self.graphs.clear()

    def answer(self, transformer, case, text_rows=0):
        """Returns "captured", "replayed" or "eager", and what the answer read.

        The prompts are padded to text_rows at least, as the pipeline pads them to one length.
        """
        inputs = case.inputs()
        for name in ("text_ids", "text_mask"):
            missing = max(0, text_rows - inputs[name].shape[1])
            inputs[name] = torch.nn.functional.pad(inputs[name], (0, missing))
        shapes = (tuple(inputs["hidden_states"].shape), tuple(inputs["text_ids"].shape))
        key = (*shapes, *((name, fn(**inputs)) for name, fn in self.key_fns.items()))
        if key in self.graphs:
            return "replayed", self.graphs[key].reads
        reads = transformer.cached_kv.attach(inputs["hidden_states"], ROWS[case.video])
        tables = transformer.cached_kv.rope_tables(transformer.cached_freqs_gen)
        if not self.allow_capture:
            return "eager", (reads, tables)
        self.graphs[key] = SimpleNamespace(reads=(reads, tables), reset=lambda: None)
        return "captured", (reads, tables)


def model(lengths=(7, 19), video=(3, 5, 6)):
    case = ModelCase(lengths=lengths, video=video, overrides=(("num_hidden_layers", 2),))
    return host(case), case


def check_reads(transformer, case, reads):
    """What a graph reads must be this request's text, lengths and positions, to the last bit."""
    views, tables = reads
    text = transformer.cached_kv
    assert text.lengths == case.lengths
    for view, k, v in zip(views, text.keys, text.values):
        assert torch.equal(view.k, k) and torch.equal(view.v, v), "the text of another request"
        assert view.key_lengths.tolist() == [ROWS[case.video] + n for n in case.lengths]
    for table, own in zip(tables, transformer.cached_freqs_gen):
        assert torch.equal(table, own), "the positions of another request"


def install(transformer, buffers):
    runner = Runner()
    if buffers:
        install_text_buffers(transformer)
    else:
        install_text_graph_key(transformer)
    transformer.register_cuda_graph_extra_key_fns(runner)
    return runner


@pytest.mark.parametrize("buffers", [False, True], ids=["serial", "buffers"])
def test_graph_key_prompts_one_after_the_other_vs_own_text(buffers):
    """Prompts of equal shapes: without the text in the key, the first would answer them all."""
    transformer, first = model()
    runner = install(transformer, buffers)
    answers = []
    # Padded to the same rows by the caller, as upstream pads to max_sequence_length.
    for lengths in [(7, 19), (19, 7), (7, 19), (1, 19)]:
        case = model(lengths)[1]
        transformer.reset_cache()
        for _ in range(2):
            how, reads = runner.answer(transformer, case)
            check_reads(transformer, case, reads)
            answers.append(how)
    if buffers:
        assert answers == ["captured"] + ["replayed"] * 7, "one graph serves the whole bucket"
    else:
        assert answers == ["captured", "replayed"] * 4, "each prompt has a graph of its own"


@pytest.mark.parametrize("buffers", [False, True], ids=["serial", "buffers"])
def test_graph_key_branches_swapped_by_assignment_vs_own_text(buffers):
    transformer, _ = model()
    runner = install(transformer, buffers)
    branches = []
    for lengths in [(7, 19), (19, 7), (300, 2)]:
        case = model(lengths)[1]
        transformer.reset_cache()
        check_reads(transformer, case, runner.answer(transformer, case)[1])
        branches.append((case, transformer.cached_kv, transformer.cached_freqs_gen))
    for case, text, freqs in branches + branches[::-1]:
        transformer.cached_kv, transformer.cached_freqs_gen = text, freqs
        how, reads = runner.answer(transformer, case)
        assert how == "replayed"
        check_reads(transformer, case, reads)


@pytest.mark.parametrize("buffers", [False, True], ids=["serial", "buffers"])
def test_graph_key_buckets_of_equal_argument_shapes_vs_own_text(buffers):
    transformer, _ = model()
    runner = install(transformer, buffers)
    for lengths in [(7, 19), (130, 2), (7, 19)]:
        case = model(lengths)[1]
        transformer.reset_cache()
        check_reads(transformer, case, runner.answer(transformer, case, text_rows=200)[1])


def test_graph_key_texts_that_are_gone_vs_dropped_graphs():
    transformer, case = model()
    runner = install(transformer, buffers=False)
    runner.answer(transformer, case)
    kept = transformer.cached_kv
    transformer.reset_cache()
    runner.answer(transformer, case)
    assert len(runner.graphs) == 2, "a saved branch may come back, and its graph with it"
    cleared = runner.cleared
    del kept
    transformer.reset_cache()
    gc.collect()
    runner.answer(transformer, case)
    assert runner.cleared == cleared + 1 and len(runner.graphs) == 1


def test_text_buffers_eager_step_after_another_text_vs_own_text():
    """A text whose buffer went to another one reads its own tensors again."""
    transformer, case = model()
    runner = install(transformer, buffers=True)
    runner.answer(transformer, case)
    first, freqs = transformer.cached_kv, transformer.cached_freqs_gen
    other = model((19, 7))[1]
    transformer.reset_cache()
    runner.answer(transformer, other)
    transformer.cached_kv, transformer.cached_freqs_gen = first, freqs
    hidden = case.inputs()["hidden_states"]
    reads = first.attach(hidden, ROWS[case.video]), first.rope_tables(freqs)
    check_reads(transformer, case, reads)
    assert reads[0][0].k.data_ptr() == first.keys[0].data_ptr()


MODALITIES = {
    "video": (ModelCase(), {}),
    "one-control": (ModelCase(controls=1, share=False), {}),
    "two-controls": (ModelCase(controls=2), {}),
    "sound": (ModelCase(model="omni", sound_rows=5), {}),
    "action": (ModelCase(model="omni", action_rows=4), {}),
    "action-of-another-rate": (
        ModelCase(model="omni", action_rows=4),
        {"action_fps": 8.0, "action_start_frame_offset": 3},
    ),
    "action-of-no-rate": (ModelCase(model="omni", action_rows=4, fps=None), {}),
}


@pytest.mark.parametrize("buffers", [False, True], ids=["serial", "buffers"])
@pytest.mark.parametrize("name", MODALITIES)
def test_graph_key_before_forward_velocity_vs_forward_alone(name, buffers):
    """What the key function prepares, outside of a graph, is what forward would have prepared."""
    case, changes = MODALITIES[name]
    inputs = case.inputs() | changes
    if name == "one-control":
        inputs["control_latents"] = inputs["control_latents"][0]
    alone = host(case).forward(**inputs)
    transformer = host(case)
    runner = install(transformer, buffers)
    for step in range(2):
        for fn in runner.key_fns.values():
            fn(**inputs)
        if step == 0:
            combined = transformer.cached_freqs_gen_combined
            assert not buffers or (combined is None) == (case.model != "omni")
        found = transformer.forward(**inputs)
        for modality in ("video", "audio", "action"):
            x, expected = getattr(found, modality), getattr(alone, modality)
            assert (x is None) == (expected is None)
            assert x is None or torch.equal(x, expected), modality
    if buffers:
        assert transformer.cached_freqs_gen_combined is combined, "made anew in each step"


def test_graph_key_sound_and_action_vs_refusal():
    case = ModelCase(model="omni", sound_rows=5, action_rows=4)
    runner = install(host(case), buffers=True)
    with pytest.raises(ValueError, match="audio_latents and action_latents .* pass one"):
        runner.key_fns["text"](**case.inputs())


def test_graph_key_of_the_model_itself_vs_kept():
    """The text's key function comes on top of those that the transformer's class registers."""

    class Transformer(torch.nn.Module):
        def register_cuda_graph_extra_key_fns(self, runner):
            runner.register_extra_key_fn("own", lambda **kwargs: 1)

    runner = install(Transformer(), buffers=True)
    assert set(runner.key_fns) == {"own", "text"}


def test_text_buffers_evicted_vs_dropped_graphs():
    transformer, _ = model()
    runner = install(transformer, buffers=True)
    transformer.text_buffers.max_buffers = 2
    cases = [model(video=video)[1] for video in ROWS]
    for case in cases:
        transformer.reset_cache()
        how, reads = runner.answer(transformer, case)
        assert how == "captured"
        check_reads(transformer, case, reads)
    assert len(runner.graphs) == 2 == len(transformer.text_buffers.buffers)
    # The least recently used one is gone, and its graphs: no address of it may be read again.
    transformer.reset_cache()
    how, reads = runner.answer(transformer, cases[0])
    assert how == "captured"
    check_reads(transformer, cases[0], reads)


def test_text_buffers_least_recently_used_vs_evicted():
    transformer, _ = model()
    runner = install(transformer, buffers=True)
    transformer.text_buffers.max_buffers = 2
    first, second, third = [model(video=video)[1] for video in ROWS]
    answers = []
    for case in (first, second, first, third, first, second):
        transformer.reset_cache()
        answers.append(runner.answer(transformer, case)[0])
        for kept in (runner.graph_outputs, runner._graph_output_refs, runner.static_inputs):
            kept.update(dict.fromkeys(runner.graphs, "of a graph"))
    # The third video takes the place of the second, which was used before the first.
    assert answers == ["captured", "captured", "replayed", "captured", "replayed", "captured"]
    for kept in (runner.graph_outputs, runner._graph_output_refs, runner.static_inputs):
        assert set(kept) == set(runner.graphs), "what an evicted graph wrote to is still held"


def test_text_buffers_sizes_vs_bytes_and_log(monkeypatch):
    said = []
    monkeypatch.setattr(text_buffers.logger, "info", said.append)
    transformer, case = model()
    runner = install(transformer, buffers=True)
    runner.answer(transformer, case)
    text, tables = transformer.cached_kv, transformer.cached_freqs_gen
    expected = sum(x.numel() * x.element_size() for x in (text.data, *tables))
    assert transformer.text_buffers.nbytes == expected
    assert len(said) == 1 and "128 text rows, 27 video rows" in said[0]
    assert f"{expected / 2**20:.1f} MiB; 1 of 4 buffers, {expected / 2**20:.1f} MiB" in said[0]


def test_text_buffers_rows_of_all_columns_vs_largest_bucket():
    """A column of Attention2D holds its part of the text; the limit is on the whole."""
    pair = tuple(torch.zeros(2, 300, 8, 16) for _ in range(2))
    tables = (torch.zeros(1, 27, 1, 16), torch.zeros(1, 27, 1, 16))
    for longest, expected in ((128, True), (129, False)):
        text = TextKV.build([pair], (5, longest), TextKVLayout(col_size=2))
        transformer = SimpleNamespace(cached_kv=text, cached_freqs_gen=tables)
        runner = Runner()
        TextBuffers(max_buffers=1, max_text_rows=128)(transformer, runner)
        assert runner.allow_capture == expected


def test_text_buffer_tables_of_another_sequence_vs_their_own():
    transformer, case = model()
    runner = install(transformer, buffers=True)
    runner.answer(transformer, case)
    other = tuple(table + 1 for table in transformer.cached_freqs_gen)
    assert transformer.cached_kv.rope_tables(other) is other


def test_text_buffers_prompt_over_largest_bucket_vs_eager(monkeypatch):
    said = []
    monkeypatch.setattr(text_buffers.logger, "warning", said.append)
    transformer, _ = model()
    runner = install(transformer, buffers=True)
    transformer.text_buffers.max_text_rows = 128
    for lengths, expected in [
        ((129, 3), "eager"),
        ((7, 19), "captured"),
        ((140, 3), "eager"),
        ((19, 7), "replayed"),
    ]:
        case = model(lengths)[1]
        transformer.reset_cache()
        how, reads = runner.answer(transformer, case)
        assert how == expected or (how == "captured" and lengths == (19, 7))
        check_reads(transformer, case, reads)
    assert runner.allow_capture, "captures stay held back after a long prompt"
    assert len(said) == 1 and "129 tokens" in said[0] and "128 rows" in said[0]


def test_text_buffers_captures_that_the_caller_forbids_vs_forbidden():
    transformer, case = model()
    runner = install(transformer, buffers=True)
    transformer.text_buffers.max_text_rows = 128
    runner.allow_capture = False
    for lengths in [(7, 19), (129, 3), (19, 7)]:
        transformer.reset_cache()
        assert runner.answer(transformer, model(lengths)[1])[0] == "eager"
    assert not runner.allow_capture
    # Held back for a long prompt and given back after it, once: a later ban is the caller's again.
    runner.allow_capture = True
    for lengths in [(129, 3), (7, 19)]:
        transformer.reset_cache()
        runner.answer(transformer, model(lengths)[1])
    runner.allow_capture = False
    transformer.reset_cache()
    runner.answer(transformer, case)
    assert not runner.allow_capture


def test_text_buffers_defaults_vs_what_is_promised():
    buffers = TextBuffers()
    assert (buffers.max_buffers, buffers.max_text_rows, buffers.nbytes) == (4, 4096, 0)


def test_text_buffers_refusal_vs_value_expected_remedy():
    with pytest.raises(ValueError, match="max_buffers is 0; .* at least one"):
        TextBuffers(max_buffers=0)


def _new_tensors(monkeypatch):
    def put(self, text, tables):
        if self._source is None:
            original(self, text, tables)
        else:
            self._storage = TextKV(text.data.clone(), text.lengths, text.layout)
            self._tables = tuple(table.clone() for table in tables)

    original = TextBuffer.put
    monkeypatch.setattr(TextBuffer, "put", put)


def _lengths_not_refreshed(monkeypatch):
    monkeypatch.setattr(TextKV, "refresh_views", lambda self: None)


def _tables_not_refreshed(monkeypatch):
    def put(self, text, tables):
        if self._source is not None:
            self._source = tables
        original(self, text, tables)

    original = TextBuffer.put
    monkeypatch.setattr(TextBuffer, "put", put)


def _text_not_refreshed(monkeypatch):
    def put(self, text, tables):
        if self._source is not None:
            self._text = weakref.ref(text)
        original(self, text, tables)

    original = TextBuffer.put
    monkeypatch.setattr(TextBuffer, "put", put)


def _bucket_left_out(monkeypatch):
    call = TextBuffers.__call__
    monkeypatch.setattr(TextBuffers, "__call__", lambda self, *a, **k: bool(call(self, *a, **k)))


# Name: (how the code is broken, the check that has to fail).
GRAPH_FAULTS = {
    "new-tensors-for-a-new-prompt": (_new_tensors, "prompts"),
    "lengths-missing-from-the-refresh": (_lengths_not_refreshed, "prompts"),
    "rope-tables-not-refreshed": (_tables_not_refreshed, "prompts"),
    "text-not-refreshed": (_text_not_refreshed, "prompts"),
    "bucket-left-out-of-the-key": (_bucket_left_out, "buckets"),
}
GRAPH_CHECKS = {
    "prompts": test_graph_key_prompts_one_after_the_other_vs_own_text,
    "buckets": test_graph_key_buckets_of_equal_argument_shapes_vs_own_text,
}


@pytest.mark.parametrize("name", GRAPH_FAULTS)
def test_seeded_graph_fault_is_caught_vs_its_check(name, monkeypatch):
    seed, check = GRAPH_FAULTS[name]
    GRAPH_CHECKS[check](True)
    seed(monkeypatch)
    with pytest.raises(AssertionError):
        GRAPH_CHECKS[check](True)
