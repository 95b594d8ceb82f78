"""Kafka's own Java client, and Kafka Streams: the tests in src/test/java/embedlog, run by Maven.

Needs Java 17 or newer and Maven, which fetches what pom.xml names: `make test-java`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def run_tests(bootstrap: str, *options: str) -> None:
    command = ["mvn", "--batch-mode", "--quiet", f"-Dbootstrap={bootstrap}", *options, "test"]
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_java_client(bootstrap: str) -> None:
    run_tests(bootstrap)


def test_the_share_consumer_of_an_older_client(bootstrap: str) -> None:
    """It fetches with an earlier version of the protocol, and cannot renew locks."""
    run_tests(bootstrap, "-Dkafka.version=4.1.0", "-Dtest=ShareConsumerTest")
