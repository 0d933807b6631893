# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``python -m preflight``."""

import sys

from preflight.cli import main

if __name__ == "__main__":
    sys.exit(main())
