# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The host's mapping of a layout; its process groups are made once, not for each case.

A gloo group brings threads of its own, which wake up now and then for as long as anything holds
the group: hundreds of groups slow down whatever runs beside them.
"""

import torch.distributed as dist

from support.cases import Layout

_kept: dict = {}


def mapping(layout: Layout, rank: int):
    """The VisualGenMapping of a layout in the current default group. Collective, the first time."""
    from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

    world = dist.group.WORLD if dist.is_initialized() else None
    if _kept.get("world") is not world:
        _kept.clear()
        _kept["world"] = world
    if (layout, rank) not in _kept:
        _kept[layout, rank] = VisualGenMapping(
            world_size=layout.world_size,
            rank=rank,
            cfg_size=layout.cfg,
            tp_size=layout.tp,
            ring_size=layout.ring,
            ulysses_size=layout.ulysses,
            attn2d_row_size=layout.rows,
            attn2d_col_size=layout.cols,
        )
    return _kept[layout, rank]
