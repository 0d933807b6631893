# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Command line of ``python -m preflight``: one line per check, and the verdict in plain words."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path

import fa4
from patchset.report import Refusal, Report, note

from . import features, memory, unfixed
from .config import MAX_SEQUENCE_LENGTH, Config, read_config
from .layout import (
    RETURNS_LSE,
    SERVED_BY,
    Finding,
    Sizes,
    check_layout,
    gpu_number,
    most_tokens,
    ranks_with_rows,
)
from .model import Model, find_model

# Layouts named in the text; --json has all of them.
SHOWN = 6
# Above, layouts that work are not listed.
MOST_PROCESSES = 1024


@dataclass
class Line:
    """One check.

    Attributes:
        name: The check, without spaces.
        ok: True, False, or None where something is missing.
        measured: What was found; for None, what is missing.
        limit: What was asked for.
        findings: What there is to say about it.
    """

    name: str
    ok: bool | None
    measured: str
    limit: str = "-"
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Request:
    """What is to be checked besides the configuration.

    Attributes:
        world_size: Processes that there are, or None.
        gpus: Architectures such as "sm90"; empty where none is known.
        flash_attn: Version of flash-attn-4 that is judged.
        prompt_tokens: Lengths of the prompts, or empty.
        video_rows: Rows of the generation sequence, or None.
        max_sequence_length: Rows that prompts are padded to.
        gpu_memory: Bytes of the smallest GPU, or None.
        unfixed: Whether to judge for 1.3.0rc25 to rc29 too.
    """

    world_size: int | None = None
    gpus: tuple[str, ...] = ()
    flash_attn: str = fa4.PINNED
    prompt_tokens: tuple[int, ...] = ()
    video_rows: int | None = None
    max_sequence_length: int = MAX_SEQUENCE_LENGTH
    gpu_memory: int | None = None
    unfixed: bool = False

    @property
    def kept_tokens(self) -> tuple[int, ...]:
        """The prompts' lengths after the pipeline's cut."""
        return tuple(min(x, most_tokens(self.max_sequence_length)) for x in self.prompt_tokens)


