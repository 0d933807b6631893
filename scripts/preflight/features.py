# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What the fields beside the layout mean for Cosmos3, above all on several GPUs."""

from __future__ import annotations

from typing import Any, Iterator

from .layout import SERVED_BY, Finding, Sizes
from .schema import BACKENDS, OFFLOAD_STAGES, QUANT_ATTENTION, SPARSE_ATTENTION, WEIGHT_BYTES
from .unfixed import EXACT, STATIC_FP8, UNFIXED

# The checks here, and what each looks at, for the one line that each prints.
NAMES = (
    "quantisation",
    "step-cache",
    "compilation",
    "cuda-graphs",
    "offloading",
    "parallel-vae",
    "async-ulysses",
)


def _fp8_checkpoint(values: dict[str, Any]) -> bool:
    """Whether the branch is that of the released static FP8 weights."""
    return "fp8" in (values["revision"] or "").lower()


def quantised(values: dict[str, Any]) -> tuple[str | None, bool]:
    """The algorithm of the weights or None, and whether their scales come with the checkpoint."""
    if _fp8_checkpoint(values):
        return "FP8", True
    found = values["quant_config"] or {}
    name = found.get("quant_algo")
    groups = found.get("config_groups") or {}
    first = next(iter(groups.values()), None)
    if isinstance(first, dict):
        weights = first.get("weights")
        return name, not (isinstance(weights, dict) and weights.get("dynamic", False))
    return name, name is not None and found.get("dynamic") is False


def measured(values: dict[str, Any], name: str) -> str:
    """What a file asks for in a few words, for the line of that check."""
    if name == "quantisation":
        algorithm, static = quantised(values)
        return f"{'static' if static else 'dynamic'} {algorithm}" if algorithm else "bfloat16"
    if name == "step-cache":
        return values["cache_config"]["cache_backend"] if values["cache_config"] else "none"
    if name == "compilation":
        found = values["torch_compile_config"]
        return ("full graph" if found["enable_fullgraph"] else "on") if found["enable"] else "off"
    parallel = values["parallel_config"]
    if name == "parallel-vae":
        return f"{parallel['parallel_vae_size']} ranks"
    block = {"cuda-graphs": "cuda_graph_config", "offloading": "cpu_offload_config"}.get(name)
    return "on" if (values[block]["enable"] if block else parallel["async_ulysses"]) else "off"


def check_features(values: dict[str, Any], sizes: Sizes) -> Iterator[Finding]:
    """Judges the fields that matter to Cosmos3.

    Args:
        values: The file's fields with all defaults.
        sizes: The parallel axes.
    """
    yield from _quantisation(values, sizes)
    yield from _attention_recipes(values["attention_config"])
    yield from _step_cache(values["cache_config"])
    yield from _execution(values)
    yield from _offloading(values["cpu_offload_config"], sizes)
    yield from _parallel(values["parallel_config"], sizes)


def _quantisation(values: dict[str, Any], sizes: Sizes) -> Iterator[Finding]:
    algorithm, static = quantised(values)
    if algorithm is None:
        return
    source = f"quant_config.quant_algo={algorithm}"
    if _fp8_checkpoint(values):
        source = f"revision={values['revision']}"
    if static and sizes.processes > 1:
        yield Finding(
            "error",
            "quantisation",
            f"{source} is static {algorithm} on {sizes.processes} ranks; expected one: "
            f"{STATIC_FP8} on one GPU only. Leave it out for bfloat16, or use one rank.",
        )
    elif static:
        yield Finding("note", "quantisation", f"{source}: {STATIC_FP8}.")
    else:
        rows = ""
        if sizes.sequence_size > 1 and algorithm in ("FP8", "NVFP4"):
            rows = (
                " A scale for a whole tensor comes from the rows that a rank holds, so "
                f"{sizes.sequence_size} ranks do not give the numbers of one."
            )
        yield Finding(
            "warning",
            "quantisation",
            f"{source} quantises on load, which changes the numbers on any layout; leave it out to "
            f"compare with bfloat16. No run of this project is quantised.{rows}",
        )


