# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the parity run observes of steps and graphs, on the host, and how it is judged."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from parity.judge import judge
from parity.observe import ANSWERS, observe
from support.serving import Serving

from tensorrt_llm._torch.visual_gen.models.cosmos3.text_graph import GraphInputs
from tensorrt_llm._torch.visual_gen.recorded_graph import Counter

from .test_report import judged, plan_of, results_of


class Model:
    """A served transformer as the parity run's worker holds one."""

    def __init__(self, serving):
        self.model, self.device, self.dtype = serving.transformer, serving.device, serving.dtype
        self.serving = serving

    def begin(self, inputs):
        self.prompts = {name: inputs[name] for name in ("text_ids", "text_mask")}

    def arguments(self, latents, timestep):
        return self.serving.request((7, 19), step=timestep % 7) | self.prompts


def observed(backend="VANILLA", lengths=(7, 19), **options):
    serving = Serving.host(backend, **options)
    request = serving.request(lengths, seed=3)
    request["latents"] = request["hidden_states"][0]
    with torch.no_grad():
        return observe(Model(serving), request)


@pytest.mark.parametrize("backend", ["FA4", "VANILLA"])
def test_fixed_host_launches_once_and_replays_the_request(backend):
    found = observed(backend)
    assert (found["launches"], found["host_reads"], found["refused"]) == (1, 0, "")
    assert [found[name] for name in ANSWERS] == [0, 0, 0]


def test_unfixed_host_reads_lengths_and_is_not_captured():
    found = observed(text_kv="padded")
    assert found["launches"] == 2
    assert found["host_reads"] > 0 and "host reads a step" in found["refused"]
    assert observed(lengths=(9, 9), text_kv="exact")["launches"] == 1


@pytest.mark.parametrize("what, parts", [("prompts", 2), ("controls", 1)])
def test_graph_that_reads_where_it_was_captured_is_seen(monkeypatch, what, parts):
    """Copies that stay as they are make the replay answer the request before."""
    read = GraphInputs.read

    def stale(self, tensors):
        return tensors if len(tensors) == parts else read(self, tensors)

    monkeypatch.setattr(GraphInputs, "read", stale)
    found = observed()
    others = {"prompts": "controls", "controls": "prompts"}
    assert found["first"] == found[others[what]] == 0 and found[what] > 1e-3


def test_capture_that_fails_is_told(monkeypatch):
    def read(self, tensors):
        if torch.cuda.is_current_stream_capturing():
            tensors[0].sum().item()
        return tensors

    monkeypatch.setattr(GraphInputs, "read", read)
    assert "the capture failed: a host read" in observed()["refused"]


READS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0] > 0),
    "int": lambda x: int(x[0]),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu().tolist(),
    "to": lambda x: x.to(device="cpu", dtype=torch.int32)[0],
    "nonzero": lambda x: x.nonzero(),
    "masked": lambda x: x[x > 0],
}


@pytest.mark.parametrize("read", READS)
def test_counter_vs_one_read(read):
    with Counter() as counter:
        READS[read](torch.ones(3))
    assert counter.reads == 1


def test_counter_vs_no_reads_and_launches():
    x = torch.ones(1, 2, 3, 4)
    with Counter((F, "scaled_dot_product_attention")) as counter:
        host = x.to("cpu")
        counter.reads = 0
        host.tolist()
        (x.to(torch.float64).to(x.device) * x)[:, 0].sum()
        for _ in range(3):
            F.scaled_dot_product_attention(x, x, x)
    assert (counter.reads, counter.launches) == (0, 3)
    F.scaled_dot_product_attention(x, x, x).tolist()
    assert (counter.reads, counter.launches) == (0, 3), "counts after its end"


# How it is judged.

MAIN = {"padding_bug": False, "checkout": True}
NAMES = {"host-reads", "launches-per-layer", "stale-replay/prompts", "stale-replay/controls"}
SEEN = {"stale-replay-seen/prompts", "stale-replay-seen/controls"}


def statuses(plan, side=None, **changes):
    """The statuses with changes on the last rank of a side."""
    results = results_of(plan, unfixed=1e-7 if not plan.settings["padding_bug"] else 0.3)
    if side is not None:
        results[side]["reports"][-1]["observed"] |= json.loads(json.dumps(changes))
    found = judged(plan, results)
    return {k: v for k, v in found.items() if k.startswith(("host-", "launches", "stale"))}


@pytest.mark.parametrize(
    "settings, names",
    [
        (MAIN, NAMES | SEEN | {"host-reads-unfixed", "launches-per-layer-unfixed"}),
        ({}, NAMES | {"host-reads-unfixed"}),
    ],
)
def test_checks_of_each_base(settings, names):
    assert statuses(plan_of(**settings)) == dict.fromkeys(names, "PASS")


STALE = {"prompts": math.inf, "controls": 1e-9}
REFUSED = {"refused": "2 host reads a step"}


@pytest.mark.parametrize(
    "side, changes, failed",
    [
        ("fixed", STALE, {"stale-replay/prompts", "stale-replay/controls"}),
        ("fixed", REFUSED, {"stale-replay/prompts", "stale-replay/controls"}),
        ("fixed", {"launches": 2.0}, {"launches-per-layer"}),
        ("fixed", {"host_reads": 1}, {"host-reads"}),
        ("unfixed", {"prompts": 0.0, "controls": 1e-4}, None),
        ("unfixed", REFUSED, SEEN),
        ("unfixed", {"host_reads": 1}, {"host-reads-unfixed"}),
    ],
)
def test_each_fault_fails_its_check(side, changes, failed):
    """On one rank of two; what has to be seen is enough on either."""
    found = statuses(plan_of(**MAIN), side, **changes)
    assert {k for k, v in found.items() if v == "FAIL"} == (failed or set())


def test_unfixed_side_without_its_faults_fails_as_blind():
    plan = plan_of("--ranks", "1", **MAIN)
    found = statuses(plan, "unfixed-one", launches=1.0, prompts=0.0, controls=0.0)
    failed = {k for k, v in found.items() if v == "FAIL"}
    assert failed == SEEN | {"launches-per-layer-unfixed"}


def test_what_cannot_be_observed_is_skipped():
    shared = {"device": "cuda", "exchange": "gloo"}
    assert statuses(plan_of(**shared)) == {"stale-replay": "SKIP"}
    plan = plan_of("--ranks", "1")
    assert statuses(plan, "one", launches=0.0)["launches-per-layer"] == "SKIP"


@pytest.mark.parametrize(
    "options, limits",
    [
        (("--layout", "cfg=2"), (1, None)),
        (("--prompt-tokens", "7,7", "--ranks", "1"), (1, None)),
        (("--layout", "tp=2"), (1, 1)),
        (("--layout", "ring=2"), (2, None)),
    ],
)
def test_launches_vs_what_a_layout_needs(options, limits):
    plan = plan_of(*options)
    checks = {c["name"]: c["limit"] for c in judge(results_of(plan), plan.settings)[0]}
    assert tuple(checks.get(f"launches-per-layer{side}") for side in ("", "-unfixed")) == limits
