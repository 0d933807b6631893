# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for transformers, where it is not installed: a tokenizer is handed to pipelines here."""


class AutoTokenizer:
    """By name only."""
