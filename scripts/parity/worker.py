# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of one run: `python -m parity.worker FOLDER RANK`.

Reads FOLDER/spec.json and the tensors that it names. Rank 0 leaves FOLDER/result.pt, every rank
FOLDER/rank<r>.json; a rank that fails leaves its traceback in rank<r>.log, marks it with
rank<r>.error, and exits at once, because a peer may hang in a collective for ever.

Fields: B batch (negative, positive), C channels, T, H, W of the latents, N steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import row_products
import torch

from parity.models import Model, Oracle, Pipeline
from parity.observe import observe
from parity.sampling import denoise


def main(folder: Path, rank: int) -> int:
    """Runs the rank and returns its exit status."""
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    try:
        spec = json.loads((folder / "spec.json").read_text())
        report = _run(spec, folder, rank)
        (folder / f"rank{rank}.json").write_text(json.dumps(report))
    except BaseException:
        # First, since the driver takes the earliest mark for the cause.
        (folder / f"rank{rank}.error").touch()
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return 0


def _follow_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _run(spec: dict[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(spec["device"])
    if device.type == "cuda":
        device = torch.device("cuda", rank if spec["exchange"] == "NCCL" else 0)
        torch.cuda.set_device(device)
    inputs = torch.load(spec["inputs"], weights_only=True)
    recorded = torch.load(spec["recorded"], weights_only=True) if spec["recorded"] else {}
    if spec["row_invariant"]:
        row_products.set_invariant()
    uneven = []
    with torch.no_grad():
        if spec["probe"]:
            uneven = row_products.uneven(spec["config"], spec["probe"], device)
        if spec["requests"]:
            model = Pipeline(spec, device, folder, rank)
            # Our own file: pictures and clips as bytes.
            requests = torch.load(spec["requests"], weights_only=False)
            model.pipeline.warmup()
            model.seconds.clear()
            results = {name: model.answer(request) for name, request in requests.items()}
        else:
            model = (Oracle if spec["oracle"] else Model)(spec, device, folder, rank)
            results = _follow(model, spec, inputs, recorded)
    if rank == 0:
        torch.save(results, folder / "result.pt")
    device_peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    with torch.no_grad():
        observed = observe(model, inputs[spec["observe"]]) if spec["observe"] else None
    report = {
        "digest": _digest(results),
        "forward_seconds": model.seconds,
        "text_bytes": model.text_bytes,
        "device_peak_bytes": device_peak,
        "files": _files_of("tensorrt_llm"),
        "attention": model.attention(),
        "outside": model.outside,
        "uneven": uneven,
        "observed": observed,
    }
    model.close()
    return report


def _follow(model, spec, inputs, recorded) -> dict[str, dict[str, torch.Tensor]]:
    """Denoises all cases in this package's own loop."""
    results = {}
    for name, steps in spec["steps"].items():
        model.begin(inputs[name])
        results[name] = _evaluate(model, spec, steps, inputs[name], recorded.get(name))
        model.end(name)
    return results


def _evaluate(model, spec, steps, inputs, recorded) -> dict[str, torch.Tensor]:
    """Answers the latents that run "one" recorded, and then follows a trajectory of its own.

    What was answered already is not computed again: a trajectory that is still equal to the
    recorded one to the last bit takes its velocities from there.
    """
    keep = torch.float64 if spec["dtype"] == "float64" else torch.float32
    results, velocities = {}, []
    if recorded is not None:
        for latents, timestep in zip(recorded["trajectory"], recorded["timesteps"].tolist()):
            velocities.append(model.forward(latents, timestep).to("cpu", keep))
            if spec["oracle"]:
                break
        results["velocity"] = torch.stack(velocities)
    if spec["oracle"]:
        return results
    timesteps = []

    def forward(latents, timestep):
        step = len(timesteps)
        timesteps.append(timestep)
        if step < len(velocities) and torch.equal(latents.cpu(), recorded["trajectory"][step]):
            return velocities[step].to(model.device)
        return model.forward(latents, timestep)

    start = inputs["latents"].to(model.device)
    trail = list(denoise(forward, start, steps, spec["guidance"], keep))
    results["trajectory"] = torch.stack([point["latents"].cpu() for point in trail])
    results["timesteps"] = torch.tensor(timesteps)
    if recorded is None:
        results["velocity"] = torch.stack([point["velocity"].cpu() for point in trail[:-1]])
    return results


def _digest(results: dict[str, dict[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for case, tensors in sorted(results.items()):
        for name, tensor in sorted(tensors.items()):
            if name == "frames":  # Rank 0 alone decodes.
                continue
            digest.update(f"{case} {name}".encode())
            digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


def _files_of(package: str) -> dict[str, dict[str, str]]:
    """Path and digest of each module of a package that this process imported."""
    files = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and (name == package or name.startswith(f"{package}.")):
            files[name] = {
                "path": path,
                "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
            }
    return files


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
