# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What a parallel layout of Cosmos3 would fail on: plain arithmetic on plain values.

A finding is an error (the model cannot be built or run), a warning (it runs, but not as one would
want) or a note.

Fields: P sequence-parallel size, H query heads, H_kv K/V heads, S rows of the generation sequence
(control, video, audio and action), D head_dim.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Iterator, Sequence

# Whether a backend returns the LSE that merging partial results needs. What is not named here says
# so itself, by support_lse(), when the model is built.
RETURNS_LSE = {"VANILLA": False, "FA4": True}
# TensorRT-LLM's own kernels do not serve Cosmos3's generation attention.
SERVED_BY = {"TRTLLM": "VANILLA"}


@dataclass(frozen=True)
class Finding:
    """One thing to know about a layout.

    Attributes:
        severity: "error", "warning" or "note".
        name: The check that found it.
        message: The value, what was expected and what would work.
    """

    severity: str
    name: str
    message: str


@dataclass(frozen=True)
class Sizes:
    """Sizes of the parallel axes; 1 where an axis is not used."""

    cfg_size: int = 1
    tp_size: int = 1
    ring_size: int = 1
    attn2d_row_size: int = 1
    attn2d_col_size: int = 1
    ulysses_size: int = 1

    @property
    def processes(self) -> int:
        """Ranks that the layout takes."""
        return math.prod(asdict(self).values())

    @property
    def mesh_size(self) -> int:
        """Ranks of the Attention2D mesh."""
        return self.attn2d_row_size * self.attn2d_col_size

    @property
    def sequence_size(self) -> int:
        """P: ranks that share one sequence."""
        return self.ring_size * self.mesh_size * self.ulysses_size

    @property
    def head_ways(self) -> int:
        """Parts that heads are cut into: one for each rank of TP x Ulysses."""
        return self.tp_size * self.ulysses_size

    def __str__(self) -> str:
        used = [f"{name}={size}" for name, size in asdict(self).items() if size != 1]
        return " ".join(used) or "one rank"


@dataclass(frozen=True)
class Heads:
    """Head counts over all ranks.

    Attributes:
        query: Query heads.
        kv: Key/value heads.
        tower: "text" or "generation"; empty where both towers have these counts.
    """

    query: int
    kv: int
    tower: str = ""

    def named(self) -> dict[str, int]:
        """The counts by the names that a config.json gives them."""
        prefix = f"{self.tower} tower " if self.tower else ""
        return {
            f"{prefix}num_attention_heads": self.query,
            f"{prefix}num_key_value_heads": self.kv,
        }


def check_sizes(sizes: Sizes, world_size: int | None = None) -> Iterator[Finding]:
    """Sizes that are whole numbers, their product, and axes that exclude each other."""
    wrong = [
        f"{name}={size!r}"
        for name, size in asdict(sizes).items()
        if isinstance(size, bool) or not isinstance(size, int) or size < 1
    ]
    if wrong:
        yield Finding(
            "error", "sizes", f"{', '.join(wrong)}; expected whole numbers of at least 1."
        )
        return
    if world_size is not None and sizes.processes != world_size:
        yield Finding(
            "error",
            "world-size",
            f"{sizes} multiplies to {sizes.processes}, but there are {world_size} processes; start "
            f"{sizes.processes} of them, or choose sizes whose product is {world_size}.",
        )
    if sizes.ring_size > 1 and sizes.mesh_size > 1:
        yield Finding(
            "error",
            "mix",
            f"ring_size={sizes.ring_size} with an Attention2D mesh of {sizes.attn2d_row_size} x "
            f"{sizes.attn2d_col_size}: they exclude each other; set one of them to 1.",
        )


def check_heads(sizes: Sizes, heads: Sequence[Heads]) -> Iterator[Finding]:
    """Head counts of every tower against TP x Ulysses, which gives each rank whole heads."""
    counts: dict[str, int] = {}
    for tower in heads:
        counts.update(tower.named())
    wrong = [
        f"{name}={count!r}"
        for name, count in counts.items()
        if isinstance(count, bool) or not isinstance(count, int) or count < 1
    ]
    if wrong:
        yield Finding(
            "error", "heads", f"{', '.join(wrong)}; expected whole numbers of at least 1."
        )
        return
    failing = [f"{name}={count}" for name, count in counts.items() if count % sizes.head_ways]
    if failing:
        common = math.gcd(*counts.values())
        works = [size for size in range(1, common + 1) if common % size == 0]
        yield Finding(
            "error",
            "heads",
            f"tp_size={sizes.tp_size} x ulysses_size={sizes.ulysses_size} = {sizes.head_ways} does "
            f"not divide {', '.join(failing)}; tp_size x ulysses_size must be one of {works}.",
        )
    for tower in heads:
        if tower.query % tower.kv:
            query, kv = (f"{name}={count}" for name, count in tower.named().items())
            yield Finding(
                "error",
                "heads",
                f"{query} is not a multiple of {kv}: each key head serves a whole group of query "
                "heads.",
            )
    if len({tower.kv for tower in heads}) > 1:
        found = [f"{name}={count}" for name, count in counts.items() if "key_value" in name]
        yield Finding(
            "error",
            "heads",
            f"{', '.join(found)}: the text's keys stand behind the video's in one tensor, so the "
            "towers must have the same number of key/value heads.",
        )


