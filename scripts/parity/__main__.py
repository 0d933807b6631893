# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m parity`."""

import sys

from parity.cli import main

sys.exit(main())
