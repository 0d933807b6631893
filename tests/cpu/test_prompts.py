# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity run's prompts: what is shipped, how it is tokenised, and what is refused."""

import json

import pytest
import torch
from cosmos3_sizes import VOCABULARY
from parity.prompts import (
    MAX_TOKENS,
    PROMPTS_DIR,
    load_prompts,
    tokenize,
    tokenizer,
    vocabulary_size,
)
from parity.sampling import pad_prompts

IM_START, IM_END, VISION_START = 151644, 151645, 151652


def test_shipped_prompts_are_fifteen_words_and_five_hundred():
    negative, positive = load_prompts()
    assert len(positive.text.split()) == 15
    assert 450 <= len(negative.text.split()) <= 600
    categories = json.loads((PROMPTS_DIR / "negative.json").read_text())
    assert len(categories) >= 8
    assert (negative.role, positive.role) == ("negative", "positive")
    # Lengths that far apart are what the bug needs.
    assert len(negative.ids) > 20 * len(positive.ids)


def test_ids_fit_the_model_vocabulary():
    assert vocabulary_size() <= VOCABULARY
    for prompt in load_prompts():
        assert max(prompt.ids) < VOCABULARY and min(prompt.ids) >= 0


def test_row_is_a_chat_turn_around_the_text():
    prompt = tokenize("positive", "A red fox.")
    assert prompt.ids[0] == IM_START
    assert prompt.ids[-2:] == (IM_END, VISION_START)
    text = tokenizer().decode(list(prompt.ids[:-2]))
    assert text == "<|im_start|>user\nA red fox.<|im_end|>\n<|im_start|>assistant\n"


def test_special_tokens_spelled_out_stay_text():
    prompt = tokenize("positive", "a <|im_end|> b")
    assert prompt.ids.count(IM_END) == 2
    assert "a <|im_end|> b" in tokenizer().decode(list(prompt.ids[:-2]))


def test_prompts_file_takes_text_and_objects(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"positive": "A fox.", "negative": {"blur": ["all of it"]}}))
    negative, positive = load_prompts(path)
    assert positive.text == "A fox."
    assert json.loads(negative.text) == {"blur": ["all of it"]}


@pytest.mark.parametrize("negative", ["", " ", {}])
def test_empty_negative_prompt_is_the_chat_turn_alone(tmp_path, negative):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"positive": "A fox.", "negative": negative}))
    prompt, other = load_prompts(path)
    assert len(prompt.ids) == 10 < len(other.ids)
    text = tokenizer().decode(list(prompt.ids[:-2]))
    assert text == "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"positive": "  ", "negative": "x"}', "positive prompt is empty"),
        ('{"positive": "x"}', r"lacks \['negative'\]"),
        ('{"positive": 3, "negative": "x"}', "positive prompt is of type int"),
        ('["x", "y"]', "holds a list"),
        ("A red fox", "cannot be read"),
    ],
)
def test_unusable_prompts_file_is_refused(tmp_path, content, message):
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_prompts(path)


def test_missing_prompts_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="none.json cannot be read.*expected JSON"):
        load_prompts(tmp_path / "none.json")


def test_prompt_over_the_limit_is_refused_with_the_excess():
    fits = tokenize("negative", "fox " * 4000)
    assert len(fits.ids) <= MAX_TOKENS
    with pytest.raises(ValueError, match=f"the model takes {MAX_TOKENS}.*Shorten it by"):
        tokenize("negative", "fox " * 5000)


def test_padding_is_masked_and_holds_real_ids():
    prompts = load_prompts()
    ids, mask = pad_prompts(prompts)
    assert ids.shape == mask.shape and ids.shape[1] % 128 == 0
    for row, prompt in enumerate(prompts):
        length = len(prompt.ids)
        assert ids.shape[1] > length
        assert mask[row].tolist() == [1] * length + [0] * (ids.shape[1] - length)
        assert tuple(ids[row, :length].tolist()) == prompt.ids
        # A run that looked at padding would see words, not zeros.
        assert torch.equal(ids[row, length : length + 1], ids[row, :1])
