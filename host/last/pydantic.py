# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for pydantic, where it is not installed: fields with defaults, none of them checked."""

from dataclasses import MISSING, dataclass, field


def Field(default=MISSING, description: str = ""):
    """Return a field."""
    return field(default=default)


class BaseModel:
    """Takes its fields by name, and no other."""

    def __init_subclass__(cls) -> None:
        """Make the fields that the class names."""
        dataclass(kw_only=True)(cls)
