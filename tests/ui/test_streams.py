"""Streams of a served page: a fast log, a browser that goes away, a page that comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served_page import Served as Page

from embedlog import Log
from embedlog.ui.reading import Source
from embedlog.ui.streaming import Tail


class Served(Page):
    """The page, and its streams."""

    def events(self, where: str, **headers: str) -> Iterator[dict[str, Any]]:
        """The events of a stream; it is left when the iteration is."""
        number = ""
        with self.client.stream("GET", where, headers=headers) as response:
            for line in response.iter_lines():
                if line.startswith("id: "):
                    number = line[4:]
                elif line.startswith("data: "):
                    yield json.loads(line[6:]) | {"id": number}

    @property
    def open(self) -> int:
        return int(self.app.state.site.streams.open)


@pytest.fixture
def served(log: Log) -> Iterator[Served]:
    log.create_topic("t", 2)
    served = Served(log)
    yield served
    served.close()


def ended(served: Served) -> None:
    """Waits until no stream is open."""
    while served.open:
        served.client.get("/static/icon.svg")


def test_a_tail_keeps_up(log: Log, served: Served) -> None:
    """Of more than a page can show it has the last ones, and counts the others."""
    events = served.events("/topics/t/records/live")
    assert next(events)["html"] == ""
    log.append_many("t", [b"%d" % number for number in range(5_000)], partition=1)
    shown = left_out = 0
    last = ""
    while shown + left_out < 5_000:
        event = next(events)
        rows = event["html"].count('class="record"')
        assert rows <= 40
        shown += rows
        left_out += event["left_out"]
        last = event["html"] or last
    assert "4999" in last
    assert left_out
    events.close()
    ended(served)


def test_a_tail_comes_back_where_it_was(log: Log, served: Served) -> None:
    events = served.events("/topics/t/records/live")
    number = next(events)["id"]
    events.close()
    log.append("t", b"meanwhile", partition=0)
    events = served.events("/topics/t/records/live", **{"last-event-id": number})
    assert "meanwhile" in next(events)["html"]
    events.close()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("count", [3, 15])
def test_a_tail_follows_a_topic_that_is_made_again(log: Log, count: int, partitions: int) -> None:
    """From its start, with fewer and with more records than the old one, also if partitions are gone."""
    log.create_topic("t", 2)
    log.append_many("t", [b"old"] * 10, partition=0)
    tail = Tail(Source(log.backend, "t", 2, log.offsets("t"), True, None), {})
    assert not tail.step().rows
    log.delete_topic("t")
    log.create_topic("t", partitions)
    log.append_many("t", [b"new"] * count, partition=0)
    step = tail.step()
    assert [row.offset for row in step.rows] == list(range(count))
    assert step.facts["left_out"] == 0
    log.append("t", b"newer", partition=0)
    assert [row.offset for row in tail.step().rows] == [count]


def test_an_open_transaction_holds_a_committed_tail_back(log: Log, served: Served) -> None:
    events = served.events("/topics/t/records/live")
    next(events)
    with log.transaction("tx") as transaction:
        for number in range(100):
            transaction.append("t", b"%d" % number, partition=0)
        assert next(events)["html"] == ""
    while not (event := next(events))["html"]:
        pass
    assert ">99<" in event["html"]
    events.close()


def test_a_search_ends_with_its_browser(log: Log, served: Served) -> None:
    for _ in range(40):
        log.append_many("t", [b'{"n": 1, "text": "%s"}' % (b"x" * 300)] * 5_000)
    events = served.events("/topics/t/records/search?search=n=2")
    first = next(events)
    assert (first["end"], first["found"]) == (False, 0)
    assert 0 < first["looked_at"] < first["total"] == 200_000
    events.close()
    ended(served)


def test_so_many_streams_and_no_more(served: Served) -> None:
    events = [served.events("/topics/t/records/live") for _ in range(24)]
    for each in events:
        next(each)
    assert "problem" in next(served.events("/topics/t/records/live"))
    assert served.client.get("/topics/t/records").status_code == 200  # pages still come
    for each in events:
        each.close()
    ended(served)


def test_a_topic_that_goes(log: Log, served: Served) -> None:
    events = served.events("/topics/t/records/live")
    next(events)
    log.delete_topic("t")
    while "problem" not in (event := next(events)):
        pass
    assert "t" in event["problem"]


def test_streams_end_before_their_server(served: Served) -> None:
    events = served.events("/topics/t/records/live")
    next(events)
    served.app.state.site.stop()
    assert [event["end"] for event in events if event["html"]] == []  # and there are no more
    ended(served)
