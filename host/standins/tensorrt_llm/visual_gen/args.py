# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for VisualGen's user-facing settings: the ones that choose attention."""

from dataclasses import dataclass
from typing import Any


@dataclass
class AttentionConfig:
    """Which attention runs.

    Attributes:
        backend: VANILLA, FA4, TRTLLM, CUTEDSL, CUDNN or FLASHINFER.
        sparse_attention_config: unsupported on the host, must be None.
        quant_attention_config: unsupported on the host, must be None.
    """

    backend: str = "VANILLA"
    sparse_attention_config: Any = None
    quant_attention_config: Any = None

    def __post_init__(self) -> None:
        """Refuse what the host would otherwise ignore, and so compute something else."""
        for name in ("sparse_attention_config", "quant_attention_config"):
            value = getattr(self, name)
            if value is not None:
                raise ValueError(
                    f"{name}={value!r}: the stand-in host has dense, unquantised attention only; "
                    "leave it at None"
                )
