# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the linear layer: unquantised, tensor-parallel, fused weights loaded in parts."""

from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from torch import nn

from tensorrt_llm._torch.distributed import AllReduce
from tensorrt_llm.mapping import Mapping


class TensorParallelMode(str, Enum):
    """Which axis of the weight the tensor-parallel ranks share out."""

    COLUMN = "column"  # output features; the output stays split
    ROW = "row"  # input features; the outputs are summed


class WeightMode(str, Enum):
    """How many checkpoint tensors make one weight, stacked along the output features."""

    VANILLA = "vanilla"
    FUSED_GATE_UP_LINEAR = "fused_gate_up_linear"
    FUSED_QKV_LINEAR = "fused_qkv_linear"


PARTS = {
    WeightMode.VANILLA: 1,
    WeightMode.FUSED_GATE_UP_LINEAR: 2,
    WeightMode.FUSED_QKV_LINEAR: 3,
}


@dataclass
class WeightsLoadingConfig:
    """How :meth:`Linear.load_weights` reads its tensors."""

    weight_mode: WeightMode = WeightMode.VANILLA


def tp_slice(x: torch.Tensor, dim: int, mapping: Mapping) -> torch.Tensor:
    """Return this tensor-parallel rank's contiguous block of ``x`` along ``dim`` (a view).

    Raises:
        ValueError: the ranks do not divide that axis.
    """
    if x.shape[dim] % mapping.tp_size:
        raise ValueError(
            f"tp_size={mapping.tp_size} does not divide axis {dim} of a weight of shape "
            f"{tuple(x.shape)}; choose a tp_size that does"
        )
    size = x.shape[dim] // mapping.tp_size
    return x.narrow(dim, mapping.tp_rank * size, size)


Shard = tuple[int, int]


