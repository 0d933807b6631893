# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Which code a run imports: the fixed and the unfixed transformer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostpath

from parity import real


@dataclass(frozen=True)
class Source:
    """The code under test in one run.

    Attributes:
        description: One line for the report.
        roots: Import roots, first searched first.
        transformer_kwargs: Passed to Cosmos3VFMTransformer beside its configuration.
        real: The transformer and what it imports are a checkout's own files.
    """

    description: str
    roots: tuple[str, ...]
    transformer_kwargs: dict[str, Any] = field(default_factory=dict)
    real: bool = False


def find_sources(
    device: str, trtllm_dir: Path | None, requests: bool = False
) -> tuple[dict[str, Source], dict[str, Any] | None]:
    """Returns the sources "fixed" and "unfixed", and what a result file says about the checkout.

    Without a checkout both are the embedded host, which can run the old behaviour too. With one
    they are two module trees, as it is and with the patches applied.

    Args:
        device: "cpu" or "cuda"; the former takes the plain-torch double of FA4.
        trtllm_dir: The checkout, or None.
        requests: Whether its pipeline runs too.

    Raises:
        ValueError: The code asked for is not there.
    """
    roots = tuple(str(root) for root in hostpath.roots("auto" if device == "cuda" else "cpu"))
    if trtllm_dir is None:
        host = {
            "fixed": ("exact", "with the overlay: whole text on every rank, lengths per sample"),
            "unfixed": ("padded", "as TensorRT-LLM was: text padded and sharded"),
        }
        return {
            side: Source(f"embedded host {text}", roots, {"text_kv": kind})
            for side, (kind, text) in host.items()
        }, None
    checkout = real.prepare(trtllm_dir, pipeline=requests)
    below = roots[roots.index(str(real.STAND_INS)) :]
    return {
        side: Source(getattr(checkout, side), (str(checkout.stages[side]), *below), real=True)
        for side in ("fixed", "unfixed")
    }, checkout.facts()
