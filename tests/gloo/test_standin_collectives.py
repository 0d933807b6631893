# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of stacked q, k and v, against three exchanges.

Fields: B batch, S rows of all ranks, H heads of all ranks, D head_dim, P ranks.
"""

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.gloo


def _exchange(rank, back):
    from tensorrt_llm._torch.distributed import all_to_all_4d, all_to_all_5d

    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    rows, heads = (size * 3, 4) if back else (3, 4 * size)
    stacked = torch.randn(2, rows, 3, heads, 5, generator=generator)
    scatter, gather = ((1, 3), (1, 2)) if back else ((3, 1), (2, 1))
    found = all_to_all_5d(stacked, *scatter, process_group=dist.group.WORLD)
    expected = [all_to_all_4d(x, *gather, dist.group.WORLD) for x in stacked.unbind(2)]
    return torch.equal(found, torch.stack(expected, dim=2)) and found.is_contiguous()


@pytest.mark.parametrize("back", [False, True], ids=["to-heads", "to-rows"])
@pytest.mark.parametrize("size", [2, 3])
def test_stacked_exchange_vs_three(ranks, size, back):
    assert all(ranks.run(size, _exchange, back))


def _replayed(rank, _):
    from tensorrt_llm._torch.visual_gen.recorded_graph import record

    def around(x):
        received = torch.empty_like(x)
        peer = 1 - rank
        ops = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, received, peer)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        return received + 1

    # Too large for a send that is done before its peer receives.
    x = torch.full((1 << 22,), float(rank))
    graph, output = record(around, [x], {})
    x += 10
    graph.replay()
    return output[0].item(), output[-1].item()


def test_recorded_graph_of_sends_and_receives_vs_new_values(ranks):
    assert ranks.run(2, _replayed, None) == [(12, 12), (11, 11)]
