# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The environment variables with this project's prefix; docs/environment.md says what they do."""

OVERLAY = "COSMOS3_TEXT_KV_OVERLAY"
ROW_INVARIANT = "COSMOS3_ROW_INVARIANT"
KNOWN = (OVERLAY, ROW_INVARIANT, "COSMOS3_PATCHSET_FAULT")
PREFIX = OVERLAY.rpartition("_")[0]


def misspelled(names) -> list[str]:
    """Return one sentence for each name that has our prefix, or nearly is ours, and is not."""
    told = []
    for name in sorted(names):
        if not name.startswith("COSMOS3_") or name in KNOWN:
            continue
        from difflib import get_close_matches  # rarely needed, and this runs at every start

        # Others may have variables of Cosmos3 too; these have to be close.
        near = get_close_matches(name, KNOWN, 1, 0 if name.startswith(PREFIX) else 0.85)
        if near:
            told.append(f"{name} is no variable of cosmos3-text-kv; the nearest is {near[0]}")
    return told