def main(argv: list[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0 when every check passed, 1 when one failed, 2 on usage or environment.
    """
    args = _parser().parse_args(argv)
    try:
        config = read_config(args.config)
        model = find_model(args.model, config.values.get("model") or None)
        gpus, seen_memory = _gpus(args.gpu)
        request = Request(
            world_size=args.world_size,
            gpus=gpus,
            flash_attn=args.flash_attn or fa4.version() or fa4.PINNED,
            prompt_tokens=args.prompt_tokens or (),
            video_rows=_rows(args.video_rows, model),
            max_sequence_length=args.max_sequence_length,
            gpu_memory=args.gpu_memory * memory.GIB if args.gpu_memory else seen_memory,
            unfixed=args.unfixed,
        )
    except Refusal as error:
        note(f"preflight: {error}")
        return 2
    lines = judge(config, model, request)
    verdict = None
    if config.usable:
        verdict = unfixed.judge(config.sizes, request.kept_tokens, request.video_rows)
    works = _works(config, model, request) if config.usable else None
    if args.json:
        print(json.dumps(_tree(args.config, config, model, request, lines, verdict, works)))
        return int(any(line.ok is False for line in lines))
    return _print(args.config, config, model, request, lines, verdict, works)


def judge(config: Config, model: Model, request: Request) -> list[Line]:
    """Runs every check.

    Args:
        config: What the file asks for.
        model: What is to run.
        request: What is known of machine and request.

    Returns:
        One line for each check, in a fixed order.
    """
    found = config.findings + model.findings()
    lines = [Line("config", config.usable, f"{len(config.given)} fields", "VisualGenArgs")]
    if not config.usable:
        lines[0].findings = config.findings
        return [*lines, Line("layout", None, "not checked: the configuration is not what it says")]
    gpu_checks = []
    for gpu in request.gpus or (None,):
        gpu_checks += check_layout(
            config.sizes,
            model.heads,
            world_size=request.world_size,
            backend=config.backend,
            head_dim=model.head_dim,
            gpu=gpu,
            flash_attn=request.flash_attn,
            video_rows=request.video_rows,
            prompt_tokens=request.prompt_tokens,
            max_sequence_length=request.max_sequence_length,
        )
    found += dict.fromkeys(gpu_checks)
    found += features.check_features(config.values, config.sizes)
    lines += _layout_lines(config, model, request)
    lines += [Line(x, True, features.measured(config.values, x)) for x in features.NAMES]
    lines += _request_lines(config, model, request)
    if request.unfixed:
        lines.append(_unfixed_line(config.sizes, request))
    by_name = {line.name: line for line in lines}
    for finding in found:
        line = by_name[finding.name]
        line.findings.append(finding)
        if finding.severity == "error":
            line.ok = False
    return lines


def _layout_lines(config: Config, model: Model, request: Request) -> list[Line]:
    sizes, world, kernel = config.sizes, request.world_size, config.backend
    mesh = f"{sizes.attn2d_row_size}x{sizes.attn2d_col_size}"
    counts = [count for tower in model.heads for count in (tower.query, tower.kv)]
    common = math.gcd(*counts)
    divisors = [size for size in range(1, common + 1) if common % size == 0]
    merges = sizes.mesh_size > 1 or sizes.ring_size > 1
    served = SERVED_BY.get(kernel, kernel)
    if served == "FA4":
        kernel += f" flash-attn-4 {request.flash_attn}"
    if not request.gpus:
        on_gpu = Line("kernel", None, "no GPU here; give --gpu sm90")
    elif served not in RETURNS_LSE:
        on_gpu = Line("kernel", None, f"needs FA4 or VANILLA; {served}'s are not known here")
    else:
        on_gpu = Line("kernel", True, f"{kernel} on {', '.join(request.gpus)}", "runs there")
    backend = Line("backend", True, config.backend, "returns its LSE" if merges else "any")
    if merges and served not in RETURNS_LSE:
        backend = Line("backend", None, f"needs an LSE; {served} says when it is built")
    return [
        Line("world-size", True, f"{sizes.processes} ranks", f"{world} processes")
        if world
        else Line("world-size", None, f"needs {sizes.processes} processes; give --world-size"),
        Line("mix", True, f"ring {sizes.ring_size}, Attention2D {mesh}", "one of them at most"),
        Line(
            "heads",
            True,
            f"{'/'.join(map(str, counts))} over TP x Ulysses {sizes.head_ways}",
            f"one of {divisors}",
        ),
        backend,
        Line("head-dim", True, str(model.head_dim), "even, twice the rotary widths"),
        on_gpu,
    ]


def _request_lines(config: Config, model: Model, request: Request) -> list[Line]:
    rows, prompts = request.video_rows, request.prompt_tokens
    return [
        Line("video-rows", True, _blocks(config.sizes, rows), "at least one row")
        if rows is not None
        else Line("video-rows", None, "give --video-rows"),
        Line(
            "prompt",
            True,
            f"{', '.join(map(str, prompts))} tokens",
            f"cut to {most_tokens(request.max_sequence_length)}",
        )
        if prompts
        else Line("prompt", None, "give --prompt-tokens"),
        _memory_line(config, model, request),
    ]


def _estimate(config: Config, model: Model, request: Request) -> memory.Estimate:
    return memory.estimate(
        model,
        config.sizes,
        video_rows=max(1, request.video_rows or unfixed.VIDEOS[-1]),
        text_rows=max(request.kept_tokens, default=request.max_sequence_length),
        weight_bytes=features.weight_bytes(config.values),
        graphs=config.values["cuda_graph_config"]["enable"],
        offload=config.values["cpu_offload_config"]["enable"],
    )


def _memory_line(config: Config, model: Model, request: Request) -> Line:
    found, limit = _estimate(config, model, request), request.gpu_memory
    said = f"about {memory.gib(found.total)} a rank"
    if limit is None:
        return Line("memory", None, f"{said}; give --gpu-memory to compare")
    line = Line("memory", True, said, memory.gib(limit))
    if found.weights > limit:
        message = f"the weights alone take {memory.gib(found.weights)}; "
        severity = "error"
    elif found.total > limit:
        message, severity = f"{found}; ", "warning"
    else:
        return line
    message += "raise tp_size, which cuts the weights, or quantise them; Ulysses cuts activations."
    line.ok = severity != "error"
    line.findings.append(Finding(severity, "memory", message))
    return line


def _memory_words(config: Config, model: Model, request: Request) -> str:
    assumed = []
    if not request.video_rows:
        assumed.append(f"{unfixed.VIDEOS[-1]} video rows")
    if not request.prompt_tokens:
        assumed.append(f"prompts of {request.max_sequence_length} tokens")
    assumed = f" (assumed: {', '.join(assumed)})" if assumed else ""
    return (
        f"Memory of one rank, an estimate from counts{assumed}: "
        f"{_estimate(config, model, request)}. Not counted: VAE and decoding, guardrails, sound "
        "tokenizer, CUDA context, NCCL, pools of graphs and compilation."
    )


def _unfixed_line(sizes: Sizes, request: Request) -> Line:
    verdict = unfixed.judge(sizes, request.kept_tokens, request.video_rows)
    if verdict.status == "depends":
        return Line("unfixed-releases", None, "give --prompt-tokens N,M and --video-rows")
    leak = verdict.worst
    measured = f"{leak.share:.2%} of the softmax leaks" if leak else verdict.status
    return Line(
        "unfixed-releases", verdict.status == "exact", f"{measured} in {unfixed.UNFIXED}", "exact"
    )


def _blocks(sizes: Sizes, rows: int) -> str:
    if rows < 1:
        return str(rows)
    used = ranks_with_rows(sizes, rows)
    return f"{rows} rows on {used} of {sizes.sequence_size} ranks"


def _works(config: Config, model: Model, request: Request) -> list[Sizes] | None:
    """Layouts of as many processes that work, on every GPU that is known; None for too many."""
    world = request.world_size or config.sizes.processes
    if world > MOST_PROCESSES:
        return None
    return [
        sizes
        for sizes in layouts_of(world)
        if not any(
            finding.severity == "error"
            for gpu in request.gpus or (None,)
            for finding in check_layout(
                sizes,
                model.heads,
                backend=config.backend,
                head_dim=model.head_dim,
                gpu=gpu,
                flash_attn=request.flash_attn,
            )
        )
    ]


def layouts_of(world_size: int) -> list[Sizes]:
    """All layouts of that many processes, working or not, those with the fewest axes first."""

    def split(number: int, parts: int):
        if parts == 1:
            yield (number,)
            return
        for first in range(1, number + 1):
            if number % first == 0:
                for others in split(number // first, parts - 1):
                    yield first, *others

    names = ("tp_size", "ulysses_size", "ring_size", "attn2d_row_size", "attn2d_col_size")
    # Guidance has two branches.
    found = [
        Sizes(cfg_size=cfg_size, **dict(zip(names, others)))
        for cfg_size in (1, 2)
        if world_size % cfg_size == 0
        for others in split(world_size // cfg_size, len(names))
    ]
    return sorted(found, key=lambda sizes: sum(size > 1 for size in asdict(sizes).values()))


def _print(path, config, model, request, lines, verdict, works) -> int:
    print(f"config  {path}")
    print(f"model   {model}")
    sizes = config.sizes
    if config.usable:
        print(f"layout  {sizes}: sequence over {sizes.sequence_size}, {config.backend}")
    print(flush=True)
    report = Report()
    for line in lines:
        report.line(line.ok, line.name, line.measured, line.limit)
        for finding in line.findings:
            note(f"  {finding.severity}: {finding.message}")
    paragraphs = []
    failed = {line.name for line in lines if line.ok is False} - {"unfixed-releases"}
    if works is not None and failed & {"world-size", "mix", "heads", "backend", "kernel"}:
        world = request.world_size or sizes.processes
        shown = "; ".join(str(layout) for layout in works[:SHOWN])
        more = f" (and {len(works) - SHOWN} more, see --json)" if len(works) > SHOWN else ""
        paragraphs.append(
            f"Layouts of {world} processes that work with {config.backend}: "
            + (f"{shown}{more}." if works else "none.")
        )
    if verdict is not None:
        paragraphs += verdict.words()
        if failed:
            paragraphs.append("With the fix it does not run as it is: see the errors above.")
        elif verdict.status != "exact":
            fixed = (
                "With the fix it is exact, up to the order in which floating-point sums are added."
            )
            if features.quantised(config.values)[0]:
                fixed = "With the fix no padding counts; quantisation changes the numbers still."
            paragraphs.append(fixed)
        paragraphs.append(_memory_words(config, model, request))
    print()
    for paragraph in paragraphs:
        print(textwrap.fill(paragraph, 96, break_on_hyphens=False) + "\n")
    return report.finish()


def _tree(path, config, model, request, lines, verdict, works) -> dict:
    """The whole answer as plain data."""
    tree = {
        "config": str(path),
        "model": {
            "name": model.name,
            "heads": [asdict(tower) for tower in model.heads],
            "head_dim": model.head_dim,
            "layers": model.layers,
        },
        "layout": None,
        "request": asdict(request),
        "checks": [
            {
                "status": {True: "PASS", False: "FAIL", None: "SKIP"}[line.ok],
                "name": line.name,
                "measured": line.measured,
                "limit": line.limit,
                "findings": [asdict(finding) for finding in line.findings],
            }
            for line in lines
        ],
        "unfixed": None,
        "memory": None,
        "working_layouts": works and [asdict(sizes) for sizes in works],
        "passed": not any(line.ok is False for line in lines),
    }
    if config.usable:
        tree["layout"] = asdict(config.sizes) | {
            "backend": config.backend,
            "processes": config.sizes.processes,
            "sequence_size": config.sizes.sequence_size,
        }
        tree["memory"] = asdict(_estimate(config, model, request))
    if verdict is not None:
        tree["unfixed"] = {
            "status": verdict.status,
            "why": verdict.why,
            "estimates": [
                asdict(leak)
                | {
                    "slots": leak.slots,
                    "valid_keys": leak.valid,
                    "leaked_share": leak.share,
                    "expected_error": list(leak.expected),
                    "class": leak.size,
                }
                for leak in verdict.leaks
            ],
            "nearest_measured": verdict.nearest and asdict(verdict.nearest),
        }
    return tree


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m preflight",
        description="Check a VisualGen configuration for Cosmos3 before anything is started.",
    )
    add = parser.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="a VisualGen YAML")
    add(
        "--model",
        metavar="MODEL",
        help="nano, super, edge, a config.json or its folder; default: the YAML's model, or nano",
    )
    add("--world-size", type=_at_least(1), metavar="N", help="processes that there are")
    add(
        "--gpu",
        default="auto",
        metavar="SM",
        help="architecture such as sm90; auto (the default) asks nvidia-smi; none leaves it out",
    )
    add(
        "--flash-attn",
        metavar="VERSION",
        help=f"of flash-attn-4; default: the installed one, or the pin's {fa4.PINNED}",
    )
    add(
        "--prompt-tokens",
        type=_tokens,
        metavar="N,M",
        help="tokens of the negative and the positive prompt; one number is the longest of them",
    )
    add(
        "--video-rows",
        metavar="N|T,H,W",
        help="rows of the generation sequence, or frames, height and width of the latents",
    )
    add(
        "--max-sequence-length",
        type=_at_least(3),
        default=MAX_SEQUENCE_LENGTH,
        metavar="N",
        help=f"rows that a request's prompts are padded to; default {MAX_SEQUENCE_LENGTH}",
    )
    add(
        "--gpu-memory",
        type=_at_least(1),
        metavar="GIB",
        help="memory of a GPU; default: the smallest that nvidia-smi names, with --gpu auto",
    )
    add(
        "--unfixed", action="store_true", help=f"fail where {unfixed.UNFIXED} would compute wrongly"
    )
    add("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def _at_least(low: int):
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and int(text) >= low):
            raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number of at least {low}")
        return int(text)

    return read


def _tokens(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}; expected whole numbers, such as 30,700")
    return tuple(int(part) for part in parts)


def _rows(text: str | None, model: Model) -> int | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 3) or not all(x.isascii() and x.isdecimal() for x in parts):
        raise Refusal(f"--video-rows {text!r}; expected rows, or latents T,H,W such as 24,60,104")
    if len(parts) == 1:
        return int(parts[0])
    frames, height, width = map(int, parts)
    return frames * -(-height // model.patch) * -(-width // model.patch)


def _gpus(given: str) -> tuple[tuple[str, ...], int | None]:
    """Architectures, and the bytes of the smallest GPU or None."""
    if given == "none":
        return (), None
    if given == "auto":
        return _seen_gpus()
    try:
        return (f"sm{gpu_number(given)}",), None
    except ValueError as error:
        raise Refusal(f"--gpu: {error}") from None


def _seen_gpus() -> tuple[tuple[str, ...], int | None]:
    """What nvidia-smi says of this machine's GPUs, without torch."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), None
    query = [program, "--query-gpu=compute_cap,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return (), None
    rows = [line.replace(".", "").split(",") for line in found.stdout.splitlines()]
    numbers = [[x.strip() for x in row] for row in rows if len(row) == 2]
    gpus = tuple(dict.fromkeys(f"sm{number}" for number, _ in numbers if number.isdecimal()))
    sizes = [int(size) << 20 for _, size in numbers if size.isdecimal()]
    return gpus, min(sizes, default=None)
