"""Requests that decode and mean anything: each gets an answer, or its connection closes for a reason.

They come from the declarations of all APIs and versions, with names of what there is and what there is not,
and with the numbers at the edges of their types. An exception that is no answer is logged as a defect.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest
from api_requests import BY_EXCHANGE
from hypothesis import given, settings
from hypothesis import strategies as st

import embedlog
from embedlog.cluster import Broker
from embedlog.codec import encode_batch
from embedlog.wire.apis import APIS
from embedlog.wire.frames import encode_request
from embedlog.wire.messages import Request
from embedlog.wire.schema import NO_UUID, Wire, wire_of

TOPICS: Final = ("t", "u")
TOPIC_ID: Final = bytes(range(16))  # stands for the one of `t`
BATCH: Final = bytes(encode_batch([(b"k", b"v", (), 1), (None, b"w", (), 2)]))
NAMES: Final = st.sampled_from(
    [
        *TOPICS, "g", "m", "", "t!", "..", "a" * 300, "\0", "(", "^t", "*", "0", "1", "User:a", "127.0.0.1",
        "__consumer_offsets", "topic", "group", "user", "client-id", "ip", "consumer", "range", "uniform",
        "retention.ms", "cleanup.policy", "producer_byte_rate", "SCRAM-SHA-256",
    ]
)  # fmt: skip
SUBSCRIPTION: Final = b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff"


def numbers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [each for each in (0, 1, -1, -2, 2, 3, 5, 10, 100, low, high) if low <= each <= high]
    return st.sampled_from(edges)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(BATCH)
    for pos in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data[pos] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.sampled_from([len(data), 60, 12, 3]))])


PRIMITIVES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bool": st.booleans(),
    "bytes": st.sampled_from([b"", b"x", bytes(12), SUBSCRIPTION]),
    "float64": st.sampled_from([0.0, 1.5, -1.0, float("nan"), float("inf"), 1e300]),
    "int8": numbers(8),
    "int16": numbers(16),
    "int32": numbers(32),
    "int64": numbers(64),
    "records": st.just(BATCH) | st.just(BATCH * 2) | damaged(),
    "string": NAMES,
    "uint16": numbers(16, signed=False),
    "uuid": st.sampled_from([TOPIC_ID, NO_UUID, bytes(range(16, 32))]),
}


def messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    there = {name: values(wire, version) for name, wire in wire_of(cls) if wire.is_in(version)}
    return st.builds(cls, **there)


def values(wire: Wire, version: int) -> st.SearchStrategy[Any]:
    if wire.kind == "array":
        of = wire.element
        found: st.SearchStrategy[Any] = st.lists(
            messages(of, version) if isinstance(of, type) else PRIMITIVES[of], max_size=2
        )
    elif wire.kind == "struct":
        found = messages(wire.element, version)
    else:
        found = PRIMITIVES[wire.kind]
    return found | st.none() if wire.may_be_null(version) else found


class Defects(logging.Handler):
    """Exceptions that are no answers."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(record)


class Target:
    """A broker, and what it logged."""

    def __init__(self, authorizer: str) -> None:
        self.broker = Broker(
            listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            inter_broker_listener_name="PLAINTEXT",
            authorizer_class_name=authorizer,
            allow_everyone_if_no_acl_found=bool(authorizer),
        )
        self.defects = Defects()
        self.topic_id = NO_UUID

    def refill(self) -> None:
        """With topics, if they were deleted."""
        for topic in TOPICS:
            if topic not in self.broker.log.topics():
                self.broker.log.create_topic(topic, 2)
                self.broker.log.append_many(topic, [b"x"] * 10)
        self.topic_id = self.broker.context.topic_id("t")

    def send(self, request: Request, version: int) -> None:
        """On a connection of its own, which sends no more."""
        frame = b"".join(encode_request(request, version, 1, "c"))
        frame = frame.replace(TOPIC_ID, self.topic_id)
        with socket.create_connection(("127.0.0.1", self.broker.port), timeout=60) as connected:
            connected.sendall(frame)
            connected.shutdown(socket.SHUT_WR)
            while connected.recv(1 << 16):
                pass


@pytest.fixture(scope="module", params=["", "AclAuthorizer"], ids=["open", "acls"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    target = Target(request.param)
    logger = logging.getLogger(embedlog.__name__)
    logger.addHandler(target.defects)
    with target.broker:
        yield target
    logger.removeHandler(target.defects)


@pytest.mark.slow
@pytest.mark.parametrize("api", sorted(exchange.api.name for exchange in APIS.values()))
@given(data=st.data())
@settings(max_examples=40)
def test_no_request_is_a_defect(target: Target, api: str, data: st.DataObject) -> None:
    cls = BY_EXCHANGE[api].request
    version = data.draw(st.integers(cls.api.min_version, cls.api.max_version))
    request: Any = data.draw(messages(cls, version))
    for name in ("max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms", "timeout_ms"):
        if hasattr(request, name):
            setattr(request, name, min(getattr(request, name), 6_000 if name == "session_timeout_ms" else 10))
    if api == "Produce":
        request.acks = data.draw(st.sampled_from([1, -1, 0, 5]))
    target.refill()
    target.send(request, version)
    seen, target.defects.seen = target.defects.seen, []
    assert not seen, logging.Formatter().format(seen[0])
