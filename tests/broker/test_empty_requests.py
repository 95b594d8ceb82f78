"""Requests without contents: each API in each version answers them, as Kafka does.

Four of each: all arrays empty; what may be null is null; one element in each array, whose own arrays are
empty; one whose own fields are null. None of them may be a defect, with a traceback in the log and a
connection that closes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_requests import BY_EXCHANGE, offered
from wire import Wire

from embedlog.cluster import Broker
from embedlog.wire.apis import APIS
from embedlog.wire.schema import wire_of


def made(cls: type, version: int, *, nulls: bool, elements: bool) -> Any:
    """A message, or a part of one."""
    values: dict[str, Any] = {}
    for name, wire in wire_of(cls):
        if not wire.is_in(version):
            continue
        if nulls and wire.may_be_null(version):
            values[name] = None
        elif wire.kind == "struct":
            values[name] = made(wire.element, version, nulls=nulls, elements=False)
        elif wire.kind == "array":
            is_filled = elements and isinstance(wire.element, type)
            values[name] = [made(wire.element, version, nulls=nulls, elements=False)] if is_filled else []
    return cls(**values)


@pytest.fixture(scope="module", params=["", "AclAuthorizer"], ids=["open", "acls"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Without ACLs, and with none that allows anything."""
    with Broker(
        tmp_path_factory.mktemp("empty") / "log",
        listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        inter_broker_listener_name="PLAINTEXT",
        authorizer_class_name=request.param,
    ) as broker:
        yield broker


@pytest.mark.parametrize("api", sorted(exchange.api.name for exchange in APIS.values()))
def test_requests_without_contents(broker: Broker, api: str, caplog: pytest.LogCaptureFixture) -> None:
    exchange = BY_EXCHANGE[api]
    for version in offered(broker)[api]:
        for nulls in (False, True):
            for elements in (False, True):
                asked = made(exchange.request, version, nulls=nulls, elements=elements)
                with Wire(broker) as wire:
                    if api == "Produce":
                        asked.acks = 1
                    wire.ask(asked, version)
                    if api == "Produce":
                        wire.ask(asked, version)
    assert "could not be answered" not in caplog.text
