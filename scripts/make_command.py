# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The `make` command that gives the same figures again, for result files."""

import shlex

# Options with a value that say where results go, or what git could not, but change no figure.
NO_FIGURES = ("--out", "--commit")


def make_command(target: str, argv: list[str]) -> str:
    """Returns what to type for a target with these options, without those of NO_FIGURES."""
    kept, words = [], iter(argv)
    for word in words:
        if word in NO_FIGURES:
            next(words, None)
        elif not word.startswith(tuple(f"{name}=" for name in NO_FIGURES)):
            kept.append(word)
    return f"make {target}" + (f" ARGS={shlex.quote(shlex.join(kept))}" if kept else "")
