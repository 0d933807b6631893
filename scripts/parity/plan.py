# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Plan: which requests are run, on which code, layout and device; refused here if they cannot be.

Nothing is started and nothing is written.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import fa4
import torch
from cosmos3_checkpoint import check_checkpoint
from cosmos3_checkpoint import read_config as read_checkpoint_config
from cosmos3_requests import ACTION, FRAMES, HEIGHT, OMNI, WIDTH, chunks, growth
from cosmos3_sizes import LEARNED_PROMPT, LEARNED_VIDEO, SIZES, VOCABULARY, full_config
from patchset.report import Refusal
from preflight.cli import Request, judge
from preflight.config import Sizes, parse_config, read_config
from preflight.model import parse_model

from parity.machine import check_memory
from parity.prompts import MAX_TOKENS, Prompt, load_prompts, random_prompts, tokenize
from parity.requests import make_requests
from parity.sources import Source, find_sources

DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
MOST_RANKS = 8
VIDEO = (3, 33, 57)
# What a text-to-image request is: one frame, and nothing to keep away from. 135 rows.
IMAGE, IMAGE_STEPS = (1, 17, 29), 2
AXES = "cfg=2, tp=N, ring=N, attn2d=ROWSxCOLUMNS and ulysses=N, such as attn2d=1x2,ulysses=2"


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: "video" or "image".
        prompts: Negative and positive.
        video: T, H, W of the latents.
        rows: Of the video in the generation sequence.
        steps: Denoising steps.
        pads: Whether the old way pads anything, so that its error can be seen.
        request: What a pipeline is asked, None where the loop of this package is followed.
    """

    name: str
    prompts: tuple[Prompt, Prompt]
    video: tuple[int, int, int]
    rows: int
    steps: int
    pads: bool
    request: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """Returns what the record says about it."""
        lengths = {prompt.role: len(prompt.ids) for prompt in self.prompts}
        names = [field.name for field in fields(self) if field.name != "request"]
        facts = {name: getattr(self, name) for name in names} | {"prompts": lengths}
        if self.request is not None:
            facts |= {"chunks": chunks(self.request), "growth": growth(self.request)}
        return facts


@dataclass(frozen=True)
class Run:
    """One run of all cases: which code, over which axes, in what precision.

    Attributes:
        name: "one", "unfixed-one", "unfixed", "fixed", "float32" or "oracle".
        title: For people.
        source: "fixed" or "unfixed"; None for diffusers.
        dtype: Of the model.
        backend: Attention backend.
        layout: Keywords of VisualGenMapping.
    """

    name: str
    title: str
    source: str | None
    dtype: str
    backend: str
    layout: dict[str, int]

    @property
    def ranks(self) -> int:
        """Processes that it takes."""
        return math.prod(self.layout.values())


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        settings: What was asked for, checked and completed, as the result file keeps it.
        cases: The requests; the first is the one that is drawn.
        runs: In order; the first records the latents that the others start each step from.
        sources: "fixed" and "unfixed" code.
        checkout: What a result file says about the checkout whose code it is; None without one.
    """

    settings: dict[str, Any]
    cases: list[Case]
    runs: list[Run]
    sources: dict[str, Source]
    checkout: dict[str, Any] | None


