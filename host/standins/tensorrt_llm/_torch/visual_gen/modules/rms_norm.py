# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for RMS normalisation."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    The mean is taken in float32 for every dtype up to float32, and in float64 for float64, so
    that a float64 model is exact to float64. ``weight_in_float32`` multiplies by the weight
    before rounding to the input's dtype (the Nemotron recipe of Edge); otherwise the rounding
    comes first (the Qwen recipe). The two are equal in float32 and float64.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        eps: float,
        dtype: torch.dtype | None = None,
        weight_in_float32: bool = False,
    ) -> None:
        """Allocate a weight [hidden_size] of ones on the current default device."""
        super().__init__()
        self.eps = eps
        self.weight_in_float32 = weight_in_float32
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden_size]; the result has ``x``'s dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight_in_float32:
            return (wide * self.weight.to(wide.dtype)).to(x.dtype)
        return wide.to(x.dtype) * self.weight
