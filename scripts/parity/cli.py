# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Options of `python -m parity`, refused before any process starts where they cannot work."""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos3_weights import weight_shapes
from make_command import make_command

from parity.launch import RunFailed
from parity.prompts import MAX_TOKENS, Prompt, load_prompts, random_prompts
from parity.report import REPORT_FILES
from parity.sizes import SIZES, VOCABULARY, check_heads, full_config
from parity.sources import ROOT, Source, import_roots

DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
# Text rows are kept in buckets of this many; as in the overlay.
BUCKET = 128
# A process before it holds any weight: the interpreter, torch, diffusers; measured.
PROCESS_BYTES = 500 << 20
# Activations and what kernels need, on top of weights.
ACTIVATION_BYTES = {"cpu": 200 << 20, "cuda": 4 << 30}


@dataclass
class Settings:
    """A run's options, checked and completed.

    Attributes:
        video: T, H, W of the latents.
        command: What to type for the same figures.
        commit: Of this project, where git cannot tell.
        layout: Keywords of VisualGenMapping for several ranks.
        config: Fields of the diffusers config.json.
        prompts: Negative and positive.
        sources: "fixed" and "unfixed" code.
        checkout: The TensorRT-LLM checkout whose code it is; None for the embedded host.
        bucket_bytes: Text K/V of one bucket on one rank.
        share_gpu: Whether all ranks run on one GPU and exchange through gloo.
    """

    ranks: int
    size: str
    video: tuple[int, int, int]
    dtype: str
    backend: str
    device: str
    steps: int
    seed: int
    guidance: float
    fps: float
    prompts_file: Path | None
    prompt_tokens: tuple[int, int] | None
    checkpoint: Path | None
    trtllm_dir: Path | None
    out: Path
    oracle: bool
    command: str = ""
    commit: str | None = None
    layout: dict[str, int] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    prompts: tuple[Prompt, ...] = ()
    sources: dict[str, Source] = field(default_factory=dict)
    checkout: Any = None
    bucket_bytes: int = 0
    share_gpu: bool = False

    @property
    def gpus(self) -> int:
        """GPUs that the run needs; 0 on the CPU."""
        if self.device == "cpu":
            return 0
        return 1 if self.share_gpu else self.ranks

    @property
    def exchange(self) -> str:
        """What carries tensors between ranks: "NCCL", where each has a GPU, or "gloo"."""
        return "NCCL" if self.device == "cuda" and not self.share_gpu else "gloo"

    @property
    def video_rows(self) -> int:
        """Rows of the video in the generation sequence."""
        frames, height, width = self.video
        patch = self.config["latent_patch_size"]
        return frames * math.ceil(height / patch) * math.ceil(width / patch)

    @property
    def pads(self) -> bool:
        """Whether the old way pads anything, so that its error can be seen."""
        lengths = {len(prompt.ids) for prompt in self.prompts}
        return len(lengths) > 1 or any(n % self.ranks for n in (*lengths, self.video_rows))


