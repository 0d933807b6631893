# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Whole requests: which ones a command line asks for."""

from __future__ import annotations

from cosmos3_requests import TYPES, Request, make_request

# Parts of a checkpoint that a type needs.
NEEDS = {"audio": "sound_gen", "action": "action_gen"}


def make_requests(kind: str, args, texts: tuple[str, str], config: dict) -> dict[str, Request]:
    """Returns the requests of a type, or of all.

    Args:
        kind: One of TYPES, or "all".
        args: Options of the command line.
        texts: Of the negative and the positive prompt.
        config: Of the model.

    Raises:
        ValueError: The model lacks what the type needs, or guidance is below 0.
    """
    if args.guidance < 0:
        raise ValueError(f"--guidance {args.guidance} with --request: expected 0 or more, try 6.")
    kinds = TYPES if kind == "all" else (kind,)
    lacking = [name for name in kinds if name in NEEDS and not config.get(NEEDS[name])]
    if lacking:
        fields = ", ".join(NEEDS[name] for name in lacking)
        raise ValueError(
            f"--request {kind}: the checkpoint has no {fields}, which {', '.join(lacking)} needs; "
            f"ask for one of {', '.join(name for name in TYPES if name not in NEEDS)}."
        )
    changes = {
        "num_inference_steps": args.steps,
        "guidance_scale": args.guidance,
        "seed": args.seed,
        "frame_rate": args.fps,
    }
    transfer = {"guidance_scale": args.guidance} if args.guidance != 6.0 else {}
    return {
        name: make_request(
            name,
            texts[1],
            texts[0],
            **changes,
            **({"transfer_config": transfer} if name == "transfer" else {}),
        )
        for name in kinds
    }
