# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The Cosmos3 transformer: a causal text tower, and a generation tower that attends to its keys.

Legend: B batch, C latent channels, T x H x W latent frames, rows and columns, p patch size,
S_text text rows as padded, S rows of the generation sequence (control | video | audio | action),
N query heads and N_kv key heads of this tensor-parallel rank, D head width.
"""

import math
import weakref
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask
from tensorrt_llm._torch.modules.embedding import Embedding
from tensorrt_llm._torch.modules.gated_mlp import GatedMLP
from tensorrt_llm._torch.modules.linear import Linear
from tensorrt_llm._torch.modules.mlp import MLP
from tensorrt_llm._torch.utils import relu2
from tensorrt_llm._torch.visual_gen.models.modeling import BaseDiffusionModel, TransformerOutput
from tensorrt_llm._torch.visual_gen.modules.rms_norm import RMSNorm
from tensorrt_llm._torch.visual_gen.quantization.loader import DynamicLinearWeightLoader

from ...modules.attention import Attention, QKVMode
from ...utils import SequenceSharder
from .padded_text_kv import PaddedTextKV, PaddedTextKVView
from .text_attention import install_text_attention, lengths_in_shapes
from .text_graph import GraphInputs
from .text_kv import (
    TextKV,
    TextKVLayout,
    attach_text,
    read_text_lengths,
    require_text,
    text_bucket,
)

# What a config.json may leave out, with the values of the released Nano model.
DEFAULTS = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "base_fps": 24,
    "enable_fps_modulation": True,
    "latent_channel": 48,
    "unified_3d_mrope_reset_spatial_ids": True,
    "unified_3d_mrope_temporal_modality_margin": 15000,
    "latent_patch_size": 2,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_axes_dim": None,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "action_dim": None,
    "action_gen": False,
    "num_embodiment_domains": 32,
    "sound_dim": None,
    "sound_gen": False,
    "sound_latent_fps": 25.0,
    "temporal_compression_factor": 4,
    "timestep_scale": 0.001,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "qk_norm_for_text": True,
    "use_und_k_norm_for_gen": False,
}
# What goes with each hidden_act: Nano's and Super's recipe, and Edge's. Anything else is refused.
RECIPES = {
    "silu": {"qk_norm_for_text": True, "use_und_k_norm_for_gen": False},
    "relu2": {
        "qk_norm_for_text": False,
        "use_und_k_norm_for_gen": True,
        "rms_norm_eps": 1e-5,
        "latent_channel": 48,
        "latent_patch_size": 2,
        "sound_gen": False,
    },
}

Freqs = tuple[torch.Tensor, torch.Tensor]


class Cosmos3Settings:
    """The fields of a diffusers ``config.json``, defaults filled in, as attributes."""

    def __init__(self, pretrained_config) -> None:
        """Read the fields.

        Raises:
            ValueError: a field has a value that the model cannot be built with.
        """
        for name, default in DEFAULTS.items():
            value = getattr(pretrained_config, name, None)
            setattr(self, name, default if value is None else value)
        if self.rope_axes_dim is None:
            scaling = self.rope_scaling or {}
            self.rope_axes_dim = scaling.get("mrope_section", (24, 20, 20))
        self.rope_axes_dim = tuple(self.rope_axes_dim)
        if self.hidden_act not in RECIPES:
            raise ValueError(f"hidden_act={self.hidden_act!r}; expected 'silu' or 'relu2'")
        for name, value in RECIPES[self.hidden_act].items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)}; expected {value} with "
                    f"hidden_act={self.hidden_act!r}"
                )
        if len(self.rope_axes_dim) != 3 or sum(self.rope_axes_dim) != self.head_dim // 2:
            raise ValueError(
                f"rope_axes_dim={self.rope_axes_dim} must be three widths that sum to "
                f"head_dim / 2 = {self.head_dim // 2}"
            )
        patch_width = self.latent_patch_size**2 * self.latent_channel
        if getattr(pretrained_config, "patch_latent_dim", patch_width) != patch_width:
            raise ValueError(
                f"patch_latent_dim={pretrained_config.patch_latent_dim} is not latent_patch_size^2 "
                f"x latent_channel = {patch_width}"
            )
        for flag, width in (("sound_gen", "sound_dim"), ("action_gen", "action_dim")):
            if getattr(self, flag) and getattr(self, width) is None:
                raise ValueError(f"{flag}=True needs {width}")

    def norm(self, width: int, dtype: torch.dtype) -> RMSNorm:
        """Make a norm of the recipe: Edge's (relu2) multiplies by the weight in float32."""
        return RMSNorm(
            hidden_size=width,
            eps=self.rms_norm_eps,
            dtype=dtype,
            weight_in_float32=self.hidden_act == "relu2",
        )

    def mlp(self, layer_idx: int, config) -> nn.Module:
        """Make an MLP of the recipe: gated silu, or plain squared relu."""
        arguments = dict(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            bias=False,
            dtype=config.torch_dtype,
            config=config,
            layer_idx=layer_idx,
        )
        if self.hidden_act == "relu2":
            return MLP(activation=relu2, **arguments)
        return GatedMLP(activation=F.silu, **arguments)


