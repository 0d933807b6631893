# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the worker processes have in common, imported once before they are forked."""

import importlib

import hostpath

hostpath.activate("cpu")

# The checks import the host, the overlay and diffusers, which is the slowest.
for _name in ("support.ranks", "pytest", "support.checks", "seeded_faults"):
    # What cannot be imported here fails in the test that needs it, with its own message.
    try:
        importlib.import_module(_name)
    except ImportError:
        pass
