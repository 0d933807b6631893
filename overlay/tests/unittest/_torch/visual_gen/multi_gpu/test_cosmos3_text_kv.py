# SPDX-FileCopyrightText: Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.
# SPDX-License-Identifier: Apache-2.0
"""Cosmos3 attends to the video and to each prompt's own text, on one GPU and on several.

Text that pads the shorter prompt, and rows that pad the video to a multiple of the rank count, must
not count in the softmax. Synthetic weights, no checkpoint.

Run with:
    pytest tests/unittest/_torch/visual_gen/multi_gpu/test_cosmos3_text_kv.py -v -s
"""

import os
import socket
from types import SimpleNamespace

os.environ["TLLM_DISABLE_MPI"] = "1"

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tensorrt_llm._torch.visual_gen.attention_backend.interface import (
    AttentionBackend,
    AttentionTensorLayout,
)
from tensorrt_llm._torch.visual_gen.attention_backend.utils import create_attention
from tensorrt_llm._torch.visual_gen.config import AttentionConfig, DiffusionModelConfig
from tensorrt_llm._torch.visual_gen.cuda_graph_runner import (
    CUDAGraphRunner,
    CUDAGraphRunnerConfig,
)
from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping
from tensorrt_llm._torch.visual_gen.models.cosmos3 import text_fold
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_attention import install_text_attention
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_graph import GraphInputs
from tensorrt_llm._torch.visual_gen.models.cosmos3.text_kv import (
    TextKV,
    TextKVLayout,
    attach_text,
    read_text_lengths,
    text_bucket,
)
from tensorrt_llm._torch.visual_gen.models.cosmos3.transformer_cosmos3 import Cosmos3VFMTransformer
from tensorrt_llm.models.modeling_utils import QuantConfig

pytestmark = pytest.mark.cosmos3

# Large but finite, wherever nothing valid stands.
POISON = 1e4
# bf16 on two ranks and on one differ by the order of sums alone, up to 1% here; one leaked video
# row moves the output of this model by 2.5%, a leaked text by 17% and more.
MAX_RELATIVE_ERROR = 1.5e-2


def _text_layers(lengths, heads, head_dim=16, rows=300, layers=1, **options):
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(layers):
        pair = [torch.randn(len(lengths), rows, heads, head_dim, generator=generator) for _ in "kv"]
        for tensor in pair:
            for sample, length in enumerate(lengths):
                tensor[sample, length:] = POISON
        pairs.append(tuple(tensor.to(**options) for tensor in pair))
    return pairs


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    "layout",
    [TextKVLayout(ulysses_size=2, ulysses_rank=1), TextKVLayout(col_size=3, cp_rank=2)],
    ids=["ulysses", "columns"],
)
def test_text_kv_keeps_own_heads_and_rows(layout):
    lengths = (1, 190)
    layers = _text_layers(lengths, heads=4, layers=2)
    text = TextKV.build(layers, lengths, layout)
    heads = slice(2, 4) if layout.ulysses_size == 2 else slice(0, 4)
    for (source, _), (kept, _) in zip(layers, text, strict=True):
        assert kept.shape[1] * layout.col_size >= text_bucket(190) == 256
        for sample, (length, local) in enumerate(zip(lengths, text.local_lengths)):
            own = source[sample, layout.cp_rank : length : layout.col_size, heads]
            assert torch.equal(kept[sample, :local], own) and not kept[sample, local:].any()


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    "mask",
    [None, [1, 0], [[0, 0]], [[1, 0, 1]], [[0, 1, 1]], [[1, 1, float("nan")]], [[1, 0.5, 0]]],
    ids=["none", "flat", "empty", "hole", "left", "nan", "half"],
)
def test_read_text_lengths_refuses(mask):
    with pytest.raises(ValueError, match="text_mask"):
        read_text_lengths(None if mask is None else torch.tensor(mask))


