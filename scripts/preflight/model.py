# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a model's config.json says about its attention."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_sizes import MODELS, VOCABULARY
from patchset.report import Refusal

from .layout import Finding, Heads
from .schema import LARGEST

# What diffusers takes for a field that is left out.
DEFAULTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "latent_patch_size": 2,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "vocab_size": VOCABULARY,
    "patch_latent_dim": 192,
    "num_embodiment_domains": 32,
    "hidden_act": "silu",
    "qk_norm_for_text": True,
    "use_und_k_norm_for_gen": False,
    "action_gen": False,
    "action_dim": 0,
    "sound_gen": False,
    "sound_dim": 0,
}
# Those of them that size a matrix.
WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "patch_latent_dim",
    "num_embodiment_domains",
)
CLASS = "Cosmos3OmniTransformer"


@dataclass
class Model:
    """A model's attention.

    Attributes:
        name: nano, super or edge, or the file.
        heads: Head counts, of each tower where they differ.
        head_dim: Size of a head.
        layers: Layers of each tower.
        patch: Edge of a patch in latents.
        fields: All of DEFAULTS, as the config.json has them.
        rope_axes: Widths of the three rotary axes, or None.
    """

    name: str
    heads: list[Heads]
    head_dim: int
    layers: int
    patch: int
    fields: dict[str, Any]
    rope_axes: list[int] | None = None

    def findings(self) -> list[Finding]:
        """What the rotary axes say against the head size."""
        half = self.head_dim // 2
        if self.rope_axes is None or (len(self.rope_axes) == 3 and sum(self.rope_axes) == half):
            return []
        return [
            Finding(
                "error",
                "head-dim",
                f"rope_axes_dim={self.rope_axes}; expected three widths that sum to head_dim / 2 = "
                f"{half}.",
            )
        ]

    def __str__(self) -> str:
        counts = " and ".join(
            f"{f'{x.tower} tower ' if x.tower else ''}{x.query} query / {x.kv} key-value heads"
            for x in self.heads
        )
        return f"{self.name}: {counts} of {self.head_dim}, {self.layers} layers"


def find_model(given: str | None, in_config: str | None) -> Model:
    """Reads the model that was asked for, or that the configuration names, or Nano.

    Args:
        given: nano, super, edge, or a config.json or a folder that holds one.
        in_config: `model` of the YAML: a folder, or a name such as nvidia/Cosmos3-Nano.

    Raises:
        Refusal: It cannot be read as a Cosmos3 transformer's configuration.
    """
    if given is not None:
        if given.lower() in MODELS:
            return parse_model(MODELS[given.lower()], given.lower())
        return read_model(Path(given))
    if in_config is not None:
        if Path(in_config).is_dir():
            return read_model(Path(in_config))
        for name in MODELS:
            if f"cosmos3-{name}" in in_config.lower():
                return parse_model(MODELS[name], name)
        raise Refusal(
            f"the configuration's model {in_config!r} is neither a folder here nor a known size; "
            f"give --model with {', '.join(MODELS)} or its config.json"
        )
    return parse_model(MODELS["nano"], "nano")


def read_model(path: Path) -> Model:
    """Reads a config.json, or the folder of a checkpoint or of its transformer.

    Raises:
        Refusal: There is none, or it is not a Cosmos3 transformer's.
    """
    if path.is_dir():
        places = (path / "transformer" / "config.json", path / "config.json")
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise Refusal(f"{path} holds neither transformer/config.json nor config.json")
        path = found
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(
            f"cannot read {path}: {error.strerror}; give {', '.join(MODELS)} or a config.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path} is not JSON: {error}") from None
    return parse_model(fields, str(path))


def parse_model(fields: Any, name: str) -> Model:
    """Reads the fields of a config.json.

    Raises:
        Refusal: They are not a Cosmos3 transformer's.
    """
    if not isinstance(fields, dict):
        raise Refusal(f"{name} holds a {type(fields).__name__}; expected a config.json's mapping")
    kind = fields.get("_class_name", CLASS)
    if kind != CLASS:
        raise Refusal(f"{name} is of a {kind}; expected the config.json of a {CLASS}")
    if "_class_name" not in fields and "num_attention_heads" not in fields:
        raise Refusal(
            f"{name} has neither _class_name nor num_attention_heads; expected the config.json of "
            f"a {CLASS}, which a checkpoint keeps under transformer/"
        )

    def number(key: str, place: dict = fields) -> int:
        value = place.get(key)
        if value is None:
            value = fields.get(key)
        if value is None:
            value = DEFAULTS[key]
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise Refusal(f"{name}: {key}={value!r}; expected a whole number from 1 to {LARGEST}")
        return value

    counts = ("num_attention_heads", "num_key_value_heads")
    generation = [number(key) for key in counts]
    heads = [Heads(*generation)]
    inner = fields.get("text_config")
    if isinstance(inner, dict):
        text = [number(key, inner) for key in counts]
        if text != generation:
            heads = [Heads(*text, "text"), Heads(*generation, "generation")]
    read = {
        key: default if fields.get(key) is None else fields[key]
        for key, default in DEFAULTS.items()
    }
    widths = WIDTHS
    for kind in ("action", "sound"):
        widths += (f"{kind}_dim",) if read[f"{kind}_gen"] else ()
    read |= {key: number(key) for key in widths}
    axes = fields.get("rope_axes_dim")
    if axes is None:
        scaling = fields.get("rope_scaling")
        axes = scaling.get("mrope_section") if isinstance(scaling, dict) else None
    if axes is not None and not (
        isinstance(axes, list) and all(type(width) is int for width in axes)
    ):
        raise Refusal(f"{name}: rope_axes_dim={axes!r}; expected three whole numbers")
    return Model(
        name,
        heads,
        number("head_dim"),
        number("num_hidden_layers"),
        number("latent_patch_size"),
        read,
        axes,
    )
