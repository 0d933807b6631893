# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the communicator module: the plain sum, by its other import path."""

from tensorrt_llm._torch.distributed import AllReduce

__all__ = ["AllReduce"]
