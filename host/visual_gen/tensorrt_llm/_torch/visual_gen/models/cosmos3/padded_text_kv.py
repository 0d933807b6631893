# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The OLD text path, kept so that every comparison can show the bug beside the fix.

It is exact on one rank, where each sample is cut to its own length in a loop. With the sequence
cut over P ranks it is not: the text is zero-padded to a common length and cut along the sequence
too, no lengths are passed on, and every padded key, of the text and of the video's own padding
rows, takes weight e^0 from the softmax.

Nothing outside this file belongs to it but the choice of it. Never use it for anything else.

Legend: B batch, S_text text rows, S video rows of this rank, H_kv key heads of this
tensor-parallel rank, D head width, P ranks that share the sequence.
"""

from dataclasses import dataclass

import torch

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask


@dataclass
class PaddedTextKVView:
    """One layer's part of a :class:`PaddedTextKV`.

    Attributes:
        k: [B, rows, H_kv, D].
        v: like ``k``.
        lengths: each sample's own length on one rank, None when the sequence is sharded.
    """

    k: torch.Tensor
    v: torch.Tensor
    lengths: list[int] | None

    def attend(self, attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs):
        """Attend to the text in front of this rank's video keys.

        Args:
            attention: the module whose ``_attn_impl`` is called.
            q: [B, S, H, D].
            k: [B, S, H_kv, D].
            v: like ``k``.
            **kwargs: handed on.

        Returns:
            [B, S, H * D].
        """
        kwargs["attention_mask"] = PredefinedAttentionMask.FULL
        if self.lengths is None:
            k, v = torch.cat([self.k, k], dim=1), torch.cat([self.v, v], dim=1)
            return attention._attn_impl(q, k, v, **kwargs)
        outputs = []
        for b, length in enumerate(self.lengths):
            one = slice(b, b + 1)
            k_b = torch.cat([self.k[one, :length], k[one]], dim=1)
            v_b = torch.cat([self.v[one, :length], v[one]], dim=1)
            outputs.append(attention._attn_impl(q[one], k_b, v_b, **kwargs))
        return torch.cat(outputs)


class PaddedTextKV:
    """Text K/V of all layers, sharded along the sequence as it used to be.

    Attributes:
        layers: (K, V) of each layer, [B, rows of this rank, H_kv, D].
        lengths: each sample's length.
    """

    def __init__(self, layers, lengths: tuple[int, ...], sharded: bool) -> None:
        """Keep what :meth:`build` made."""
        self.layers = layers
        self.lengths = lengths
        self.sharded = sharded

    @classmethod
    def build(cls, layers, text_mask: torch.Tensor, sharder) -> "PaddedTextKV":
        """Cut the text tower's K/V.

        Args:
            layers: (K, V) of each layer, [B, S_text, H_kv, D], zero past each sample's length.
            text_mask: [B, S_text] of ones and zeros.
            sharder: cuts a sequence over the P ranks.
        """
        lengths = tuple(text_mask.sum(dim=1).tolist())
        if sharder.is_active:
            longest = max(lengths)
            layers = [
                tuple(sharder.shard(x[:, :longest], dim=1, pad_to_multiple=True) for x in pair)
                for pair in layers
            ]
        return cls(layers, lengths, sharder.is_active)

    def select(self, samples: slice) -> "PaddedTextKV":
        """Return the text of some samples."""
        layers = [tuple(x[samples] for x in pair) for pair in self.layers]
        return PaddedTextKV(layers, self.lengths[samples], self.sharded)

    def attach(self, text_mask: torch.Tensor) -> list[PaddedTextKVView]:
        """Return the view of each layer. Reads the lengths to the host in every call, as it did."""
        lengths = text_mask.sum(dim=1).tolist()
        return [PaddedTextKVView(k, v, None if self.sharded else lengths) for k, v in self.layers]
