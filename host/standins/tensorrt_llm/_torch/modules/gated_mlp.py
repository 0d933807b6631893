# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the gated MLP: one fused gate-and-up layer, then a row-parallel down layer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tensorrt_llm._torch.modules.linear import (
    Linear,
    TensorParallelMode,
    WeightMode,
    WeightsLoadingConfig,
)


class GatedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] = F.silu,
        dtype: torch.dtype | None = None,
        config=None,
        layer_idx: int | None = None,
        reduce_output: bool = True,
        split_gate_up: bool = False,
    ) -> None:
        """Make the two layers.

        Args:
            hidden_size: width of input and output.
            intermediate_size: width between them, over all ranks.
            bias: whether the layers have one.
            activation: applied to the gate.
            dtype: of the weights.
            config: a model configuration with ``mapping``.
            layer_idx: for messages only.
            reduce_output: whether the tensor-parallel ranks sum their parts.
            split_gate_up: must be False; for static FP8, which is not here.
        """
        if split_gate_up:
            raise ValueError("split_gate_up=True is for static FP8, which the stand-ins lack")
        super().__init__()
        self.activation = activation
        mapping = config.mapping if config is not None else None
        skip = config.skip_create_weights_in_init if config is not None else False
        self.gate_up_proj = Linear(
            hidden_size,
            2 * intermediate_size,
            bias=bias,
            dtype=dtype,
            mapping=mapping,
            tensor_parallel_mode=TensorParallelMode.COLUMN,
            weights_loading_config=WeightsLoadingConfig(WeightMode.FUSED_GATE_UP_LINEAR),
            skip_create_weights_in_init=skip,
        )
        self.down_proj = Linear(
            intermediate_size,
            hidden_size,
            bias=bias,
            dtype=dtype,
            mapping=mapping,
            tensor_parallel_mode=TensorParallelMode.ROW,
            reduce_output=reduce_output,
            skip_create_weights_in_init=skip,
        )

    def post_load_weights(self) -> None:
        """Nothing is left to do after loading."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the MLP to [..., hidden_size]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.activation(gate) * up)