def make_plan(args: argparse.Namespace) -> Plan:
    """Checks the options against each other and this machine, and completes them.

    Args:
        args: What cli.parser() yields.

    Raises:
        ValueError: Names the value, what was expected and what would work.
    """
    _check_numbers(args)
    if args.size is None:
        args.size = "tiny" if args.request else "learned"
    sizes, backend = _layout(args)
    config = _model(args)
    cases = _cases(args, sizes, config)
    for case in cases:
        _check_layout(sizes, backend, config, case.rows)
    device = _device(args, sizes)
    _check_backend(backend, args.dtype, device)
    sources, checkout = find_sources(device, args.trtllm_dir, bool(args.request))
    check_memory(
        config, args.size, DTYPE_BYTES[args.dtype], device, sizes.processes, args.share_gpu
    )
    layout = {name: size for name, size in asdict(sizes).items() if size > 1}
    settings = {
        "ranks": sizes.processes,
        "layout": layout,
        "size": None if args.checkpoint else args.size,
        "checkpoint": str(args.checkpoint) if args.checkpoint else None,
        "video": list(cases[0].video),
        "video_rows": cases[0].rows,
        "dtype": args.dtype,
        "backend": backend,
        "steps": args.steps,
        "seed": args.seed,
        "guidance": args.guidance,
        "fps": args.fps,
        "config": config,
        "cases": [case.facts() for case in cases],
        "device": device,
        "exchange": "NCCL" if device == "cuda" and not args.share_gpu else "gloo",
        "row_invariant": args.dtype == "bfloat16" and device == "cuda" and not args.default_matmul,
        "checkout": checkout is not None,
        "padding_bug": checkout is None or checkout["padding_bug"],
        "text_row_bytes": _text_row_bytes(config, sizes, args.dtype),
    }
    runs = plan_runs(sizes, args.dtype, backend, oracle=not (args.no_oracle or args.request))
    if args.request:
        settings |= {"requests": [case.name for case in cases], "graphs": args.graphs}
        if sizes.processes > 1:
            runs = [run for run in runs if run.name != "unfixed-one"]
        elif args.graphs:
            title = "one rank, from graphs"
            runs.append(Run("fixed", title, "fixed", args.dtype, backend, {}))
    return Plan(settings, cases, runs, sources, checkout)


def plan_runs(sizes: Sizes, dtype: str, backend: str, oracle: bool) -> list[Run]:
    """Returns the runs of a layout, the one that records the latents first."""
    runs = [
        Run("one", "one rank", "fixed", dtype, backend, {}),
        Run("unfixed-one", "one rank, unfixed", "unfixed", dtype, backend, {}),
    ]
    ranks = sizes.processes
    if ranks > 1:
        old, title = sizes, f"{ranks} ranks, unfixed"
        if sizes.ring_size > 1:
            # No base takes a ring without the patches. A mesh of one row cuts the sequence alike.
            old = replace(sizes, ring_size=1, attn2d_col_size=sizes.ring_size)
            title += f", Attention2D 1x{sizes.ring_size} for the ring"
        runs += [
            Run("unfixed", title, "unfixed", dtype, backend, asdict(old)),
            Run("fixed", f"{ranks} ranks, fixed", "fixed", dtype, backend, asdict(sizes)),
        ]
    if dtype == "bfloat16":
        # FA4 computes in 16 bits.
        runs.append(Run("float32", "one rank, float32", "fixed", "float32", "VANILLA", {}))
    if oracle:
        # diffusers computes norms and angles in float32 whatever the model's dtype.
        runs.append(Run("oracle", "diffusers, first step", None, "float32", "", {}))
    return runs


def observed_runs(settings: dict[str, Any]) -> tuple[str, ...]:
    """Returns the unfixed and the fixed run whose steps and graphs are looked at, if any."""
    if "requests" in settings:
        return ()
    if settings["ranks"] == 1:
        return "unfixed-one", "one"
    # An exchange through gloo is no part of a CUDA graph.
    on_gloo = settings["device"] == "cuda" and settings["exchange"] == "gloo"
    return () if on_gloo else ("unfixed", "fixed")


def parse_layout(text: str) -> Sizes:
    """Reads a text such as "attn2d=1x2,ulysses=2".

    Raises:
        ValueError: The text is no layout of at most MOST_RANKS ranks.
    """
    found: dict[str, int] = {}
    for axis in text.split(","):
        match = re.fullmatch(
            r"(cfg|tp|ring|ulysses)=([1-9]\d*)|attn2d=([1-9]\d*)x([1-9]\d*)", axis.strip()
        )
        if match is None:
            raise ValueError(f"--layout {text!r}: {axis.strip()!r} is no axis; expected {AXES}.")
        if match[1]:
            new = {f"{match[1]}_size": int(match[2])}
        else:
            new = {"attn2d_row_size": int(match[3]), "attn2d_col_size": int(match[4])}
        if found.keys() & new.keys():
            raise ValueError(f"--layout {text!r} names an axis twice; expected {AXES}.")
        found |= new
    return Sizes(**found)


