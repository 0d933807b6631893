# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Placeholder for the CUTLASS DSL, which kernels on the CPU do not need."""
