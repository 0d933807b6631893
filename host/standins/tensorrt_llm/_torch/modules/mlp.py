# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the plain MLP: up, activation, down."""

from collections.abc import Callable

import torch
from torch import nn

from tensorrt_llm._torch.modules.linear import Linear, TensorParallelMode


class MLP(nn.Module):
    """``down(act(up(x)))``."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        activation: Callable[[torch.Tensor], torch.Tensor],
        dtype: torch.dtype | None = None,
        config=None,
        layer_idx: int | None = None,
        reduce_output: bool = True,
    ) -> None:
        """Make the two layers; the arguments are :class:`GatedMLP`'s."""
        super().__init__()
        self.activation = activation
        mapping = config.mapping if config is not None else None
        skip = config.skip_create_weights_in_init if config is not None else False
        self.up_proj = Linear(
            hidden_size,
            intermediate_size,
            bias=bias,
            dtype=dtype,
            mapping=mapping,
            tensor_parallel_mode=TensorParallelMode.COLUMN,
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the MLP to [..., hidden_size]."""
        return self.down_proj(self.activation(self.up_proj(x)))
