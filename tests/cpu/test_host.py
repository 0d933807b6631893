# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The host's layout arithmetic, weight loading and refusals, in one process."""

from dataclasses import replace

import pytest
import torch
from cosmos3_oracle import build_oracle
from cosmos3_weights import UNUSED, RandomWeights, weight_shapes
from support.model import MODELS, ModelCase, build_host
from torch.utils import _pytree as pytree

from tensorrt_llm._torch.visual_gen import cuda_graph_runner
from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.cuda_graph_runner import CUDAGraphRunner
from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import (
    Cosmos3VFMTransformer,
)
from tensorrt_llm._torch.visual_gen.utils import SequenceSharder, check_head_layout


def test_mapping_places_vs_written_out_order():
    sizes = {"cfg_size": 2, "tp_size": 1, "attn2d_row_size": 2, "attn2d_col_size": 3}
    seen = []
    for rank in range(24):
        m = VisualGenMapping(24, rank, ulysses_size=2, **sizes)
        place = (m.cfg_rank, m.tp_rank, m.cp_row_rank, m.cp_col_rank, m.ulysses_rank)
        seen.append(place)
        assert m.cp_rank == m.cp_row_rank * 3 + m.cp_col_rank
        assert m.seq_rank == m.cp_rank * 2 + m.ulysses_rank == rank % 12
        assert (m.cp_size, m.seq_size) == (6, 12)
    assert seen == sorted(set(seen)), "the last axis varies fastest"


def test_mapping_tensor_parallel_group_lies_across_the_sequence():
    m = VisualGenMapping(16, 13, cfg_size=2, tp_size=2, ring_size=2, ulysses_size=2)
    # 13 = cfg 1, tp 1, cp 0, ulysses 1.
    assert (m.cfg_rank, m.tp_rank, m.cp_rank, m.ulysses_rank) == (1, 1, 0, 1)
    with pytest.raises(RuntimeError, match="initialise torch.distributed"):
        m.to_llm_mapping()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"world_size": 4, "ulysses_size": 2}, "multiply to 2, but there are 4 processes"),
        ({"world_size": 4, "ring_size": 2, "attn2d_col_size": 2}, "exclude each other"),
        ({"world_size": 2, "ulysses_size": 2, "rank": 2}, "rank=2 lies outside"),
        ({"world_size": 0, "ulysses_size": 0}, "ulysses_size=0; expected a whole number"),
    ],
)
def test_mapping_refuses_impossible_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        VisualGenMapping(**arguments)


def test_head_check_names_every_count_and_what_works():
    heads = {"text heads": 32, "text key heads": 8, "video key heads": 12}
    check_head_layout(heads, 2, 2)
    with pytest.raises(ValueError) as error:
        check_head_layout(heads, 2, 4)
    assert "= 8 does not divide video key heads=12;" in str(error.value)
    assert "one of [1, 2, 4]" in str(error.value)


