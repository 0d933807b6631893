# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The fields of TensorRT-LLM's VisualGenArgs around the base of patches/, as data.

Names, types, defaults and bounds only, read in revisions near the base, as marked beside each
block:

ARGS    tensorrt_llm/visual_gen/args.py at 01dc259f130c, which has the contract's offloading stages
SPARSE  tensorrt_llm/visual_gen/sparse_attention.py at 0c5902c64012 and its later neighbours
QUANT   load_diffusion_quant_config in tensorrt_llm/_torch/visual_gen/config.py at 00d5dc0959cf

Every class there forbids unknown fields, except that quant_config and pipeline_config also take a
plain dictionary: what the former's reader does not know it drops without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Far above any machine; it keeps what is computed from a number small.
LARGEST = 1 << 20


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        kind: "whole", "real", "flag", "text", "choice", "list", "pair", "block", "union" or "free".
        default: Its value where it is left out; for a block its fields' defaults stand for it. None
            without `null` is a field that must be given.
        null: Whether null is valid.
        low: Least number, or least length of a text or list; `above` excludes it.
        high: Greatest number.
        above: Whether `low` itself is out.
        choices: Names of a choice.
        inner: The fields of a block, the variants of a union by its tag, or a Field for each item.
        tag: The field that picks a union's variant.
    """

    kind: str
    default: Any = None
    null: bool = False
    low: float | None = None
    high: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    inner: Any = None
    tag: str = ""


def _whole(default: int | None, low: int | None = None, high: int = LARGEST) -> Field:
    return Field("whole", default, default is None, low, high)


def _real(default: float | None, low: float | None = None, high: float | None = None, above=False):
    return Field("real", default, default is None, low, high, above)


def _choice(default: str | None, *names: str) -> Field:
    return Field("choice", default, default is None, choices=names)


def _list(item: Field, default: list | None = None, low: int = 0) -> Field:
    return Field("list", default, default is None, low, inner=item)


def _pair(low: int, default: tuple | None = None) -> Field:
    return Field("pair", default, inner=_whole(1, low))


def _block(null: bool = False, **fields: Field) -> Field:
    return Field("block", null=null, inner=fields)


ON, OFF = Field("flag", True), Field("flag", False)
TEXT, NAME = Field("text", ""), Field("text", None, True)

# Backends of the base, and names that only other revisions have.
BACKENDS = ("VANILLA", "TRTLLM", "FA4", "CUTEDSL")
OTHER_BACKENDS = ("CUDNN", "FLASHINFER", "TE")

# The public names of Cosmos3's components that can be offloaded.
OFFLOAD_STAGES = ("reasoner", "generator", "text_guardrail", "video_guardrail", "vae")

# Valid (qk_dtype, v_dtype, (q, k, v) block sizes) by backend. Read in ARGS.
QUANT_ATTENTION = {
    "TRTLLM": {
        ("int8", "fp8", (1, 1, 1)),
        ("int8", "fp8", (1, 4, 1)),
        ("int8", "fp8", (1, 16, 1)),
        ("fp8", "fp8", (1, 1, 1)),
        ("fp8", "fp8", (1, 4, 1)),
    },
    "CUTEDSL": {
        ("bf16", "fp8", (0, 0, 0)),
        ("mxfp8", "fp8", (0, 0, 0)),
        ("mxfp8", "fp8", (0, 0, 1)),
        ("nvfp4", "fp8", (0, 0, 0)),
        ("nvfp4", "fp8", (0, 0, 1)),
    },
}

# Backends by the sparse algorithm that they take. Read in ARGS.
SPARSE_ATTENTION = {"skip_softmax": ("TRTLLM", "CUTEDSL"), "vsa": ("CUTEDSL",)}

# Bytes of one weight of a layer's matrix products; the scales of a block of 16 with NVFP4's.
# The names were read in QUANT.
WEIGHT_BYTES = {
    None: 2.0,
    "FP8": 1.0,
    "FP8_BLOCK_SCALES": 1.0,
    "NVFP4": 0.5 + 1 / 16,
    "W4A16_AWQ": 0.5,
    "W4A8_AWQ": 0.5,
    "W8A8_SQ_PER_CHANNEL": 1.0,
}

PARALLEL = _block(  # ARGS, ParallelConfig
    parallel_vae_size=_whole(1, 1),
    parallel_vae_split_dim=_choice("width", "width", "height"),
    cfg_size=_whole(1, 1, 2),
    ulysses_size=_whole(1, 1),
    async_ulysses=OFF,
    ring_size=_whole(1, 1),
    attn2d_size=_pair(1, (1, 1)),
    tp_size=_whole(1, 1),
)
ATTENTION = _block(  # ARGS, AttentionConfig
    backend=_choice("VANILLA", *BACKENDS, *OTHER_BACKENDS),
    quant_attention_config=_block(  # ARGS, QuantAttentionConfig
        True,
        qk_dtype=_choice("bf16", "bf16", "int8", "fp8", "mxfp8", "nvfp4"),
        v_dtype=_choice("fp8", "fp8"),
        q_block_size=_whole(0, 0),
        k_block_size=_whole(0, 0),
        v_block_size=_whole(0, 0),
    ),
    sparse_attention_config=Field(
        "union",
        null=True,
        tag="algorithm",
        inner={
            "skip_softmax": {  # SPARSE, SkipSoftmaxAttentionConfig
                "threshold_scale_factor": _real(None),
                "target_sparsity": _real(None, 0, 1),
                "disabled_until_timestep": _real(None, 0, 1),
            },
            "vsa": {"vsa_sparsity": _real(0.9, 0, 1)},  # SPARSE, VideoSparseAttentionConfig
        },
    ),
)
CACHE = Field(
    "union",
    null=True,
    tag="cache_backend",
    inner={
        "teacache": {  # ARGS, TeaCacheConfig
            "teacache_thresh": _real(0.2, 0, above=True),
            "use_ret_steps": OFF,
            "coefficients": _list(_real(0.0), low=1),
            "coefficients_2": _list(_real(0.0), low=1),
        },
        "cache_dit": {  # ARGS, CacheDiTConfig
            "Fn_compute_blocks": _whole(1, 0),
            "Bn_compute_blocks": _whole(0, 0),
            "max_warmup_steps": _whole(4, 0),
            "max_cached_steps": _whole(-1),
            "max_continuous_cached_steps": _whole(3, -1),
            "residual_diff_threshold": _real(0.24, 0),
            "enable_separate_cfg": Field("flag", None, True),
            "enable_taylorseer": OFF,
            "taylorseer_order": _whole(1, 1, 4),
            "scm_steps_mask_policy": NAME,
            "scm_steps_policy": _choice("dynamic", "dynamic", "static"),
            "force_refresh_step_hint": _whole(None),
            "force_refresh_step_policy": _choice("once", "once", "repeat"),
        },
    },
)
QUANTISATION = _block(  # QUANT: the dictionary; ARGS also takes the language models' QuantConfig
    True,
    quant_algo=_choice(None, *(name for name in WEIGHT_BYTES if name)),
    dynamic=Field("flag", None, True),
    config_groups=Field("free", {}),
    ignore=_list(TEXT),
)
ARGS = _block(  # ARGS, VisualGenArgs
    model=TEXT,
    revision=NAME,
    quant_config=QUANTISATION,
    compilation_config=_block(  # ARGS, CompilationConfig
        resolutions=_list(_pair(1)), num_frames=_list(_whole(1, 1)), skip_warmup=OFF
    ),
    torch_compile_config=_block(  # ARGS, TorchCompileConfig
        enable=ON, enable_fullgraph=OFF, enable_autotune=ON
    ),
    cuda_graph_config=_block(enable=OFF),  # ARGS, CudaGraphConfig
    cpu_offload_config=_block(  # ARGS, CpuOffloadConfig
        enable=OFF, pin_memory=ON, stages=_list(Field("free"))
    ),
    attention_config=ATTENTION,
    parallel_config=PARALLEL,
    cache_config=CACHE,
    runtime_lora_config=_block(  # ARGS, RuntimeLoRAConfig
        True,
        path=Field("text", low=1),
        scale=_real(1.0),
        target_components=_list(TEXT, []),
        strip_prefixes=_list(TEXT, []),
        key_map=Field("free", {}),
        fuse_qkv=ON,
        strict=ON,
    ),
    pipeline_config=Field("free", {}),
    enable_layerwise_nvtx_marker=OFF,
)

# Fields that are checked for their type alone; what they do to Cosmos3 nobody here has looked at.
NOT_JUDGED = (
    "compilation_config",
    "runtime_lora_config",
    "pipeline_config",
    "enable_layerwise_nvtx_marker",
)