@pytest.mark.cpu_only
def test_attach_refuses_list_and_takes_selection():
    attention = SimpleNamespace(local_num_key_value_heads=4, head_dim=16)
    layers = [SimpleNamespace(cross_attention=attention)]
    text = TextKV.build(_text_layers((3, 5), heads=4), (3, 5))
    model = SimpleNamespace(
        gen_layers=layers, text_kv_layout=TextKVLayout(), cached_kv=text.select(slice(1, 2))
    )
    ((view,),) = attach_text(model, torch.zeros(1, 4, 64), video_rows=7)
    assert view.key_lengths.tolist() == [12] and torch.equal(view.k, text[0][0][1:])
    with pytest.raises(ValueError, match="call reset_cache"):
        attach_text(model, torch.zeros(2, 4, 64), video_rows=7)
    model.cached_kv = [(k[1:], v[1:]) for k, v in text]
    with pytest.raises(ValueError, match="cached_kv is a list"):
        attach_text(model, torch.zeros(1, 4, 64), video_rows=7)


class _Dense(AttentionBackend):
    """A backend that knows no lengths, like most."""

    num_heads, num_kv_heads, head_dim, scale = 8, 2, 16, 0.25
    preferred_layout = AttentionTensorLayout.NHD
    launches = 0

    def forward(self, q, k=None, v=None, **kwargs):
        self.launches += 1
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2)


def _check_attention(backend, q, k, v, layers, lengths, rows, limit):
    """Compares attention of NHD tensors, of which `rows` are valid, with a loop over samples."""
    head_dim = q.shape[3]
    ((view,),) = TextKV.build(layers, lengths).views(rows)
    attn = install_text_attention(backend)
    hnd = attn.preferred_layout == AttentionTensorLayout.HND
    args = (x.transpose(1, 2) if hnd else x for x in (q, k, v))
    out = attn.forward(*args, text=iter((view,)))
    out = out.transpose(1, 2) if hnd else out
    for b, length in enumerate(lengths):
        keys, values = (
            torch.cat([video[b, :rows], source[b, :length]])
            .transpose(0, 1)
            .repeat_interleave(q.shape[2] // k.shape[2], dim=0)
            .double()
            for video, source in zip((k, v), layers[0])
        )
        logits = q[b].transpose(0, 1).double() @ keys.transpose(1, 2) / head_dim**0.5
        expected = (logits.softmax(-1) @ values).transpose(0, 1)
        error = (out[b] - expected).norm() / expected.norm()
        assert error < limit, f"sample {b}: relative error {error:.3g}"


def _video(rows, heads, head_dim, padding=1, **options):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, rows + padding, n, head_dim, generator=generator) for n in heads)
    k[:, rows:], v[:, rows:] = POISON, POISON
    return [x.to(**options) for x in (q, k, v)]


