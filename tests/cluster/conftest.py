"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire import Wire

from embedlog.cluster import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in this process, on a free port, with a directory of its own."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A raw connection to it."""
    with Wire(broker) as wire:
        yield wire
