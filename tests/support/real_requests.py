# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: support.pipelines makes a staged checkout's pipelines, on the CPU."""

import functools

import torch
from cosmos3_sizes import full_config
from parity import outside

from support import pipelines

CPU = torch.device("cpu")
outside.before_import(CPU, torch.float32, "VANILLA")
outside.before_pipeline(CPU, graphs=True)
_fill = pipelines.init_random_weights


def _fill_in_float32(model, seed):
    outside.before_loading(model, torch.float32, CPU)
    _fill(model, seed)


pipelines.init_random_weights = _fill_in_float32
pipelines.build = functools.partial(pipelines.build, model=full_config(pipelines.MODEL))
