# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What an FA4 backend looks at before it imports flash_attn: a module with a ``core``."""

from types import SimpleNamespace

core = SimpleNamespace()
