"""Kafka's own Java client, and Kafka Streams: the tests in src/test/java/embedlog, run by Maven.

Needs Java 17 or newer and Maven, which fetches what pom.xml names: `make test-java`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def test_the_java_client(bootstrap: str) -> None:
    command = ["mvn", "--batch-mode", "--quiet", f"-Dbootstrap={bootstrap}", "test"]
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
