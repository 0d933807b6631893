# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the accelerators that skip steps: they can be named, never made."""


class _Absent:
    def __init__(self, *args) -> None:
        raise NotImplementedError(f"{type(self).__name__} is not part of the stand-in host")


class CacheDiTAccelerator(_Absent):
    """Cache-DiT, by name only."""


class TeaCacheAccelerator(_Absent):
    """TeaCache, by name only."""
