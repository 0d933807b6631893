# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix products in 16 bits that do not depend on the number of rows, and a probe of whether.

A rank of several multiplies some of a sequence's rows. Its results are one rank's to the last bit
only if a row of a product is the same whatever rows it is multiplied with. By default cuBLAS adds
in another order where rows are few (split-K). No library promises more, so it is looked at.

`python -m row_products` (`make probe`) looks for a model and prints one line for each layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from cosmos3_sizes import MODELS

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Rows of small images up to 480p videos.
ROWS = (16, 49, 256, 1000, 1023, 1024, 4096, 37440)
# What a table of times is taken at: launches alone cost as much below.
TIMED_ROWS = 1024
SETTINGS = (
    'torch.backends.cuda.preferred_blas_library("cublaslt")',
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)",
)


def set_invariant() -> None:
    """Has this process multiply 16-bit matrices on a GPU by cuBLASLt, without split-K.

    Raises:
        ValueError: torch is older than 2.10.
    """
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"torch {torch.__version__} cannot forbid split-K ({error}); use torch 2.10 or newer, "
            "or --default-matmul."
        ) from error


def set_default() -> None:
    """Has this process multiply as torch does by itself."""
    torch.backends.cuda.preferred_blas_library("default")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


@contextmanager
def products(ours: bool, device: str) -> Iterator[None]:
    """Within it, set_invariant()'s matrix products or torch's own; ours again behind it."""
    if device == "cuda" and not ours:
        set_default()
    elif device == "cuda":
        set_invariant()
    yield
    if device == "cuda":
        set_invariant()


def shapes(config: dict[str, Any], tp: int = 1) -> dict[str, tuple[int, int]]:
    """Returns (outputs, inputs) of a generation layer's linear layers on one rank of `tp`.

    Only these see a part of the rows: patches are embedded before the sequence is split, and
    projected back when it is whole again.

    Args:
        config: Fields of the diffusers config.json.
        tp: Tensor-parallel ranks, which have to divide heads and widths.

    Raises:
        ValueError: They do not.
    """
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    if any(count % tp for count in (heads, kv, inner)):
        raise ValueError(
            f"--tp {tp} does not divide {heads} heads, {kv} key/value heads and {inner} inner "
            "features; use 1, 2 or 4."
        )
    dim = config["head_dim"]
    gated = config.get("hidden_act", "silu") == "silu"
    return {
        "qkv": ((heads + 2 * kv) * dim // tp, hidden),
        "out": (hidden, heads * dim // tp),
        "gate-up" if gated else "up": ((2 if gated else 1) * inner // tp, hidden),
        "down": (hidden, inner // tp),
    }


def row_independent(
    shape: tuple[int, int],
    prompts: int,
    rows: int,
    ranks: int,
    device: torch.device | str,
    branches: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    linear: Linear = torch.nn.functional.linear,
) -> bool:
    """Whether each rank's rows come out of a linear layer as they do among all rows, bit for bit.

    Args:
        shape: (outputs, inputs) of the weight.
        prompts: B.
        rows: S of the whole sequence, which is zero-padded to a multiple of the ranks.
        ranks: P, that share the rows.
        device: Where to multiply.
        branches: Guidance branches, that share the prompts.
        dtype: Of both matrices.
        linear: Takes [B, S, inputs] and the weight.
    """
    generator = torch.Generator(device).manual_seed(0)
    make = {"generator": generator, "device": device, "dtype": torch.float32}
    weight = (torch.randn(shape, **make) * shape[1] ** -0.5).to(dtype)
    x = torch.randn(prompts, rows, shape[1], **make).to(dtype)
    whole = linear(x, weight)
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % ranks))
    share, each = padded.shape[1] // ranks, prompts // branches
    for first in range(0, prompts, each):
        for row in range(0, rows, share):
            part = padded[first : first + each, row : row + share].contiguous()
            expected = whole[first : first + each, row : row + share]
            if not torch.equal(linear(part, weight)[:, : expected.shape[1]], expected):
                return False
    return True


def uneven(
    config: dict[str, Any],
    requests: Iterable[tuple[int, int, int, int]],
    device: torch.device | str,
    tp: int = 1,
    **options: Any,
) -> list[str]:
    """Returns the layers that depend on the number of rows, as "qkv 6144x4096 at 256 rows".

    Args:
        config: Fields of the diffusers config.json.
        requests: (prompts, rows, ranks that share rows, branches that share prompts).
        device: Where to multiply.
        tp: Tensor-parallel ranks.
        **options: dtype and linear of row_independent().
    """
    return [
        f"{name} {shape[0]}x{shape[1]} at {rows} rows"
        for name, shape in shapes(config, tp).items()
        for prompts, rows, ranks, branches in requests
        if not row_independent(shape, prompts, rows, ranks, device, branches, **options)
    ]


def main(argv: list[str] | None = None) -> int:
    """Prints one line for each linear layer.

    Returns:
        0 where every layer is the same for any number of rows, 1 where one is not, 2 without GPU.
    """
    parser = argparse.ArgumentParser(prog="probe", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", choices=(*MODELS, "all"), default="all")
    add("--tp", type=int, choices=(1, 2, 4), help="tensor-parallel ranks; default: all three")
    add("--ranks", type=int, choices=(2, 4, 8), default=2, help="that share the sequence")
    add("--rows", default=",".join(map(str, ROWS)), help="of the video, with commas between")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows the command")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print(
            "probe: no GPU is here; run it where the model runs, or --device cpu", file=sys.stderr
        )
        return 2
    try:
        rows = [int(count) for count in args.rows.split(",")]
        if min(rows) < 1:
            raise ValueError(f"--rows {args.rows}: expected whole numbers of at least 1.")
    except ValueError as error:
        print(f"probe: {error}", file=sys.stderr)
        return 2
    if args.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    counts = {True: 0, False: 0}
    for model in MODELS if args.model == "all" else (args.model,):
        for tp in (args.tp,) if args.tp else (1, 2, 4):
            for name, shape in shapes(MODELS[model], tp).items():
                counts[_line(f"{model}/tp{tp}/{name}", shape, rows, args)] += 1
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


def _line(name: str, shape: tuple[int, int], rows: list[int], args) -> bool:
    from bench.timing import time_variants

    x = torch.randn(2, TIMED_ROWS, shape[1], device=args.device, dtype=torch.bfloat16)
    weight = torch.randn(shape, device=args.device, dtype=torch.bfloat16)
    run = {"": lambda number: torch.nn.functional.linear(x, weight)}
    differ, ms = {}, {}
    for ours in (True, False):
        with products(ours, args.device):
            differ[ours] = [
                n for n in rows if not row_independent(shape, 2, n, args.ranks, args.device)
            ]
            times = time_variants(run, args.device, repeats=5, sample_ms=2.0)
            ms[ours] = times[""]["median_ms"]
    shown = {ours: f"{len(found)} {found or ''}".strip() for ours, found in differ.items()}
    print(
        f"{'FAIL' if differ[True] else 'PASS'} {name}-{shape[0]}x{shape[1]} {shown[True]} <=0 "
        f"row counts that differ; by torch's default {shown[False]}; {ms[True]:.3f} ms at "
        f"{TIMED_ROWS} rows, by default {ms[False]:.3f} ms",
        flush=True,
    )
    return not differ[True]


if __name__ == "__main__":
    sys.exit(main())
