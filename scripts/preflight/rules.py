# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The overlay's layout_check, loaded by its path.

By its name it would be looked up in an installed TensorRT-LLM first, which imports torch.
"""

import importlib.util
import sys
from pathlib import Path

PATH = (
    Path(__file__).resolve().parents[2]
    / "overlay/tensorrt_llm/_torch/visual_gen/models/cosmos3/layout_check.py"
)
_spec = importlib.util.spec_from_file_location("cosmos3_layout_check", PATH)
layout_check = importlib.util.module_from_spec(_spec)
# Dataclasses look their module up there.
sys.modules[_spec.name] = layout_check
_spec.loader.exec_module(layout_check)
