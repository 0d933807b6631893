# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The probe for matrix products whose rows depend on how many there are."""

import pytest
import row_products
import torch
from cosmos3_sizes import MODELS, SIZES, full_config
from row_products import row_independent, shapes, uneven
from support.model import ModelCase, build_host

from tensorrt_llm._torch.modules.linear import Linear

CPU = {"device": "cpu", "dtype": torch.float64}


def by_row(x, weight):
    """Every row alone: the same whatever rows stand beside it."""
    return torch.stack([torch.stack([row @ weight.T for row in sample]) for sample in x])


def split_by_rows(most):
    """A linear that adds its inputs up in two parts where there are at most so many rows."""

    def linear(x, weight):
        if x.shape[0] * x.shape[1] > most:
            return by_row(x, weight)
        half = weight.shape[1] // 2
        return by_row(x[..., :half], weight[:, :half]) + by_row(x[..., half:], weight[:, half:])

    return linear


@pytest.mark.parametrize("rows", [1, 7, 8, 27])
def test_probe_of_a_product_by_row_is_even(rows):
    assert row_independent((24, 16), 2, rows, 4, **CPU, linear=by_row)


@pytest.mark.parametrize("rows, ranks, even", [(8, 2, False), (16, 2, True), (27, 4, False)])
def test_probe_sees_a_product_that_is_split_for_few_rows(rows, ranks, even):
    # 8 rows of two prompts on 2 ranks are 8 on each, 27 on 4 are 14.
    linear = split_by_rows(most=14)
    assert row_independent((24, 16), 2, rows, ranks, **CPU, linear=linear) == even


@pytest.mark.parametrize("branches, even", [(1, True), (2, False)])
def test_probe_sees_a_product_that_is_split_for_one_prompt(branches, even):
    linear = split_by_rows(most=14)
    assert row_independent((24, 16), 2, 9, 1, branches=branches, linear=linear, **CPU) == even


def test_probe_sees_a_fault_on_the_last_rank_alone():
    calls = []

    def linear(x, weight):
        calls.append(x.shape)
        return by_row(x, weight) + (1e-12 if len(calls) == 5 else 0.0)

    assert not row_independent((24, 16), 2, 12, 4, **CPU, linear=linear)
    assert len(calls) == 5


def test_uneven_names_layer_shape_and_rows():
    config = full_config(
        {**SIZES["tiny"], "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 16, "intermediate_size": 48, "rope_axes_dim": [4, 2, 2]}
    )  # fmt: skip

    def linear(x, weight):
        down = weight.shape == (32, 48)
        return (split_by_rows(8) if down else by_row)(x, weight)

    requests = [(2, 6, 2, 1), (2, 20, 2, 1)]
    assert uneven(config, requests, linear=linear, **CPU) == ["down 32x48 at 6 rows"]
    assert uneven(config, requests, linear=by_row, **CPU) == []


def test_shapes_equal_those_of_a_generation_layer():
    case = ModelCase(dtype=torch.float32)
    layer = build_host(case).gen_layers[0]
    found = {tuple(m.weight.shape) for m in layer.modules() if isinstance(m, Linear)}
    assert set(shapes(case.config).values()) == found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_shapes_of_a_rank_hold_a_share_of_the_weights(model, tp):
    whole, part = shapes(MODELS[model]), shapes(MODELS[model], tp)
    assert ("gate-up" in part) == (model != "edge")
    for name, (outputs, inputs) in whole.items():
        assert part[name][0] * part[name][1] * tp == outputs * inputs


def test_shapes_of_ranks_that_do_not_divide_heads_are_refused():
    with pytest.raises(ValueError, match="--tp 3 does not divide 32 heads"):
        shapes(MODELS["nano"], 3)


def test_command_without_a_gpu_exits_2(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert row_products.main([]) == 2
    assert "no GPU is here" in capsys.readouterr().err


@pytest.mark.parametrize("rows", ["0", "x", "16,"])
def test_command_with_unusable_rows_exits_2(capsys, rows):
    assert row_products.main(["--device", "cpu", "--rows", rows]) == 2
    assert "probe: " in capsys.readouterr().err


@pytest.mark.parametrize("fault", [False, True])
def test_command_prints_one_line_for_each_layer(monkeypatch, capsys, fault):
    monkeypatch.setattr(row_products, "TIMED_ROWS", 1)
    monkeypatch.setattr(row_products, "row_independent", lambda *a: not (fault and a[2] == 3))
    options = ["--device", "cpu", "--model", "edge", "--tp", "4", "--rows", "2,3"]
    assert row_products.main(options) == int(fault)
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1].split("-")[0] for line in lines] == [
        f"edge/tp4/{name}" for name in ("qkv", "out", "up", "down")
    ]
    status = "FAIL" if fault else "PASS"
    assert all(line.startswith(f"{status} edge/tp4/") and " ms " in line for line in lines)
    assert ("[3]" in lines[0]) == fault and last.startswith("0 passed" if fault else "4 passed")
