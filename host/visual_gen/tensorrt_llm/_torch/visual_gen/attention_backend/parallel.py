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

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask
from tensorrt_llm._torch.distributed import all_gather_dim, all_to_all_4d

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


class Attention2DAttention(AttentionBackend):
    """A mesh of rows and columns shares the work: each rank attends some queries to some keys.

    Queries are gathered over the ranks of a row, keys and values over those of a column. Each
    rank attends its row's queries to its column's keys; partial outputs and LSEs are exchanged
    over the row, so that each rank gets every column's part for its own queries, and combined.
    """

    def __init__(
        self,
        inner_backend: AttentionBackend,
        row_process_group: dist.ProcessGroup | None,
        col_process_group: dist.ProcessGroup | None,
    ) -> None:
        """Wrap ``inner_backend``; a group of one rank may be None.

        Raises:
            ValueError: the backend returns no LSE.
        """
        _require_lse(inner_backend, "Attention2D")
        self.inner_backend = inner_backend
        self.row_process_group = row_process_group
        self.col_process_group = col_process_group
        # Read once: whoever takes the inner backend's place later has to keep its layout.
        self._inner_layout = inner_backend.preferred_layout
        self.num_heads = inner_backend.num_heads
        self.num_kv_heads = inner_backend.num_kv_heads
        self.head_dim = inner_backend.head_dim
        self.scale = inner_backend.scale

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """NHD, whatever the wrapped backend prefers."""
        return AttentionTensorLayout.NHD

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs) -> torch.Tensor:
        """Attend over the sequence of the whole mesh.

        Args:
            q: [B, S_q, H, D] of this rank.
            k: [B, S_kv, H_kv, D] of this rank.
            v: like ``k``.
            **kwargs: handed on unchanged, sizes included.

        Returns:
            [B, S_q, H, D] in q's dtype. Partial outputs are float32 when they are combined.

        Raises:
            ValueError: a mask other than FULL; raised before anything is sent.
        """
        mask = kwargs.get("attention_mask", PredefinedAttentionMask.FULL)
        if mask != PredefinedAttentionMask.FULL:
            raise ValueError(f"attention_mask={mask}: Attention2D attends with FULL only")
        dtype, rows = q.dtype, q.shape[1]
        q = all_gather_dim(q, 1, self.row_process_group)
        k = all_gather_dim(k, 1, self.col_process_group)
        v = all_gather_dim(v, 1, self.col_process_group)
        q, k, v = (_to_layout(x, self._inner_layout) for x in (q, k, v))
        out, lse = self.inner_backend.forward_with_lse(q=q, k=k, v=v, **kwargs)
        out = _to_layout(out, self._inner_layout).float()

        # Block c holds the queries of the row's rank c, and comes back as column c's part for this
        # rank's own queries.
        columns = out.shape[1] // rows
        out = self._exchange(out.unflatten(1, (columns, rows)).movedim(1, 0))  # [N, B, S_q, H, D]
        lse = self._exchange(lse.unflatten(2, (columns, rows)).movedim(2, 0))
        if columns == 1:
            return out[0].to(dtype)
        from flash_attn.cute.interface import flash_attn_combine

        # The kernel wants the LSE as [N, B, S_q, H] with the rows next to each other in memory.
        combined, _ = flash_attn_combine(
            out, lse.transpose(2, 3), out_dtype=_written(dtype, out.is_cuda), return_lse=False
        )
        return combined.to(dtype)

    def _exchange(self, parts: torch.Tensor) -> torch.Tensor:
        parts = parts.contiguous()
        if self.row_process_group is None or parts.shape[0] == 1:
            return parts
        received = torch.empty_like(parts)
        dist.all_to_all_single(received.flatten(), parts.flatten(), group=self.row_process_group)
        return received


def _written(dtype: torch.dtype, on_gpu: bool) -> torch.dtype:
    # The GPU kernel writes float16, bfloat16 or float32; its double on the CPU writes float64 too.
    return torch.float32 if on_gpu and dtype == torch.float64 else dtype


