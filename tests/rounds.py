"""How much a test does: less in `make test` than in `make test-all`, more in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

ROUNDS: Final = int(os.environ.get("EMBEDLOG_ROUNDS", "1"))
"""Of random kills and faults: `make soak` has 25."""
_PERCENT: Final = int(os.environ.get("EMBEDLOG_EXAMPLES", "100"))


def examples(count: int) -> int:
    """How many random examples Hypothesis draws: a quarter of them in `make test`, all in `make test-all`."""
    return max(1, count * _PERCENT // 100)


def first_is_quick(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """Cases that take long together: the first ones are in `make test`, the rest in `make test-all`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        if number >= quick
        else case
        for number, case in enumerate(cases)
    ]
