# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The host's layout arithmetic, weight loading and refusals, in one process."""

from dataclasses import replace

import pytest
import torch
from cosmos3_oracle import build_oracle
from cosmos3_weights import UNUSED, RandomWeights, weight_shapes
from support.model import MODELS, ModelCase, build_host

from tensorrt_llm._torch.visual_gen.config import DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.cuda_graph_runner import CUDAGraphRunner, CUDAGraphRunnerConfig
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


@pytest.mark.parametrize(
    "model, fields, message",
    [
        ("edge", {"sound_gen": True, "sound_dim": 6}, "sound_gen=True; expected False"),
        ("edge", {"latent_channel": 8, "patch_latent_dim": 32}, "latent_channel=8; expected 48"),
        ("edge", {"rms_norm_eps": 1e-6}, "rms_norm_eps=1e-06; expected 1e-05"),
        ("edge", {"hidden_act": "silu"}, "qk_norm_for_text=False; expected True"),
        ("tiny", {"use_und_k_norm_for_gen": True}, "use_und_k_norm_for_gen=True; expected False"),
        ("tiny", {"patch_latent_dim": 48}, "patch_latent_dim=48 is not"),
    ],
)
def test_contradictions_to_a_recipe_are_refused(model, fields, message):
    with pytest.raises(ValueError, match=message):
        build_host(ModelCase(model=model, overrides=tuple(fields.items())))


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


def test_transformer_refuses_an_unknown_path_and_a_backend_only_when_it_runs():
    with pytest.raises(ValueError, match="'fixed'; expected 'exact' or 'padded'"):
        Cosmos3VFMTransformer(DiffusionModelConfig.from_diffusers(MODELS["tiny"]), text_kv="fixed")
    case = ModelCase(backend="CUTEDSL")
    with pytest.raises(NotImplementedError, match="CuTeDSLAttention"):
        build_host(case)(**case.inputs())


def _bad_inputs():
    case = ModelCase(model="omni", sound_rows=3, action_rows=4, controls=1, given_frames=(0,))
    good = case.inputs()
    changes = {
        "latents-dtype": ({"hidden_states": good["hidden_states"].double()}, "the model torch.fl"),
        "latents-channels": ({"hidden_states": good["hidden_states"][:, :7]}, r"expected \[B, 8"),
        "video-shape": ({"video_shape": (3, 6, 6)}, r"\(3, 6, 6\) is not that of the latents"),
        "timesteps": ({"raw_timestep": torch.zeros(3)}, r"\(3,\); expected \[2\]"),
        "text-batch": ({"text_ids": good["text_ids"][:1]}, r"must both be \[2, S_text\]"),
        "empty-prompt": ({"text_mask": good["text_mask"] * 0}, "text_mask row 0 .* a token"),
        "no-mask": ({"text_mask": None}, "text_mask"),
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


def _runner(enabled=True):
    if torch.cuda.is_available():
        pytest.skip("a GPU is there: tests/gpu runs the graphs")
    return CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=enabled))


def test_graph_runner_switched_off_calls_through():
    runner = _runner(enabled=False)
    runner.register_extra_key_fn("never", lambda *a, **k: pytest.fail("no graph, no key"))
    assert runner.wrap(lambda x: x + 1)(2) == 3 and not runner.graphs


def test_graph_runner_refreshes_tensors_and_nothing_else():
    """As blind as upstream's: lists, numbers and what is read elsewhere stay as captured."""
    elsewhere, runs = {"x": torch.tensor([1000.0])}, []

    def add(x, *, some, number, other=None):
        runs.append(1)
        if other is not None:
            number = number + other
        return x + some[0] + number + elsewhere["x"]

    runner = _runner()
    forward = runner.wrap(add)
    first = torch.tensor([1.0])
    assert forward(first, some=[torch.tensor([10.0])], number=100).item() == 1111
    assert len(runs) == runner.WARMUP_STEPS + 1
    elsewhere["x"].fill_(2000.0)  # at the address of the capture
    output = forward(torch.tensor([2.0]), some=[torch.tensor([50.0])], number=500, other=None)
    assert output.item() == 2112 and len(runs) == runner.WARMUP_STEPS + 1
    forward(torch.tensor([3.0]), some=[], number=0)
    assert output.item() == 2113, "an output lies in its graph"
    assert forward(torch.ones(2), some=[torch.ones(1)], number=0).shape == (2,)
    assert len(runner.graphs) == 2, "shapes are the key"
    with pytest.raises(RuntimeError, match="after the first capture"):
        runner.register_extra_key_fn("late", lambda *a, **k: 1)
    runner.clear()
    assert not runner.graphs and not runner.static_inputs and not runner.graph_outputs


@pytest.mark.parametrize("read", ["item", "tolist", "nonzero", "__bool__"])
def test_graph_runner_host_read_in_a_capture_refused(read):
    runner = _runner()
    with pytest.raises(RuntimeError, match="a host read in a captured function"):
        runner.wrap(lambda x: [x + 1, getattr(x, read)()])(torch.ones(1))
    assert not runner.graphs
