# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The upstreams that the patch set is tried on; see support.synthetic."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import synthetic
from support.synthetic import CHECKOUT, COMPILABLE, SERIES, WORLDS


def pytest_report_header():
    real = f"the real checkout {CHECKOUT}" if CHECKOUT else "no real checkout (set TRTLLM_DIR)"
    series = "" if SERIES else "; no base has a series, so no real series is tried"
    return f"patchset: tried on {', '.join(WORLDS)}; {real}{series}"


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Makes each world once, when first asked for."""
    made = {}

    def world(name: str) -> synthetic.World:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name == "sample":
                made[name] = synthetic.make_sample(folder)
            elif name in SERIES:
                made[name] = synthetic.make_from_series(folder, name.partition("-")[2])
            else:
                made[name] = synthetic.on_checkout(folder, Path(CHECKOUT).resolve())
        return made[name]

    return world


@pytest.fixture
def sample(worlds, tmp_path):
    """The sample, with a project of this test's own."""
    return _own(worlds("sample"), tmp_path)


@pytest.fixture(params=WORLDS)
def world(request, worlds, tmp_path):
    """Each world, with a project of this test's own."""
    return _own(worlds(request.param), tmp_path)


@pytest.fixture(params=COMPILABLE)
def compilable(request, worlds, tmp_path):
    """Each world whose pinned file is a whole one, with a project of this test's own."""
    return _own(worlds(request.param), tmp_path)


def _own(world: synthetic.World, folder: Path) -> synthetic.World:
    root = folder / "project"
    shutil.copytree(world.root, root, ignore=shutil.ignore_patterns("build"))
    return replace(world, root=root)


@pytest.fixture
def checkout(world, tmp_path):
    """A user's checkout in the world of this test."""
    return world.checkout(tmp_path / "checkout")
