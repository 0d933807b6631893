# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Command line: `python -m bench`, with scripts/ on the import path."""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path

import fa4
import hostpath
from make_command import make_command
from provenance import commit, versions

PARTS = ("attention", "step", "request")


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line; a misuse exits with status 2."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--backends", default="auto", help="FA4,VANILLA; auto takes what runs")
    parser.add_argument("--sizes", default="", help="models of steps and requests; default: nano")
    parser.add_argument("--video-rows", default="", help="of all parts; default: all")
    parser.add_argument("--heads", default="", help="of the attention part, such as 16/4")
    parser.add_argument("--ranks", type=int, default=2, help="of steps and requests; 1 is allowed")
    parser.add_argument("--repeats", type=int, default=9, help="samples of each variant")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--commit", default="", help="of this project, where git cannot tell")
    args = parser.parse_args(argv)
    args.parts = args.parts.split(",")
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"--parts {','.join(sorted(unknown))}: expected some of {','.join(PARTS)}")
    if args.repeats < 2:
        parser.error(f"--repeats {args.repeats}: a spread needs at least 2")
    if not args.out.parent.is_dir() and args.out.parent != Path("build"):
        parser.error(f"--out {args.out}: its folder does not exist")
    return args


def main(argv: list[str]) -> int:
    """Runs the benchmark; returns 0 if all limits hold, 1 if one does not, 2 if it cannot run."""
    args = parse(argv)
    hostpath.activate()
    import torch

    from . import attention, limits, request, step
    from .models import VIDEOS

    cuda = torch.cuda.is_available()
    device = args.device if args.device != "auto" else "cuda" if cuda else "cpu"
    if device == "cuda" and not cuda:
        print("--device cuda: no CUDA device is here; use --device cpu", file=sys.stderr)
        return 2
    if (
        device == "cuda"
        and set(args.parts) != {"attention"}
        and torch.cuda.device_count() < args.ranks
    ):
        print(
            f"--ranks {args.ranks}: {torch.cuda.device_count()} GPUs are here; use fewer ranks or "
            "--parts attention",
            file=sys.stderr,
        )
        return 2
    missing = fa4.problem() if device == "cuda" and args.backends != "VANILLA" else None
    backends = args.backends.split(",") if args.backends != "auto" else ["FA4", "VANILLA"]
    if args.backends == "auto" and (missing or device == "cpu"):
        backends.remove("FA4")
    if missing and "FA4" in backends:
        print(f"--backends {args.backends}: {missing}, or use VANILLA", file=sys.stderr)
        return 2
    small = device == "cpu"
    rows = [int(x) for x in args.video_rows.split(",") if x]
    dtype = torch.float32 if small else torch.bfloat16
    if set(args.parts) != {"attention"} and set(rows) - set(VIDEOS):
        print(
            f"--video-rows {args.video_rows}: expected some of {','.join(map(str, VIDEOS))} for "
            "steps and requests",
            file=sys.stderr,
        )
        return 2

    def say(text):
        print(text, file=sys.stderr, flush=True)

    records = {part: [] for part in args.parts}
    if "attention" in args.parts:
        heads = [tuple(map(int, x.split("/"))) for x in args.heads.split(",") if x]
        records["attention"] = attention.run(
            backends=backends,
            video_rows=rows or ((256,) if small else attention.VIDEO_ROWS),
            lengths=((30, 70),) if small else attention.LENGTHS,
            heads=heads or (((4, 2),) if small else attention.HEADS),
            dtype=dtype, device=device, repeats=args.repeats, progress=say,
        )  # fmt: skip
    sizes = (args.sizes or ("tiny" if small else "nano")).split(",")
    cases = itertools.product(sizes, backends, rows or ([16] if small else [1024, 37440]))
    for size, backend, count in cases:
        case = {
            "size": size, "backend": backend, "video_rows": count, "device": device,
            "dtype": str(dtype).removeprefix("torch."), "repeats": args.repeats,
            "text_rows": 1024 if small else 4096,
        }  # fmt: skip
        for part, module in (("step", step), ("request", request)):
            if part in args.parts:
                record = module.run(case, args.ranks)
                records[part].append(record)
                times = {k: round(v["median_ms"], 2) for k, v in record["step"].items()}
                say(f"{part} {size} {backend} {count} rows: one step {times} ms")
    checks = [] if small else limits.checks(records)
    result = {
        "kind": "bench" if not small else "bench-smoke",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name()
        if device == "cuda"
        else platform.processor() or "cpu",
        "commit": commit(args.commit),
        "command": make_command("bench", argv),
        "versions": versions(),
        "checks": checks,
        "tables": limits.tables(records),
        **records,
    }
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for check in checks:
        print(f"{check['status']} {check['name']} {check['measured']:.3f} <={check['limit']:.2f}")
    failed = sum(check["status"] == "FAIL" for check in checks)
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped; see {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
