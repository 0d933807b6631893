# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of the tiny model that learns, before it has learned."""

from pathlib import Path

from deviation import train


def unlearned(folder) -> Path:
    captions = train.Captions()
    train.save(train.initial(len(captions.tokens), 0), captions.tokens, folder, {})
    return folder
