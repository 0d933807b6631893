# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m parity`: reads it, and hands one step's data to the next."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from cosmos3_requests import TYPES
from cosmos3_sizes import SIZES
from hostpath import ROOT
from make_command import make_command

from parity.judge import judge, line
from parity.launch import RunFailed
from parity.plan import DTYPE_BYTES, make_plan
from parity.record import describe
from parity.run import run
from parity.show import check_output, shown_path, write_report


def main(argv: list[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0 when every check passed, 1 when one failed, 2 when the run could not be made.
    """
    argv = sys.argv[1:] if argv is None else argv
    # A terminated driver ends its ranks and clears its scratch folder on the way out.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        args = parser().parse_args(argv)
        started = time.monotonic()
        check_output(args.out)
        plan = make_plan(args)
        scratch = Path(tempfile.mkdtemp(prefix=".parity-", dir=args.out.parent))
        try:
            results = run(plan, scratch)
            record = describe(plan, results, make_command("parity", argv), args.commit)
            record["checks"], record["errors"] = judge(results, record["settings"])
            record["cost"]["seconds"] = time.monotonic() - started
            write_report(record, args.out)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return _say(record, args.out)
    except (ValueError, RunFailed) as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("parity: interrupted; the previous report, if any, was left alone", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(record: dict, out: Path) -> int:
    for check in record["checks"]:
        print(line(check))
        if check["status"] != "PASS" and check["note"]:
            print(f"parity: {check['name']}: {check['note']}", file=sys.stderr)
    counts, cost = Counter(check["status"] for check in record["checks"]), record["cost"]
    print(
        f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped in "
        f"{cost['seconds']:.0f} s, at most {cost['peak_bytes'] / 2**30:.1f} GiB in memory; "
        f"see {shown_path(out / 'report.html')}"
    )
    return 1 if counts["FAIL"] else 0


def parser() -> argparse.ArgumentParser:
    """Returns the parser; what it yields is what make_plan() takes."""
    made = argparse.ArgumentParser(
        prog="parity",
        allow_abbrev=False,
        description="Compare Cosmos3's video transformer on several ranks with one rank, with and "
        "without the fix, and with diffusers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    layout = made.add_mutually_exclusive_group()
    layout.add_argument("--ranks", type=int, choices=(1, 2, 4, 8), help="over Ulysses (2)")
    layout.add_argument(
        "--layout",
        metavar="AXES",
        help="any of cfg=2, tp=N, ring=N, attn2d=ROWSxCOLUMNS and ulysses=N, with commas between",
    )
    layout.add_argument(
        "--config", type=Path, metavar="FILE", help="layout and backend of a VisualGen YAML"
    )
    add = made.add_argument
    add("--size", choices=tuple(SIZES), default="tiny", help="nano-4l and nano want a GPU")
    add("--video", metavar="T,H,W", help="frames, height and width of the latents (3,33,57)")
    add("--dtype", choices=tuple(DTYPE_BYTES), default="float32", help="of the model")
    add("--backend", choices=("VANILLA", "FA4"), help="attention backend; FA4 for ring and attn2d")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if enough")
    add(
        "--share-gpu",
        action="store_true",
        help="all ranks on one GPU; they exchange through gloo, since NCCL refuses that",
    )
    add(
        "--default-matmul",
        action="store_true",
        help="leave torch's own choice of matrix products in bfloat16 on GPUs, which rounds by the "
        "number of rows",
    )
    add("--steps", type=int, default=6, help="denoising steps")
    add("--seed", type=int, default=0, help="of weights and starting latents")
    add("--guidance", type=float, default=6.0, help="of classifier-free guidance")
    add("--fps", type=float, default=24.0, help="frame rate that positions are scaled by")
    prompts = made.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSON with "positive" and "negative"'
    )
    prompts.add_argument(
        "--prompt-tokens",
        metavar="N,M",
        help="random prompts of N (negative) and M (positive) tokens",
    )
    add(
        "--request",
        nargs="?",
        const="all",
        choices=(*TYPES, "all"),
        help="compare whole requests: their final latents and their frames (all)",
    )
    add("--graphs", action="store_true", help="with --request: answer from CUDA graphs")
    add("--checkpoint", type=Path, metavar="DIR", help="real weights in diffusers' format")
    add("--trtllm-dir", type=Path, metavar="DIR", help="run on this checkout's own code")
    add("--no-oracle", action="store_true", help="leave diffusers' transformer out")
    add(
        "--out",
        type=Path,
        default=ROOT / "build" / "parity",
        metavar="DIR",
        help="folder of the report; an earlier report there is replaced",
    )
    add("--commit", metavar="SHA", help="of this project, where git cannot tell")
    return made
