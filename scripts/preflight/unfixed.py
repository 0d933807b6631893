# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Whether 1.3.0rc25 to rc29 compute a layout wrongly, and an estimate of how wrongly.

What they do: as soon as P > 1 ranks share a sequence, the text keys of a batch are padded with
zeros to the longest prompt, rounded up to a multiple of P, and the video's rows to a multiple of P.
Attention then runs over all slots without lengths. With P = 1 each sample is cut to its own length,
which is exact.

The estimate, for one sample with N valid keys of logits s_i and values v_i, and m padded slots: a
zero key has logit 0 and its value is 0, so the output is sum(e^s_i v_i) / (Z + m) with
Z = sum(e^s_i), instead of sum(e^s_i v_i) / Z. It is the right one times Z / (Z + m): relatively
wrong by exactly m / (Z + m), the share of softmax weight that leaks into the padding. Z is N times
the mean of e^s_i, which depends on the weights; with the mean at 1 (logits near 0) the share is

    m / (N + m),

computed from counts alone. Logits that spread around 0 raise the mean and lower the share; sharp
attention can do either. Rows that pad the video are zero in the first layer only, and are counted
like the others. The error of a whole forward is this share times a factor for how the layers pass
it on. MEASURED holds runs of the real functions; their factor lay between LOW and HIGH, growing
with depth. So the estimate is an order of magnitude, for models and prompts like those measured.
Nothing here bounds the error of a particular one.

Fields: N valid keys, m padded slots, P sequence-parallel size, S rows of the generation sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from .layout import Sizes

# Which TensorRT-LLM has what, in words for messages.
UNFIXED = "1.3.0rc25 to rc29"
EXACT = "main since 2026-10-02 (1.4.0rc1)"
UNCLEAR = "1.4.0rc0"
STATIC_FP8 = "static FP8 runs with main since 2026-10-03 (#17476)"


@dataclass(frozen=True)
class Leak:
    """Padded slots in the softmax of one sample.

    Attributes:
        prompt: Its length in tokens.
        video_rows: S.
        text_slots: Zero keys behind its text.
        video_slots: Rows that pad the video.
        assumed: What was assumed, because it was not given; empty when nothing was.
    """

    prompt: int
    video_rows: int
    text_slots: int
    video_slots: int
    assumed: str = ""

    @property
    def slots(self) -> int:
        """m, all padded slots."""
        return self.text_slots + self.video_slots

    @property
    def valid(self) -> int:
        """N, keys that should count."""
        return self.prompt + self.video_rows

    @property
    def share(self) -> float:
        """Softmax weight that leaks into the padding, if logits are near 0."""
        return self.slots / (self.valid + self.slots)

    @property
    def expected(self) -> tuple[float, float]:
        """Relative L2 error of a forward that such a share came with in the measured runs."""
        return LOW * self.share, HIGH * self.share

    @property
    def size(self) -> str:
        """The class of the error, or the classes between which it is expected."""
        low, high = map(_class_of, self.expected)
        return low if low == high else f"{low} to {high}"


def _class_of(error: float) -> str:
    if error == 0:
        return "none"
    if error < NOISE[0]:
        return "below the noise of bf16"
    return "percents" if error < 0.1 else "tens of percent"


@dataclass(frozen=True)
class Run:
    """One measured comparison of P ranks with one, unfixed code, relative L2 of a forward.

    Attributes:
        what: Model, layers and precision.
        leak: The padded slots of the sample that was measured.
        error: Relative L2 error.
    """

    what: str
    leak: Leak
    error: float


