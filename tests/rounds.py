"""Rounds of random kills and faults: EMBEDLOG_ROUNDS, by default 1 (`make soak`: 25)."""

from __future__ import annotations

import os
from typing import Final

ROUNDS: Final = int(os.environ.get("EMBEDLOG_ROUNDS", "1"))
