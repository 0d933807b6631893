# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4's forward and combine, in plain torch, for the calls that the host makes.

Same names, layouts and conventions as flash-attn-4 4.0.0b19: natural-log LSE; a sample without a
valid key gives output 0 and LSE -inf. Unlike the GPU kernel it takes float32 and float64 as they
are, so that exactness can be proved on the CPU, and it does not read rows past a length.

Legend: B batch, S_q query rows, S_k key rows, H query heads, H_kv key heads, G = H / H_kv,
D head width, N partial results.
"""

import math

import torch

# Query rows are taken in blocks whose scores stay below this many bytes.
SCORE_BYTES = 64 * 2**20


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _flash_attn_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
    **unsupported,
) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
    """Attend to the first ``seqused_k[b]`` keys of each sample.

    Args:
        q: [B, S_q, H, D], any floating dtype.
        k: [B, S_k, H_kv, D] in q's dtype, H_kv dividing H.
        v: like ``k``.
        seqused_k: int32 [B] on q's device, or None for all keys.
        softmax_scale: what q k^T is multiplied by; 1 / sqrt(D) when None.
        causal: mask aligned to the last query and the last valid key.
        num_splits: accepted; the result does not depend on it.
        pack_gqa: accepted; the result does not depend on it.
        return_lse: whether to return the LSE.
        **unsupported: the real function's other arguments; refused unless None or False.

    Returns:
        Output [B, S_q, H, D] in q's dtype, LSE [B, H, S_q] in float32 (float64 for float64) or
        None, and two None values, since the real function returns four.

    Raises:
        ValueError: shapes, dtypes or arguments that the real function would refuse too, or that
            this one does not have.
    """
    given = [name for name, value in unsupported.items() if value not in (None, False)]
    if given:
        raise ValueError(f"the CPU double of _flash_attn_fwd does not take {', '.join(given)}")
    batch, rows, heads, width = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    if k.shape != (batch, keys, kv_heads, width) or v.shape != k.shape or heads % kv_heads:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit: expected "
            "[B, S_q, H, D] and twice [B, S_k, H_kv, D] with H_kv dividing H"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; expected one dtype")
    if seqused_k is not None and (
        seqused_k.dtype != torch.int32 or seqused_k.shape != (batch,) or seqused_k.stride(0) != 1
    ):
        raise ValueError(
            f"seqused_k is {seqused_k.dtype} {tuple(seqused_k.shape)}; expected int32 [{batch}]"
        )
    wide = _wide(q.dtype)
    scale = width**-0.5 if softmax_scale is None else softmax_scale
    group = heads // kv_heads
    # [B, H_kv, G, S_q, D] against [B, H_kv, 1, S_k, D]: grouped heads without repeating keys.
    queries = q.to(wide).permute(0, 2, 1, 3).unflatten(1, (kv_heads, group))
    columns = k.to(wide).permute(0, 2, 3, 1).unsqueeze(2)
    values = v.to(wide).permute(0, 2, 1, 3).unsqueeze(2)
    index = torch.arange(keys, device=q.device)
    if seqused_k is None:
        used = torch.full((batch,), keys, device=q.device)
    else:
        used = seqused_k.long()
    valid = index < used[:, None]  # [B, S_k]
    # 0 x NaN is NaN: whatever lies past a length must not be read.
    values = values.masked_fill(~valid[:, None, None, :, None], 0.0)

    out = torch.empty((batch, kv_heads, group, rows, width), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, kv_heads, group, rows), dtype=wide, device=q.device)
    row_bytes = max(1, batch * heads * keys * torch.finfo(wide).bits // 8)
    block = max(1, SCORE_BYTES // row_bytes)
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        scores = torch.matmul(queries[..., part, :] * scale, columns)
        mask = valid[:, None, None, None, :]
        if causal:
            row = torch.arange(part.start, part.stop, device=q.device)[:, None]
            last = row + (used[:, None, None] - rows)  # [B, block, 1]
            mask = mask & (index <= last)[:, None, None]
        scores = scores.masked_fill(~mask, -math.inf)
        total = torch.logsumexp(scores, dim=-1)
        # A row without a valid key has LSE -inf; -inf - -inf would be NaN.
        shift = total.masked_fill(total == -math.inf, 0.0)
        weights = torch.exp(scores - shift[..., None])
        out[..., part, :] = torch.matmul(weights, values).to(q.dtype)
        lse[..., part] = total
    out = out.flatten(1, 2).transpose(1, 2).contiguous()
    return out, (lse.flatten(1, 2) if return_lse else None), None, None


def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    return_lse: bool = True,
    **unsupported,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Combine partial attention results over disjoint sets of keys.

    Args:
        out_partial: [N, B, S_q, H, D].
        lse_partial: [N, B, S_q, H], natural log, -inf where a part had no key.
        out: [B, S_q, H, D] to write to, or None.
        out_dtype: of the result; ``out_partial``'s when None.
        return_lse: whether to return the combined LSE.
        **unsupported: the real function's other arguments; refused unless None.

    Returns:
        Output [B, S_q, H, D], and LSE [B, S_q, H] or None. Where no part had a key: 0 and -inf.

    Raises:
        ValueError: an argument that this double does not have.
    """
    given = [name for name, value in unsupported.items() if value is not None]
    if given:
        raise ValueError(f"the CPU double of flash_attn_combine does not take {', '.join(given)}")
    # In float64, so that a float64 model loses what its partial outputs lost and no more.
    lse_dtype, wide = lse_partial.dtype, torch.float64
    lse_partial = lse_partial.to(wide)
    total = torch.logsumexp(lse_partial, dim=0)
    shift = total.masked_fill(total == -math.inf, 0.0)
    weights = torch.exp(lse_partial - shift)[..., None]
    combined = (weights * out_partial.to(wide)).sum(dim=0)
    combined = combined.to(out_partial.dtype if out_dtype is None else out_dtype)
    if out is not None:
        combined = out.copy_(combined)
    return combined, (total.to(lse_dtype) if return_lse else None)
