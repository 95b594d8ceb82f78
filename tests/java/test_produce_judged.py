"""Apache Kafka judges the rules for produced batches: the same requests to it and to embedlog's broker.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from java_programs import apache_kafka
from kafka_tools import classpath
from produce_cases import CASES, KAFKAS_OWN, answer, create_topics

from embedlog.cluster import Broker


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SimpleNamespace, Broker]]:
    """Apache Kafka's and embedlog's, with the same topics."""
    path = tmp_path_factory.mktemp("kafka")
    with apache_kafka(classpath(path / "classpath", "connect"), path) as address, Broker() as ours:
        for bootstrap in (address, ours.bootstrap_servers):
            create_topics(bootstrap)
        yield SimpleNamespace(port=int(address.rpartition(":")[2])), ours


@pytest.mark.parametrize("name", CASES)
def test_both_answer_the_same(brokers: tuple[SimpleNamespace, Broker], name: str) -> None:
    kafka, ours = (answer(broker, CASES[name]) for broker in brokers)
    assert kafka == KAFKAS_OWN.get(name, ours)
    assert (kafka != ours) == (name in KAFKAS_OWN)
