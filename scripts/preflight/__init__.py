# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Says what a VisualGen configuration of Cosmos3 would fail on, before anything is started.

``python -m preflight --config file.yaml`` with ``scripts/`` on the import path. It needs PyYAML,
but neither torch nor a GPU.
"""