def _attention_recipes(attention: dict[str, Any]) -> Iterator[Finding]:
    backend = attention["backend"]
    if backend not in BACKENDS:
        yield Finding(
            "warning",
            "backend",
            f"attention backend {backend}: other revisions than the base have it; 1.3.0rc25 and "
            f"rc26 may refuse the name. All of them have {', '.join(BACKENDS)}.",
        )
    recipe = attention["quant_attention_config"]
    sparse = attention["sparse_attention_config"]
    algorithm = sparse and sparse["algorithm"]
    # (the field, its value, valid backends, whether the value is valid)
    asked = []
    if recipe is not None:
        blocks = tuple(recipe[f"{x}_block_size"] for x in "qkv")
        key = (recipe["qk_dtype"], recipe["v_dtype"], blocks)
        valid = key in QUANT_ATTENTION.get(backend, {key})
        asked.append(("quant_attention_config", key, tuple(QUANT_ATTENTION), valid))
    if algorithm:
        asked.append(("sparse_attention_config", algorithm, SPARSE_ATTENTION[algorithm], True))
    for name, value, takers, valid in asked:
        if backend not in takers:
            # Other revisions have rules of their own for their backends.
            severity = "error" if backend in BACKENDS else "warning"
            message = f"{name} with backend {backend}: only {' and '.join(takers)} take it."
        elif not valid:
            severity = "error"
            works = ", ".join(map(str, sorted(QUANT_ATTENTION[backend])))
            message = f"{name}={value} with backend {backend}; expected one of {works}."
        elif algorithm == value == "vsa":
            severity = "error"
            message = "sparse_attention_config=vsa: no Cosmos3 checkpoint has its gates."
        elif backend in SERVED_BY:
            severity = "warning"
            message = (
                f"{name}: Cosmos3's generation attention is served by {SERVED_BY[backend]} instead "
                f"of {backend}, and does without it."
            )
        else:
            severity = "warning"
            message = f"{name}={value} changes the numbers; leave it out to compare layouts."
        yield Finding(severity, "backend", message)
    if recipe is not None and algorithm == "vsa":
        message = "quant_attention_config and vsa exclude each other; leave one out."
        yield Finding("error", "backend", message)


def _step_cache(cache: dict[str, Any] | None) -> Iterator[Finding]:
    if cache is None:
        return
    lacks = {
        "teacache": "Cosmos3 has no TeaCache coefficients",
        "cache_dit": "Cosmos3 has no Cache-DiT enabler",
    }[cache["cache_backend"]]
    yield Finding(
        "error",
        "step-cache",
        f"cache_config.cache_backend={cache['cache_backend']}: {lacks}; leave cache_config out.",
    )


def _execution(values: dict[str, Any]) -> Iterator[Finding]:
    compiled, backend = values["torch_compile_config"], values["attention_config"]["backend"]
    if compiled["enable"] and compiled["enable_fullgraph"]:
        yield Finding(
            "warning",
            "compilation",
            f"enable_fullgraph=true with {backend}: an attention launch may break the graph of a "
            "layer, which a full graph does not allow; leave it false.",
        )
    if not values["cuda_graph_config"]["enable"]:
        return
    if values["cpu_offload_config"]["enable"]:
        yield Finding(
            "error",
            "cuda-graphs",
            "cuda_graph_config.enable=true with cpu_offload_config.enable=true: graphs and CPU "
            "offloading exclude each other; set one of them to false.",
        )
    yield Finding(
        "note",
        "cuda-graphs",
        f"graphs need the fix: in {UNFIXED} capture fails on host reads, and {EXACT} was seen to "
        "replay a previous prompt's tensors. The fix refreshes them.",
    )
    if SERVED_BY.get(backend, backend) not in ("FA4", "VANILLA"):
        yield Finding(
            "note",
            "cuda-graphs",
            f"{backend} takes no key lengths, so they are part of a graph's key: one capture for "
            "each pair of prompt lengths.",
        )


def _offloading(offload: dict[str, Any], sizes: Sizes) -> Iterator[Finding]:
    if not offload["enable"]:
        return
    names = []
    for stage in offload["stages"] or ():
        names += stage if isinstance(stage, (list, tuple)) else [stage]
    unknown = [repr(name) for name in names if name not in OFFLOAD_STAGES]
    if unknown:
        yield Finding(
            "error",
            "offloading",
            f"cpu_offload_config.stages has {', '.join(unknown)}; Cosmos3's components are "
            f"{', '.join(OFFLOAD_STAGES)}.",
        )
    if sizes.processes > 1:
        yield Finding(
            "warning",
            "offloading",
            f"cpu_offload_config.enable=true on {sizes.processes} ranks: nobody here has run it, "
            "and every rank keeps a copy of the offloaded weights in host memory.",
        )


def _parallel(parallel: dict[str, Any], sizes: Sizes) -> Iterator[Finding]:
    vae = parallel["parallel_vae_size"]
    if vae > sizes.processes:
        yield Finding(
            "error",
            "parallel-vae",
            f"parallel_vae_size={vae} is more than the layout's {sizes.processes} ranks; set it to "
            f"{sizes.processes} or less.",
        )
    if not parallel["async_ulysses"]:
        return
    if sizes.ulysses_size == 1:
        message = "async_ulysses=true needs ulysses_size of at least 2; it is 1."
        yield Finding("error", "async-ulysses", message)
    elif sizes.ring_size > 1:
        message = "async_ulysses=true does not go with ring_size > 1; set one of them back."
        yield Finding("error", "async-ulysses", message)
    else:
        yield Finding(
            "note",
            "async-ulysses",
            "async_ulysses=true is accepted and does nothing: Cosmos3 projects its queries, keys "
            "and values at once, and never asks for the overlapped exchange.",
        )


def weight_bytes(values: dict[str, Any]) -> float:
    """Bytes of one weight of the layers' matrices."""
    return WEIGHT_BYTES[quantised(values)[0]]
