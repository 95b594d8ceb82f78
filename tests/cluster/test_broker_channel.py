"""The queue of what one broker asks another one: nothing is lost, nothing is done twice on purpose."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

import pytest
from zookeepers import eventually

from embedlog.cluster import Broker
from embedlog.cluster.broker.peers.broker_channel import BrokerChannel, BrokerConnection
from embedlog.errors import BrokerUnavailable
from embedlog.wire.apis.metadata import MetadataRequest, MetadataResponse
from embedlog.wire_client.settings import Address

QUEUED = 10_000  # at most
AT_ONCE = 1_000


class Sending:
    """Collects what a channel sends, and says what to send again."""

    def __init__(self) -> None:
        self.sent: list[dict[str, int]] = []
        self.again: set[str] = set()
        self.fails = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, connection: BrokerConnection, items: Mapping[str, int]) -> Collection[str]:
        self.sent.append(dict(items))
        assert self.may_go_on.wait(60)
        if self.fails:
            raise BrokerUnavailable("it is away")
        return self.again.intersection(items)


@pytest.fixture
def sending() -> Sending:
    return Sending()


@pytest.fixture
def channel(sending: Sending) -> Iterator[BrokerChannel[str, int]]:
    with closing(BrokerChannel("test", lambda: None, sending)) as channel:
        yield channel
        sending.may_go_on.set()


def test_what_gathers_is_sent_together(channel: BrokerChannel[str, int], sending: Sending) -> None:
    sending.may_go_on.clear()
    assert channel.add("a", 1)
    eventually(lambda: sending.sent)
    for key in "bcd":
        assert channel.add(key, 1)
    sending.may_go_on.set()
    eventually(lambda: len(sending.sent) == 2)
    assert sending.sent == [{"a": 1}, {"b": 1, "c": 1, "d": 1}]


@pytest.mark.parametrize("fails", [True, False])
def test_what_is_not_done_is_sent_again(
    channel: BrokerChannel[str, int], sending: Sending, fails: bool
) -> None:
    sending.fails, sending.again = fails, {"a"}
    channel.add("a", 1)
    channel.add("b", 1)
    eventually(lambda: sum("a" in each for each in sending.sent) > 3)
    sending.fails, sending.again = False, set()
    eventually(lambda: channel.add("c", 1) and {"c": 1} in sending.sent)
    assert {"c": 1} in sending.sent


def test_an_equal_item_is_sent_once(channel: BrokerChannel[str, int], sending: Sending) -> None:
    sending.may_go_on.clear()
    channel.add("a", 1)
    eventually(lambda: sending.sent)
    assert channel.add("a", 1)
    assert channel.add("a", 2), "another one is done with it"
    channel.add("b", 1)
    sending.may_go_on.set()
    eventually(lambda: {"b": 1} in sending.sent)
    assert sending.sent[0] == {"a": 1}
    assert {"b": 1} in sending.sent[1:]


def test_the_queue_is_bounded(channel: BrokerChannel[str, int], sending: Sending) -> None:
    sending.may_go_on.clear()
    taken = [channel.add(f"{number}", number) for number in range(QUEUED + 10)]
    assert taken == [True] * QUEUED + [False] * 10
    sending.may_go_on.set()
    eventually(lambda: sum(map(len, sending.sent)) == QUEUED)
    assert max(map(len, sending.sent)) <= AT_ONCE
    eventually(lambda: channel.add("more", 1))


def test_what_is_left_at_the_end(sending: Sending) -> None:
    channel = BrokerChannel("test", lambda: None, sending)
    sending.fails = True
    channel.add("a", 1)
    eventually(lambda: len(sending.sent) > 1)
    assert channel.close() == [1]
    assert not channel.add("b", 1)
    assert channel.close() == []


def test_a_connection_outlives_its_broker() -> None:
    with Broker() as first:
        port = first.port
        address: list[Address | None] = [("127.0.0.1", port)]
        with closing(BrokerConnection(lambda: address[0])) as connection:
            assert connection.exchange(MetadataRequest(), MetadataResponse).brokers[0].port == port
            first.close()
            with pytest.raises(BrokerUnavailable):
                connection.exchange(MetadataRequest(), MetadataResponse)
            with Broker(port=port):
                assert connection.exchange(MetadataRequest(), MetadataResponse).brokers[0].port == port
            with Broker() as elsewhere:
                address[0] = "127.0.0.1", elsewhere.port
                found = connection.exchange(MetadataRequest(), MetadataResponse)
                assert found.brokers[0].port == elsewhere.port
                address[0] = None
                with pytest.raises(BrokerUnavailable, match="not registered"):
                    connection.exchange(MetadataRequest(), MetadataResponse)