def check_backend(sizes: Sizes, backend: str) -> Iterator[Finding]:
    """Whether the backend returns an LSE where the layout merges partial results.

    Any backend is exact without one: FA4 and VANILLA serve a batch in one launch, every other one
    serves the samples of each length in a launch of their own.
    """
    served = SERVED_BY.get(backend.upper(), backend.upper())
    wrapper = "Attention2D" if sizes.mesh_size > 1 else "Ring attention"
    merges = sizes.mesh_size > 1 or sizes.ring_size > 1
    if merges and RETURNS_LSE.get(served) is False:
        alias = "" if served == backend.upper() else f", which serves {backend} here,"
        yield Finding(
            "error",
            "backend",
            f"{wrapper} merges partial results and needs a backend that returns its LSE, and "
            f"{served}{alias} does not; choose FA4, or Ulysses instead.",
        )
    elif merges and served not in RETURNS_LSE:
        yield Finding(
            "warning",
            "backend",
            f"{wrapper} needs a backend that returns its LSE; whether {backend} does, its "
            "support_lse() says when the model is built. FA4 does.",
        )
    if served not in RETURNS_LSE:
        yield Finding(
            "note",
            "backend",
            f"attention backend {backend} takes no key lengths: one launch per distinct length of "
            "the prompts in a batch, each exact.",
        )