def main(argv: list[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0 when every check passed, 1 when one failed, 2 when the run could not be made.
    """
    # A terminated driver ends its ranks and clears its scratch folder on the way out.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        settings = prepare(parse(argv))
        from parity.driver import run

        return run(settings)
    except (ValueError, RunFailed) as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("parity: interrupted; the previous report, if any, was left alone", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def parse(argv: list[str] | None = None) -> Settings:
    """Reads the command line; exits with 2 on what argparse refuses."""
    parser = argparse.ArgumentParser(
        prog="parity",
        allow_abbrev=False,
        description="Compare Cosmos3's video transformer on several ranks with one rank, with and "
        "without the fix, and with diffusers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, choices=(1, 2, 4, 8), help="processes, over Ulysses (default: 2)")
    add(
        "--layout",
        metavar="AXES",
        help="instead of --ranks: ulysses=P, attn2d=ROWSxCOLUMNS, or both with a comma",
    )
    add("--size", choices=tuple(SIZES), default="tiny", help="nano-4l and nano want a GPU")
    add(
        "--video",
        default="3,33,57",
        metavar="T,H,W",
        help="frames, height and width of the latents",
    )
    add("--dtype", choices=tuple(DTYPE_BYTES), default="float32", help="of the model")
    add("--backend", choices=("VANILLA", "FA4"), default="VANILLA", help="attention backend")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if enough")
    add(
        "--share-gpu",
        action="store_true",
        help="all ranks on one GPU; they exchange through gloo, since NCCL refuses that",
    )
    add("--steps", type=int, default=6, help="denoising steps")
    add("--seed", type=int, default=0, help="of weights and starting latents")
    add("--guidance", type=float, default=6.0, help="of classifier-free guidance")
    add("--fps", type=float, default=24.0, help="frame rate that positions are scaled by")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSON with "positive" and "negative"'
    )
    prompts.add_argument(
        "--prompt-tokens",
        metavar="N,M",
        help="random prompts of N (negative) and M (positive) tokens",
    )
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
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    layout = {"ulysses_size": 2 if args.ranks is None else args.ranks}
    if args.layout is not None:
        if args.ranks is not None:
            parser.error("--layout says how many ranks there are; leave --ranks out")
        layout = parse_layout(args.layout)
    return Settings(
        ranks=math.prod(layout.values()),
        layout=layout,
        size=args.size,
        video=_video(args.video),
        dtype=args.dtype,
        backend=args.backend,
        device=args.device,
        steps=args.steps,
        seed=args.seed,
        guidance=args.guidance,
        fps=args.fps,
        prompts_file=args.prompts,
        prompt_tokens=None if args.prompt_tokens is None else _prompt_tokens(args.prompt_tokens),
        checkpoint=args.checkpoint,
        trtllm_dir=args.trtllm_dir,
        out=args.out,
        oracle=not args.no_oracle,
        command=make_command("parity", argv),
        commit=args.commit,
        share_gpu=args.share_gpu,
    )


def prepare(settings: Settings) -> Settings:
    """Checks the options against each other and this machine, and completes them.

    Raises:
        ValueError: Names the value, what was expected and what would work.
    """
    from parity.checkpoint import check_checkpoint, read_config

    if not 1 <= settings.steps <= 1000:
        raise ValueError(f"--steps {settings.steps} is outside [1, 1000]; try 6.")
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"--seed {settings.seed} is outside [0, 2**63); try 0.")
    if not math.isfinite(settings.guidance):
        raise ValueError(f"--guidance {settings.guidance} is not a number to scale by; try 6.0.")
    if not (math.isfinite(settings.fps) and settings.fps > 0):
        raise ValueError(f"--fps {settings.fps} is not a frame rate above 0; try 24.")

    if settings.checkpoint is None:
        settings.config = full_config(SIZES[settings.size])
    else:
        settings.config = read_config(settings.checkpoint)
        check_checkpoint(settings.checkpoint, settings.config)
    if settings.config["vocab_size"] < VOCABULARY:
        raise ValueError(
            f"the model's vocabulary has {settings.config['vocab_size']} ids, fewer than the "
            f"{VOCABULARY} that Qwen's prompts are tokenised for; take a Cosmos3 checkpoint."
        )
    flag = "--ranks" if len(settings.layout) == 1 else "--layout ulysses="
    check_heads(settings.config, settings.layout["ulysses_size"], flag)

    if settings.prompt_tokens is None:
        settings.prompts = load_prompts(settings.prompts_file)
    else:
        settings.prompts = random_prompts(*settings.prompt_tokens, settings.seed)
    settings.device = _device(settings)
    settings.sources = import_roots(settings)
    check_output(settings.out)
    _check_backend(settings)
    _check_memory(settings)
    settings.bucket_bytes = _bucket_bytes(settings)
    return settings


def check_output(out: Path) -> None:
    """Refuses a report folder that cannot be written, or that holds anything but a report.

    Raises:
        ValueError: The folder would not take a report, or replacing it would lose other files.
    """
    advice = "give a new folder, an empty one, or one with an earlier report"
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; {advice}.")
    try:
        foreign = sorted(p.name for p in out.iterdir() if p.name not in REPORT_FILES)[:3]
    except FileNotFoundError:
        foreign = []
    except OSError as error:
        raise ValueError(f"--out {out} cannot be read ({error}); {advice}.") from error
    if foreign:
        raise ValueError(
            f"--out {out} holds {', '.join(foreign)}, which no report wrote and which replacing "
            f"the folder would lose; {advice}."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".parity-", dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error}); {advice}.") from error


def _video(text: str) -> tuple[int, int, int]:
    expected = "expected T,H,W: frames, height and width of the latents, such as 3,33,57"
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"--video {text!r}: {expected}, each at least 1.")
    return shape


def parse_layout(text: str) -> dict[str, int]:
    """Returns the keywords of VisualGenMapping for a text such as "attn2d=1x2,ulysses=2".

    Raises:
        ValueError: The text is no layout.
    """
    expected = "expected ulysses=P, attn2d=ROWSxCOLUMNS or both, such as attn2d=1x2,ulysses=2"
    layout = {"ulysses_size": 1}
    for axis in text.split(","):
        match = re.fullmatch(r"(?:ulysses=([1-9]\d*)|attn2d=([1-9]\d*)x([1-9]\d*))", axis.strip())
        if match is None:
            raise ValueError(f"--layout {text!r}: {axis.strip()!r} is no axis; {expected}.")
        if match[1]:
            layout["ulysses_size"] = int(match[1])
        else:
            layout |= {"attn2d_row_size": int(match[2]), "attn2d_col_size": int(match[3])}
    if math.prod(layout.values()) > 8:
        raise ValueError(f"--layout {text!r} has more than 8 ranks; {expected}.")
    return layout


def _prompt_tokens(text: str) -> tuple[int, int]:
    expected = f"expected two lengths of 1 to {MAX_TOKENS} tokens, such as 7,19"
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if len(lengths) != 2 or min(lengths) < 1 or max(lengths) > MAX_TOKENS:
        raise ValueError(f"--prompt-tokens {text!r}: {expected}.")
    return lengths


def _device(settings: Settings) -> str:
    if settings.share_gpu:
        return _shared_device(settings)
    if settings.device == "cpu":
        return "cpu"
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found >= settings.ranks:
        return "cuda"
    if settings.device == "cuda":
        works = [ranks for ranks in (1, 2, 4, 8) if ranks <= found]
        hint = "--device cpu"
        if works:
            shared = "" if settings.trtllm_dir else ", --share-gpu"
            hint = f"--ranks {works[-1]}{shared} or --device cpu"
        raise ValueError(
            f"--ranks {settings.ranks} with --device cuda needs as many GPUs, and this machine "
            f"has {found}; use {hint}."
        )
    if found:
        print(f"parity: {found} GPU(s) for {settings.ranks} ranks; using the CPU", file=sys.stderr)
    return "cpu"


def _shared_device(settings: Settings) -> str:
    import torch

    if settings.device == "cpu" or not torch.cuda.is_available():
        raise ValueError("--share-gpu needs a GPU to share; leave it out with --device cpu.")
    if settings.trtllm_dir is not None:
        raise ValueError(
            "--share-gpu with --trtllm-dir: a checkout's own groups on a GPU are NCCL's, which "
            "refuses two ranks on one GPU; use as many GPUs as ranks, or --device cpu."
        )
    return "cuda"


def _check_backend(settings: Settings) -> None:
    if len(settings.layout) > 1 and settings.backend != "FA4":
        raise ValueError(
            f"--layout with attn2d needs an attention backend that returns its LSE, and "
            f"{settings.backend} does not; use --backend FA4."
        )
    if settings.backend != "FA4" or settings.device == "cpu":
        return
    if settings.dtype != "bfloat16":
        raise ValueError(
            f"--backend FA4 computes in 16 bits on a GPU, so --dtype {settings.dtype} would show "
            "its rounding only; use --dtype bfloat16 or --backend VANILLA."
        )
    try:
        found = importlib.util.find_spec("flash_attn.cute.interface") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ValueError(
            "--backend FA4 on a GPU needs flash-attn-4, which is not installed; install "
            "flash-attn-4==4.0.0b19 or use --backend VANILLA."
        )


def _check_memory(settings: Settings) -> None:
    """Refuses runs whose weights would not fit, before a rank finds out."""
    parameters = sum(math.prod(shape) for shape in weight_shapes(settings.config).values())
    several = parameters * DTYPE_BYTES[settings.dtype] + ACTIVATION_BYTES[settings.device]
    # Beside a bfloat16 run there is one in float32.
    one = max(several, parameters * 4 + ACTIVATION_BYTES[settings.device])
    if settings.device == "cuda":
        import torch

        available = torch.cuda.get_device_properties(0).total_memory
        shared = settings.ranks if settings.share_gpu else 1
        needed, what = max(one, several * shared), "one GPU"
    else:
        # The driver is one more process.
        available = available_memory()
        needed = PROCESS_BYTES + max(
            one + PROCESS_BYTES, settings.ranks * (several + PROCESS_BYTES)
        )
        what = f"{settings.ranks} ranks" if settings.ranks > 1 else "one rank"
    if needed > available:
        raise ValueError(
            f"--size {settings.size} in {settings.dtype} needs about {needed / 2**30:.1f} GiB for "
            f"{what}, and {available / 2**30:.1f} GiB are there; use fewer --ranks, a smaller "
            "--size or --dtype, or a machine with more memory."
        )


def available_memory() -> int:
    """Returns the bytes of main memory that can still be used, container limits included."""
    available = 1 << 62
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    if not (group / "memory.max").exists():
        group = group / "memory"
    ceiling = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
    if ceiling.strip().isdigit() and used.strip().isdigit():
        # File pages that nobody has touched lately are given back on demand.
        idle = sum(
            int(line.split()[1])
            for line in _read(group / "memory.stat").splitlines()
            if line.startswith("inactive_file ")
        )
        available = min(available, int(ceiling) - int(used) + idle)
    return available


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _bucket_bytes(settings: Settings) -> int:
    """Returns the bytes of K and V of one bucket of text rows on one rank, over all layers."""
    config = settings.config
    heads = config["num_key_value_heads"] // settings.layout["ulysses_size"]
    values = BUCKET * heads * config["head_dim"]
    pairs = 2 * config["num_hidden_layers"] * len(settings.prompts)
    return pairs * values * DTYPE_BYTES[settings.dtype]
