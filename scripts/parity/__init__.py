# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parity run: one rank against several, fixed and unfixed, and diffusers beside them.

`python -m parity` starts each run as processes of its own, because the fixed and the unfixed
code may be two module trees behind one import path:

    one          1 rank, exact text         records the latents of every step
    unfixed-one  1 rank, padded text        the per-sample loop of old
    unfixed      P ranks, padded text       the bug
    fixed        P ranks, exact text
    float32      1 rank, exact, float32     only beside a bfloat16 run
    oracle       diffusers, no padding      first step, one prompt at a time

A base may be exact already, with no padding bug to see. So the unfixed and the fixed run of most
ranks also count a step's attention launches and host reads, and replay graphs of three requests.

Every run evaluates each step at the latents that `one` recorded, so that its error is that of one
forward, and then follows a trajectory of its own.

Four steps hand data forward: plan (requests and runs from the options), run (processes; tensors
and reports), judge (checks and errors), show (page and table, from the result file alone).
"""