def apply_rotary(x: torch.Tensor, freqs: Freqs) -> torch.Tensor:
    """Rotate [B, rows, heads, D] by cosines and sines [B or 1, rows, 1, D] (halves, not pairs)."""
    cos, sin = freqs
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Cosmos3SelfAttention(Attention):
    """Causal attention of the text tower, which also yields the keys that generation sees."""

    def __init__(self, settings: Cosmos3Settings, config, layer_idx: int) -> None:
        """Make one layer's attention; the text is never cut along the sequence."""
        super().__init__(
            hidden_size=settings.hidden_size,
            num_attention_heads=settings.num_attention_heads,
            num_key_value_heads=settings.num_key_value_heads,
            head_dim=settings.head_dim,
            qkv_mode=QKVMode.FUSE_QKV,
            qk_norm=settings.qk_norm_for_text,
            eps=settings.rms_norm_eps,
            bias=settings.attention_bias,
            config=config,
            layer_idx=layer_idx,
            module_name="text tower",
            enable_sequence_parallel=False,
        )
        dtype = config.torch_dtype
        if self.qk_norm:
            self.norm_q = settings.norm(self.head_dim, dtype)
            self.norm_k = settings.norm(self.head_dim, dtype)
        # Edge leaves the text's own q and k alone and normalises what generation sees of it.
        self.norm_k_for_gen = None
        if settings.use_und_k_norm_for_gen and not settings.qk_norm_for_text:
            self.norm_k_for_gen = settings.norm(self.head_dim, dtype)

    def forward(
        self, x: torch.Tensor, freqs: Freqs, timestep: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the output [B, S_text, hidden], and K and V [B, S_text, N_kv, D]."""
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in self.get_qkv(x))
        if self.qk_norm:
            q, k = self.norm_q(q), self.norm_k(k)
        k_for_gen = None
        if self.norm_k_for_gen is not None:
            k_for_gen = apply_rotary(self.norm_k_for_gen(k), freqs)
        q, k = apply_rotary(q, freqs), apply_rotary(k, freqs)
        out = self._attn_impl(
            q, k, v, attention_mask=PredefinedAttentionMask.CAUSAL, timestep=timestep
        )
        return self.to_out[0](out), k if k_for_gen is None else k_for_gen, v


class Cosmos3TextDecoderLayer(nn.Module):
    """One layer of the text tower."""

    def __init__(self, settings: Cosmos3Settings, config, layer_idx: int) -> None:
        """Make the layer."""
        super().__init__()
        self.input_layernorm = settings.norm(settings.hidden_size, config.torch_dtype)
        self.self_attn = Cosmos3SelfAttention(settings, config, layer_idx)
        self.post_attention_layernorm = settings.norm(settings.hidden_size, config.torch_dtype)
        self.mlp = settings.mlp(layer_idx, config)

    def forward(self, x, freqs: Freqs, timestep=None):
        """Return the layer's output [B, S_text, hidden], and its K and V."""
        out, k, v = self.self_attn(self.input_layernorm(x), freqs, timestep=timestep)
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), k, v


class Cosmos3LanguageModel(nn.Module):
    """The text tower. Only the keys and values of its layers are used."""

    def __init__(self, settings: Cosmos3Settings, config) -> None:
        """Make the tower."""
        super().__init__()
        self.embed_tokens = Embedding(
            settings.vocab_size, settings.hidden_size, dtype=config.torch_dtype
        )
        self.layers = nn.ModuleList(
            Cosmos3TextDecoderLayer(settings, config, i) for i in range(settings.num_hidden_layers)
        )

    def forward(
        self,
        text_ids: torch.Tensor,
        text_mask: torch.Tensor,
        freqs: Freqs,
        timestep: torch.Tensor | None = None,
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Run the tower.

        Args:
            text_ids: [B, S_text] integers, padded on the right with any valid id.
            text_mask: [B, S_text], 1 for a token and 0 for padding.
            freqs: cosines and sines [1, S_text, 1, D].
            timestep: handed to the attention backend.

        Returns:
            (K, V) of each layer, [B, S_text, N_kv, D], after QK-norm and rotation. Rows past a
            sample's length are exactly zero.
        """
        x = self.embed_tokens(text_ids)
        mask = text_mask.to(x.dtype).unsqueeze(-1)
        layers_kv = []
        for layer in self.layers:
            # Causal attention keeps padding out of the real rows; this keeps the padding's own
            # keys and values zero.
            x, k, v = layer(x * mask, freqs, timestep=timestep)
            layers_kv.append((k, v))
        return layers_kv


class Cosmos3CrossAttention(Attention):
    """Attention of the generation tower to its own sequence and to the text."""

    def __init__(
        self, settings: Cosmos3Settings, config, layer_idx: int, exact_text_kv: bool
    ) -> None:
        """Make one layer's attention; ``exact_text_kv`` installs the leaf adapter."""
        super().__init__(
            hidden_size=settings.hidden_size,
            num_attention_heads=settings.num_attention_heads,
            num_key_value_heads=settings.num_key_value_heads,
            head_dim=settings.head_dim,
            qkv_mode=QKVMode.FUSE_QKV,
            qk_norm=True,
            eps=settings.rms_norm_eps,
            bias=settings.attention_bias,
            config=config,
            layer_idx=layer_idx,
            module_name="generation tower",
        )
        self.norm_q = settings.norm(self.head_dim, config.torch_dtype)
        self.norm_k = settings.norm(self.head_dim, config.torch_dtype)
        if exact_text_kv:
            self.attn = install_text_attention(self.attn)

    def forward(self, x: torch.Tensor, text, freqs: Freqs, timestep=None) -> torch.Tensor:
        """Attend.

        Args:
            x: [B, S of this rank, hidden].
            text: this layer's views of the text K/V, one for each block of keys.
            freqs: cosines and sines [B, S of this rank, 1, D].
            timestep: handed to the attention backend.

        Returns:
            [B, S of this rank, hidden].
        """
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in self.get_qkv(x))
        q = apply_rotary(self.norm_q(q), freqs)
        k = apply_rotary(self.norm_k(k), freqs)
        if isinstance(text, PaddedTextKVView):
            out = text.attend(self, q, k, v, timestep=timestep)
        else:
            out = self._attn_impl(
                q,
                k,
                v,
                attention_mask=PredefinedAttentionMask.FULL,
                timestep=timestep,
                text=iter(text),
            )
        return self.to_out[0](out)


