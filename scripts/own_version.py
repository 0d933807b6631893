# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""This project's version, which stands in pyproject.toml alone."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "cosmos3-text-kv"
# By hand, because tomllib came with Python 3.11.
_TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "([^"]+)"$', _TEXT, re.M)[1]
