# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""An estimate of the GPU memory that one rank needs, from counts alone.

Counted are the transformer's weights, the text K/V of a request and of one graph buffer, and the
largest of what a layer holds at once. Not counted are the VAE and its decoding, the guardrails, the
sound tokenizer, the CUDA context, NCCL's buffers, the memory pools of graphs and compilation, and
what the allocator leaves unused.

Fields: B samples per rank, S rows of the generation sequence, T text rows, D head_dim.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .layout import Sizes
from .model import Model

# Bytes of a bfloat16 and of a float32.
HALF, FULL = 2, 4
GIB = 1 << 30


@dataclass(frozen=True)
class Weights:
    """Parameters of the transformer.

    Attributes:
        text: Matrices of the text tower's layers.
        generation: Matrices of the generation tower's layers.
        shared: Everything else: embeddings, norms, projections of patches, time, sound, action.
    """

    text: int
    generation: int
    shared: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.text + self.generation + self.shared


def count_weights(model: Model) -> Weights:
    """Counts the parameters; the language model's output head is not among them."""
    get, hidden, size = model.fields.__getitem__, model.fields["hidden_size"], model.head_dim
    gated = get("hidden_act") != "relu2"
    mlp = (3 if gated else 2) * hidden * get("intermediate_size")
    layers = []
    for tower in (model.heads[0], model.heads[-1]):
        attention = 2 * hidden * size * (tower.query + tower.kv)
        layers.append(model.layers * (attention + mlp))
    norms = 4 * hidden + 2 * size * (1 + bool(get("qk_norm_for_text")))
    norms += size * bool(get("use_und_k_norm_for_gen"))
    patch = get("patch_latent_dim")
    shared = get("vocab_size") * hidden + model.layers * norms + 2 * hidden
    shared += 2 * patch * hidden + hidden + patch
    # Timesteps come in as 256 sines and cosines.
    shared += (256 + 1) * hidden + (hidden + 1) * hidden
    if get("action_gen"):
        action, domains = get("action_dim"), get("num_embodiment_domains")
        shared += domains * (2 * action * hidden + action + hidden) + hidden
    if get("sound_gen"):
        shared += 2 * get("sound_dim") * hidden + get("sound_dim") + 2 * hidden
    return Weights(*layers, shared)


@dataclass(frozen=True)
class Estimate:
    """Bytes on one rank.

    Attributes:
        weights: Parameters, those of a layer's matrices cut over TP.
        text_kv: Text K/V of the request, this rank's heads of all layers.
        graph_buffers: One more text K/V and the RoPE tables, which graphs read; 0 without graphs.
        activations: The most that one layer holds at once.
    """

    weights: int
    text_kv: int
    graph_buffers: int
    activations: int

    @property
    def total(self) -> int:
        """All parts."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        parts = (f"{name.replace('_', ' ')} {gib(size)}" for name, size in asdict(self).items())
        return ", ".join(parts)


def gib(size: float) -> str:
    """A number of bytes in words."""
    return f"{size / GIB:.2f} GiB"


def estimate(
    model: Model,
    sizes: Sizes,
    *,
    video_rows: int,
    text_rows: int,
    weight_bytes: float = HALF,
    graphs: bool = False,
    offload: bool = False,
) -> Estimate:
    """Estimates one rank's memory.

    Args:
        model: What is to run.
        sizes: The parallel axes; without cfg_size 2, both branches are one batch.
        video_rows: S.
        text_rows: T, of the longest prompt.
        weight_bytes: Bytes of one weight of the layers' matrices; the rest is bfloat16.
        graphs: Whether CUDA graphs are on.
        offload: Whether the two towers take turns on the GPU.
    """
    samples = 2 // sizes.cfg_size
    counted = count_weights(model)
    towers = max(counted.text, counted.generation) if offload else counted.text + counted.generation
    heads = model.heads[-1]
    own_kv = heads.kv / sizes.head_ways
    text_kv = 2 * model.layers * samples * text_rows * own_kv * model.head_dim * HALF
    rows = -(-video_rows // sizes.sequence_size)
    tables = 2 * samples * rows * model.head_dim * FULL
    return Estimate(
        round(towers * weight_bytes / sizes.tp_size + counted.shared * HALF),
        round(text_kv),
        round(text_kv + tables) if graphs else 0,
        round(
            samples
            * HALF
            * max(
                _layer(model, sizes, rows, text_rows),
                # The text tower runs on whole prompts on every rank.
                _layer(model, Sizes(tp_size=sizes.tp_size), text_rows, 0),
            )
            + tables
        ),
    )


def _layer(model: Model, sizes: Sizes, rows: int, text_rows: int) -> float:
    """Numbers that a layer holds at once for one sample: hidden states, and attention or MLP."""
    hidden, gates = model.fields["hidden_size"], 3 if model.fields["hidden_act"] != "relu2" else 2
    query = model.heads[-1].query * model.head_dim / sizes.tp_size
    kv = model.heads[-1].kv * model.head_dim / sizes.tp_size
    projected = rows * (query + 2 * kv)
    # An exchange over Ulysses keeps the size; Attention2D gathers over its rows and columns.
    gathered = rows * (query * sizes.attn2d_col_size + 2 * kv * sizes.attn2d_row_size)
    whole_rows = rows * sizes.ulysses_size * sizes.attn2d_row_size + text_rows
    appended = 2 * whole_rows * kv / sizes.ulysses_size if text_rows else 0
    attention = projected + gathered + appended + 2 * rows * query * sizes.attn2d_col_size
    mlp = gates * rows * model.fields["intermediate_size"] / sizes.tp_size
    return 2 * rows * hidden + max(attention, mlp)
