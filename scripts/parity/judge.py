# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Judge: what the runs are held to, and how far apart they were.

Errors are relative L2 norms, |a - b| / |b|, in float64. "Per forward" means: at the same latents
as the run compared with. Samples are "negative" and "positive", "batch" is both at once. A check
is a dictionary as result files hold it: name, status (PASS, FAIL or SKIP), measured and limit (None
where there is none), direction ("at most" or "above") and note.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from parity.plan import bucket_rows, observed_runs

SAMPLES = ("negative", "positive")
PARTS = ("batch", *SAMPLES)
Check = dict[str, Any]

# One forward on P ranks against one rank. float32: eight roundings of slack over the 6e-7 that
# the order of summation costs at 4 layers; float64: the same in its own precision, with room for
# the float32 pieces that all runs share; bfloat16 on a CPU: one rounding flipped in a thousand
# values. On GPUs bfloat16 has no slack, see Case.limit().
FORWARD_LIMIT = {"float32": 5e-6, "float64": 1e-12, "bfloat16": 1e-4}
# float64 where something works in float32 whatever the model's dtype.
FLOAT32_PIECES_LIMIT = 5e-6
# Against diffusers, which computes norms and rotary embeddings in float32 at best.
ORACLE_LIMIT = 5e-6
# What the bug costs at least; a comparison that it passes proves nothing.
SEEN_LIMIT = 1e-3
# Of decoded frames: one step of an 8-bit colour.
FRAME_LIMIT = 1 / 255
# Where a dtype's own rounding is the yardstick: at most this times the single-rank path's error.
OWN_ERROR_FACTOR = 2.0
# Why a layout adds up in another order than one rank, by axis of VisualGenMapping.
REORDERS = {
    "tp_size": "tensor parallelism adds its ranks' parts of a product in another order",
    "ring_size": "a ring combines partial softmaxes",
    "attn2d_row_size": "Attention2D combines partial softmaxes",
    "attn2d_col_size": "Attention2D combines partial softmaxes",
}


def judge(results: dict[str, Any], settings: dict[str, Any]) -> tuple[list[Check], dict[str, Any]]:
    """Holds every run to its limits.

    Args:
        results: What run() returned.
        settings: Those of the plan.

    Returns:
        The checks, and all errors by comparison, step and part. Names of cases but the first
        begin with the case's.
    """
    kind = RequestCase if "requests" in settings else Case
    checks, errors = [_finite(results), _ranks_agree(results, settings)], {}
    for number, case in enumerate(settings["cases"]):
        prefix = f"{case['name']}/" if number else ""
        judged = kind(results, settings, case)
        judged.compare()
        checks += [{**check, "name": prefix + check["name"]} for check in judged.checks]
        errors |= {prefix + key: value for key, value in judged.errors.items()}
    return checks + _observed(results, settings), errors


def line(check: Check) -> str:
    """Returns "STATUS name measured limit"."""
    return f"{check['status']} {check['name']} {figure(check['measured'])} {limit_text(check)}"


def limit_text(check: Check) -> str:
    """Returns the limit with its direction, such as "<=5.00e-06"."""
    if check["limit"] is None:
        return "-"
    return (">" if check["direction"] == "above" else "<=") + figure(check["limit"])


def figure(value: float | str | None) -> str:
    """Returns a figure for people: bytes and counts whole, errors with three digits."""
    if value is None:
        return "-"
    value = float(value)
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return f"{value:.2e}"


def at_most(name: str, measured: float, limit: float, note: str = "") -> Check:
    """A check that passes up to the limit; NaN fails."""
    return _check(name, ("FAIL", "PASS")[measured <= limit], measured, limit, note)


def above(name: str, measured: float, limit: float, note: str = "") -> Check:
    """A check that passes above the limit; NaN fails."""
    return _check(name, ("FAIL", "PASS")[measured > limit], measured, limit, note, "above")


def skip(name: str, note: str) -> Check:
    """A check that could not be made."""
    return _check(name, "SKIP", None, None, note)


def _check(name, status, measured, limit, note, direction="at most") -> Check:
    found = {"name": name, "status": status, "measured": measured, "limit": limit}
    return {**found, "direction": direction, "note": note}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns |found - expected| / |expected| in float64."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())


