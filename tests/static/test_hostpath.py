# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded host must be what is imported, or the command says why it is not."""

import sys

import hostpath
import pytest


def test_activate_refuses_an_installed_tensorrt_llm(tmp_path, monkeypatch):
    (tmp_path / "tensorrt_llm").mkdir()
    (tmp_path / "tensorrt_llm" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ValueError, match="is installed .* use an environment without"):
        hostpath.activate("cpu")


def test_activate_twice_changes_nothing(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    hostpath.activate("cpu")
    once = list(sys.path)
    hostpath.activate("cpu")
    assert sys.path == once
