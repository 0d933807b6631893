# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Self-attention with tensor-parallel projections around a compute backend.

Legend: B batch, S sequence rows, H query heads and H_kv key heads of this tensor-parallel rank,
D head width.
"""

from enum import Enum

import torch
from torch import nn

from tensorrt_llm._torch.modules.linear import (
    Linear,
    TensorParallelMode,
    WeightMode,
    WeightsLoadingConfig,
)
from tensorrt_llm._torch.visual_gen.modules.rms_norm import RMSNorm

from ..attention_backend.interface import AttentionTensorLayout
from ..attention_backend.parallel import wrap_parallel_attention
from ..attention_backend.utils import create_attention
from ..utils import check_head_layout


class QKVMode(str, Enum):
    """How the input projections are kept."""

    FUSE_QKV = "fuse_qkv"
    SEPARATE_QKV = "separate_qkv"


class Attention(nn.Module):
    """Projections, optional QK-norm, and attention through ``self.attn``."""

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        qkv_mode: QKVMode = QKVMode.FUSE_QKV,
        qk_norm: bool = True,
        qk_norm_mode: str = "per_head",
        eps: float = 1e-6,
        bias: bool = False,
        interleave: bool = False,
        config=None,
        layer_idx: int = 0,
        module_name: str = "",
        enable_sequence_parallel: bool = True,
    ) -> None:
        """Make the module.

        Args:
            hidden_size: width of input and output.
            num_attention_heads: query heads over all ranks.
            num_key_value_heads: key and value heads over all ranks.
            head_dim: width of one head.
            qkv_mode: one projection for q, k and v, or three.
            qk_norm: whether q and k are normalised.
            qk_norm_mode: "per_head", the only one here.
            eps: of the norms.
            bias: whether the projections have one.
            interleave: rotary pairs that lie side by side; must be False here.
            config: the model configuration.
            layer_idx: of this layer.
            module_name: for messages.
            enable_sequence_parallel: whether the sequence is cut over ranks.

        Raises:
            ValueError: something that the host does not have, or head counts that the layout does
                not divide.
        """
        super().__init__()
        if qk_norm_mode != "per_head" or interleave:
            raise ValueError(
                f"qk_norm_mode={qk_norm_mode!r}, interleave={interleave}: the host has 'per_head' "
                "and False only"
            )
        num_key_value_heads = num_key_value_heads or num_attention_heads
        vgm = config.visual_gen_mapping
        tp_size = config.mapping.tp_size
        ulysses_size = vgm.ulysses_size if vgm is not None and enable_sequence_parallel else 1
        check_head_layout(
            {
                f"{module_name or 'attention'} query heads": num_attention_heads,
                f"{module_name or 'attention'} key/value heads": num_key_value_heads,
            },
            tp_size,
            ulysses_size,
        )
        self.hidden_size = hidden_size
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.layer_idx = layer_idx
        self.qkv_mode = QKVMode(qkv_mode)
        self.qk_norm = qk_norm
        self.local_num_attention_heads = num_attention_heads // tp_size
        self.local_num_key_value_heads = num_key_value_heads // tp_size
        self.q_size = self.local_num_attention_heads * self.head_dim
        self.kv_size = self.local_num_key_value_heads * self.head_dim

        dtype = config.torch_dtype
        q_width = num_attention_heads * self.head_dim
        kv_width = num_key_value_heads * self.head_dim

        def linear(inputs, outputs, mode, weight_mode=WeightMode.VANILLA):
            return Linear(
                inputs,
                outputs,
                bias=bias,
                dtype=dtype,
                mapping=config.mapping,
                tensor_parallel_mode=mode,
                weights_loading_config=WeightsLoadingConfig(weight_mode),
                quant_config=config.quant_config,
                skip_create_weights_in_init=config.skip_create_weights_in_init,
            )

        column = TensorParallelMode.COLUMN
        if self.qkv_mode is QKVMode.FUSE_QKV:
            self.qkv_proj = linear(
                hidden_size, q_width + 2 * kv_width, column, WeightMode.FUSED_QKV_LINEAR
            )
        else:
            self.to_q = linear(hidden_size, q_width, column)
            self.to_k = linear(hidden_size, kv_width, column)
            self.to_v = linear(hidden_size, kv_width, column)
        self.to_out = nn.ModuleList([linear(q_width, hidden_size, TensorParallelMode.ROW)])
        if qk_norm:
            self.norm_q = RMSNorm(hidden_size=self.head_dim, eps=eps, dtype=dtype)
            self.norm_k = RMSNorm(hidden_size=self.head_dim, eps=eps, dtype=dtype)

        backend = create_attention(
            config.attention.backend,
            layer_idx=layer_idx,
            num_heads=self.local_num_attention_heads // ulysses_size,
            head_dim=self.head_dim,
            num_kv_heads=self.local_num_key_value_heads // ulysses_size,
            dtype=dtype,
        )
        self.attn = wrap_parallel_attention(
            backend,
            visual_gen_mapping=vgm,
            enable_sequence_parallel=enable_sequence_parallel,
        )

    def get_qkv(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project [B, S, hidden] to q [B, S, H * D] and k, v [B, S, H_kv * D]."""
        if self.qkv_mode is QKVMode.FUSE_QKV:
            return self.qkv_proj(x).split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        return self.to_q(x), self.to_k(x), self.to_v(x)

    def _attn_impl(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs
    ) -> torch.Tensor:
        """Attend.

        Args:
            q: [B, S, H * D] or [B, S, H, D].
            k: [B, S_kv, H_kv * D] or [B, S_kv, H_kv, D].
            v: like ``k``.
            **kwargs: handed to ``self.attn`` with the sizes added.

        Returns:
            [B, S, H * D].
        """
        batch, rows = q.shape[:2]
        rows_kv = k.shape[1]
        q = q.reshape(batch, rows, self.local_num_attention_heads, self.head_dim)
        k = k.reshape(batch, rows_kv, self.local_num_key_value_heads, self.head_dim)
        v = v.reshape(batch, rows_kv, self.local_num_key_value_heads, self.head_dim)
        heads_first = self.attn.preferred_layout == AttentionTensorLayout.HND
        if heads_first:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        kwargs.update(batch_size=batch, seq_len=rows, seq_len_kv=rows_kv)
        out = self.attn.forward(q=q, k=k, v=v, **kwargs)
        if heads_first:
            out = out.transpose(1, 2)
        return out.flatten(2)
