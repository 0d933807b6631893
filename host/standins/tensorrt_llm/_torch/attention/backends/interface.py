# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the LLM side's attention interface: the mask names."""

from enum import Enum


class PredefinedAttentionMask(str, Enum):
    """A mask that needs no tensor."""

    CAUSAL = "causal"
    FULL = "full"
