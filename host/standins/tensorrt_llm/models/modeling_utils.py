# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the quantisation settings: a model on the host is never quantised."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass
class QuantConfig:
    """Settings that say "no quantisation"; nothing else is supported here."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: list[str] | None = None

    def is_module_excluded_from_quantization(self, name: str) -> bool:
        """Return whether ``name`` matches one of ``exclude_modules``."""
        return any(fnmatchcase(name, pattern) for pattern in self.exclude_modules or ())

    def __post_init__(self) -> None:
        """Refuse a quantised model rather than run it unquantised without a word."""
        if self.quant_algo is not None or self.kv_cache_quant_algo is not None:
            raise ValueError(
                f"quant_algo={self.quant_algo!r}, kv_cache_quant_algo="
                f"{self.kv_cache_quant_algo!r}: the stand-in host runs unquantised weights only; "
                "leave both at None"
            )
