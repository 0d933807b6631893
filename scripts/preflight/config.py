# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the two blocks of a VisualGen YAML that decide the layout, strictly."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchset.report import Refusal

from .layout import RETURNS_LSE, SERVED_BY, TAKES_NO_LENGTHS, Finding, Sizes

_SIZES = ("cfg_size", "tp_size", "ulysses_size", "ring_size")
_MESH = ("attn2d_row_size", "attn2d_col_size")
PARALLEL_KEYS = (
    *_SIZES,
    "attn2d_size",
    *_MESH,
    "async_ulysses",
    "parallel_vae_size",
    "parallel_vae_split_dim",
)
ATTENTION_KEYS = ("backend", "quant_attention_config", "sparse_attention_config")
BACKENDS = (*RETURNS_LSE, *SERVED_BY, *TAKES_NO_LENGTHS)
# Far above any machine; it keeps what is computed from a number small.
LARGEST = 1 << 20
# Rows that the pipeline pads prompts to.
MAX_SEQUENCE_LENGTH = 4096


@dataclass
class Config:
    """What a configuration file asks for.

    Attributes:
        sizes: The parallel axes.
        backend: Name of the attention backend.
        model: The file's own `model`, or None.
        max_sequence_length: Rows that prompts are padded to.
        findings: What is wrong with the two blocks themselves; with an error among them, sizes and
            backend are not what the author meant.
    """

    sizes: Sizes = Sizes()
    backend: str = "VANILLA"
    model: str | None = None
    max_sequence_length: int = MAX_SEQUENCE_LENGTH
    findings: list[Finding] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether sizes and backend are what the author meant."""
        return all(finding.severity != "error" for finding in self.findings)


def read_config(path: Path) -> Config:
    """Reads a file.

    Raises:
        Refusal: It cannot be read as a YAML mapping, or PyYAML is missing.
    """
    return parse_config(_load(path), str(path))


def parse_config(tree: Any, source: str = "the configuration") -> Config:
    """Reads a loaded YAML.

    Args:
        tree: What the file holds.
        source: What to call it in messages.

    Raises:
        Refusal: It is not a mapping.
    """
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise Refusal(
            f"{source} holds {found}; expected a mapping with parallel_config and attention_config"
        )
    config = Config()
    if isinstance(tree.get("model"), str):
        config.model = tree["model"]
    _check_top(tree, config)
    _read_length(tree, config)
    parallel = _block(tree, "parallel_config", PARALLEL_KEYS, config)
    attention = _block(tree, "attention_config", ATTENTION_KEYS, config)
    _read_parallel(parallel, config)
    _read_attention(attention, config)
    return config


def _load(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise Refusal(
            "PyYAML is missing: install it with `python3 -m pip install pyyaml`, or run `make "
            "preflight CONFIG=...`, which installs what it needs"
        ) from None

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands twice, of which YAML would silently take the last."""

    def mapping(loader, node):
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return yaml.SafeLoader.construct_yaml_map(loader, node)

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.load(text, Loader)
    except OSError as error:
        raise Refusal(f"cannot read {path}: {error.strerror}; give a YAML file") from None
    except UnicodeDecodeError as error:
        raise Refusal(f"{path} is not UTF-8 text (byte {error.start}); give a YAML file") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise Refusal(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _error(config: Config, message: str) -> None:
    config.findings.append(Finding("error", "config", message))


def _warning(config: Config, message: str) -> None:
    config.findings.append(Finding("warning", "config", message))


def _did_you_mean(name: object, known) -> str:
    close = difflib.get_close_matches(str(name).lower(), [x.lower() for x in known], 1, 0.6)
    right = next((x for x in known if close and x.lower() == close[0]), None)
    return f"did you mean {right}?" if right else f"known: {', '.join(known)}."


def _check_top(tree: dict, config: Config) -> None:
    """Only what was meant to be one of the two blocks; the rest of the file is not ours."""
    blocks = ("parallel_config", "attention_config")
    for key in tree:
        if key in blocks:
            continue
        if key in PARALLEL_KEYS or key in ("backend", "attention_backend"):
            block = blocks[0] if key in PARALLEL_KEYS else blocks[1]
            _error(config, f"{key} stands at the top of the file; it belongs under {block}.")
        elif difflib.get_close_matches(str(key).lower(), blocks, 1, 0.8) or key in (
            "parallel",
            "attention",
        ):
            _error(config, f"unknown block {key}; {_did_you_mean(key, blocks)}")


def _block(tree: dict, name: str, known: tuple[str, ...], config: Config) -> dict:
    block = tree.get(name)
    if block is None:
        return {}
    if not isinstance(block, dict):
        _error(config, f"{name} is {block!r}; expected a mapping of {', '.join(known)}.")
        return {}
    for key in block:
        if key not in known:
            _error(config, f"unknown key {key} in {name}; {_did_you_mean(key, known)}")
    return block


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def _size(block: dict, key: str, config: Config) -> int:
    value = block.get(key, 1)
    if _whole(value):
        return value
    hint = ", without quotes" if isinstance(value, str) and value.isdecimal() else ""
    _error(config, f"{key}={value!r}; expected a whole number from 1 to {LARGEST}{hint}.")
    return 1


def _read_length(tree: dict, config: Config) -> None:
    blocks = [tree, *(value for value in tree.values() if isinstance(value, dict))]
    for block in blocks:
        if "max_sequence_length" in block:
            config.max_sequence_length = _size(block, "max_sequence_length", config)
            return


def _read_parallel(block: dict, config: Config) -> None:
    sizes = {key: _size(block, key, config) for key in _SIZES}
    mesh = [_size(block, key, config) for key in _MESH]
    pair = block.get("attn2d_size")
    if any(key in block for key in _MESH):
        _warning(
            config,
            f"{', '.join(key for key in _MESH if key in block)}: the mapping's names; a release "
            f"that reads its configuration strictly wants attn2d_size: {mesh}.",
        )
    if pair is not None:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(_whole, pair))):
            _error(
                config,
                f"attn2d_size={pair!r}; expected two whole numbers of at least 1, rows and "
                "columns, such as [2, 2].",
            )
        else:
            for key, size, other in zip(_MESH, mesh, pair):
                if key in block and size != other:
                    _error(config, f"{key}={size} against attn2d_size={list(pair)}; leave one out.")
            mesh = list(pair)
    config.sizes = Sizes(**sizes, attn2d_row_size=mesh[0], attn2d_col_size=mesh[1])
    if sizes["cfg_size"] > 2:
        _error(
            config,
            f"cfg_size={sizes['cfg_size']}; guidance has two branches, so expected 1 or 2.",
        )
    vae = _size(block, "parallel_vae_size", config)
    if vae > config.sizes.processes:
        _error(
            config,
            f"parallel_vae_size={vae} is more than the layout's {config.sizes.processes} ranks; "
            f"set it to {config.sizes.processes} or less.",
        )
    split = block.get("parallel_vae_split_dim", "width")
    if split not in ("width", "height"):
        _error(config, f"parallel_vae_split_dim={split!r}; expected 'width' or 'height'.")
    overlap = block.get("async_ulysses", False)
    if not isinstance(overlap, bool):
        _error(config, f"async_ulysses={overlap!r}; expected true or false.")
    elif overlap and sizes["ulysses_size"] == 1:
        _error(config, "async_ulysses=true needs ulysses_size of at least 2; it is 1.")
    elif overlap and sizes["ring_size"] > 1:
        _error(config, "async_ulysses=true does not go with ring_size > 1; set one of them back.")
    elif overlap:
        _warning(config, "async_ulysses=true is made for other models; leave it out for Cosmos3.")


def _read_attention(block: dict, config: Config) -> None:
    backend = block.get("backend", "VANILLA")
    if backend in BACKENDS:
        config.backend = backend
    else:
        _error(
            config, f"attention backend {backend!r} is unknown; {_did_you_mean(backend, BACKENDS)}"
        )
    for key in ("quant_attention_config", "sparse_attention_config"):
        if block.get(key) is None or backend not in BACKENDS:
            continue
        if backend in RETURNS_LSE:
            _error(config, f"{key} with backend {backend}: only TRTLLM and CUTEDSL take it.")
        elif backend in SERVED_BY:
            _warning(
                config,
                f"{key}: Cosmos3's generation attention is served by "
                f"{SERVED_BY[backend]} instead of {backend}, and does without it.",
            )
