"""Consumer groups of Apache Kafka's own broker, administered by embedlog and by librdkafka.

Needs Java 17 or newer and Maven, which fetches the broker of benchmarks/kafka/pom.xml: `make test-java`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from group_administration import administer

from benchmarks.beside_kafka import Kafka, Maven


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    """The address of a broker of Apache Kafka."""
    broker = Kafka(Maven(), tmp_path)
    broker.start()
    yield broker.bootstrap
    broker.stop()


def test_groups_of_apache_kafka(kafka: str) -> None:
    administer(kafka)
