# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Choose a compute backend by name."""

import torch

from tensorrt_llm.logger import logger

from .cudnn import CudnnAttention
from .cute_dsl import CuTeDSLAttention
from .flash_attn4 import FlashAttn4Attention
from .flashinfer import FlashInferAttention
from .interface import AttentionBackend
from .vanilla import VanillaAttention, VanillaInBlocks

BACKENDS: dict[str, type[AttentionBackend]] = {
    "VANILLA": VanillaAttention,
    "FA4": FlashAttn4Attention,
    "CUTEDSL": CuTeDSLAttention,
    "CUDNN": CudnnAttention,
    "FLASHINFER": FlashInferAttention,
}


def create_attention(
    backend: str,
    layer_idx: int,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    dtype: torch.dtype | None = None,
    **kwargs,
) -> AttentionBackend:
    """Make a compute backend for this rank's heads.

    Args:
        backend: a name, in any case. TRTLLM becomes VANILLA, since its kernels are compiled.
        layer_idx: of the layer that it serves.
        num_heads: query heads of this rank, after tensor parallelism and Ulysses.
        head_dim: width of one head.
        num_kv_heads: key and value heads of this rank; ``num_heads`` when None.
        dtype: of the model; VANILLA attends in blocks to 32 and 64 bits on a GPU.
        **kwargs: handed to the backend, which ignores what it does not know.

    Raises:
        ValueError: an unknown name.
    """
    name = backend.upper()
    if name == "TRTLLM":
        logger.info_once("attention backend TRTLLM is not part of the host: VANILLA instead")
        name = "VANILLA"
    if name not in BACKENDS:
        raise ValueError(
            f"attention backend {backend!r} is unknown; expected one of {sorted(BACKENDS)}"
        )
    cls = BACKENDS[name]
    on_gpu = torch.get_default_device().type == "cuda"
    if name == "VANILLA" and on_gpu and dtype in (torch.float32, torch.float64):
        cls = VanillaInBlocks
    return cls(
        layer_idx=layer_idx,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        **kwargs,
    )
