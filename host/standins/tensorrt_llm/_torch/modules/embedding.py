# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the token embedding: whole on every rank."""

import torch
import torch.nn.functional as F
from torch import nn


class Embedding(nn.Module):
    """Look rows up by id."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: torch.dtype | None = None,
        gather_output: bool = False,
    ) -> None:
        """Allocate the table, uninitialised, on the current default device.

        ``gather_output`` is for tables that ranks share out; this one is whole.
        """
        super().__init__()
        table = torch.empty((num_embeddings, embedding_dim), dtype=dtype)
        self.weight = nn.Parameter(table, requires_grad=False)

    @torch.no_grad()
    def load_weights(self, weights: list[dict[str, torch.Tensor]]) -> None:
        """Copy the table in from ``weights[0]["weight"]`` [num_embeddings, embedding_dim].

        Raises:
            ValueError: the shape does not fit.
        """
        table = weights[0]["weight"]
        if table.shape != self.weight.shape:
            raise ValueError(
                f"a table of shape {tuple(table.shape)} does not fit one of "
                f"{tuple(self.weight.shape)}"
            )
        self.weight.copy_(table)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [..., embedding_dim] for integer ids [...]."""
        return F.embedding(ids, self.weight)
