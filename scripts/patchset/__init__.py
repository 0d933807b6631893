# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The patch set for some upstream commits: check, apply, overlay, pull request.

Standard library only, Python 3.10 or newer, so that it runs before anything is installed. Start it
with ``python -m patchset COMMAND`` and ``scripts/`` on the import path.
"""
