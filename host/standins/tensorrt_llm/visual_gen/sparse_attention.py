# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for VisualGen's sparse attention settings: types to name, with no behaviour."""


class BaseSparseAttentionConfig:
    """Base of the settings that select sparse attention; the host refuses every one."""


class SkipSoftmaxAttentionConfig(BaseSparseAttentionConfig):
    """Settings of one kind of sparse attention, by name only."""


class SolAttentionConfig:
    """A type that upper layers test for; the stand-ins never make one."""
