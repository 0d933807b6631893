# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a VisualGen YAML against the table of its fields, strictly."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

from patchset.report import Refusal

from .layout import Finding, Sizes
from .schema import ARGS, NOT_JUDGED, Field

# Rows that the pipeline pads prompts to.
MAX_SEQUENCE_LENGTH = 4096


@dataclass
class Config:
    """What a configuration file asks for.

    Attributes:
        values: Every field, defaults filled in; a block that null turns off is None.
        given: Top-level fields that the file names.
        sizes: The parallel axes.
        findings: What VisualGen would refuse the file itself for; with an error among them, the
            values are not what the author meant.
    """

    values: dict[str, Any]
    given: tuple[str, ...] = ()
    sizes: Sizes = Sizes()
    findings: list[Finding] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether the values are what the author meant."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def backend(self) -> str:
        """Name of the attention backend."""
        return self.values["attention_config"]["backend"]


def read_config(path: Path) -> Config:
    """Reads a file.

    Raises:
        Refusal: It cannot be read as a YAML mapping, or PyYAML is missing.
    """
    return parse_config(_load(path), str(path))


def parse_config(tree: Any, source: str = "the configuration") -> Config:
    """Reads a loaded YAML; an empty one asks for all defaults.

    Args:
        tree: What the file holds.
        source: What to call it in messages.

    Raises:
        Refusal: It is not a mapping.
    """
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise Refusal(
            f"{source} holds a {type(tree).__name__}; expected a mapping of VisualGenArgs' fields"
        )
    problems: list[str] = []
    values = _read(ARGS, tree, "", problems)
    config = Config(values, tuple(key for key in tree if key in ARGS.inner))
    config.findings = [Finding("error", "config", problem) for problem in problems]
    if config.usable:
        parallel = values["parallel_config"]
        axes = {key: parallel[key] for key in ("cfg_size", "tp_size", "ring_size", "ulysses_size")}
        rows, columns = parallel["attn2d_size"]
        config.sizes = Sizes(**axes, attn2d_row_size=rows, attn2d_col_size=columns)
    unjudged = [key for key in config.given if key in NOT_JUDGED]
    if unjudged:
        config.findings.append(
            Finding("note", "config", f"not judged beyond their types: {', '.join(unjudged)}.")
        )
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


def _did_you_mean(name: object, known) -> str:
    close = difflib.get_close_matches(str(name).lower(), [x.lower() for x in known], 1, 0.6)
    right = next((x for x in known if close and x.lower() == close[0]), None)
    return f"did you mean {right}?" if right else f"known: {', '.join(known)}."


def _homes(name: object, fields: dict[str, Field] = ARGS.inner, place: str = "") -> Iterator[str]:
    """Blocks that have a field of that name."""
    for key, spec in fields.items():
        if key == name and place:
            yield place
        if spec.kind in ("block", "union"):
            variants = [spec.inner] if spec.kind == "block" else spec.inner.values()
            for variant in variants:
                yield from _homes(name, variant, f"{place}.{key}" if place else key)


def _unknown(name: object, known, place: str) -> str:
    homes = [home for home in dict.fromkeys(_homes(name)) if home != place]
    hint = f"it belongs under {' or '.join(homes)}." if homes else _did_you_mean(name, known)
    return f"unknown key {name} {f'in {place}' if place else 'at the top of the file'}; {hint}"


def _read(spec: Field, value: Any, place: str, problems: list[str]) -> Any:
    """Checks one value, and returns it with the defaults of what it leaves out."""
    if value is None and spec.null:
        return None
    if spec.kind in ("block", "union"):
        return _read_block(spec, value, place, problems)
    if spec.kind == "choice":
        if value not in spec.choices:
            problems.append(f"{place}={value!r} is unknown; {_did_you_mean(value, spec.choices)}")
        return value
    expected = _expected(spec, value)
    if expected:
        problems.append(f"{place}={value!r}; expected {expected}.")
        return spec.default
    if spec.kind in ("list", "pair"):
        return [_read(spec.inner, item, f"{place}[{i}]", problems) for i, item in enumerate(value)]
    return value


def _read_block(spec: Field, value: Any, place: str, problems: list[str]) -> dict[str, Any]:
    fields = spec.inner
    if not isinstance(value, dict):
        problems.append(f"{place} is {value!r}; expected a mapping of {', '.join(fields)}.")
        return {}
    found = {}
    if spec.kind == "union":
        tag = value.get(spec.tag)
        if not isinstance(tag, str) or tag not in spec.inner:
            problems.append(f"{place}.{spec.tag}={tag!r}; {_did_you_mean(tag, spec.inner)}")
            return {}
        fields, found = spec.inner[tag], {spec.tag: tag}
    for key in value:
        if key not in fields and key != spec.tag:
            problems.append(_unknown(key, tuple(fields), place))
    for key, inner in fields.items():
        where = f"{place}.{key}" if place else key
        if key in value:
            found[key] = _read(inner, value[key], where, problems)
        elif inner.kind == "block" and not inner.null:
            found[key] = _read(inner, {}, where, problems)
        elif inner.default is None and not inner.null:
            problems.append(f"{where} is missing; expected {_expected(inner, None)}.")
        else:
            found[key] = inner.default
    return found


def _expected(spec: Field, value: Any) -> str:
    """What a value that is no block should have been; empty where it is right."""
    if spec.kind == "whole":
        right = isinstance(value, int) and not isinstance(value, bool)
        hint = ", without quotes" if isinstance(value, str) and value.isdecimal() else ""
        return "" if right and _within(spec, value) else f"a whole number{_bounds(spec)}{hint}"
    if spec.kind == "real":
        right = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if right and _within(spec, value) else f"a number{_bounds(spec)}"
    if spec.kind in ("list", "text"):
        kind, words = (str, "text") if spec.kind == "text" else ((list, tuple), "a list")
        words += " that is not empty" if spec.low else ""
        return "" if isinstance(value, kind) and len(value) >= (spec.low or 0) else words
    if spec.kind == "pair":
        right = isinstance(value, (list, tuple)) and len(value) == 2
        return "" if right else "two whole numbers, such as [2, 2]"
    if spec.kind == "free" and isinstance(spec.default, dict):
        return "" if isinstance(value, dict) else "a mapping"
    return "" if spec.kind == "free" or isinstance(value, bool) else "true or false"


def _within(spec: Field, value: float) -> bool:
    if spec.low is not None and (value <= spec.low if spec.above else value < spec.low):
        return False
    return value == value and (spec.high is None or value <= spec.high)


def _bounds(spec: Field) -> str:
    low = "" if spec.low is None else f" {'above' if spec.above else 'from'} {spec.low}"
    return low if spec.high is None else f"{low} {'to' if low else 'up to'} {spec.high}"