class Cosmos3GenDecoderLayer(nn.Module):
    """One layer of the generation tower."""

    def __init__(
        self, settings: Cosmos3Settings, config, layer_idx: int, exact_text_kv: bool
    ) -> None:
        """Make the layer."""
        super().__init__()
        self.input_layernorm = settings.norm(settings.hidden_size, config.torch_dtype)
        self.cross_attention = Cosmos3CrossAttention(settings, config, layer_idx, exact_text_kv)
        self.post_attention_layernorm = settings.norm(settings.hidden_size, config.torch_dtype)
        self.mlp = settings.mlp(layer_idx, config)

    def forward(self, x: torch.Tensor, text, freqs: Freqs, timestep=None) -> torch.Tensor:
        """Return [B, S of this rank, hidden]."""
        x = x + self.cross_attention(self.input_layernorm(x), text, freqs, timestep=timestep)
        return x + self.mlp(self.post_attention_layernorm(x))


class TimeEmbedder(nn.Module):
    """Sinusoidal timestep features through two linear layers, in float32 or wider."""

    CHANNELS = 256

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        """Make the layers in float32, or in float64 for a float64 model."""
        super().__init__()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.linear_1 = nn.Linear(self.CHANNELS, hidden_size, dtype=wide)
        self.linear_2 = nn.Linear(hidden_size, hidden_size, dtype=wide)
        half = self.CHANNELS // 2
        # On the CPU whatever the default device: a table that differed in its last bits between
        # devices would differ in the results.
        exponent = torch.arange(half, dtype=torch.float32, device="cpu") * (-math.log(10000) / half)
        self.frequencies = torch.exp(exponent)

    def forward(self, timestep: torch.Tensor) -> torch.Tensor:
        """Embed scaled timesteps [B] to [B, hidden]."""
        # Moved once, by the first call: a graph capture could not copy from the host.
        self.frequencies = self.frequencies.to(timestep.device)
        angles = timestep.float()[:, None] * self.frequencies
        features = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.linear_2(F.silu(self.linear_1(features.to(self.linear_1.weight.dtype))))


class DomainAwareLinear(nn.Module):
    """A linear layer with one weight and one bias for each embodiment domain."""

    def __init__(self, inputs: int, outputs: int, num_domains: int, dtype: torch.dtype) -> None:
        """Allocate the weights [num_domains, inputs * outputs] and biases."""
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        self.num_domains = num_domains
        self.fc = Embedding(num_domains, inputs * outputs, dtype=dtype)
        self.bias = Embedding(num_domains, outputs, dtype=dtype)

    def forward(self, x: torch.Tensor, domain_ids: torch.Tensor) -> torch.Tensor:
        """Map [B, rows, inputs] to [B, rows, outputs] with the weights of ``domain_ids`` [B]."""
        weight = self.fc(domain_ids).view(-1, self.inputs, self.outputs)
        return torch.baddbmm(self.bias(domain_ids).unsqueeze(1), x, weight)


