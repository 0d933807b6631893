# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a compute backend and a parallel wrapper have in common.

Legend: B batch, S sequence rows, H heads, D head width.
"""

from abc import ABC, abstractmethod
from enum import Enum

import torch


class AttentionTensorLayout(str, Enum):
    """Order of the axes of q, k and v."""

    NHD = "NHD"  # [B, S, H, D]
    HND = "HND"  # [B, H, S, D]


class AttentionBackend(ABC):
    """Attention over 4-D q, k, v. A plain class: it owns no weights.

    A backend uses the keywords that it knows and ignores the rest, as upstream's do. Whoever
    relies on a keyword has to know that the backend knows it.

    Attributes:
        num_heads: query heads that this object is called with.
        num_kv_heads: key and value heads that it is called with.
        head_dim: width of one head.
        scale: what q k^T is multiplied by.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float

    @property
    @abstractmethod
    def preferred_layout(self) -> AttentionTensorLayout:
        """The layout in which :meth:`forward` takes and returns tensors."""

    @abstractmethod
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs) -> torch.Tensor:
        """Attend; the result has q's shape, layout and dtype."""

    def forward_with_lse(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend, and return the natural-log LSE [B, H, S_q] too.

        Raises:
            NotImplementedError: the backend has no LSE.
        """
        raise NotImplementedError(f"{type(self).__name__} returns no LSE")

    @classmethod
    def support_fused_qkv(cls) -> bool:
        """Whether q, k and v may come as one tensor."""
        return False

    @classmethod
    def support_lse(cls) -> bool:
        """Whether :meth:`forward_with_lse` works."""
        return False

    def __call__(self, *args, **kwargs) -> torch.Tensor:
        """Call :meth:`forward`."""
        return self.forward(*args, **kwargs)
