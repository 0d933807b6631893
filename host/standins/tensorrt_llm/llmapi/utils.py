# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the base class of settings."""

from pydantic import BaseModel


class StrictBaseModel(BaseModel):
    """Refuses what is no field."""

    model_config = {"extra": "forbid"}