def _check_numbers(args) -> None:
    others = {"--video": args.video, "--prompt-tokens": args.prompt_tokens}
    # Its latents are frames, and no VAE's.
    others |= {"--size learned": True if args.size == "learned" else None}
    wrong = [name for name, value in others.items() if value is not None]
    if args.request and wrong:
        raise ValueError(f"--request does not go with {', '.join(wrong)}; leave one of them out.")
    if args.graphs and not args.request:
        raise ValueError("--graphs goes with --request; add --request t2v.")
    if not 1 <= args.steps <= 1000:
        raise ValueError(f"--steps {args.steps} is outside [1, 1000]; try 6.")
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} is outside [0, 2**63); try 0.")
    if not math.isfinite(args.guidance):
        raise ValueError(f"--guidance {args.guidance} is not a number to scale by; try 6.0.")
    if not (math.isfinite(args.fps) and args.fps > 0):
        raise ValueError(f"--fps {args.fps} is not a frame rate above 0; try 24.")


def _layout(args) -> tuple[Sizes, str]:
    """Returns the axes and the attention backend."""
    backend = args.backend
    if args.config is not None:
        try:
            config = read_config(args.config)
        except Refusal as error:
            raise ValueError(f"--config: {error}") from error
        wrong = [finding.message for finding in config.findings if finding.severity == "error"]
        if wrong:
            raise ValueError(
                f"--config {args.config}: {' '.join(wrong)} See `make preflight CONFIG=...`."
            )
        sizes = config.sizes
        # TensorRT-LLM's own kernels do not serve Cosmos3's generation attention; VANILLA does.
        named = "VANILLA" if config.backend == "TRTLLM" else config.backend
        if backend is None and named not in ("VANILLA", "FA4"):
            raise ValueError(
                f"--config {args.config}: attention backend {named} needs TensorRT-LLM's compiled "
                "parts; give --backend VANILLA or FA4 to run its layout."
            )
        backend = backend or named
    else:
        sizes = parse_layout(args.layout) if args.layout else Sizes(ulysses_size=args.ranks or 2)
    if sizes.processes > MOST_RANKS:
        flag = f"--config {args.config}" if args.config else f"--layout {args.layout!r}"
        raise ValueError(
            f"{flag} has {sizes.processes} ranks; this command starts {MOST_RANKS} at most, so "
            "make an axis smaller."
        )
    merges = sizes.ring_size * sizes.mesh_size > 1
    return sizes, backend or ("FA4" if merges else "VANILLA")


def _model(args) -> dict[str, Any]:
    if args.checkpoint is None:
        fields = SIZES[args.size]
        if args.request:
            # Edge has no sound.
            fields = fields | (OMNI if fields.get("hidden_act", "silu") == "silu" else ACTION)
        return full_config(fields)
    config = read_checkpoint_config(args.checkpoint)
    check_checkpoint(args.checkpoint, config)
    if config["vocab_size"] < VOCABULARY:
        raise ValueError(
            f"the model's vocabulary has {config['vocab_size']} ids, fewer than the {VOCABULARY} "
            "that Qwen's prompts are tokenised for; take a Cosmos3 checkpoint."
        )
    return config


