# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Each seeded fault fails the check that is there to catch it, and the check passes without it."""

import pytest
import seeded_faults
from seeded_faults import FAULTS
from support.tiers import ToleranceError

pytestmark = pytest.mark.gloo
ALL = [pytest.param(name, fault, id=name) for name, fault in FAULTS.items()]


@pytest.mark.parametrize(("name", "fault"), ALL)
def test_seeded_fault_is_caught_vs_its_check(ranks, name, fault):
    def broken_run(size, function, *args):
        return ranks.run(size, seeded_faults.seeded, name, function, *args)

    with pytest.raises(ToleranceError) as caught:
        fault.check(broken_run)
    assert fault.caught_by in str(caught.value)


def _distinct(faults):
    found = {}
    for name, fault in faults.items():
        found.setdefault(repr((fault.check.func, fault.check.keywords)), (name, fault))
    return list(found.values())


@pytest.mark.parametrize(
    ("name", "fault"),
    [pytest.param(n, f, id=n) for n, f in _distinct(FAULTS)],
)
def test_seeded_faults_check_vs_unbroken_code(ranks, name, fault):
    """A check that fails on the code as it is would catch every fault."""
    fault.check(ranks.run)