def largest(errors: list[float]) -> float:
    """Returns the largest error, NaN if there is one; max() may miss it."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def per_part(found: torch.Tensor, expected: torch.Tensor) -> dict[str, list[float]]:
    """Returns the error of each step of velocities [N, 2, C, T, H, W], whole and by sample."""
    errors: dict[str, list[float]] = {part: [] for part in PARTS}
    for step in range(len(found)):
        errors["batch"].append(relative(found[step], expected[step]))
        for sample, name in enumerate(SAMPLES):
            errors[name].append(relative(found[step, sample], expected[step, sample]))
    return errors


def _finite(results) -> Check:
    keys = ("velocity", "trajectory")
    sizes = [
        float(next(case[k] for k in keys if k in case).double().square().mean().sqrt())
        for run in results.values()
        for case in run["cases"].values()
    ]
    worst = largest([max(size, 1 / size) if size else math.inf for size in sizes])
    return at_most(
        "healthy-size",
        worst,
        100.0,
        "root mean square of velocities, of a request's latents, lies in [0.01, 100] in every run",
    )


def _ranks_agree(results, settings) -> Check:
    if settings["ranks"] == 1:
        return skip("ranks-agree", ONE_RANK)
    different = sum(
        len({report["digest"] for report in run["reports"]}) - 1 for run in results.values()
    )
    return at_most(
        "ranks-agree", float(different), 0.0, "ranks whose results differ from rank 0's by a bit"
    )


def _observed(results, settings) -> list[Check]:
    """What a step launches and reads back, and what replayed graphs answer, before and after."""
    if "requests" in settings:
        return []
    names = observed_runs(settings)
    if not names:
        return [skip("stale-replay", "ranks that share a GPU exchange through no graph")]
    ranks = ([report["observed"] for report in results[name]["reports"]] for name in names)
    old, new = ({key: max(one[key] for one in found) for key in found[0]} for found in ranks)
    bug, layout = settings["padding_bug"], settings["layout"]
    cut = any(axis.startswith(("ring", "attn2d", "ulysses")) for axis in layout)
    unequal = len(set(settings["cases"][-1]["prompts"].values())) > 1 and "cfg_size" not in layout
    name, note = "host-reads", "times that a step after the first waits for a value of the device"
    checks = [at_most(name, new["host_reads"], 0, note)]
    note += ", unfixed" + (": no graph is captured there, so none is stale" if bug else "")
    checks.append((above if bug else at_most)(f"{name}-unfixed", old["host_reads"], 0, note))
    name, note = "launches-per-layer", "launches of an attention kernel in a step"
    if not new["launches"]:
        checks.append(skip(name, "none of the kernels that are counted was called"))
    else:
        checks.append(at_most(name, new["launches"], layout.get("ring_size", 1), note))
        if unequal and not (bug and cut):
            note += ", unfixed: one for each sample, since lengths differ"
            checks.append(above(f"{name}-unfixed", old["launches"], 1, note))
    for what in ("prompts", "controls"):
        # What was not captured shows no bug and no fix.
        sides = [("stale-replay", new, at_most, 0, math.inf)]
        sides += [("stale-replay-seen", old, above, SEEN_LIMIT, 0)] * (not bug)
        for name, found, check, limit, refused in sides:
            name, note = f"{name}/{what}", f"a graph replayed with other {what}, against eager"
            measured = refused if found["refused"] else found[what]
            checks.append(check(name, measured, limit, found["refused"] or note))
    return checks


ONE_RANK = "--ranks 1: there is no run on several ranks"


class Case:
    """The checks of one case.

    Args:
        results: All cases of all runs.
        settings: Those of the plan.
        case: One of its cases.
    """

    def __init__(self, results, settings, case):
        self.settings, self.case = settings, case
        self.results = {name: run["cases"][case["name"]] for name, run in results.items()}
        self.reports = {name: run["reports"] for name, run in results.items()}
        self.errors: dict[str, Any] = {}
        self.checks: list[Check] = []

    def compare(self) -> None:
        """Fills `errors` and `checks`."""
        bfloat16 = self.settings["dtype"] == "bfloat16"
        if bfloat16:
            # Old and new order of the keys round differently, so both are held to float32.
            old = self.velocities("unfixed-one-vs-float32")
            own = self.velocities("one-vs-float32")
        limit, why = self.limit()
        self.hold("fixed-vs-one", limit, note=f"{self.settings['ranks']} ranks against one; {why}")
        if bfloat16:
            self.hold(
                "one-vs-float32",
                lambda part: OWN_ERROR_FACTOR * largest(old[part]),
                note="one rank's own rounding, against twice that of the per-sample loop",
            )
            self.hold(
                "fixed-vs-float32",
                lambda part: OWN_ERROR_FACTOR * largest(own[part]),
                note=f"{self.settings['ranks']} ranks' rounding, against twice one rank's own",
            )
            self.velocities("unfixed-one-vs-one")
        else:
            self.hold(
                "unfixed-one-vs-one",
                lambda part: self.forward_limit(),
                note="on one rank the per-sample loop of old was exact",
            )
        for name in ("float32",) if bfloat16 else ("fixed", "one"):
            self.hold(
                f"{name}-vs-oracle",
                lambda part: ORACLE_LIMIT,
                SAMPLES,
                "first step, diffusers one prompt at a time",
            )
        # Not held to anything: how far the old way is from the independent reference.
        for name in ("unfixed", "unfixed-one"):
            self.velocities(f"{name}-vs-oracle")
        self.checks += [self.unfixed(limit), self.final_latents(limit), self.text_bytes()]

    def limit(self) -> tuple[Callable[[str], float], str]:
        """Returns what several ranks are held to against one, by part, and why."""
        settings = self.settings
        reasons = sorted({REORDERS[axis] for axis in settings["layout"] if axis in REORDERS})
        if settings["dtype"] != "bfloat16":
            reason = f"{'; '.join(reasons)}; " if reasons else ""
            return lambda part: self.forward_limit(), f"{reason}the order of summation"
        on_cpu = settings["device"] == "cpu"
        if not reasons:
            if not (on_cpu or settings["row_invariant"]):
                reasons.append("torch's default matrix products round by their number of rows")
            uneven = self.reports["one"][0]["uneven"]
            if uneven:
                reasons.append(f"here these round by their number of rows: {', '.join(uneven)}")
        if on_cpu and not reasons:
            return lambda part: self.forward_limit(), "a rounding flipped in a thousand values"
        if not reasons:
            return lambda part: 0.0, "to the last bit"
        own = self.errors["one-vs-float32"]
        return (
            lambda part: OWN_ERROR_FACTOR * largest(own[part]),
            f"{'; '.join(reasons)}: against twice one rank's own error in bfloat16",
        )

    def forward_limit(self) -> float:
        """Returns what one forward is held to where only the order of summation differs."""
        dtype, layout = self.settings["dtype"], self.settings["layout"]
        merges = any("softmax" in REORDERS.get(axis, "") for axis in layout)
        if dtype == "float64" and (self.settings["checkout"] or merges):
            return FLOAT32_PIECES_LIMIT
        return FORWARD_LIMIT[dtype]

    def velocities(self, key: str) -> dict[str, list[float]] | None:
        """Keeps and returns the errors of "found-vs-expected", or None where a run is missing."""
        found, expected = (self.results.get(name) for name in key.split("-vs-"))
        if found is None or expected is None:
            return None
        count = min(len(found["velocity"]), len(expected["velocity"]))
        self.errors[key] = per_part(found["velocity"][:count], expected["velocity"][:count])
        return self.errors[key]

    def hold(self, key: str, limit: Callable[[str], float], parts=PARTS, note: str = "") -> None:
        """Adds one check for each part of a comparison."""
        measured = self.velocities(key)
        for part in parts:
            name = f"{key}/{part}"
            self.checks.append(
                skip(name, self.missing(*key.split("-vs-")))
                if measured is None
                else at_most(name, largest(measured[part]), limit(part), note)
            )

    def missing(self, *names: str) -> str:
        """Says why one of these runs is not there."""
        if self.settings["ranks"] == 1 and {"fixed", "unfixed"} & set(names):
            return ONE_RANK
        return f"there is no run {next(name for name in names if name not in self.results)}"

    def unfixed(self, limit: Callable[[str], float]) -> Check:
        """The bug has to be seen where there is one."""
        errors = self.velocities("unfixed-vs-one")
        if errors is None:
            return skip("unfixed-seen", self.missing("unfixed", "one"))
        worst = largest([largest(errors[sample]) for sample in SAMPLES])
        if not (self.case["pads"] and self.settings["padding_bug"]):
            allowed = limit("batch")
            if self.settings["dtype"] == "bfloat16":
                # Old and new order of the keys round differently.
                allowed = OWN_ERROR_FACTOR * largest(self.errors["one-vs-float32"]["batch"])
            return at_most("unfixed-vs-one", worst, allowed, self.harmless())
        note = "the bug, on the sample that suffers most"
        if worst <= SEEN_LIMIT:
            note = (
                "blind: the unfixed run is as good, so nothing was shown; take prompts of "
                "different lengths or a video whose rows the ranks do not divide"
            )
        return above("unfixed-seen", worst, SEEN_LIMIT, note)

    def harmless(self) -> str:
        """Says why the unfixed side is right."""
        if self.settings["padding_bug"]:
            return "this layout pads neither prompts nor rows: nothing is wrong"
        return "this checkout leaves padding out by itself, in a loop over samples"

    def final_latents(self, limit: Callable[[str], float]) -> Check:
        """Own trajectories, in which errors are carried on and guided."""
        final = {name: run.get("trajectory") for name, run in self.results.items()}
        for name, latents in final.items():
            if name != "one" and latents is not None:
                self.errors[f"trajectory/{name}-vs-one"] = [
                    relative(found, expected) for found, expected in zip(latents, final["one"])
                ]
        if "fixed" not in final:
            return skip("final-latents", self.missing("fixed", "one"))
        measured = self.errors["trajectory/fixed-vs-one"][-1]
        if self.settings["dtype"] == "bfloat16":
            own = self.errors["trajectory/float32-vs-one"][-1]
            exact = limit("batch") == 0.0
            return at_most(
                "final-latents",
                measured,
                0.0 if exact else OWN_ERROR_FACTOR * own,
                "own trajectories, "
                + ("to the last bit" if exact else "against twice one rank's own from float32"),
            )
        # Guidance adds the errors of both samples, g and g - 1 times, and steps add up.
        guidance = self.settings["guidance"]
        growth = (abs(guidance) + abs(guidance - 1)) * self.case["steps"]
        return at_most(
            "final-latents",
            measured,
            self.forward_limit() * growth,
            f"own trajectories; the limit per forward times {growth:g} for guidance and steps",
        )

    def text_bytes(self) -> Check:
        """Exact text costs no more memory than its share did, but for a bucket."""
        if "fixed" not in self.results or "unfixed" not in self.results:
            return skip("text-bytes", self.missing("fixed", "unfixed"))
        held, share = (
            max(report["text_bytes"][self.case["name"]] for report in self.reports[name])
            for name in ("fixed", "unfixed")
        )
        # Ranks that share the keys of a mesh or a ring each keep the text whole.
        layout = self.settings["layout"]
        whole = math.prod(n for axis, n in layout.items() if axis.startswith(("ring", "attn2d")))
        rows = bucket_rows(max(self.case["prompts"].values()))
        bucket = rows * self.settings["text_row_bytes"]
        self.errors["text_bytes"] = {"fixed": held, "unfixed": share, "bucket": bucket}
        return at_most(
            "text-bytes",
            float(held),
            float(share * whole + bucket),
            "text K/V on one rank, against the unfixed share"
            + (f", {whole} times for ranks that keep it whole," if whole > 1 else "")
            + " and one bucket",
        )


class RequestCase(Case):
    """The checks of one request."""

    def compare(self) -> None:
        """Fills `errors` and `checks`."""
        steps, one = self.case["steps"], self.results["one"]
        ends = slice(steps - 1, None, steps)
        final = {}
        for name, run in self.results.items():
            if name == "one":
                continue
            pairs = zip(run["trajectory"], one["trajectory"])
            self.errors[f"trajectory/{name}-vs-one"] = [relative(*pair) for pair in pairs]
            final[name] = self.errors[f"trajectory/{name}-vs-one"][ends]
            difference = (run["frames"].int() - one["frames"].int()).abs()
            square = float(difference.double().square().mean()) / 255**2
            self.errors[f"frames/{name}-vs-one"] = {
                "largest": float(difference.max()) / 255,
                # None where they are equal.
                "psnr": -10 * math.log10(square) if square else None,
            }
        several = "fixed" if "fixed" in final else "unfixed-one"
        limit, frame_limit, note = self._limits(final)
        names = [f"final-latents/chunk{i}" for i in range(len(final[several]))]
        names = names if len(names) > 1 else ["final-latents"]
        self.checks += [
            at_most(name, error, limit, note) for name, error in zip(names, final[several])
        ]
        self.checks.append(
            at_most("frames", self._frames(several)["largest"], frame_limit, self._psnr(several))
        )
        for stream in {"audio", "action"} & one.keys():
            error = relative(self.results[several][stream], one[stream])
            self.checks.append(at_most(stream, error, limit, note))
        if "unfixed" not in final:
            self.checks.append(skip("unfixed-seen", ONE_RANK))
            return
        worst = largest(final["unfixed"])
        if self.case["pads"] and self.settings["padding_bug"]:
            seen = f"the bug in the final latents, frames {self._psnr('unfixed')}"
            self.checks.append(above("unfixed-seen", worst, SEEN_LIMIT, seen))
        else:
            self.checks.append(at_most("unfixed-vs-one", worst, limit, self.harmless()))

    def _limits(self, final) -> tuple[float, float, str]:
        """Returns limits of latents and of frames, and why."""
        if self.settings["dtype"] != "bfloat16":
            factor = self.case["growth"]
            note = f"the limit per forward times {factor:g} for guidance, steps and chunks"
            return self.forward_limit() * factor, FRAME_LIMIT, note
        why = self.limit()[1]
        if why == "to the last bit":
            return 0.0, 0.0, why
        factor, own = OWN_ERROR_FACTOR, self._frames("float32")["largest"]
        latents = factor * largest(final["float32"])
        return latents, max(FRAME_LIMIT, factor * own), f"{why}, from float32"

    def _frames(self, name: str) -> dict[str, Any]:
        return self.errors[f"frames/{name}-vs-one"]

    def _psnr(self, name: str) -> str:
        found = self._frames(name)["psnr"]
        return "equal to one rank's" if found is None else f"PSNR {found:.1f} dB to one rank's"