@pytest.mark.cpu_only
@pytest.mark.parametrize("lengths", [(7, 19), (1, 300), (128, 128)])
@pytest.mark.parametrize("name", ["VANILLA", "any"])
def test_text_attention_vs_float64_per_sample(name, lengths):
    dense = _Dense()
    sizes = {"layer_idx": 0, "num_heads": 8, "head_dim": 16, "num_kv_heads": 2}
    backend = dense if name == "any" else create_attention(name, **sizes)
    video = _video(27, (8, 2, 2), 16)
    _check_attention(backend, *video, _text_layers(lengths, 2), lengths, 27, limit=1e-5)
    assert dense.launches == (len(set(lengths)) if name == "any" else 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lengths", [(7, 19), (1, 300), (128, 128)])
@pytest.mark.parametrize("folds", [True, False], ids=["fold", "probe_fails"])
def test_folded_text_vs_float64_per_sample(folds, lengths, monkeypatch):
    if not folds:
        monkeypatch.setattr(text_fold, "_PROBE_ERROR", -1.0)
    text_fold._probe.cache_clear()
    options = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = _video(1000, (8, 2, 2), 64, **options)
    assert text_fold.can_fold_text(q.transpose(1, 2), k.transpose(1, 2), 1000) is folds
    sizes = {"layer_idx": 0, "num_heads": 8, "head_dim": 64, "num_kv_heads": 2}
    backend = create_attention("VANILLA", **sizes)
    layers = _text_layers(lengths, 2, head_dim=64, **options)
    _check_attention(backend, q, k, v, layers, lengths, 1000, limit=1e-2)
    text_fold._probe.cache_clear()


_CONFIG = dict(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    latent_patch_size=2,
    latent_channel=4,
    position_embedding_type="unified_3d_mrope",
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    rope_scaling={"rope_type": "default", "mrope_section": [12, 10, 10]},
    rms_norm_eps=1e-6,
    vocab_size=1024,
    rope_theta=1_000_000.0,
    max_position_embeddings=32768,
    timestep_scale=0.001,
    base_fps=24.0,
    unified_3d_mrope_temporal_modality_margin=15000,
    enable_fps_modulation=True,
)
_TEXT_ROWS = 64


def _build(backend, mapping: VisualGenMapping, device) -> Cosmos3VFMTransformer:
    config = DiffusionModelConfig(
        pretrained_config=SimpleNamespace(**_CONFIG),
        quant_config=QuantConfig(),
        attention=AttentionConfig(backend=backend),
        visual_gen_mapping=mapping,
        skip_create_weights_in_init=False,
    )
    config.mapping = mapping.to_llm_mapping()
    model = Cosmos3VFMTransformer(config).to(device).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                noise *= parameter.shape[-1] ** -0.5
            else:
                noise = noise * 0.1 + (1.0 if "norm" in name else 0.0)
            parameter.copy_(noise)
    model.post_load_weights()
    return model


def _inputs(lengths, video_shape, device, seed=1, controls=0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    latents, *control_latents = (
        torch.randn(batch, 4, *video_shape, generator=generator).to(device, torch.bfloat16)
        for _ in range(1 + controls)
    )
    text_ids = torch.randint(1, 1000, (batch, _TEXT_ROWS), generator=generator)
    text_mask = (torch.arange(_TEXT_ROWS) < torch.tensor(lengths)[:, None]).long()
    raw_timestep = torch.full((batch,), 500.0, device=device)
    return dict(
        hidden_states=latents,
        timestep=raw_timestep / 1000,
        raw_timestep=raw_timestep,
        text_ids=text_ids.to(device),
        text_mask=text_mask.to(device),
        video_shape=video_shape,
        fps=24.0,
        control_latents=control_latents or None,
    )


@torch.inference_mode()
def _velocities(model, inputs, forward=None) -> torch.Tensor:
    model.reset_cache()
    return (forward or model.forward)(**inputs).video.float()


def _logic_ranks_equal_one(rank, world_size, device, backend, sizes, lengths, video_shape):
    inputs = _inputs(lengths, video_shape, device)
    single = _build(backend, VisualGenMapping(world_size=1, rank=0), device)
    expected = _velocities(single, inputs)
    mapping = VisualGenMapping(world_size=world_size, rank=rank, **sizes)
    found = _velocities(_build(backend, mapping, device), inputs)
    for sample in range(len(lengths)):
        error = (found[sample] - expected[sample]).norm() / expected[sample].norm()
        assert error <= MAX_RELATIVE_ERROR, (
            f"rank {rank}, sample {sample} of prompt lengths {lengths}, video {video_shape}: "
            f"relative error {error:.3g}, limit {MAX_RELATIVE_ERROR}"
        )


def _worker(rank, world_size, port, logic, args):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    try:
        logic(rank, world_size, torch.device("cuda", rank), *args)
    finally:
        dist.destroy_process_group()


# Latent (T, H, W) of 2x2 patches: 16 rows divide by two ranks, 27 rows do not.
_DIVISIBLE = (1, 8, 8)
_ODD = (3, 6, 6)

CASES = {
    "ulysses_unequal_lengths": ("VANILLA", {"ulysses_size": 2}, (7, 19), _DIVISIBLE),
    "ulysses_unequal_lengths_odd_video": ("VANILLA", {"ulysses_size": 2}, (1, 40), _ODD),
    "ulysses_equal_lengths_odd_video": ("VANILLA", {"ulysses_size": 2}, (12, 12), _ODD),
    "ulysses_one_sample_odd_video": ("VANILLA", {"ulysses_size": 2}, (7,), _ODD),
    "ulysses_fa4": ("FA4", {"ulysses_size": 2}, (1, 40), _ODD),
    "attention2d_row_fa4": ("FA4", {"attn2d_col_size": 2}, (1, 40), _ODD),
    "attention2d_column_fa4": ("FA4", {"attn2d_row_size": 2}, (7, 19), _ODD),
    "ring_fa4": ("FA4", {"ring_size": 2}, (1, 40), _ODD),
    "ring_fa4_equal_lengths": ("FA4", {"ring_size": 2}, (12, 12), _ODD),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_vs_one(case):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, found {torch.cuda.device_count()}")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    args = (2, port, _logic_ranks_equal_one, CASES[case])
    mp.spawn(_worker, args=args, nprocs=2)


class _Requests(torch.nn.Module):
    """A transformer as GraphInputs sees one: its forward reads what it keeps of a request."""

    def __init__(self):
        super().__init__()
        self.graph_inputs = GraphInputs(max_bytes=1 << 20)
        self.kept = torch.zeros(3)

    def prepare_graph_inputs(self, **arguments):
        return {"kept": (self.kept,)}, None

    def forward(self, x, controls=None, flag=True):
        (kept,) = self.graph_inputs.read((self.kept,))
        return x + kept + sum(self.graph_inputs.read(controls or ()))


class _Runner:
    allow_capture = True

    def __init__(self):
        self.graphs, self.graph_outputs, self._graph_output_refs = {}, {}, {}
        self.static_inputs, self.key_fns = {}, {}

    def register_extra_key_fn(self, name, fn):
        self.key_fns[name] = fn


@pytest.mark.cpu_only
def test_graph_inputs_follow_the_request(monkeypatch):
    model, runner = _Requests(), _Runner()
    model.graph_inputs.register(model, runner)
    request_key = runner.key_fns["request"]
    x, control = torch.ones(3), torch.full((3,), 5.0)
    key = request_key(x, controls=[control])
    assert request_key(x, [control], flag=False) != key
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        (kept,), (copy,) = (model.graph_inputs.read(t) for t in ((model.kept,), (control,)))
        with pytest.raises(RuntimeError, match="does not write"):
            model.graph_inputs.read((torch.ones(3),))
    control += 1
    model.kept = torch.full((3,), 2.0)
    assert request_key(x, [control]) == key
    assert kept.tolist() == [2.0] * 3 and copy.tolist() == [6.0] * 3
    with pytest.raises(ValueError, match="flag of type dict"):
        request_key(x, flag={})
    del key, request_key
    runner.key_fns.clear()
    assert model.graph_inputs.nbytes == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["VANILLA", "FA4"])
def test_graphs_answer_the_prompt_and_controls_at_hand(backend):
    model = _build(backend, VisualGenMapping(world_size=1, rank=0), torch.device("cuda"))
    runner = CUDAGraphRunner(CUDAGraphRunnerConfig(use_cuda_graph=True))
    model.register_cuda_graph_extra_key_fns(runner)
    forward = runner.wrap(model.forward)
    for lengths, seed in [((7, 19), 1), ((40, 3), 2), ((7, 19), 1), ((12, 12), 3)]:
        for controls in (0, 1, 2):
            inputs = _inputs(lengths, (2, 16, 16), "cuda", seed, controls)
            expected = _velocities(model, inputs)
            assert torch.equal(_velocities(model, inputs, forward), expected)
            inputs["hidden_states"] = inputs["hidden_states"] + 1
            expected = _velocities(model, inputs)
            assert torch.equal(_velocities(model, inputs, forward), expected)
    assert len(runner.graphs) == 3
