# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Times and memory of exact text K/V beside the unfixed path and a loop over samples."""
