"""Fixtures that start a Kafka broker in milliseconds. pytest loads them if embedlog is installed.

    def test_orders(kafka_broker):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})

`kafka_broker` is a broker for one test, with a directory and a port of its own. It stops, starts again with
its records, and fails on demand: see `BrokerForTests`. Use its log, `kafka_broker.log`, to prepare a test or
to check the outcome. To change settings, override the fixture `kafka_broker_settings`: it returns a dict of
`Broker`'s settings.

    @pytest.mark.kafka_broker(mode="session")

A test with this mark, or a module with it as `pytestmark`, gets the broker of the whole run instead, which is
`kafka_broker_session`. What the test makes there, topics, groups and faults, is removed at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # a run without a broker imports nothing
    from embedlog.cluster import BrokerForTests

_MODES = ("test", "session")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'kafka_broker(mode="test"): whether `kafka_broker` is a broker of the test, or (mode="session") one '
        "that all such tests of the run share",
    )


@pytest.fixture(scope="session")
def kafka_broker_settings() -> dict[str, Any]:
    """The settings of both brokers. Override this fixture to change them."""
    return {}


@pytest.fixture
def kafka_broker(
    request: pytest.FixtureRequest, kafka_broker_settings: dict[str, Any]
) -> Iterator[BrokerForTests]:
    """A Kafka broker with an empty log, for one test; that of the run with the mark's mode="session"."""
    from embedlog.cluster import BrokerForTests

    mark = request.node.get_closest_marker("kafka_broker")
    if mark is not None and _mode_of(*mark.args, **mark.kwargs) == "session":
        with request.getfixturevalue("kafka_broker_session").cleaned() as broker:
            yield broker
    else:
        with BrokerForTests(**kafka_broker_settings) as broker:
            yield broker


@pytest.fixture(scope="session")
def kafka_broker_session(kafka_broker_settings: dict[str, Any]) -> Iterator[BrokerForTests]:
    """A Kafka broker that all tests of a run share."""
    from embedlog.cluster import BrokerForTests

    with BrokerForTests(**kafka_broker_settings) as broker:
        yield broker


def _mode_of(mode: str = "test") -> str:
    if mode not in _MODES:
        raise pytest.UsageError(f"kafka_broker(mode={mode!r}): the modes are {' and '.join(_MODES)}")
    return mode
