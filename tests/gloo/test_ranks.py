# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The launcher itself: what it returns, and that no failure of a rank ends in a hang."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from support.ranks import RankError

pytestmark = pytest.mark.gloo


def _logic_sum(rank: int, value: float) -> torch.Tensor:
    total = torch.tensor([value * rank, dist.get_world_size()])
    dist.all_reduce(total)
    return total


def _logic_rank_one_raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("only this rank found 7 out of 5")
    dist.barrier()


def _logic_rank_one_dies(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    dist.barrier()


def _logic_rank_one_is_late(rank: int) -> None:
    if rank == 1:
        time.sleep(600)
    dist.barrier()


def _logic_all_raise(rank: int) -> None:
    raise ValueError(f"alike on every rank, here {rank}")


@pytest.mark.parametrize("size", [2, 4, 3])
def test_ranks_results_vs_closed_form(ranks, size):
    results = ranks.run(size, _logic_sum, 2.0)
    for total in results:
        assert total.tolist() == [size * (size - 1), size * size]


def test_ranks_a_rank_that_raises_vs_time_limit(ranks):
    start = time.monotonic()
    with pytest.raises(RankError, match="only this rank found 7 out of 5") as caught:
        ranks.run(2, _logic_rank_one_raises)
    assert time.monotonic() - start < 30
    assert "_logic_rank_one_raises" in str(caught.value), "the traceback is missing"
    assert str(caught.value).startswith("rank 1"), "the victim is reported before the culprit"
    # The next case starts afresh.
    assert ranks.run(2, _logic_sum, 1.0)[0].tolist() == [1, 4]


def test_ranks_a_rank_that_dies_vs_time_limit(ranks):
    start = time.monotonic()
    with pytest.raises(RankError, match="died: exit code 3"):
        ranks.run(2, _logic_rank_one_dies)
    assert time.monotonic() - start < 30


def test_ranks_a_rank_that_hangs_vs_time_limit(ranks):
    start = time.monotonic()
    with pytest.raises(RankError, match="_logic_rank_one_is_late"):
        ranks.run(2, _logic_rank_one_is_late, timeout=1.0)
    assert time.monotonic() - start < 30


def test_ranks_outcomes_vs_what_each_rank_raised(ranks):
    outcomes = ranks.outcomes(2, _logic_all_raise)
    assert [(o.error, o.message) for o in outcomes] == [
        ("ValueError", "alike on every rank, here 0"),
        ("ValueError", "alike on every rank, here 1"),
    ]
    lone = ranks.outcomes(2, _logic_rank_one_raises)
    assert lone[1].error == "ValueError"
    assert lone[0].error, "rank 0 waits for a rank that is gone, and must be seen to"
