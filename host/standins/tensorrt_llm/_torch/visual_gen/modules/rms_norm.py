# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for RMS normalisation."""

import torch
import torch.nn.functional as F
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
        if self.weight_in_float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, None, self.eps) * self.weight


class RMSNormTPAware(RMSNorm):
    """The same norm by the name and keywords of the attention module, whole on every rank."""

    def __init__(
        self,
        *,
        hidden_size: int,
        eps: float,
        dtype: torch.dtype | None = None,
        has_weights: bool = True,
        enable_tp: bool = False,
        mapping=None,
        override_tp_sharding: tuple[int, int] | None = None,
    ) -> None:
        """Allocate the weight.

        Raises:
            ValueError: a norm over the heads of several tensor-parallel ranks, or one without a
                weight; Cosmos3 has neither.
        """
        if enable_tp or not has_weights:
            raise ValueError(
                f"enable_tp={enable_tp}, has_weights={has_weights}: the stand-in norms whole rows "
                "and has a weight; use qk_norm_mode='per_head'"
            )
        super().__init__(hidden_size=hidden_size, eps=eps, dtype=dtype)
