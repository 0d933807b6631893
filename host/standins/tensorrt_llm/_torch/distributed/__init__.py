# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the collectives that VisualGen uses, over torch.distributed (NCCL or gloo).

Legend: B batch, S sequence rows of all ranks, H heads of all ranks, D head width, P group size.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["AllReduce", "all_gather_dim", "all_to_all_4d", "all_to_all_5d"]


def _require_torch_distributed() -> None:
    # Without the switch the real package would talk MPI; the host keeps the same condition, so
    # that a script that forgets it fails here as it would there.
    if os.environ.get("TLLM_DISABLE_MPI") != "1":
        raise RuntimeError("set TLLM_DISABLE_MPI=1: this exchange needs torch.distributed")


def all_to_all_4d(
    x: torch.Tensor,
    scatter_dim: int,
    gather_dim: int,
    process_group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Trade a shard of heads for a shard of the sequence, or back.

    Args:
        x: [B, S/P, H, D] with ``scatter_dim=2, gather_dim=1``, or [B, S, H/P, D] with
            ``scatter_dim=1, gather_dim=2``.
        scatter_dim: the axis that is cut into P blocks, block u going to rank u.
        gather_dim: the axis along which the blocks received are put together, in rank order.
        process_group: the P ranks; None for a group of one.

    Returns:
        [B, S, H/P, D] or [B, S/P, H, D], contiguous, in ``x``'s dtype.

    Raises:
        ValueError: ``x`` is not 4-D, the axes are not {1, 2}, or P does not divide the scatter
            axis. Raised before anything is sent, on every rank alike.
    """
    return _all_to_all(x, 4, (1, 2), scatter_dim, gather_dim, process_group)


def all_to_all_5d(
    x: torch.Tensor,
    scatter_dim: int,
    gather_dim: int,
    process_group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Do the same for q, k and v stacked: [B, S/P, 3, H, D] with ``scatter_dim=3, gather_dim=1``.

    The arguments, the result and the errors are :func:`all_to_all_4d`'s, with the axes 1 and 3.
    """
    return _all_to_all(x, 5, (1, 3), scatter_dim, gather_dim, process_group)


def _all_to_all(
    x: torch.Tensor,
    ndim: int,
    axes: tuple[int, int],
    scatter_dim: int,
    gather_dim: int,
    process_group: dist.ProcessGroup | None,
) -> torch.Tensor:
    if x.dim() != ndim or {scatter_dim, gather_dim} != set(axes):
        raise ValueError(
            f"all_to_all_{ndim}d takes a {ndim}-D tensor and the axes {axes[0]} and {axes[1]}, got "
            f"{tuple(x.shape)}, scatter_dim={scatter_dim}, gather_dim={gather_dim}"
        )
    size = dist.get_world_size(process_group) if process_group is not None else 1
    if size == 1:
        return x.contiguous()
    _require_torch_distributed()
    if x.shape[scatter_dim] % size:
        raise ValueError(
            f"{size} ranks do not divide axis {scatter_dim} of {tuple(x.shape)}; that axis must be "
            f"a multiple of {size}"
        )
    send = torch.stack(x.chunk(size, dim=scatter_dim))  # [P, *x], block u for rank u
    received = torch.empty_like(send)
    dist.all_to_all_single(received.flatten(), send.flatten(), group=process_group)
    # Block p came from rank p: its index becomes the slow part of the gathered axis.
    received = received.movedim(0, gather_dim)
    return received.flatten(gather_dim, gather_dim + 1).contiguous()


def all_gather_dim(
    x: torch.Tensor, dim: int, process_group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Put every rank's equally shaped ``x`` together along ``dim``, in rank order."""
    size = dist.get_world_size(process_group) if process_group is not None else 1
    if size == 1:
        return x
    x = x.contiguous()
    blocks = x.new_empty((size, *x.shape))
    dist.all_gather_into_tensor(blocks.flatten(), x.flatten(), group=process_group)
    return torch.cat(blocks.unbind(0), dim=dim)


class AllReduce(nn.Module):
    """Sum over the tensor-parallel group; the identity when there is none."""

    def __init__(self, mapping=None, strategy=None, dtype: torch.dtype | None = None) -> None:
        """Remember the group. ``strategy`` and ``dtype`` choose kernels upstream, nothing here."""
        super().__init__()
        self.tp_size = mapping.tp_size if mapping is not None else 1
        self.group = mapping.tp_group_pg if mapping is not None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the group, in ``x``'s shape and dtype."""
        if self.tp_size == 1:
            return x
        x = x.contiguous()
        dist.all_reduce(x, group=self.group)
        return x
