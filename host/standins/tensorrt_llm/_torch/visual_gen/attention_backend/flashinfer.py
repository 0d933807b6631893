# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for a compiled attention backend."""

from .absent import AbsentAttention


class FlashInferAttention(AbsentAttention):
    """FLASHINFER, by name only."""
