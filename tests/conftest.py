# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the embedded host on the path, tells what cannot run and what took how long, keeps ranks."""

import importlib.util
import os

import hostpath
import pytest
from support import durations

# Tiny tensors gain nothing from threads, and lose much where processes outnumber the cores.
# Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before any test module imports tensorrt_llm.
_ROOTS = hostpath.activate()


def _cuda_devices() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def pytest_addoption(parser):
    parser.addoption(
        "--write-durations",
        action="store_true",
        help="put the time of each tier that ran into CONTRIBUTING.md",
    )


def pytest_configure(config):
    page = durations.PAGE if config.getoption("--write-durations") else None
    config.pluginmanager.register(durations.Durations(page))


def pytest_report_header():
    kernels = "plain-torch kernels" if _ROOTS[-1].name == "cpu_kernels" else "flash-attn-4"
    lines = [f"host: embedded, FA4 served by {kernels}; {os.cpu_count()} CPU cores"]
    devices = _cuda_devices()
    if devices < 2:
        lines.append(f"SKIPPED HERE: gpu tests that need more than {devices} CUDA devices")
    return lines


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("gpu")
    if marker:
        needed = marker.args[0] if marker.args else 1
        found = _cuda_devices()
        if found < needed:
            pytest.skip(f"needs {needed} CUDA device(s), found {found}")


@pytest.fixture(scope="session")
def ranks():
    """Worker processes with a gloo process group; see support.ranks.Ranks."""
    from support.ranks import Ranks

    workers = Ranks()
    yield workers
    workers.close()