# Relative error of one rank in bf16 against float32, Nano's widths, 4 and 36 layers.
NOISE = (0.008, 0.024)
LOW, HIGH = 0.3, 2.3
MEASURED = (
    Run("Nano, 4 layers, bf16, 2 GPUs", Leak(30, 1024, 670, 0), 0.267),
    Run("Nano, 36 layers, bf16, 2 GPUs", Leak(30, 1024, 670, 0), 0.702),
    Run("Nano, 4 layers, bf16, 2 GPUs", Leak(30, 1920, 670, 0), 0.179),
    Run("Nano, 36 layers, bf16, 2 GPUs", Leak(30, 1920, 670, 0), 0.456),
    Run("Nano, 4 layers, bf16, 2 GPUs", Leak(30, 37440, 670, 0), 0.016),
    Run("Nano, 36 layers, bf16, 2 GPUs", Leak(30, 37440, 670, 0), 0.039),
    Run("4 layers of width 256, float32, 2 ranks", Leak(7, 16, 13, 0), 0.24),
    Run("4 layers of width 256, float32, 2 ranks", Leak(19, 16, 1, 0), 0.015),
    Run("a tiny model, float32", Leak(7, 27, 1, 0), 0.0098),
    Run("a tiny model, float32", Leak(7, 27, 3, 0), 0.028),
    Run("a tiny model, float32", Leak(7, 27, 12, 0), 0.092),
    Run("a tiny model, float32", Leak(7, 27, 0, 1), 0.0098),
)

# Assumed where they are not given: a short and a long prompt, an image of 1024 x 1024 and 93 frames
# of 480p. The runs above are of these.
PROMPTS = (30, 700)
VIDEOS = (1024, 37440)


