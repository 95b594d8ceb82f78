"""Fixtures that start a Kafka broker in milliseconds. pytest loads them if embedlog is installed.

    def test_orders(kafka_broker):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})

`kafka_broker` is a broker for one test, with a directory and a port of its own. `kafka_broker_session` is one
for the whole run. Use the broker's log, `kafka_broker.log`, to prepare a test or to check the outcome. To
change settings, override the fixture `kafka_broker_settings`: it returns a dict of `Broker`'s settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # a run without a broker imports nothing
    from embedlog.cluster import Broker


@pytest.fixture(scope="session")
def kafka_broker_settings() -> dict[str, Any]:
    """The settings of both brokers. Override this fixture to change them."""
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
