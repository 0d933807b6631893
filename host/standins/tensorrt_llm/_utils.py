# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for one helper of the package's top level."""


def torch_pybind11_abi() -> str:
    """Return what compiled code would have to agree on with torch; nothing here is compiled."""
    return ""
