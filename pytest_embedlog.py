"""A Kafka broker for tests, in milliseconds: pytest finds this by itself once embedlog is installed.

    def test_orders(kafka_broker):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})

`kafka_broker` is a broker for one test, with a directory and a port of its own; `kafka_broker_session` is one
for the whole run. `kafka_broker.log` is the same log from inside, to prepare or look at what a test is about.
Settings come from an overridden fixture `kafka_broker_settings`, a dict as `Broker` takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # a run that asks for no broker imports none
    from embedlog.cluster import Broker


@pytest.fixture(scope="session")
def kafka_broker_settings() -> dict[str, Any]:
    """Settings of the brokers: override it to change them."""
    return {}


@pytest.fixture
def kafka_broker(kafka_broker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker with an empty log, for one test."""
    from embedlog.cluster import Broker

    with Broker(**kafka_broker_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_broker_session(kafka_broker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker that all tests of a run share."""
    from embedlog.cluster import Broker

    with Broker(**kafka_broker_settings) as broker:
        yield broker
