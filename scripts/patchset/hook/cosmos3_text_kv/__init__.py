# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Exact text K/V for Cosmos3 in an installed TensorRT-LLM, applied when its modules are imported.

Nothing of tensorrt_llm is written. Installed from the wheel, a .pth file runs this in every
process; from the folder, which has to be on PYTHONPATH, its sitecustomize does. It acts on

    COSMOS3_TEXT_KV_OVERLAY=1  the fix: the patches go into the installed module in memory
    COSMOS3_ROW_INVARIANT=1    matrix products that round alike for any number of rows

and says so on stderr where VisualGen is imported. Switched on and not possible, the import of
Cosmos3's modules fails. ``python -m cosmos3_text_kv`` tells which processes it would reach. In
Python, ``with active():`` and ``row_invariant()`` do the same.
"""

from .finder import active, standing, start
from .rows import row_invariant
from .series import OverlayError

__all__ = ["OverlayError", "active", "row_invariant", "standing", "start"]
