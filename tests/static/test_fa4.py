# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What counts as FlashAttention-4, and what is said of what does not."""

import sys

import fa4
import hostpath
import pytest

GOOD = "def _flash_attn_fwd(q, k, v, seqused_k=None): ...\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes a site folder with a distribution and its flash_attn.cute, the only one there is."""

    def install(name, version, interface):
        package = tmp_path / "flash_attn" / "cute"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "interface.py").write_text(interface)
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    others = [place for place in sys.path if not place.endswith("cpu_kernels")]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{hostpath.ROOT / 'host' / 'cpu_kernels'}")
    monkeypatch.setattr(fa4, "problem", fa4.problem.__wrapped__)
    return install


def test_fa4_that_imports_is_one(installed):
    installed("flash-attn-4", "4.0.0b19", GOOD)
    assert fa4.version() == "4.0.0b19" and fa4.problem() is None


def test_flash_attn_2_with_a_cute_package_is_none(installed):
    installed("flash-attn", "2.8.3", GOOD)
    assert fa4.version() is None
    assert "flash-attn 2.8.3" in fa4.problem() and "install flash-attn-4==" in fa4.problem()
    # The embedded host does not take it for FA4 either.
    assert hostpath.roots("auto")[-1].name == "cpu_kernels"
    with pytest.raises(ValueError, match="flash-attn-4 is not installed"):
        hostpath.roots("real")


@pytest.mark.parametrize(
    "interface, said",
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "libcudart.so.13: cannot open"),
        ("def _flash_attn_fwd(q, k, v): ...", "takes no seqused_k"),
        ("import os; os._exit(7)", "exit status 7"),
    ],
)
def test_fa4_that_does_not_import_is_said_in_one_line(installed, interface, said):
    installed("flash-attn-4", "4.0.0b19", interface)
    problem = fa4.problem()
    assert said in problem and "does not import" in problem and "\n" not in problem