def gpu_number(gpu: str) -> int:
    """Turns "sm90", "sm_103a" or "90" into 90 or 103.

    Raises:
        ValueError: Another form.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d{2,3})[af]?", gpu.strip().lower())
    if match is None:
        raise ValueError(f"GPU architecture {gpu!r}; expected the form sm90.")
    return int(match.group(1))


def _beta(flash_attn: str) -> float:
    """Number of a 4.0.0 beta; what follows the betas counts as later, anything else as NaN."""
    match = re.match(r"4\.0\.0b(\d+)", flash_attn)
    if match:
        return int(match.group(1))
    return math.inf if re.match(r"4\.\d+\.\d+($|[+.])", flash_attn) else math.nan


def _fa4_architecture(gpu: int, grouped: bool, flash_attn: str) -> tuple[str, str]:
    """What FA4 with key lengths lacks on an architecture: severity and reason, "" for nothing."""
    beta = _beta(flash_attn)
    untried = ("warning", "nobody has tried this release there")
    compiled = ("note", "it compiles, but nobody has run it there")
    if gpu // 10 not in (8, 9, 10, 11, 12):
        return "error", "FlashAttention-4 has kernels for SM8x to SM12x only"
    if gpu == 80:
        if beta == 19 and grouped:
            return "error", "its kernel for grouped-query attention does not compile"
        return compiled if beta == 19 or beta >= 29 else untried
    if gpu == 90:
        if beta == 19:
            return "", ""
        return compiled if beta >= 29 else untried
    if gpu in (100, 103):
        return compiled if beta == 19 or beta >= 29 else untried
    if gpu == 120:
        if beta <= 19:
            return "error", "none of its kernels compiles there"
        return compiled if beta >= 21 else untried
    return "warning", "nobody has tried this architecture"


def _fa4_head_dim(gpu: int, head_dim: int) -> tuple[str, str]:
    """What FA4 with key lengths says to a head_dim: severity and reason, "" for nothing."""
    family, aligned = gpu // 10, head_dim % 8 == 0
    if family == 9 and not (aligned and 8 <= head_dim <= 256):
        return "error", "it takes multiples of 8 from 8 to 256"
    if family in (10, 11) and not (aligned and 8 <= head_dim <= 128):
        return "error", "with key lengths it takes multiples of 8 from 8 to 128"
    if family in (8, 12) and head_dim != 128:
        return "warning", "nobody has tried other sizes than 128 there"
    return "", ""


def check_kernel(
    backend: str,
    gpu: str,
    head_dim: int = 128,
    grouped: bool = True,
    flash_attn: str | None = None,
) -> Iterator[Finding]:
    """Whether the backend has a kernel for a GPU that takes key lengths.

    Decided by what is known to be missing. An architecture that nobody has tried is a warning:
    neither trusted nor refused.

    Args:
        backend: Name of the attention backend.
        gpu: Like "sm90".
        head_dim: D.
        grouped: Whether several query heads share a K/V head.
        flash_attn: Version of flash-attn-4; None where it is not installed, which FA4 itself
            refuses, or not known.

    Raises:
        ValueError: `gpu` is not of the form sm90.
    """
    number = gpu_number(gpu)
    served = SERVED_BY.get(backend.upper(), backend.upper())
    if served == "FA4" and flash_attn is not None:
        severity, reason = _fa4_architecture(number, grouped, flash_attn)
        if severity:
            yield Finding(
                severity,
                "kernel",
                f"FA4 (flash-attn-4 {flash_attn}) on sm{number}: {reason}; "
                + (
                    "use VANILLA with Ulysses"
                    + ("." if number < 80 else ", or flash-attn-4 4.0.0b29 or later.")
                    if severity == "error"
                    else "compare one small attention with VANILLA before you trust it."
                ),
            )
        severity, reason = _fa4_head_dim(number, head_dim)
        if severity:
            yield Finding(
                severity, "kernel", f"FA4 on sm{number} with head_dim={head_dim}: {reason}."
            )
    if served == "VANILLA":
        if number < 80 or head_dim not in (64, 128):
            yield Finding(
                "note",
                "kernel",
                f"VANILLA on sm{number} with head_dim={head_dim} masks the text's padding, which "
                "costs about a third of a launch at video sizes; head_dim 64 or 128 on sm80 and "
                "later does not.",
            )
        if grouped and number // 10 in (8, 12):
            yield Finding(
                "note",
                "kernel",
                f"VANILLA on sm{number}: where PyTorch has no fused kernel for grouped-query "
                "attention with a mask, it holds all scores of a launch in memory.",
            )


def check_head_dim(head_dim: int) -> Iterator[Finding]:
    """Whether heads can be rotated: RoPE turns the two halves of a head into each other."""
    if isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2:
        yield Finding(
            "error",
            "head-dim",
            f"head_dim={head_dim!r}; expected an even number of at least 2, such as 128.",
        )


def ranks_with_rows(sizes: Sizes, video_rows: int) -> int:
    """How many of the P ranks get valid rows: equal blocks of the sequence, padded at its end."""
    block = -(-video_rows // sizes.sequence_size)
    return -(-video_rows // block)


def check_video(sizes: Sizes, video_rows: int) -> Iterator[Finding]:
    """A sequence without rows, or too short for every rank to get some."""
    if video_rows < 1:
        yield Finding(
            "error", "video-rows", f"video_rows={video_rows}; the sequence needs at least one row."
        )
        return
    used = ranks_with_rows(sizes, video_rows)
    if used < sizes.sequence_size:
        yield Finding(
            "warning",
            "video-rows",
            f"{video_rows} rows leave {sizes.sequence_size - used} of {sizes.sequence_size} ranks "
            f"without any: the result is right, but they only wait; {used} ranks all get rows.",
        )


def most_tokens(max_sequence_length: int) -> int:
    """Tokens that the pipeline keeps of a prompt; two special ones follow them."""
    return max_sequence_length - 2


def check_prompts(prompt_tokens: Sequence[int], max_sequence_length: int) -> Iterator[Finding]:
    """Prompts without a token, and those that the pipeline cuts."""
    most = most_tokens(max_sequence_length)
    for tokens in prompt_tokens:
        if tokens < 1:
            yield Finding(
                "error",
                "prompt",
                f"a prompt of {tokens} tokens; expected at least 1: a chat template stands around "
                "every prompt, so that an empty one has about ten. Count with the template.",
            )
        elif tokens > most:
            yield Finding(
                "warning",
                "prompt",
                f"a prompt of {tokens} tokens: the pipeline cuts it to max_sequence_length - 2 = "
                f"{most}, so {most} remain and the last {tokens - most} are lost.",
            )


def check_layout(
    sizes: Sizes,
    heads: Sequence[Heads],
    *,
    world_size: int | None = None,
    backend: str | None = None,
    head_dim: int | None = None,
    gpu: str | None = None,
    flash_attn: str | None = None,
    video_rows: int | None = None,
    prompt_tokens: Sequence[int] = (),
    max_sequence_length: int | None = None,
) -> list[Finding]:
    """Runs every check whose inputs are given.

    Args:
        sizes: The parallel axes.
        heads: Head counts, of each tower where they differ.
        world_size: Processes that there are.
        backend: Name of the attention backend.
        head_dim: D.
        gpu: Architecture such as "sm90".
        flash_attn: Version of flash-attn-4.
        video_rows: S, unpadded.
        prompt_tokens: Length of each prompt.
        max_sequence_length: Rows that the text tower pads prompts to.

    Returns:
        Findings, errors first; empty when nothing speaks against the layout.

    Raises:
        ValueError: `gpu` is not of the form sm90.
    """
    found = list(check_sizes(sizes, world_size))
    if any(finding.name == "sizes" for finding in found):
        return found
    found += check_heads(sizes, heads)
    if backend is not None:
        found += check_backend(sizes, backend)
    if head_dim is not None:
        found += check_head_dim(head_dim)
    if backend is not None and gpu is not None and not any(x.name == "head-dim" for x in found):
        grouped = any(tower.query != tower.kv for tower in heads)
        found += check_kernel(backend, gpu, head_dim or 128, grouped, flash_attn)
    if video_rows is not None:
        found += check_video(sizes, video_rows)
    if max_sequence_length is not None:
        found += check_prompts(prompt_tokens, max_sequence_length)
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.severity))
