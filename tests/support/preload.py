# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the worker processes have in common, imported once before they are forked."""

import importlib

import hostpath

hostpath.activate("cpu")

_VISUAL_GEN = "tensorrt_llm._torch.visual_gen"
for _name in (
    "support.ranks",
    "pytest",
    f"{_VISUAL_GEN}.models.cosmos3.text_attention",
    f"{_VISUAL_GEN}.models.cosmos3.transformer_cosmos3",
):
    # What cannot be imported here fails in the test that needs it, with its own message.
    try:
        importlib.import_module(_name)
    except ImportError:
        pass