@pytest.mark.parametrize("rows", [1, 5, 8, 9])
def test_sharder_blocks_vs_padded_sequence(rows):
    x = torch.arange(1, 2 * rows + 1).reshape(2, rows).float()
    blocks = [SequenceSharder(4, r, None).shard(x, 1, pad_to_multiple=True) for r in range(4)]
    joined = torch.cat(blocks, dim=1)
    assert joined.shape[1] == -(-rows // 4) * 4
    assert torch.equal(joined[:, :rows], x) and (joined[:, rows:] == 0).all()
    if rows % 4:
        with pytest.raises(ValueError, match=f"{rows} rows cannot be cut into 4"):
            SequenceSharder(4, 0, None).shard(x, 1)


@pytest.mark.parametrize("model", MODELS)
def test_weight_shapes_vs_diffusers(model):
    oracle = build_oracle(MODELS[model], 0)
    theirs = {name: tuple(p.shape) for name, p in oracle.named_parameters() if name not in UNUSED}
    assert weight_shapes(MODELS[model]) == theirs


def test_random_weights_do_not_depend_on_order_or_dtype():
    config = MODELS["tiny"]
    name = "layers.1.self_attn.to_q.weight"
    first = RandomWeights(config, 3)[name]
    assert torch.equal(first, RandomWeights(config, 3)[name])
    assert torch.equal(first.bfloat16(), RandomWeights(config, 3, torch.bfloat16)[name])
    assert not torch.equal(first, RandomWeights(config, 4)[name])
    norm = RandomWeights(config, 3)["layers.1.self_attn.norm_q.weight"]
    assert 0.05 < norm.std() < 0.5 and 0.7 < norm.mean() < 1.3


def test_load_weights_names_what_is_missing_or_does_not_fit():
    transformer = build_host(ModelCase())
    weights = dict(RandomWeights(MODELS["tiny"], 0))
    missing = {k: x for k, x in weights.items() if k != "layers.2.mlp.up_proj.weight"}
    with pytest.raises(ValueError, match="1 tensors are missing.*layers.2.mlp.up_proj.weight"):
        transformer.load_weights(missing)
    for name in ("layers.2.mlp.up_proj.weight", "norm_moe_gen.weight", "embed_tokens.weight"):
        with pytest.raises(ValueError, match=name.rsplit(".", 2)[0]):
            transformer.load_weights(weights | {name: weights[name][:-1]})


def test_model_is_made_on_the_default_device():
    config = DiffusionModelConfig.from_diffusers(MODELS["omni"], dtype=torch.bfloat16)
    with torch.device("meta"):
        transformer = Cosmos3VFMTransformer(config)
    assert {p.device.type for p in transformer.parameters()} == {"meta"}
    wide = {n for n, p in transformer.named_parameters() if p.dtype == torch.float32}
    assert wide and all(name.startswith("time_embedder") for name in wide)


@pytest.mark.parametrize(
    "layout, message",
    [
        ({"ulysses_size": 16}, "num_key_value_heads=8; tp_size x ulysses_size must be one of"),
        ({"tp_size": 4, "ulysses_size": 4}, "tp_size=4 x ulysses_size=4 = 16 does not divide"),
    ],
)
def test_transformer_refuses_layouts_before_any_group_is_made(layout, message):
    # No process group exists here: whatever needed one would raise RuntimeError instead.
    config = DiffusionModelConfig.from_diffusers(MODELS["tiny"])
    config.visual_gen_mapping = VisualGenMapping(16, 3, **layout)
    with pytest.raises(ValueError, match=message):
        Cosmos3VFMTransformer(config)


def test_transformer_refuses_a_ring_on_the_old_path_only():
    config = DiffusionModelConfig.from_diffusers(MODELS["tiny"], backend="FA4")
    config.visual_gen_mapping = VisualGenMapping(16, 3, ring_size=16)
    with pytest.raises(ValueError, match="ring_size=16 with text_kv='padded'"):
        Cosmos3VFMTransformer(config, text_kv="padded")
    # The fixed path goes on to ask for its groups, which do not exist here.
    with pytest.raises(RuntimeError, match="initialise torch.distributed"):
        Cosmos3VFMTransformer(config)


def test_transformer_refuses_a_backend_without_lengths_and_an_unknown_path():
    config = DiffusionModelConfig.from_diffusers(MODELS["tiny"], backend="CUTEDSL")
    with pytest.raises(ValueError, match="CuTeDSLAttention"):
        Cosmos3VFMTransformer(config)
    with pytest.raises(ValueError, match="'fixed'; expected 'exact' or 'padded'"):
        Cosmos3VFMTransformer(config, text_kv="fixed")


def _bad_inputs():
    case = ModelCase(model="omni", sound_rows=3, action_rows=4, controls=1, given_frames=(0,))
    good = case.inputs()
    changes = {
        "latents-dtype": ({"hidden_states": good["hidden_states"].double()}, "the model torch.fl"),
        "latents-channels": ({"hidden_states": good["hidden_states"][:, :7]}, r"expected \[B, 8"),
        "video-shape": ({"video_shape": (3, 6, 6)}, r"\(3, 6, 6\) is not that of the latents"),
        "timesteps": ({"raw_timestep": torch.zeros(3)}, r"\(3,\); expected \[2\]"),
        "text-batch": ({"text_ids": good["text_ids"][:1]}, r"must both be \[2, S_text\]"),
        "empty-prompt": ({"text_mask": good["text_mask"] * 0}, "prompt is empty"),
        "control": ({"control_latents": [good["hidden_states"][:, :, :2]]}, r"control_latents\[0"),
        "frame-mask": ({"noisy_frame_mask": torch.ones(2, 3)}, "noisy_frame_mask has shape"),
        "sound": ({"audio_latents": torch.zeros(2, 5, 3)}, "sound_dim=6; expected"),
        "action": ({"action_latents": torch.zeros(2, 4, 6)}, "action_dim=5; expected"),
        "no-domain": ({"action_domain_ids": None}, "one domain for each of the 2 samples"),
        "domain": ({"action_domain_ids": torch.tensor([0, 4])}, r"\[0, 4\]; expected 0 to 3"),
        "action-mask": ({"action_noisy_mask": torch.ones(2, 4)}, "action_noisy_mask has shape"),
    }
    return [pytest.param(case, *change, id=name) for name, change in changes.items()]


@pytest.mark.parametrize("case, change, message", _bad_inputs())
def test_forward_refuses_bad_input(case, change, message):
    transformer = build_host(case)
    with pytest.raises(ValueError, match=message):
        transformer(**case.inputs() | change)


def test_forward_refuses_shapes_that_the_cache_was_not_made_for():
    case = ModelCase()
    transformer = build_host(case)
    transformer(**case.inputs())
    other = replace(case, video=(4, 5, 6)).inputs()
    with pytest.raises(ValueError, match="have 27 rows and the sequence 36; call reset_cache"):
        transformer(**other)
    transformer.reset_cache()
    transformer(**other)


def test_branches_with_action_saved_and_restored_vs_fresh_model():
    """Tables of the audio and action rows follow the text that a caller puts back."""
    case = ModelCase(model="omni", action_rows=4)
    other = replace(case, lengths=(30, 2))
    expected = [build_host(c)(**c.inputs()).action for c in (case, other)]
    transformer = build_host(case)
    saved = []
    for c in (case, other):
        transformer.reset_cache()
        transformer(**c.inputs())
        saved.append((transformer.cached_kv, transformer.cached_freqs_gen))
    for c, state, action in zip((case, other), saved, expected):
        transformer.cached_kv, transformer.cached_freqs_gen = state
        assert torch.equal(transformer(**c.inputs()).action, action)


def test_graph_runner_without_gpu_calls_through():
    if torch.cuda.is_available():
        pytest.skip("a GPU is there: tests/gpu runs the graphs")
    runner = CUDAGraphRunner()
    runner.register_extra_key_fn("never", lambda *a, **k: pytest.fail("no graph, no key"))
    assert runner.wrap(lambda x: x + 1)(2) == 3 and not runner.graphs


class _RecordedRunner(CUDAGraphRunner):
    """Runs the function again where a GPU would replay it, into the tensors of the capture."""

    def _capture(self, key, fn, leaves, spec):
        static = [x.clone() if isinstance(x, torch.Tensor) else x for x in leaves]
        args, kwargs = pytree.tree_unflatten(static, spec)
        result = fn(*args, **kwargs)

        class Graph:
            @staticmethod
            def replay():
                for name, tensor in vars(fn(*args, **kwargs)).items():
                    if tensor is not None:
                        getattr(result, name).copy_(tensor)

            @staticmethod
            def reset():
                pass

        self.graphs[key] = Graph
        self.static_inputs[key] = [x for x in static if isinstance(x, torch.Tensor)]
        self.graph_outputs[key] = result


@pytest.mark.parametrize("rows", [{}, {"sound_rows": 5}, {"action_rows": 4}], ids=str)
def test_graph_runner_keys_over_prompts_vs_eager(rows):
    first = ModelCase(model="omni", **rows)
    long = (200, 3)
    cases = [first, replace(first, lengths=(23, 4)), replace(first, lengths=long), first]
    transformer, runner = build_host(first), _RecordedRunner()
    runner.enabled = True
    transformer.register_cuda_graph_extra_key_fns(runner)
    forward = runner.wrap(transformer.forward)
    kept = []
    for case in cases:
        # Text of one width, so that the arguments' shapes are equal and only the bucket differs.
        inputs = case.inputs()
        for name in ("text_ids", "text_mask"):
            inputs[name] = torch.nn.functional.pad(inputs[name], (0, 256 - inputs[name].shape[1]))
        transformer.reset_cache()
        output = forward(**inputs)
        expected = build_host(first)(**inputs)
        kept.append((output, expected))
    for output, expected in kept:
        # Compared at the end: an output that a later replay overwrote would show.
        for name in ("video", "audio", "action"):
            found, wanted = getattr(output, name), getattr(expected, name)
            assert (found is None) == (wanted is None)
            if found is not None:
                assert torch.equal(found, wanted)
    assert len(runner.graphs) == 2, "one for each text bucket"
    runner.allow_capture = False
    other = replace(first, video=(1, 4, 4)).inputs()
    transformer.reset_cache()
    forward(**other)
    assert len(runner.graphs) == 2


def test_graph_runner_capture_that_fails_runs_eagerly_and_says_so_once(monkeypatch):
    class Failing(CUDAGraphRunner):
        def _capture(self, key, fn, leaves, spec):
            raise RuntimeError("operation not permitted when stream is capturing")

    said = []
    monkeypatch.setattr(cuda_graph_runner.logger, "warning", said.append)
    runner = Failing()
    runner.enabled = True
    add_one = runner.wrap(lambda x: x + 1)
    for value in (1.0, 2.0):
        assert torch.equal(add_one(torch.tensor(value)), torch.tensor(value + 1))
    assert not runner.graphs
    assert len(said) == 1 and "not permitted when stream is capturing" in said[0]
