"""kafkajs and @platformatic/kafka: their scenarios are kafkajs.mjs and platformatic.mjs, each run by Node.

Needs Node 20.19 or newer, and the packages that package-lock.json names: `make test-foreign` installs them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.program("node")
HERE = Path(__file__).parent
HANGS_S = 240.0
SCENARIOS = (
    "produce and consume",
    "two idempotent producers",
    "a group rebalances",
    "committed offsets",
    "offsets are reset with -1 and -2",
    "administration",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", ["kafkajs", "platformatic"])
def test_scenario(bootstrap: str, client: str, scenario: str) -> None:
    ran = subprocess.run(
        ["node", f"{client}.mjs", scenario, bootstrap],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("client", ["kafkajs", "platformatic"])
def test_no_scenario_is_left_out(client: str) -> None:
    ran = subprocess.run(["node", f"{client}.mjs"], cwd=HERE, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == list(SCENARIOS)
