# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""What result files say to type for the same figures."""

import pytest
from make_command import make_command


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], "make bench"),
        (["--out", "/tmp/x.json", "--commit=abc"], "make bench"),
        (["--heads", "16/4", "--out=x"], "make bench ARGS='--heads 16/4'"),
        (["--prompts", "two words"], """make bench ARGS='--prompts '"'"'two words'"'"''"""),
    ],
)
def test_make_command_vs_options_that_change_figures(argv, expected):
    assert make_command("bench", argv) == expected
