# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Which code a run imports: the fixed and the unfixed transformer."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


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

    def to_json(self) -> dict[str, Any]:
        """Returns what a worker needs."""
        return asdict(self)


def import_roots(settings) -> dict[str, Source]:
    """Returns the sources "fixed" and "unfixed" for these settings.

    Without a checkout both are the embedded host, which can run the old behaviour too. With one
    they are two module trees, as it is and with the patches applied; settings.checkout describes
    it afterwards.

    Raises:
        ValueError: The code asked for is not there.
    """
    import hostpath

    flash_attn = "auto" if settings.device == "cuda" else "cpu"
    roots = tuple(str(root) for root in hostpath.roots(flash_attn))
    if settings.trtllm_dir is not None:
        from parity.real import STAND_INS, prepare

        settings.checkout = prepare(settings.trtllm_dir)
        below = roots[roots.index(str(STAND_INS)) :]
        return {
            side: Source(text, (str(settings.checkout.stages[side]), *below), real=True)
            for side, text in (
                ("fixed", settings.checkout.fixed),
                ("unfixed", settings.checkout.unfixed),
            )
        }
    return {
        "fixed": Source(
            "embedded host with the overlay: whole text on every rank, lengths per sample",
            roots,
            {"text_kv": "exact"},
        ),
        "unfixed": Source(
            "embedded host as TensorRT-LLM was: text padded and sharded along the sequence",
            roots,
            {"text_kv": "padded"},
        ),
    }


def file_digest(path: Path | str) -> str:
    """Returns the sha256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def combined_digest(files: dict[str, str]) -> str:
    """Returns one sha256 over names and digests, in the order of names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def repository_state(given: str | None = None) -> dict[str, Any]:
    """Returns the commit of this project and whether tracked files were changed since.

    Args:
        given: The commit, where git cannot tell; taken as unmodified.
    """
    if given is not None:
        return {"commit": given, "modified": False}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": git("rev-parse", "HEAD") or "unknown",
        "modified": None if status is None else bool(status),
    }
