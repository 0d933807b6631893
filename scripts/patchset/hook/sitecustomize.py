# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Start the overlay of this folder, then run the sitecustomize that this one hides.

Python imports ``sitecustomize`` from the first folder of its path that has one. A folder that is
put first on PYTHONPATH reaches every worker process that inherits the environment.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))


def _run_hidden() -> None:
    others = [p for p in sys.path if os.path.abspath(p or os.curdir) != _here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    if any(name.startswith("COSMOS3_") for name in os.environ):
        import cosmos3_text_kv

        cosmos3_text_kv.start()
finally:
    _run_hidden()
