# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the padding bug does to videos, shown on a tiny Cosmos3 that has learned to obey captions.

`scenes` draws videos, writes captions and judges frames; `train` makes the weights; `generate`
runs them; `python -m deviation` measures, and `page` and `document` show it.
"""
