# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Choose a compute backend by name."""

from tensorrt_llm.logger import logger

from .flash_attn4 import FlashAttn4Attention
from .interface import AttentionBackend, AttentionTensorLayout
from .vanilla import VanillaAttention


class _AbsentAttention(AttentionBackend):
    """A backend that exists upstream and not here: it can be made and refused, never run."""

    def __init__(
        self,
        layer_idx: int = 0,
        num_heads: int = 8,
        head_dim: int = 64,
        num_kv_heads: int | None = None,
        **kwargs,
    ) -> None:
        self.layer_idx = layer_idx
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        return AttentionTensorLayout.NHD

    def forward(self, q, k, v, **kwargs):
        raise NotImplementedError(
            f"{type(self).__name__} is not part of the stand-in host; use VANILLA or FA4"
        )


class CuTeDSLAttention(_AbsentAttention):
    """CUTEDSL, by name only."""


class CudnnAttention(_AbsentAttention):
    """CUDNN, by name only."""


class FlashInferAttention(_AbsentAttention):
    """FLASHINFER, by name only."""


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
    **kwargs,
) -> AttentionBackend:
    """Make a compute backend for this rank's heads.

    Args:
        backend: a name, in any case. TRTLLM becomes VANILLA, since its kernels are compiled.
        layer_idx: of the layer that it serves.
        num_heads: query heads of this rank, after tensor parallelism and Ulysses.
        head_dim: width of one head.
        num_kv_heads: key and value heads of this rank; ``num_heads`` when None.
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
    return BACKENDS[name](
        layer_idx=layer_idx,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        **kwargs,
    )
