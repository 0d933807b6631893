# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""How close is close enough: the tiers that every numeric test picks from, with their reasons."""

import torch

# Tier 1, bitwise: the same operations on the same valid numbers in the same order. What lies in a
# padding slot has weight exactly 0, so it may not change a single bit either.
BITWISE = 0.0

# Tier 2, reduction order: the same sum, added up in another order (another number of ranks, text
# behind the video instead of before it, one launch instead of a loop). One forward of a prototype
# reached 9e-7 in float32; 5e-6 leaves room for more layers and ranks, and lies 2000 times below
# the smallest effect of one leaked key (0.98%). float64 noise is about 1e-15 an operation.
REDUCTION_ORDER = {torch.float32: 5e-6, torch.float64: 1e-12}

# Attention2D's wrapper casts partial outputs to float32 before it combines them, whatever the
# model's dtype is: up to 2^-24 of rounding for each combination, one combination for each layer,
# and up to four layers. One layer was measured at 3e-8, the worst of random models at 1.05e-7.
REDUCTION_ORDER_ATTENTION2D = {torch.float32: 5e-6, torch.float64: 4 * 2.0**-24}


def reduction_order(layout, dtype: torch.dtype) -> float:
    """The bound of tier 2 for a layout (support.cases.Layout)."""
    mesh = layout.rows * layout.cols > 1
    return (REDUCTION_ORDER_ATTENTION2D if mesh else REDUCTION_ORDER)[dtype]


# Tier 3, against float32: 16-bit noise is as large as one leaked key, so a 16-bit path is judged
# by its error against the float64 reference: at most this many times what the plain single-GPU
# loop in the same dtype has.
AGAINST_FLOAT32 = 2.0

# What the padded, unfixed path must exceed in the same test, or the test is blind to the bug.
SEES_THE_BUG = 1e-3


class ToleranceError(AssertionError):
    """Numbers are off. Apart from AssertionError, so that a seeded fault must fail in this way."""


def relative_l2(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance, computed in float64; NaN or infinite differences give NaN or inf."""
    if found.shape != expected.shape:
        raise ToleranceError(f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    found, expected = found.double(), expected.double()
    return ((found - expected).norm() / expected.norm()).item()


def worst_sample(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative L2 distance of a sample [B, ...]: a short prompt's error is not diluted
    by the longer one's."""
    if found.shape != expected.shape:
        raise ToleranceError(f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    distances = [relative_l2(f, e) for f, e in zip(found, expected)]
    return float("nan") if any(d != d for d in distances) else max(distances)


def assert_within(found, expected, bound: float, what: str) -> float:
    """Raises ToleranceError unless every sample is within bound; NaN never is."""
    distance = worst_sample(found, expected)
    if not distance <= bound:
        raise ToleranceError(f"{what}: worst sample's relative L2 {distance:.3g}, limit {bound:g}")
    return distance


def assert_bitwise(found, expected, what: str) -> None:
    """Raises ToleranceError unless all elements are equal; NaN never is."""
    if found.shape != expected.shape or not torch.equal(found, expected):
        differing = "shapes" if found.shape != expected.shape else int((found != expected).sum())
        raise ToleranceError(f"{what}: not equal to the last bit, differing: {differing}")


def assert_same_lse(found, expected, bound: float, what: str) -> None:
    """Compares LSEs [B, H, S]: -inf in the same places, and absolute distance (they are logs)."""
    if found.shape != expected.shape:
        raise ToleranceError(f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}")
    found, expected = found.double(), expected.double()
    empty = expected == float("-inf")
    if not torch.equal(found == float("-inf"), empty):
        raise ToleranceError(f"{what}: -inf in other places than the reference has it")
    distance = (found - expected)[~empty].abs().max().item() if (~empty).any() else 0.0
    if not distance <= bound:
        raise ToleranceError(f"{what}: LSE differs by {distance:.3g}, limit {bound:g}")


def assert_sees_the_bug(padded, expected, bound: float, least: float = SEES_THE_BUG) -> float:
    """Raises unless the unfixed result is finite and clearly outside the bound of the fixed one.

    NaN would fail any bound, and would prove nothing about padding. `least` is for cases drawn at
    random, in which one padding row may be lost among many keys.
    """
    assert torch.isfinite(padded).all(), "the unfixed path is not finite: it shows another defect"
    distance = worst_sample(padded, expected)
    limit = max(bound, least)
    assert distance > limit, (
        f"blind: the unfixed path is within {distance:.3g} of the reference (must exceed {limit})"
    )
    return distance
