# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The newer import path of the project logger."""

from tensorrt_llm.logger import logger

__all__ = ["logger"]
