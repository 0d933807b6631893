# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the configuration that a VisualGen transformer is built from."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tensorrt_llm.mapping import Mapping
from tensorrt_llm.models.modeling_utils import QuantConfig
from tensorrt_llm.visual_gen.args import AttentionConfig


@dataclass
class DiffusionModelConfig:
    """What a transformer reads when it is built.

    Attributes:
        pretrained_config: the fields of the diffusers ``config.json``.
        attention: which attention runs.
        visual_gen_mapping: the parallel layout; None for one process.
        mapping: the tensor-parallel group, as linear layers read it.
        quant_config: "no quantisation".
        torch_dtype: of weights and activations.
        skip_create_weights_in_init: leave the allocation of linear weights to their loading.
        force_dynamic_quantization: must be False.
        allreduce_strategy: chooses kernels upstream, nothing here.
        component_name: for messages.
        attention_metadata_state: kept for backends that cache metadata; unused here.
    """

    pretrained_config: Any = field(default_factory=SimpleNamespace)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    visual_gen_mapping: Any = None
    mapping: Mapping = field(default_factory=Mapping)
    quant_config: QuantConfig = field(default_factory=QuantConfig)
    torch_dtype: torch.dtype = torch.bfloat16
    skip_create_weights_in_init: bool = False
    force_dynamic_quantization: bool = False
    allreduce_strategy: Any = None
    component_name: str = "transformer"
    attention_metadata_state: Any = None

    @classmethod
    def from_diffusers(
        cls,
        config: dict[str, Any],
        *,
        backend: str = "VANILLA",
        dtype: torch.dtype = torch.float32,
        visual_gen_mapping: Any = None,
    ) -> "DiffusionModelConfig":
        """Build from a diffusers ``config.json``'s fields and a parallel layout.

        Args:
            config: diffusers' field names and values; what is left out takes the model's default.
            backend: name of the attention backend.
            dtype: of weights and activations.
            visual_gen_mapping: a ``VisualGenMapping``; None for one process.
        """
        vgm = visual_gen_mapping
        if config.get("hidden_act") == "relu2":
            # Upstream's name of Edge's recipe, which diffusers' configuration has no field for.
            config = config | {"backbone_type": "cosmos3_edge_nemotron_dense"}
        return cls(
            pretrained_config=SimpleNamespace(**config),
            attention=AttentionConfig(backend=backend),
            visual_gen_mapping=vgm,
            mapping=vgm.to_llm_mapping() if vgm is not None else Mapping(),
            torch_dtype=dtype,
        )


@dataclass
class Switch:
    """Something that is on or off.

    Attributes:
        enable: whether it is on.
    """

    enable: bool = False


@dataclass
class DiffusionPipelineConfig:
    """What a pipeline reads when it is built.

    Attributes:
        model_configs: by component; "transformer" is the only one.
        device: where requests run.
        cuda_graph: whether the transformer's forwards are captured.
        cpu_offload: whether components wait in main memory.
        warmup_shapes: height, width and frames of each shape that is warmed up.
    """

    model_configs: dict[str, DiffusionModelConfig]
    device: Any = "cuda"
    cuda_graph: Switch = field(default_factory=Switch)
    cpu_offload: Switch = field(default_factory=Switch)
    warmup_shapes: tuple[tuple[int, int, int], ...] = ()
    # Of the class: nothing here is compiled, and tuning finds one kernel of each.
    torch_compile = SimpleNamespace(enable=False, enable_autotune=True)

    @property
    def compilation(self) -> SimpleNamespace:
        """The same shapes as upstream names them: sizes, and numbers of frames."""
        return SimpleNamespace(
            resolutions=[shape[:2] for shape in self.warmup_shapes],
            num_frames=sorted({shape[2] for shape in self.warmup_shapes}),
        )

    @property
    def primary_pretrained_config(self) -> Any:
        """The transformer's fields of ``config.json``."""
        return self.model_configs["transformer"].pretrained_config

    @property
    def visual_gen_mapping(self) -> Any:
        """The parallel layout; None for one process."""
        return self.model_configs["transformer"].visual_gen_mapping

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of weights and latents."""
        return self.model_configs["transformer"].torch_dtype