def _cases(args, sizes: Sizes, config: dict[str, Any]) -> list[Case]:
    """Returns the requests that were asked for, or a video and an image when none was."""
    patch = config["latent_patch_size"]

    def case(name, prompts, video, steps, request=None):
        frames, height, width = video
        rows = frames * math.ceil(height / patch) * math.ceil(width / patch)
        ways, lengths = sizes.sequence_size, [len(prompt.ids) for prompt in prompts]
        # A rank of one guidance branch has one prompt, which is as long as the longest.
        unequal = sizes.cfg_size == 1 and len(set(lengths)) > 1
        pads = ways > 1 and (unequal or any(n % ways for n in (*lengths, rows)))
        return Case(name, prompts, video, rows, steps, pads, request)

    if args.request:
        prompts = load_prompts(args.prompts)
        texts = tuple(prompt.text for prompt in prompts)
        size = (HEIGHT // 16, WIDTH // 16)
        return [
            case(name, prompts, (frames, *size), args.steps, request)
            for name, request in make_requests(args.request, args, texts, config).items()
            for frames in [1 if name == "t2i" else (FRAMES - 1) // 4 + 1]
        ]
    if args.prompt_tokens is not None:
        expected = f"two lengths of 1 to {MAX_TOKENS} tokens, such as 7,19"
        given = ("--prompt-tokens", args.prompt_tokens, 2, MAX_TOKENS)
        prompts = random_prompts(*_whole_numbers(*given, expected), args.seed)
    else:
        prompts = load_prompts(args.prompts)
    video = VIDEO
    if args.size == "learned" and args.checkpoint is None:
        video = LEARNED_VIDEO
        if args.prompts is args.prompt_tokens is None:
            prompts = (prompts[0], tokenize("positive", LEARNED_PROMPT))
    if args.video is not None:
        expected = "T,H,W: frames, height and width of the latents, each at least 1, as in 3,33,57"
        video = _whole_numbers("--video", args.video, 3, math.inf, expected)
    cases = [case("video", prompts, video, args.steps)]
    if args.prompts is args.prompt_tokens is args.video is None:
        empty = (tokenize("negative", ""), prompts[1])
        cases.append(case("image", empty, IMAGE, min(args.steps, IMAGE_STEPS)))
    return cases


def _whole_numbers(option: str, text: str, count: int, most: float, expected: str) -> tuple:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != count or not all(1 <= number <= most for number in found):
        raise ValueError(f"{option} {text!r}: expected {expected}.")
    return found


def _check_layout(sizes: Sizes, backend: str, config: dict[str, Any], rows: int) -> None:
    """Refuses what preflight would refuse of a YAML with this layout: its rules are the only ones.

    Raises:
        ValueError: Everything that is wrong.
    """
    parallel = {name: getattr(sizes, f"{name}_size") for name in ("cfg", "tp", "ring", "ulysses")}
    tree = {
        "parallel_config": {
            **{f"{name}_size": size for name, size in parallel.items()},
            "attn2d_size": [sizes.attn2d_row_size, sizes.attn2d_col_size],
        },
        "attention_config": {"backend": backend},
    }
    lines = judge(parse_config(tree), parse_model(config, "the model"), Request(video_rows=rows))
    found = [finding for line in lines for finding in line.findings]
    errors = dict.fromkeys(f.message for f in found if f.severity == "error")
    if errors:
        raise ValueError(f"the layout ({sizes}) cannot run: {' '.join(errors)}")


def _device(args, sizes: Sizes) -> str:
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if args.share_gpu:
        if args.device == "cpu" or not found:
            raise ValueError("--share-gpu needs a GPU to share; leave it out with --device cpu.")
        if args.trtllm_dir is not None:
            raise ValueError(
                "--share-gpu with --trtllm-dir: a checkout's own groups on a GPU are NCCL's, which "
                "refuses two ranks on one GPU; use as many GPUs as ranks, or --device cpu."
            )
        return "cuda"
    ranks = sizes.processes
    if args.device != "cpu" and found >= ranks:
        return "cuda"
    if args.device == "cuda":
        works = [count for count in (1, 2, 4, 8) if count <= found]
        hint = "--device cpu"
        if works:
            shared = "" if args.trtllm_dir else ", --share-gpu"
            hint = f"--ranks {works[-1]}{shared} or --device cpu"
        raise ValueError(
            f"{ranks} ranks with --device cuda need as many GPUs, and this machine has {found}; "
            f"use {hint}."
        )
    if found and args.device == "auto":
        print(f"parity: {found} GPU(s) for {ranks} ranks; using the CPU", file=sys.stderr)
    return "cpu"


def _check_backend(backend: str, dtype: str, device: str) -> None:
    if backend != "FA4" or device == "cpu":
        return
    if dtype != "bfloat16":
        raise ValueError(
            f"--backend FA4 computes in 16 bits on a GPU, so --dtype {dtype} would show its "
            "rounding only; use --dtype bfloat16 or --backend VANILLA."
        )
    if fa4.problem():
        raise ValueError(f"--backend FA4 on a GPU: {fa4.problem()}, or use --backend VANILLA.")


def bucket_rows(longest: int) -> int:
    """The most rows that the overlay's bucket adds to a longest prompt of so many tokens."""
    return 256 if longest <= 1280 else 1024


def _text_row_bytes(config: dict[str, Any], sizes: Sizes, dtype: str) -> int:
    """Returns the bytes of K and V of one text row on one rank, over all layers and samples."""
    values = config["num_key_value_heads"] // sizes.head_ways * config["head_dim"]
    pairs = 2 * config["num_hidden_layers"] * (2 // sizes.cfg_size)
    return pairs * values * DTYPE_BYTES[dtype]