class Linear(nn.Module):
    """``y = x W^T + b`` with ``W`` shared out over the tensor-parallel ranks.

    Weights are allocated, uninitialised, on torch's current default device, so that a model made
    under ``torch.device("cuda")`` never exists in host memory.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        mapping: Mapping | None = None,
        tensor_parallel_mode: TensorParallelMode | None = None,
        quant_config=None,
        weights_loading_config: WeightsLoadingConfig | None = None,
        reduce_output: bool = True,
        skip_create_weights_in_init: bool = False,
        allreduce_strategy=None,
        force_dynamic_quantization: bool = False,
        fused_weight_shard_indices_mapping: dict[str, Shard] | None = None,
        override_tp_sharding: Shard | dict[str, Shard] | None = None,
    ) -> None:
        """Make the layer.

        Args:
            in_features: input width over all ranks.
            out_features: output width over all ranks.
            bias: whether there is a bias; a row-parallel layer adds it after the sum.
            dtype: of the weights; torch's default when None.
            mapping: the tensor-parallel group; None for a whole weight.
            tensor_parallel_mode: None keeps the weight whole on every rank.
            quant_config: must say "none".
            weights_loading_config: how many checkpoint tensors make the weight.
            reduce_output: whether a row-parallel layer sums its parts.
            skip_create_weights_in_init: leave the weights to :meth:`create_weights`.
            allreduce_strategy: chooses kernels upstream, nothing here.
            force_dynamic_quantization: must be False.
            fused_weight_shard_indices_mapping: start and length of each part in this rank's fused
                weight; the parts lie behind one another here, so it says nothing new.
            override_tp_sharding: (start, end) of this rank along the axis that is shared out, for
                each part of a fused weight; even blocks when None.
        """
        super().__init__()
        if force_dynamic_quantization or getattr(quant_config, "quant_algo", None) is not None:
            raise ValueError("the stand-in host runs unquantised linear layers only")
        self.mapping = mapping if mapping is not None else Mapping()
        self.tp_mode = tensor_parallel_mode
        self.weights_loading_config = weights_loading_config or WeightsLoadingConfig()
        self.weight_mode = self.weights_loading_config.weight_mode
        self.quant_config = quant_config
        self.reduce_output = reduce_output
        self.dtype = dtype
        self.has_bias = bias
        tp = self.mapping.tp_size if tensor_parallel_mode is not None else 1
        row = tensor_parallel_mode is TensorParallelMode.ROW
        self._shards: list[Shard] | None = None
        if override_tp_sharding is not None and tensor_parallel_mode is not None:
            fused = isinstance(override_tp_sharding, dict)
            self._shards = list(override_tp_sharding.values()) if fused else [override_tp_sharding]
        local = self._local_features(in_features if row else out_features, tp, row)
        self.in_features = local if row else in_features
        self.out_features = out_features if row else local
        self.all_reduce = AllReduce(self.mapping) if row and tp > 1 and reduce_output else None
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if not skip_create_weights_in_init:
            self.create_weights()

    @staticmethod
    def _calc_shard(total: int, parts: int, index: int) -> int:
        """Return where block ``index`` of ``parts`` begins among ``total``."""
        return total * index // parts

    def _local_features(self, total: int, tp: int, row: bool) -> int:
        if self._shards is not None:
            return sum(end - start for start, end in self._shards)
        if total % tp:
            raise ValueError(
                f"tp_size={tp} does not divide the {total} {'input' if row else 'output'} features "
                "of a linear layer; choose a tp_size that does"
            )
        return total // tp

    def create_weights(self) -> None:
        """Allocate the weights, uninitialised, on the current default device."""
        if self.weight is None:
            shape = (self.out_features, self.in_features)
            self.weight = nn.Parameter(torch.empty(shape, dtype=self.dtype), requires_grad=False)
            if self.has_bias:
                bias = torch.empty(self.out_features, dtype=self.dtype)
                self.bias = nn.Parameter(bias, requires_grad=False)

    def _local(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        if self.tp_mode is TensorParallelMode.COLUMN:
            parts = self._sliced(parts, 0)
        elif self.tp_mode is TensorParallelMode.ROW and name == "weight":
            parts = self._sliced(parts, 1)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _sliced(self, parts: list[torch.Tensor], dim: int) -> list[torch.Tensor]:
        if self._shards is None:
            return [tp_slice(x, dim, self.mapping) for x in parts]
        return [x.narrow(dim, start, end - start) for x, (start, end) in zip(parts, self._shards)]

    @torch.no_grad()
    def load_weights(self, weights: list[dict[str, torch.Tensor]]) -> None:
        """Copy whole checkpoint tensors in, keeping this rank's part.

        Args:
            weights: one dict for each part of the weight (q, k, v or gate, up), each with
                ``weight`` [out, in] and, where the layer has one, ``bias`` [out].

        Raises:
            ValueError: the number of parts or a shape does not fit.
        """
        if len(weights) != PARTS[self.weight_mode]:
            raise ValueError(
                f"a {self.weight_mode.value} layer loads {PARTS[self.weight_mode]} part(s), "
                f"got {len(weights)}"
            )
        self.create_weights()
        for name in ("weight", "bias") if self.has_bias else ("weight",):
            local = self._local(name, [part[name] for part in weights])
            target = getattr(self, name)
            if local.shape != target.shape:
                raise ValueError(
                    f"{name} of shape {tuple(local.shape)} (this rank's part) does not fit a layer "
                    f"of {tuple(target.shape)}"
                )
            target.copy_(local)

    def post_load_weights(self) -> None:
        """Do nothing: only quantised weights need work after loading."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to [..., in_features of this rank], summing over ranks if row-parallel.

        Returns:
            [..., out_features of this rank].
        """
        if self.all_reduce is None:
            return F.linear(x, self.weight, self.bias)
        y = self.all_reduce(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class FP8QDQLinearMethod:
    """A type that upper layers test for; the stand-ins never make one."""


class W8A16FP8LinearMethod:
    """A type that upper layers test for; the stand-ins never make one."""