class Cosmos3VFMTransformer(BaseDiffusionModel):
    """Predicts velocities of video, audio and action latents under one prompt for each sample.

    What depends on the prompt alone lives from one :meth:`reset_cache` to the next: ``cached_kv``
    (the text K/V with its lengths), ``cached_freqs_gen`` (rotary tables of the vision rows),
    ``cached_freqs_gen_combined`` (those with the audio and action rows) and
    ``domain_ids_validated``. A caller may save and restore the first two by assignment, to switch
    between prompts.

    Attributes:
        text_kv: "exact" (the fix) or "padded" (the old behaviour).
        sharder: cuts the generation sequence over ranks.
        text_kv_layout: which part of the text keys this rank attends to.
    """

    def __init__(self, model_config, text_kv: str = "exact") -> None:
        """Make the model, weights uninitialised, on torch's current default device.

        Args:
            model_config: a ``DiffusionModelConfig``.
            text_kv: "exact", or "padded" to compute what 1.3.0rc25 to rc29 compute.

        Raises:
            ValueError: an unknown ``text_kv``, a layout that cannot be run, or an attention
                backend that cannot be told the text lengths. Raised alike on every rank, before
                any collective.
        """
        super().__init__(model_config)
        if text_kv not in ("exact", "padded"):
            raise ValueError(f"text_kv={text_kv!r}; expected 'exact' or 'padded'")
        settings = Cosmos3Settings(model_config.pretrained_config)
        vgm = model_config.visual_gen_mapping
        self._check_layout(settings, model_config, vgm, text_kv)
        self.settings = settings
        self.text_kv = text_kv
        self.dtype = dtype = model_config.torch_dtype
        hidden = settings.hidden_size
        self.patch_size = settings.latent_patch_size
        self.sharder = SequenceSharder.from_vgm(
            vgm, settings.num_attention_heads, settings.num_key_value_heads
        )
        self.text_kv_layout = TextKVLayout.from_mapping(vgm)

        self.language_model = Cosmos3LanguageModel(settings, model_config)
        self.gen_layers = nn.ModuleList(
            Cosmos3GenDecoderLayer(settings, model_config, i, text_kv == "exact")
            for i in range(settings.num_hidden_layers)
        )
        self.norm_moe_gen = settings.norm(hidden, dtype)
        patch_width = self.patch_size**2 * settings.latent_channel
        self.vae2llm = Linear(patch_width, hidden, dtype=dtype)
        self.llm2vae = Linear(hidden, patch_width, dtype=dtype)
        self.time_embedder = TimeEmbedder(hidden, dtype)
        if settings.sound_gen:
            self.audio2llm = Linear(settings.sound_dim, hidden, dtype=dtype)
            self.llm2audio = Linear(hidden, settings.sound_dim, dtype=dtype)
            self.audio_modality_embed = nn.Parameter(torch.zeros(hidden, dtype=dtype))
        if settings.action_gen:
            domains = settings.num_embodiment_domains
            self.action_proj_in = DomainAwareLinear(settings.action_dim, hidden, domains, dtype)
            self.action_proj_out = DomainAwareLinear(hidden, settings.action_dim, domains, dtype)
            self.action_modality_embed = nn.Parameter(torch.zeros(hidden, dtype=dtype))
        self.requires_grad_(False)
        self.eval()

        # On the CPU whatever the default device: positions reach 15000 and more, so that one last
        # bit of a frequency moves an angle by 1e-3.
        exponent = torch.arange(0, settings.head_dim, 2, dtype=torch.float32, device="cpu")
        self.inv_freq = 1.0 / (settings.rope_theta ** (exponent / settings.head_dim))

        # Tables with audio and action rows, each with the vision table that it begins with, kept
        # with the text that they belong to: callers save, reset and restore cached_kv and
        # cached_freqs_gen, and know nothing of these.
        self._combined = weakref.WeakKeyDictionary()
        self.graph_inputs = GraphInputs()
        self.reset_cache()

    @staticmethod
    def _check_layout(settings: Cosmos3Settings, model_config, vgm, text_kv: str) -> None:
        if vgm is None:
            return
        ways = vgm.tp_size * vgm.ulysses_size
        heads = {
            "num_attention_heads": settings.num_attention_heads,
            "num_key_value_heads": settings.num_key_value_heads,
        }
        failing = [f"{name}={count}" for name, count in heads.items() if count % ways]
        if failing:
            common = math.gcd(*heads.values())
            works = [size for size in range(1, common + 1) if common % size == 0]
            raise ValueError(
                f"tp_size={vgm.tp_size} x ulysses_size={vgm.ulysses_size} = {ways} does not divide "
                f"{', '.join(failing)}; tp_size x ulysses_size must be one of {works}."
            )
        if vgm.ring_size > 1 and text_kv == "padded":
            raise ValueError(
                f"ring_size={vgm.ring_size} with text_kv='padded': 1.3.0rc25 to rc29 refuse a "
                "ring, since text in front of the keys would count once for each block; use "
                "ulysses_size or Attention2D, or text_kv='exact'"
            )
        if model_config.mapping.tp_size != vgm.tp_size:
            raise ValueError(
                f"mapping.tp_size={model_config.mapping.tp_size} but the layout has "
                f"tp_size={vgm.tp_size}; pass mapping=visual_gen_mapping.to_llm_mapping()"
            )

    # ------------------------------------------------------------------ cache

    def reset_cache(self) -> None:
        """Forget the prompts; the next :meth:`forward` reads new ones."""
        self.cached_kv = None
        self.cached_freqs_gen: Freqs | None = None
        self.cached_freqs_gen_combined = None
        self.domain_ids_validated = False

    @property
    def cached_freqs_gen_combined(self) -> Freqs | None:
        """The whole sequence's tables for the text and vision table that are in place."""
        if self.cached_kv is None:
            return None
        if self.text_kv == "exact":
            require_text(self.cached_kv)
        vision, combined = self._combined.get(self.cached_kv, (None, None))
        return combined if vision is self.cached_freqs_gen else None

    @cached_freqs_gen_combined.setter
    def cached_freqs_gen_combined(self, tables: Freqs | None) -> None:
        if self.cached_kv is not None:
            self._combined[self.cached_kv] = (self.cached_freqs_gen, tables)

    def register_cuda_graph_extra_key_fns(self, runner) -> None:
        """Tell a graph runner what else than shapes decides a forward."""
        if self.text_kv == "exact":
            self.graph_inputs.register(self, runner)

    def prepare_graph_inputs(self, **arguments) -> tuple[dict, object]:
        """Take :meth:`forward`'s arguments; return what a captured forward reads besides them."""
        tables = self.prepare_request(**arguments)
        text = require_text(self.cached_kv)
        launches = lengths_in_shapes(self.gen_layers[0].cross_attention.attn)
        kept = {"text": text.tensors(tables[0].shape[1]), "rope": tables}
        return kept, text.lengths if launches else None

    # -------------------------------------------------------------- positions

    def _rope_tables(
        self, positions: torch.Tensor, device: torch.device, dtype: torch.dtype
    ) -> Freqs:
        """Turn positions [3, B, rows] (time, row, column) into tables [B, rows, 1, D]."""
        angles = positions.float().unsqueeze(-1) * self.inv_freq.to(device)  # [3, B, rows, D/2]
        mixed = angles[0].clone()
        # Time keeps frequencies 0, 3, 6, ... and the tail; rows take 1, 4, ...; columns 2, 5, ...
        for axis in (1, 2):
            index = slice(axis, 3 * self.settings.rope_axes_dim[axis], 3)
            mixed[..., index] = angles[axis][..., index]
        angles = torch.cat([mixed, mixed], dim=-1).unsqueeze(2)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _grid_positions(
        self,
        offset: torch.Tensor,
        grid: tuple[int, int, int],
        fps: float | None,
        compression: int,
        base_compression: int | None = None,
        start_frame: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Lay a grid of tokens out behind ``offset``.

        Args:
            offset: float32 [B], the first frame's time.
            grid: frames, rows and columns.
            fps: frames per second of the decoded signal; None or one frame counts frames.
            compression: decoded frames for each of the grid's frames.
            base_compression: that of the base rate; ``compression`` when None.
            start_frame: number of the first frame.

        Returns:
            Positions [3, B, rows], and the time [B] at which a following item starts.
        """
        settings, device = self.settings, offset.device
        frames, rows, columns = grid
        time = torch.arange(frames, dtype=torch.float32) + start_frame
        if fps is not None and settings.enable_fps_modulation and frames > 1:
            # In float32 and on the CPU, in this order: a GPU would divide by multiplying with a
            # reciprocal and end on another last bit.
            base = float(settings.base_fps) / (base_compression or compression)
            time = time / (float(fps) / compression) * base
        time = time.to(device) + offset[:, None]  # [B, frames]
        spatial = torch.zeros_like(offset)
        if not settings.unified_3d_mrope_reset_spatial_ids:
            spatial = offset.floor()
        shape = (offset.shape[0], frames, rows, columns)
        row = torch.arange(rows, dtype=torch.float32, device=device) + spatial[:, None]
        column = torch.arange(columns, dtype=torch.float32, device=device) + spatial[:, None]
        positions = torch.stack(
            [
                time[:, :, None, None].expand(shape).flatten(1),
                row[:, None, :, None].expand(shape).flatten(1),
                column[:, None, None, :].expand(shape).flatten(1),
            ]
        )
        return positions, positions.amax(dim=(0, 2)).ceil() + 1

    def _compute_rope_freqs(
        self,
        text_mask: torch.Tensor,
        frames: int,
        patch_rows: int,
        patch_cols: int,
        fps: float | None,
        device: torch.device,
        dtype: torch.dtype,
        num_vision_items: int = 1,
        share_vision_temporal_positions: bool = True,
    ) -> tuple[Freqs, Freqs]:
        """Rotary tables of the text and of the vision items, controls first.

        Args:
            text_mask: [B, S_text], 1 for a token. The vision starts behind each prompt's OWN
                length; the padded one would shift it.
            frames: latent frames of each item.
            patch_rows: rows of patches.
            patch_cols: columns of patches.
            fps: frames per second of the decoded video.
            device: of the tables.
            dtype: of the tables.
            num_vision_items: controls and the video.
            share_vision_temporal_positions: whether all items stand at the video's positions;
                otherwise each starts where the last ended.

        Returns:
            Tables of the text [1, S_text, 1, D] and of the vision rows [B, rows, 1, D].
        """
        text_time = torch.arange(text_mask.shape[1], dtype=torch.float32, device=device)
        freqs_text = self._rope_tables(text_time.expand(3, 1, -1), device, dtype)
        lengths = text_mask.to(device).sum(dim=1)
        start = self._media_start(lengths)
        grid = (frames, patch_rows, patch_cols)
        items = []
        for _ in range(num_vision_items):
            positions, following = self._grid_positions(
                start, grid, fps, self.settings.temporal_compression_factor
            )
            items.append(positions)
            if not share_vision_temporal_positions:
                start = following
        return freqs_text, self._rope_tables(torch.cat(items, dim=2), device, dtype)

    def _media_start(self, lengths: torch.Tensor) -> torch.Tensor:
        """Time [B] at which everything but the text starts, from text lengths [B]."""
        margin = self.settings.unified_3d_mrope_temporal_modality_margin
        return lengths.to(torch.float32) + margin

    @property
    def base_fps(self) -> float:
        """Frames per second that positions count, and the rate of actions that name none."""
        return float(self.settings.base_fps)

    @property
    def audio_latent_fps(self) -> float:
        """Sound frames per second."""
        return float(self.settings.sound_latent_fps)

    def _compute_audio_rope_freqs(
        self, rows: int, text_mask: torch.Tensor, fps: float, device, dtype: torch.dtype
    ) -> Freqs:
        """Rotary tables [B, rows, 1, D] of sound frames, which start where the vision starts."""
        start = self._media_start(text_mask.to(device).sum(dim=1))
        positions, _ = self._grid_positions(start, (rows, 1, 1), fps, 1)
        return self._rope_tables(positions, device, dtype)

    def _compute_action_rope_freqs(
        self,
        rows: int,
        text_mask: torch.Tensor,
        fps: float,
        start_frame_offset: int,
        device,
        dtype: torch.dtype,
    ) -> Freqs:
        """Rotary tables [B, rows, 1, D] of actions, the first at ``start_frame_offset`` frames."""
        start = self._media_start(text_mask.to(device).sum(dim=1))
        positions, _ = self._grid_positions(
            start,
            (rows, 1, 1),
            fps,
            1,
            base_compression=self.settings.temporal_compression_factor,
            start_frame=start_frame_offset,
        )
        return self._rope_tables(positions, device, dtype)

    def prepare_request(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        raw_timestep: torch.Tensor,
        text_ids: torch.Tensor,
        text_mask: torch.Tensor,
        video_shape: tuple[int, int, int],
        offload_context=nullcontext,
        fps: float | None = None,
        noisy_frame_mask: torch.Tensor | None = None,
        audio_latents: torch.Tensor | None = None,
        action_latents: torch.Tensor | None = None,
        action_domain_ids: torch.Tensor | None = None,
        action_noisy_mask: torch.Tensor | None = None,
        action_start_frame_offset: int = 1,
        action_fps: float | None = None,
        control_latents: list[torch.Tensor] | torch.Tensor | None = None,
        transfer_share_vision_temporal_positions: bool = True,
        **kwargs,
    ) -> Freqs:
        """Fill the caches of a request, with all of its host reads, unless they are filled.

        Args are :meth:`forward`'s. Returns the rotary tables [B, S, 1, D] of the whole sequence.
        """
        if self.cached_kv is None:
            lengths = read_text_lengths(text_mask)
            rows = text_bucket(max(lengths)) if self.text_kv == "exact" else None
            ids, mask = text_ids[:, :rows], text_mask[:, :rows]
            frames, height, width = video_shape
            patch_rows, patch_cols, _, _ = self._pad_to_patch_size(height, width)
            controls = 0 if control_latents is None else len(self._control_list(control_latents))
            freqs_text, freqs_gen = self._compute_rope_freqs(
                mask,
                frames,
                patch_rows,
                patch_cols,
                fps,
                hidden_states.device,
                hidden_states.dtype,
                num_vision_items=controls + 1,
                share_vision_temporal_positions=transfer_share_vision_temporal_positions,
            )
            with offload_context("reasoner"):
                layers = self.language_model(ids, mask, freqs_text, timestep=timestep)
            if self.text_kv == "exact":
                self.cached_kv = TextKV.build(layers, lengths, self.text_kv_layout)
            else:
                self.cached_kv = PaddedTextKV.build(layers, text_mask, self.sharder)
            self.cached_freqs_gen = freqs_gen

        vision = self.cached_freqs_gen
        if audio_latents is None and action_latents is None:
            return vision
        if self.cached_freqs_gen_combined is None:
            place = vision[0].device, vision[0].dtype
            parts = [vision]
            if audio_latents is not None:
                rows, rate = audio_latents.shape[2], self.audio_latent_fps
                parts.append(self._compute_audio_rope_freqs(rows, text_mask, rate, *place))
            if action_latents is not None:
                rows = action_latents.shape[1]
                rate = float(next(x for x in (action_fps, fps, self.base_fps) if x is not None))
                offset = action_start_frame_offset
                parts.append(self._compute_action_rope_freqs(rows, text_mask, rate, offset, *place))
            self.cached_freqs_gen_combined = tuple(torch.cat(x, dim=1) for x in zip(*parts))
        return self.cached_freqs_gen_combined

    # ---------------------------------------------------------------- patches

    def _pad_to_patch_size(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return rows and columns of patches, and the height and width that they cover."""
        p = self.patch_size
        rows, columns = -(-height // p), -(-width // p)
        return rows, columns, rows * p, columns * p

    def _patchify(self, latents: torch.Tensor) -> torch.Tensor:
        """Cut [B, C, T, H, W] into [B, T * rows * columns, p * p * C], zeros past odd edges."""
        p = self.patch_size
        height, width = latents.shape[3:]
        rows, columns, padded_h, padded_w = self._pad_to_patch_size(height, width)
        latents = F.pad(latents, (0, padded_w - width, 0, padded_h - height))
        latents = latents.unflatten(4, (columns, p)).unflatten(3, (rows, p))
        return latents.permute(0, 2, 3, 5, 4, 6, 1).flatten(4).flatten(1, 3)

    def _unpatchify(self, patches: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        """Undo :meth:`_patchify`: [B, rows, p * p * C] to [B, C, T, H, W]."""
        p = self.patch_size
        frames, height, width = shape
        rows, columns, _, _ = self._pad_to_patch_size(height, width)
        x = patches.reshape(-1, frames, rows, columns, p, p, self.settings.latent_channel)
        x = x.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
        return x[..., :height, :width]

    # ---------------------------------------------------------------- forward

    def _check_inputs(self, hidden_states, raw_timestep, text_ids, text_mask, video_shape) -> None:
        channels = self.settings.latent_channel
        if hidden_states.dim() != 5 or hidden_states.shape[1] != channels:
            raise ValueError(
                f"hidden_states has shape {tuple(hidden_states.shape)}; expected "
                f"[B, {channels}, T, H, W]"
            )
        if hidden_states.dtype != self.dtype:
            raise ValueError(
                f"hidden_states is {hidden_states.dtype}, the model {self.dtype}; cast the latents"
            )
        if tuple(video_shape) != tuple(hidden_states.shape[2:]):
            raise ValueError(
                f"video_shape={tuple(video_shape)} is not that of the latents, "
                f"{tuple(hidden_states.shape[2:])}"
            )
        batch = hidden_states.shape[0]
        if raw_timestep.shape != (batch,):
            raise ValueError(
                f"raw_timestep has shape {tuple(raw_timestep.shape)}; expected [{batch}]"
            )
        if text_mask is None:
            read_text_lengths(text_mask)
        if text_ids.shape != text_mask.shape or text_ids.dim() != 2 or len(text_ids) != batch:
            raise ValueError(
                f"text_ids {tuple(text_ids.shape)} and text_mask {tuple(text_mask.shape)} must "
                f"both be [{batch}, S_text]"
            )

    def _control_list(self, control_latents) -> list[torch.Tensor]:
        if control_latents is None:
            return []
        if isinstance(control_latents, torch.Tensor):
            return [control_latents]
        return list(self.graph_inputs.read(control_latents))

    def _vision_tokens(self, hidden_states, control_latents, time_embeds, noisy_frame_mask):
        """Return the tokens of controls and video [B, rows, hidden], and how many are controls'."""
        control_latents = self._control_list(control_latents)
        for i, control in enumerate(control_latents):
            if control.shape != hidden_states.shape or control.dtype != hidden_states.dtype:
                raise ValueError(
                    f"control_latents[{i}] is {control.dtype} {tuple(control.shape)}; expected "
                    f"{hidden_states.dtype} {tuple(hidden_states.shape)}, as the video's latents"
                )
        # Controls are clean: no timestep is added to them.
        tokens = [self.vae2llm(self._patchify(control)) for control in control_latents]
        control_rows = sum(x.shape[1] for x in tokens)
        video = self.vae2llm(self._patchify(hidden_states))
        noise = time_embeds.unsqueeze(1)
        if noisy_frame_mask is not None:
            frames = hidden_states.shape[2]
            expected = (hidden_states.shape[0], 1, frames, 1, 1)
            # A pipeline has one mask for both prompts.
            if tuple(noisy_frame_mask.shape) not in (expected, (1, *expected[1:])):
                raise ValueError(
                    f"noisy_frame_mask has shape {tuple(noisy_frame_mask.shape)}; expected "
                    f"{expected}, 1 for a noisy frame and 0 for a given one"
                )
            mask = noisy_frame_mask.reshape(-1, frames, 1).to(video.dtype)
            noise = noise * mask.repeat_interleave(video.shape[1] // frames, dim=1)
        return torch.cat([*tokens, video + noise], dim=1), control_rows

    def _audio_tokens(self, audio_latents, time_embeds):
        """Return the tokens [B, T_audio, hidden]; every audio frame is noisy."""
        width = self.settings.sound_dim
        if not self.settings.sound_gen or audio_latents.shape[1] != width:
            raise ValueError(
                f"audio_latents of shape {tuple(audio_latents.shape)} for a model with "
                f"sound_gen={self.settings.sound_gen}, sound_dim={width}; expected [B, sound_dim, "
                "T_audio] and a model with sound"
            )
        tokens = self.audio2llm(audio_latents.transpose(1, 2)) + self.audio_modality_embed
        return tokens + time_embeds.unsqueeze(1)

    def _action_tokens(self, action_latents, domain_ids, noisy_mask, time_embeds):
        """Return the tokens [B, T_action, hidden]."""
        settings = self.settings
        width = settings.action_dim
        if not settings.action_gen or action_latents.shape[2] != width:
            raise ValueError(
                f"action_latents of shape {tuple(action_latents.shape)} for a model with "
                f"action_gen={settings.action_gen}, action_dim={width}; expected [B, T_action, "
                "action_dim] and a model with actions"
            )
        batch = action_latents.shape[0]
        if domain_ids is None or domain_ids.shape != (batch,):
            raise ValueError(
                f"action_domain_ids must hold one domain for each of the {batch} samples, got "
                f"{None if domain_ids is None else tuple(domain_ids.shape)}"
            )
        # The values come to the host once for each request only.
        if not self.domain_ids_validated:
            found = domain_ids.tolist()
            if not all(0 <= i < settings.num_embodiment_domains for i in found):
                raise ValueError(
                    f"action_domain_ids={found}; expected 0 to "
                    f"{settings.num_embodiment_domains - 1}"
                )
            self.domain_ids_validated = True
        tokens = self.action_proj_in(action_latents, domain_ids) + self.action_modality_embed
        noise = time_embeds.unsqueeze(1)
        if noisy_mask is not None:
            expected = (*action_latents.shape[:2], 1)
            if tuple(noisy_mask.shape) not in (expected, (1, *expected[1:])):
                raise ValueError(
                    f"action_noisy_mask has shape {tuple(noisy_mask.shape)}; expected {expected}"
                )
            noise = noise * noisy_mask.to(tokens.dtype)
        return tokens + noise

    @torch.no_grad()
    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        raw_timestep: torch.Tensor,
        text_ids: torch.Tensor,
        text_mask: torch.Tensor,
        video_shape: tuple[int, int, int],
        offload_context=nullcontext,
        fps: float | None = None,
        noisy_frame_mask: torch.Tensor | None = None,
        audio_latents: torch.Tensor | None = None,
        action_latents: torch.Tensor | None = None,
        action_domain_ids: torch.Tensor | None = None,
        action_noisy_mask: torch.Tensor | None = None,
        action_start_frame_offset: int = 1,
        action_fps: float | None = None,
        control_latents: list[torch.Tensor] | torch.Tensor | None = None,
        transfer_share_vision_temporal_positions: bool = True,
        **kwargs,
    ) -> TransformerOutput:
        """Predict the velocities of one denoising step.

        Every rank of the sequence group takes the same inputs and returns the same whole outputs.

        Args:
            hidden_states: [B, C, T, H, W] latents in the model's dtype.
            timestep: [B], handed to the attention backend.
            raw_timestep: [B], 0 to 1000, what the time embedding is made of.
            text_ids: [B, S_text], padded on the right.
            text_mask: [B, S_text], ones and then zeros. Read when the cache is empty.
            video_shape: (T, H, W).
            offload_context: called with "reasoner" for a context in which the text tower runs, and
                with "generator" for one in which the generation tower does.
            fps: frames per second of the decoded video; None counts frames.
            noisy_frame_mask: [B or 1, 1, T, 1, 1], 1 for a noisy frame; None for all. The velocity
                of a given frame is returned too, and means nothing.
            audio_latents: [B, sound_dim, T_audio].
            action_latents: [B, T_action, action_dim].
            action_domain_ids: [B] embodiment domains.
            action_noisy_mask: [B or 1, T_action, 1], 1 for a noisy action; None for all.
            action_start_frame_offset: number of the first action's frame.
            action_fps: frames per second of the actions; ``fps`` when None, and the base rate when
                that is None too.
            control_latents: one, or a list, shaped like ``hidden_states``.
            transfer_share_vision_temporal_positions: whether controls stand at the video's
                positions, or before it.
            **kwargs: ignored.

        Returns:
            Velocities shaped like the latents.

        Raises:
            ValueError: an input of the wrong shape, dtype or value; raised on every rank alike,
                before any collective.
        """
        self._check_inputs(hidden_states, raw_timestep, text_ids, text_mask, video_shape)
        scaled = raw_timestep.float() * self.settings.timestep_scale
        time_embeds = self.time_embedder(scaled).to(self.dtype)
        vision, control_rows = self._vision_tokens(
            hidden_states, control_latents, time_embeds, noisy_frame_mask
        )
        items = [vision]
        if audio_latents is not None:
            items.append(self._audio_tokens(audio_latents, time_embeds))
        audio_rows = audio_latents.shape[2] if audio_latents is not None else 0
        if action_latents is not None:
            items.append(
                self._action_tokens(
                    action_latents, action_domain_ids, action_noisy_mask, time_embeds
                )
            )
        action_rows = action_latents.shape[1] if action_latents is not None else 0
        hidden_gen = torch.cat(items, dim=1)
        rows = hidden_gen.shape[1]

        freqs = self.prepare_request(
            hidden_states,
            timestep,
            raw_timestep,
            text_ids,
            text_mask,
            video_shape,
            offload_context,
            fps,
            audio_latents=audio_latents,
            action_latents=action_latents,
            action_start_frame_offset=action_start_frame_offset,
            action_fps=action_fps,
            control_latents=control_latents,
            transfer_share_vision_temporal_positions=transfer_share_vision_temporal_positions,
        )
        if freqs[0].shape[1] != rows:
            raise ValueError(
                f"the cached rotary tables have {freqs[0].shape[1]} rows and the sequence {rows}; "
                "call reset_cache() when the shapes of a request change"
            )
        if self.text_kv == "padded":
            text = self.cached_kv.attach(text_mask)
        else:
            freqs = self.graph_inputs.read(freqs)
            text = attach_text(self, hidden_gen, rows, self.graph_inputs.read)
        hidden_gen = self.sharder.shard(hidden_gen, dim=1, pad_to_multiple=True)
        freqs = tuple(self.sharder.shard(x, dim=1, pad_to_multiple=True) for x in freqs)
        with offload_context("generator"):
            for layer, layer_text in zip(self.gen_layers, text):
                hidden_gen = layer(hidden_gen, layer_text, freqs, timestep=timestep)
        # Normalised behind the gather: without its padding the sequence is a view with gaps, on
        # which a linear layer with a bias rounds twice in 16 bits.
        hidden_gen = self.norm_moe_gen(self.sharder.gather(hidden_gen, dim=1, unpad_to=rows))

        _, video, audio, action = hidden_gen.split(
            [control_rows, vision.shape[1] - control_rows, audio_rows, action_rows], dim=1
        )
        output = TransformerOutput(video=self._unpatchify(self.llm2vae(video), video_shape))
        if audio_rows:
            output.audio = self.llm2audio(audio).transpose(1, 2)
        if action_rows:
            output.action = self.action_proj_out(action, action_domain_ids)
        return output

    # ---------------------------------------------------------------- weights

    def _weight_plan(self):
        """Yield (module, names of the checkpoint modules that make it), for every module."""
        gated = self.settings.hidden_act == "silu"

        def mlp(module, prefix):
            if gated:
                yield module.gate_up_proj, (f"{prefix}.gate_proj", f"{prefix}.up_proj")
            else:
                yield module.up_proj, (f"{prefix}.up_proj",)
            yield module.down_proj, (f"{prefix}.down_proj",)

        yield self.language_model.embed_tokens, ("embed_tokens",)
        for i, (text, gen) in enumerate(zip(self.language_model.layers, self.gen_layers)):
            layer = f"layers.{i}"
            attention = f"{layer}.self_attn"
            yield text.input_layernorm, (f"{layer}.input_layernorm",)
            yield text.self_attn.qkv_proj, tuple(f"{attention}.to_{x}" for x in "qkv")
            yield text.self_attn.to_out[0], (f"{attention}.to_out",)
            if text.self_attn.qk_norm:
                yield text.self_attn.norm_q, (f"{attention}.norm_q",)
                yield text.self_attn.norm_k, (f"{attention}.norm_k",)
            if text.self_attn.norm_k_for_gen is not None:
                yield text.self_attn.norm_k_for_gen, (f"{attention}.k_norm_und_for_gen",)
            yield text.post_attention_layernorm, (f"{layer}.post_attention_layernorm",)
            yield from mlp(text.mlp, f"{layer}.mlp")
            cross = gen.cross_attention
            yield gen.input_layernorm, (f"{layer}.input_layernorm_moe_gen",)
            yield cross.qkv_proj, tuple(f"{attention}.add_{x}_proj" for x in "qkv")
            yield cross.to_out[0], (f"{attention}.to_add_out",)
            yield cross.norm_q, (f"{attention}.norm_added_q",)
            yield cross.norm_k, (f"{attention}.norm_added_k",)
            yield gen.post_attention_layernorm, (f"{layer}.post_attention_layernorm_moe_gen",)
            yield from mlp(gen.mlp, f"{layer}.mlp_moe_gen")
        yield self.norm_moe_gen, ("norm_moe_gen",)
        yield self.vae2llm, ("proj_in",)
        yield self.llm2vae, ("proj_out",)
        yield self.time_embedder.linear_1, ("time_embedder.linear_1",)
        yield self.time_embedder.linear_2, ("time_embedder.linear_2",)
        if self.settings.sound_gen:
            yield self.audio2llm, ("audio_proj_in",)
            yield self.llm2audio, ("audio_proj_out",)
        if self.settings.action_gen:
            for name in ("action_proj_in", "action_proj_out"):
                yield getattr(self, name).fc, (f"{name}.fc",)
                yield getattr(self, name).bias, (f"{name}.bias",)

    def _bare_parameters(self) -> list[str]:
        names = [("sound_gen", "audio_modality_embed"), ("action_gen", "action_modality_embed")]
        return [name for flag, name in names if getattr(self.settings, flag)]

    @torch.no_grad()
    def load_weights(self, weights) -> None:
        """Load a checkpoint by diffusers' names; each tensor is looked up once, when it is needed.

        Args:
            weights: maps names to whole tensors, in any dtype and on any device. It may make them
                when asked, so that no more than one layer is held twice.

        Raises:
            ValueError: tensors are missing or do not fit; the message names them.
        """
        plan = []
        for module, prefixes in self._weight_plan():
            has_bias = getattr(module, "bias", None) is not None or getattr(
                module, "has_bias", False
            )
            parameters = ("weight", "bias") if has_bias else ("weight",)
            plan.append((module, prefixes, parameters))
        wanted = [f"{x}.{y}" for _, prefixes, names in plan for x in prefixes for y in names]
        missing = [name for name in wanted + self._bare_parameters() if name not in weights]
        if missing:
            raise ValueError(
                f"{len(missing)} tensors are missing from the weights, among them "
                f"{', '.join(missing[:4])}; expected a diffusers Cosmos3OmniTransformer of this "
                "configuration"
            )
        loader = DynamicLinearWeightLoader(self.model_config)
        for module, prefixes, parameters in plan:
            parts = [{p: weights[f"{prefix}.{p}"] for p in parameters} for prefix in prefixes]
            if hasattr(module, "load_weights"):
                loader.load_linear_weights(module, prefixes[0], parts)
                continue
            for p in parameters:
                self._copy(getattr(module, p), parts[0][p], f"{prefixes[0]}.{p}")
        for name in self._bare_parameters():
            self._copy(getattr(self, name), weights[name], name)

    @staticmethod
    def _copy(target: torch.Tensor, source: torch.Tensor, name: str) -> None:
        if target.shape != source.shape:
            raise ValueError(
                f"{name} has shape {tuple(source.shape)}; expected {tuple(target.shape)}"
            )
        target.copy_(source)

    def post_load_weights(self) -> None:
        """Nothing is left to do after loading on the host."""