def _up(number: int, size: int) -> int:
    return -(-number // size) * size


def leaks(
    sizes: Sizes, prompts: Sequence[int], video_rows: int, assumed: str = ""
) -> tuple[Leak, ...]:
    """Padded slots of each sample of a batch in 1.3.0rc25 to rc29.

    Args:
        sizes: The parallel axes; with cfg_size 2 each half of the batch is one of its own.
        prompts: Lengths in tokens, negative prompts first.
        video_rows: S.
        assumed: What of this was assumed.
    """
    ways = sizes.sequence_size
    if ways == 1:
        return tuple(Leak(prompt, video_rows, 0, 0, assumed) for prompt in prompts)
    half = -(-len(prompts) // sizes.cfg_size)
    found = []
    for start in range(0, len(prompts), half):
        batch = prompts[start : start + half]
        slots = _up(max(batch), ways)
        pads = _up(video_rows, ways) - video_rows
        found += [Leak(prompt, video_rows, slots - prompt, pads, assumed) for prompt in batch]
    return tuple(found)


@dataclass(frozen=True)
class Verdict:
    """What 1.3.0rc25 to rc29 do with a configuration.

    Attributes:
        status: "exact", "wrong", "depends" (on what was not given) or "refused".
        why: One or two sentences.
        leaks: What the estimate is made of.
        nearest: The measured run whose share is nearest to the worst estimate, or None.
    """

    status: str
    why: str
    leaks: tuple[Leak, ...] = ()
    nearest: Run | None = None

    @property
    def worst(self) -> Leak | None:
        """The sample that is hit hardest."""
        return max(self.leaks, key=lambda leak: leak.share, default=None)

    def words(self) -> list[str]:
        """The verdict in plain words, one paragraph each."""
        said = {
            "exact": "compute this configuration exactly",
            "wrong": "compute this configuration WRONGLY",
            "depends": "compute most requests of this configuration WRONGLY",
            "refused": "refuse this configuration",
        }[self.status]
        lines = [f"TensorRT-LLM {UNFIXED} {said}. {self.why}"]
        if self.status in ("wrong", "depends"):
            lines[0] += (
                f" {EXACT[0].upper()}{EXACT[1:]} is exact, by a loop over the samples; the fix "
                f"makes it one launch there. {UNCLEAR} may be either: `make overlay` tells by its "
                "lines."
            )
        for leak in self.leaks:
            if not leak.slots:
                continue
            low, high = leak.expected
            assumed = f" (assumed: {leak.assumed})" if leak.assumed else ""
            lines.append(
                f"Estimate for a prompt of length {leak.prompt} and {leak.video_rows} video "
                f"rows{assumed}: {leak.slots} padded slots beside {leak.valid} keys leak "
                f"{leak.share:.2%} of the softmax weight if logits are near 0; in the measured "
                f"runs such a share came with a relative error of {low:.2%} to {high:.2%} in one "
                f"forward: {leak.size}."
            )
        if self.nearest is not None:
            run = self.nearest
            lines.append(
                f"Nearest measured: {run.what}, {run.leak.video_rows} video rows, "
                f"{run.leak.slots} padded slots ({run.leak.share:.2%}): {run.error:.2%} wrong. "
                f"bf16's own noise is {NOISE[0]:.1%} at 4 layers and up to {NOISE[1]:.1%} at 36. "
                "The estimate comes from counts, not from your weights: an order of magnitude, no "
                "bound. `make parity` measures."
            )
        return lines


def judge(sizes: Sizes, prompts: Sequence[int] = (), video_rows: int | None = None) -> Verdict:
    """Says what 1.3.0rc25 to rc29 do with a configuration.

    Args:
        sizes: The parallel axes.
        prompts: Lengths in tokens: negative and positive; one alone is the longest of the batch;
            none is not known.
        video_rows: S, or None where it is not known.
    """
    ways = sizes.sequence_size
    if sizes.ring_size > 1:
        return Verdict("refused", "They raise NotImplementedError for a ring.")
    if ways == 1:
        return Verdict(
            "exact",
            "No sequence is split over ranks, and on one rank each sample is cut to its own "
            "length.",
        )
    together = sizes.cfg_size == 1
    why = (
        f"A sequence is split over {ways} ranks, so text keys are padded with zeros "
        + (f"to the longest prompt and to a multiple of {ways}" if together else "")
        + ("" if together else f"to a multiple of {ways} (each branch has ranks of its own)")
        + f", video rows to a multiple of {ways}, and every padded slot counts in the softmax."
    )
    if len(prompts) == 1 and together:
        # The other prompt of a guided pair is not known; it is anything down to one token.
        pairs, known = [(prompts[0], 1)], leaks(sizes, prompts, video_rows or ways)
        assumed = "another prompt of one token, the shortest, in the same batch"
    else:
        pairs, known = [prompts or PROMPTS], ()
        if prompts:
            known = leaks(sizes, prompts, video_rows or ways)
        assumed = "" if prompts else f"prompts of {PROMPTS[0]} and {PROMPTS[1]} tokens"
    certain = bool(video_rows and video_rows % ways) or any(leak.text_slots for leak in known)
    complete = bool(video_rows) and bool(prompts) and not (len(prompts) == 1 and together)
    estimates = []
    for pair in pairs:
        # Where the prompts leak nothing, a video that leaves a remainder does.
        odd = int(bool(prompts) and not any(leak.text_slots for leak in leaks(sizes, pair, ways)))
        for rows in (video_rows,) if video_rows else (rows + odd for rows in VIDEOS):
            parts = [assumed] if assumed else []
            parts += [] if video_rows else [f"{rows} video rows"]
            found = leaks(sizes, pair, rows, "; ".join(parts))
            estimates.append(max(found, key=lambda leak: leak.share))
    if complete and not certain:
        return Verdict(
            "exact",
            f"A sequence is split over {ways} ranks, but nothing has to be padded: the prompts of "
            f"a batch are equally long, and {ways} divides their length and the video's rows. Any "
            "other prompt or shape is computed wrongly.",
        )
    if not certain:
        why += (
            " It is exact only when all prompts of a batch have the same length, and "
            f"{ways} divides it and the video's rows."
        )
    worst = max(estimates, key=lambda leak: leak.share)
    nearest = None
    if worst.slots:
        nearest = min(MEASURED, key=lambda run: (_far(run.leak, worst), -run.error))
    return Verdict("wrong" if certain else "depends", why, tuple(estimates), nearest)


def _far(one: Leak, other: Leak) -> float:
    return max(one.share / other.share, other.share / one.share)
