# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What one process computes for P ranks, against P real ranks."""

from dataclasses import replace

import pytest
import torch
from deviation.generate import Request, build, video
from support.learned import unlearned

pytestmark = pytest.mark.gloo

# Two steps with prompts and rows that leave remainders.
REQUEST = Request(steps=2)
ROUNDING = 1e-4


def _on_rank(rank: int, folder, fixed: bool, request: Request) -> torch.Tensor:
    from tensorrt_llm._torch.visual_gen.mapping import VisualGenMapping

    size = torch.distributed.get_world_size()
    mapping = VisualGenMapping(world_size=size, rank=rank, ulysses_size=size)
    return video(build(fixed, mapping=mapping, folder=folder), request, 0)


@pytest.mark.parametrize("together", (True, False))
def test_whole_sharder_equals_real_ranks_fixed_and_unfixed(ranks, tmp_path, together):
    folder, request = unlearned(tmp_path), replace(REQUEST, together=together)
    one = video(build(True, folder=folder), request, 0)
    for size in (2, 4):
        unfixed = video(build(False, size, folder=folder), request, 0)
        for found in ranks.run(size, _on_rank, folder, False, request):
            assert (found - unfixed).abs().max() <= ROUNDING
        assert (unfixed - one).abs().max() > 10 * ROUNDING
        for found in ranks.run(size, _on_rank, folder, True, request):
            assert (found - one).abs().max() <= ROUNDING
