# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m deviation`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import hostpath

hostpath.activate()

import provenance  # noqa: E402
import torch  # noqa: E402
from cosmos3_sizes import LEARNED  # noqa: E402
from make_command import make_command  # noqa: E402
from parity.machine import machine_facts  # noqa: E402

from deviation import measure, page  # noqa: E402

# What a model that has learned does, in shares of captions, by aspect.
OBEDIENT = 0.85


def main(argv: list[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0 when every check passed, 1 when one failed, 2 when there was nothing to measure with.
    """
    argv = sys.argv[1:] if argv is None else argv
    made = argparse.ArgumentParser(prog="deviation", description=measure.__doc__.split("\n")[0])
    add = made.add_argument
    add(
        "--requests",
        type=int,
        default=4,
        help="at each point; the headline takes six times as many",
    )
    add("--axis", action="append", help="leave out all others but the headline; may be repeated")
    add("--out", type=Path, default=hostpath.ROOT / "build" / "deviation", metavar="DIR")
    args = made.parse_args(argv)
    if not LEARNED.exists():
        print(f"deviation: {LEARNED} is not there; `make train` makes it", file=sys.stderr)
        return 2
    chosen = measure.points(args.requests)
    if args.axis:
        chosen = [point for point in chosen if point.axis in ("headline", *args.axis)]
    args.out.mkdir(parents=True, exist_ok=True)
    depends_on = measure.fingerprint()
    kept = args.out / f"points-{depends_on[:12]}.jsonl"
    facts = _facts(args.out / f"facts-{depends_on[:12]}.json", argv)
    started = time.monotonic()
    results = list(measure.measure(chosen, kept, depends_on))
    record = {**facts, "results": results, "checks": check(results)}
    (args.out / "deviation.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    (args.out / "report.html").write_text(page.html(record), encoding="utf-8")
    for status, name, measured, limit in record["checks"]:
        print(f"{status} {name} {measured:.3g} {limit}")
    failed = sum(status == "FAIL" for status, *_ in record["checks"])
    print(f"{len(record['checks']) - failed} passed, {failed} failed; see {args.out}/report.html")
    print(f"deviation: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if failed else 0


def _facts(path: Path, argv: list[str]) -> dict:
    """Returns what the record says beside results: of the run that began, if one was cut off."""
    if not path.exists():
        machine = machine_facts("cpu", "gloo", 1)
        facts = {
            "format": 1, "kind": "deviation",
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "device": machine["device_name"], "commit": provenance.commit(),
            "command": make_command("deviation", argv), "dtype": "float32",
            "weights": json.loads((LEARNED / "training.json").read_text()),
            "versions": provenance.versions(), "threads": torch.get_num_threads(),
        }  # fmt: skip
        path.write_text(json.dumps(facts))
    return json.loads(path.read_text())


def check(results: list[dict]) -> list[tuple[str, str, float, str]]:
    """Returns (status, name, measured, limit in words) of each check."""
    first, checks = results[0], []

    def add(name: str, measured: float, limit: str, held: bool) -> None:
        checks.append(("PASS" if held else "FAIL", name, measured, limit))

    for aspect, share in page.shares(first["one"]["obeyed"]).items():
        add(f"one-rank-obeys/{aspect}", share, f">= {OBEDIENT}", share >= OBEDIENT)
    floor = measure.NOISE_FLOOR
    worst = max(result["fixed"]["farthest"] for result in results)
    add("fixed-vs-one", worst, f"<= {floor:.1e}", worst <= floor)
    seen = first["unfixed"]["farthest"]
    add("unfixed-seen", seen, f"> {floor:.1e}", seen > floor)
    for result in results:
        if result["point"]["label"] == "nothing padded":
            ranks, far = result["point"]["ranks"], result["unfixed"]["farthest"]
            add(f"nothing-padded/{ranks}-ranks", far, f"<= {floor:.1e}", far <= floor)
    far = first["mass"]["farthest"]
    add("zero-key-mass-by-formula", far, "<= 1e-06", far <= 1e-6)
    return checks


if __name__ == "__main__":
    sys.exit(main())