class RingAttention(AttentionBackend):
    """Keys and values travel around a ring; each rank merges what it gets with an online softmax.

    What it wraps is ``inner``. It knows nothing of text: keys beside the sequence would have to
    count in exactly one block.
    """

    def __init__(self, inner: AttentionBackend, process_group: dist.ProcessGroup) -> None:
        """Wrap ``inner``.

        Raises:
            ValueError: the backend returns no LSE.
        """
        _require_lse(inner, "Ring attention")
        self.inner = inner
        self.process_group = process_group
        self.world_size = dist.get_world_size(process_group)
        self.rank = dist.get_rank(process_group)
        self.num_heads = inner.num_heads
        self.num_kv_heads = inner.num_kv_heads
        self.head_dim = inner.head_dim
        self.scale = inner.scale

    @property
    def preferred_layout(self) -> AttentionTensorLayout:
        """NHD, whatever the wrapped backend prefers."""
        return AttentionTensorLayout.NHD

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs) -> torch.Tensor:
        """Attend over the sequence of the whole ring.

        Args:
            q: [B, S_q, H, D] of this rank.
            k: [B, S_kv, H_kv, D] of this rank; with S_kv != S_q the ring is skipped and the rank
                attends to its own keys alone.
            v: like ``k``.
            **kwargs: handed to every block unchanged.

        Returns:
            [B, S_q, H, D] in q's dtype; partial outputs are merged in float32 or wider.
        """
        dtype = q.dtype
        if k.shape[1] != q.shape[1] or self.world_size == 1:
            return self._attend(q, k, v, kwargs)[0].to(dtype)
        # float32, but a float64 model, which only the CPU runs, keeps its digits.
        wide = torch.promote_types(dtype, torch.float32)
        kv = torch.stack([k, v])
        out, lse = None, None
        for step in range(self.world_size):
            # Sent while this block is attended to; kv is not written to meanwhile.
            pending, following = self._pass_on(kv) if step + 1 < self.world_size else ([], None)
            block_out, block_lse = self._attend(q, kv[0], kv[1], kwargs)
            out, lse = merge_partial(out, lse, block_out.to(wide), block_lse.to(wide))
            for request in pending:
                request.wait()
            kv = following
        return out.to(dtype)

    def _attend(self, q, k, v, kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        layout = self.inner.preferred_layout
        q, k, v = (_to_layout(x, layout) for x in (q, k, v))
        out, lse = self.inner.forward_with_lse(q=q, k=k, v=v, **kwargs)
        return _to_layout(out, layout), lse

    def _pass_on(self, kv: torch.Tensor) -> tuple[list, torch.Tensor]:
        group, size = self.process_group, self.world_size
        following = torch.empty_like(kv)
        to = dist.get_global_rank(group, (self.rank + 1) % size)
        source = dist.get_global_rank(group, (self.rank - 1) % size)
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, kv, to, group=group),
                dist.P2POp(dist.irecv, following, source, group=group),
            ]
        )
        return requests, following


def merge_partial(
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    block_out: torch.Tensor,
    block_lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge attention over two disjoint sets of keys.

    Args:
        out: [B, S_q, H, D] over the first set, or None for an empty one.
        lse: [B, H, S_q] of it, natural log; -inf where there was no key.
        block_out: like ``out``, over the second set.
        block_lse: like ``lse``.

    Returns:
        Output and LSE over both. Where neither had a key: 0 and -inf.
    """
    if out is None:
        return block_out, block_lse
    total = torch.logaddexp(lse, block_lse)
    # -inf - -inf would be NaN; where there is no key at all, both weights are 0.
    shift = total.masked_fill(total == float("-inf"), 0.0)

    def weight(part):
        return torch.exp(part - shift).transpose(1, 2).unsqueeze(-1)

    return out * weight(lse) + block_out * weight(block_lse), total


def _require_lse(backend: AttentionBackend, wrapper: str) -> None:
    if not backend.support_lse():
        raise ValueError(
            f"{wrapper} needs an attention backend that returns its LSE, and "
            f"{type(backend).__name__} does not; choose FA4, or Ulysses instead"
        )


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
    if vgm.attn2d_row_size * vgm.attn2d_col_size > 1:
        row = vgm.attn2d_row_group if vgm.attn2d_col_size > 1 else None
        col = vgm.attn2d_col_group if vgm.attn2d_row_size > 1 else None
        backend = Attention2DAttention(backend, row, col)
    elif vgm.ring_size > 1:
        backend = RingAttention(backend, vgm.ring_group)
    if use_ulysses and vgm.ulysses_size > 1:
        backend = UlyssesAttention(backend, vgm.ulysses_group)
    return backend
