# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The older import path of the mask names."""

from tensorrt_llm._torch.attention.backends.interface import PredefinedAttentionMask

__all__ = ["PredefinedAttentionMask"]
