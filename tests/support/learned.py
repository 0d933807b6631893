# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of the tiny model that learns, before it has learned."""

from deviation import train
from deviation.model import LearnedWeights


def unlearned(folder) -> LearnedWeights:
    captions = train.Captions()
    train.save(train.initial(len(captions.tokens), 0), captions.tokens, folder, {})
    return LearnedWeights(path=folder / "learned.safetensors")
