# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers that spread one attention over several ranks.

They nest, from the inside: compute backend, then Attention2D or ring, then Ulysses. Each hands
the keywords that it does not own to what it wraps, unchanged.

Legend: B batch, S sequence rows of all ranks, H query heads, H_kv key heads, D head width,
P Ulysses size.
"""

import torch
import torch.distributed as dist

from tensorrt_llm._torch.distributed import all_to_all_4d

from .interface import AttentionBackend, AttentionTensorLayout


def _to_layout(x: torch.Tensor, layout: AttentionTensorLayout) -> torch.Tensor:
    # NHD to HND or the reverse are the same exchange of axes.
    return x.transpose(1, 2) if layout == AttentionTensorLayout.HND else x


class UlyssesAttention(AttentionBackend):
    """Every rank attends to the whole sequence with 1/P of the heads.

    An all-to-all gathers the sequence in rank order and leaves rank u the contiguous block u of
    the query heads and of the key and value heads; another one brings the output back.
    """

    def __init__(self, inner_backend: AttentionBackend, process_group: dist.ProcessGroup) -> None:
        """Wrap ``inner_backend``, which must be made for 1/P of the heads."""
        self.inner_backend = inner_backend
        self.process_group = process_group
        self.world_size = dist.get_world_size(process_group)
        self.num_heads = inner_backend.num_heads * self.world_size
        self.num_kv_heads = inner_backend.num_kv_heads * self.world_size
        self.head_dim = inner_backend.head_dim
        self.scale = inner_backend.scale

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """NHD, whatever the wrapped backend prefers."""
        return AttentionTensorLayout.NHD

    def _check_heads(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        for name, x in (("query", q), ("key", k), ("value", v)):
            if x.shape[2] % self.world_size:
                raise ValueError(
                    f"{x.shape[2]} {name} heads on each rank cannot be split over ulysses_size="
                    f"{self.world_size}; choose a ulysses_size that divides "
                    f"{q.shape[2]} query and {k.shape[2]} key/value heads"
                )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs) -> torch.Tensor:
        """Attend over the sequence of all P ranks.

        Args:
            q: [B, S/P, H, D].
            k: [B, S_kv/P, H_kv, D].
            v: like ``k``.
            **kwargs: handed on; ``batch_size``, ``seq_len`` and ``seq_len_kv`` are set to the
                sizes after the exchange.

        Returns:
            [B, S/P, H, D].

        Raises:
            ValueError: P does not divide a head count; raised before anything is sent.
        """
        self._check_heads(q, k, v)
        q, k, v = (
            all_to_all_4d(x, scatter_dim=2, gather_dim=1, process_group=self.process_group)
            for x in (q, k, v)
        )
        kwargs.update(batch_size=q.shape[0], seq_len=q.shape[1], seq_len_kv=k.shape[1])
        layout = self.inner_backend.preferred_layout
        q, k, v = (_to_layout(x, layout) for x in (q, k, v))
        out = _to_layout(self.inner_backend.forward(q=q, k=k, v=v, **kwargs), layout)
        return all_to_all_4d(out, scatter_dim=1, gather_dim=2, process_group=self.process_group)


def wrap_parallel_attention(
    backend: AttentionBackend,
    visual_gen_mapping=None,
    enable_sequence_parallel: bool = True,
    use_ulysses: bool = True,
    async_ulysses: bool = False,
) -> AttentionBackend:
    """Wrap a compute backend as the layout asks.

    Args:
        backend: made for the heads that one rank attends with.
        visual_gen_mapping: the layout; None for one process.
        enable_sequence_parallel: False leaves the backend alone (the text tower).
        use_ulysses: False leaves Ulysses out.
        async_ulysses: must be False; the host has no overlapped exchange.

    Returns:
        The outermost wrapper, or ``backend`` itself.

    Raises:
        ValueError: ``async_ulysses``, or a layout that needs an LSE from a backend without one.
    """
    if async_ulysses:
        raise ValueError("async_ulysses=True: the host exchanges synchronously; set it to False")
    vgm = visual_gen_mapping
    if vgm is None or not enable_sequence_parallel:
        return backend
    if use_ulysses and vgm.ulysses_size > 1:
        backend = UlyssesAttention(backend, vgm.ulysses_group)
    return backend
