"""Cases of the matrix: `Consumer` and `ConsumerGroup`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from embedlog import (
    Closed,
    CommittedOffset,
    GroupNotEmpty,
    GroupNotFound,
    NotAssigned,
    TopicPartition,
)

from .cases import Desk, at_ms, case, polled, raising, soon

# -- Consumer --------------------------------------------------------------------------------------------


@contextmanager
def consumer(desk: Desk, records: int = 3, **options: Any) -> Iterator[tuple[Any, TopicPartition]]:
    """A consumer that is in its group, and the partition that it has."""
    desk.topic(records=records)
    name = TopicPartition(desk.name, 0)
    with desk.log.consumer(desk.name, group=desk.name, **options) as opened:
        soon(lambda: _joined(opened), {name})
        opened.seek_to_beginning(name)
        yield opened, name


def _joined(opened: Any) -> set[TopicPartition]:
    opened.poll(100)
    assignment: set[TopicPartition] = opened.assignment()
    return assignment


@case("Consumer", "poll")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        assert [record.value for record in polled(opened, 3)] == [b"0", b"1", b"2"]
        began = time.monotonic()
        assert opened.poll(50) == []
        assert time.monotonic() - began >= 0.045
        assert opened.poll(0) == []


@case("Consumer", "iteration")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    with desk.log.consumer(desk.name, group=desk.name, stop_at_end=True) as opened:
        assert [record.offset for record in opened] == [0, 1, 2]


@case("Consumer", "wakeup")
def _(desk: Desk) -> None:
    with consumer(desk, 0) as (opened, _):
        threading.Timer(0.1, opened.wakeup).start()
        began = time.monotonic()
        assert opened.poll(30_000) == []
        assert time.monotonic() - began < 20


@case("Consumer", "commit")
def _(desk: Desk) -> None:
    with consumer(desk, auto_commit=False) as (opened, name):
        polled(opened, 2)
        opened.commit()
        assert desk.log.group(desk.name).offsets()[name].offset == 2
        opened.commit({name: CommittedOffset(1, metadata="note")})
        committed = desk.log.group(desk.name).offsets()[name]
        assert (committed.offset, committed.metadata) == (1, "note")


@case("Consumer", "committed")
def _(desk: Desk) -> None:
    with consumer(desk, auto_commit=False) as (opened, name):
        assert opened.committed(name) is None
        opened.commit({name: 2})
        assert opened.committed(name).offset == 2


@case("Consumer", "position")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        polled(opened, 2)
        assert opened.position(name) == 2
        with raising(NotAssigned):
            opened.position(TopicPartition(desk.name, 7))


@case("Consumer", "lag")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        polled(opened, 2)
        assert opened.lag() == {name: 1}


@case("Consumer", "estimated_lag")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        polled(opened, 2)
        assert opened.estimated_lag() == {name: 1}


@case("Consumer", "held_back")
def _(desk: Desk) -> None:
    with consumer(desk, 0) as (opened, name), desk.log.transaction(desk.name) as tx:
        tx.append(desk.name, b"open")

        def held_back() -> Any:
            assert opened.poll(50) == []
            return opened.held_back()

        soon(held_back, {name: [desk.name]})


@case("Consumer", "seek")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        opened.seek(name, 2)
        assert polled(opened, 1)[0].value == b"2"
        opened.seek(desk.name, 0, 1)
        assert polled(opened, 1)[0].value == b"1"


@case("Consumer", "seek_to_beginning")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        polled(opened, 3)
        opened.seek_to_beginning()
        assert polled(opened, 1)[0].value == b"0"


@case("Consumer", "seek_to_end")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        opened.seek_to_end()
        assert opened.position(name) == 3


@case("Consumer", "seek_to_time")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        for when in (500, at_ms(500)):
            opened.seek_to_time(when)
            assert polled(opened, 1)[0].value == b"1"


@case("Consumer", "seek_to_committed")
def _(desk: Desk) -> None:
    with consumer(desk, auto_commit=False) as (opened, name):
        opened.commit({name: 1})
        polled(opened, 3)
        opened.seek_to_committed()
        assert polled(opened, 1)[0].value == b"1"


@case("Consumer", "pause")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        opened.pause(name)
        assert opened.poll(100) == []


@case("Consumer", "paused")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        assert opened.paused() == set()
        opened.pause()
        assert opened.paused() == {name}


@case("Consumer", "resume")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        opened.pause()
        assert opened.poll(50) == []
        opened.resume()
        assert polled(opened, 1)[0].value == b"0"


@case("Consumer", "group")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        assert opened.group == desk.name


@case("Consumer", "subscription")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        assert opened.subscription == (desk.name,)


@case("Consumer", "assignment")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, name):
        assert opened.assignment() == {name}


@case("Consumer", "assign")
def _(desk: Desk) -> None:
    desk.topic(2, records=2)
    with desk.log.consumer() as opened:
        opened.assign([TopicPartition(desk.name, 0)])
        assert opened.assignment() == {TopicPartition(desk.name, 0)}
        assert len(polled(opened, 2)) == 2


@case("Consumer", "close")
def _(desk: Desk) -> None:
    """It commits what is done, which the last record is not, and leaves the group."""
    with consumer(desk) as (opened, name):
        polled(opened, 2)
        assert opened.poll(0, 1)
        opened.close()
        with raising(Closed):
            opened.poll(0)
        soon(lambda: desk.log.group(desk.name).describe().state, "Empty")
        assert desk.log.group(desk.name).offsets()[name].offset == 2


@case("Consumer", "closed")
def _(desk: Desk) -> None:
    with consumer(desk) as (opened, _):
        assert not opened.closed
        opened.close()
        assert opened.closed


# -- ConsumerGroup -----------------------------------------------------------------------------------------


@contextmanager
def group(desk: Desk) -> Iterator[tuple[Any, TopicPartition]]:
    """A group without members that has read one of three records."""
    desk.topic(records=3)
    made = desk.log.group(desk.name)
    made.reset(desk.name, to=1)
    yield made, TopicPartition(desk.name, 0)


@case("ConsumerGroup", "name")
def _(desk: Desk) -> None:
    assert desk.log.group(desk.name).name == desk.name


@case("ConsumerGroup", "describe")
def _(desk: Desk) -> None:
    with group(desk) as (made, name):
        description = made.describe()
        assert (description.state, description.lag) == ("Empty", 2)
        assert description.partitions[name].committed.offset == 1
        with raising(GroupNotFound):
            desk.log.group(f"{desk.name}-none").describe()


@case("ConsumerGroup", "describe, generation")
def _(desk: Desk) -> str | None:
    with consumer(desk):
        description = desk.log.group(desk.name).describe()
        assert (description.state, description.protocol, len(description.members)) == ("Stable", "range", 1)
        return None if description.generation else "None: brokers do not tell"


@case("ConsumerGroup", "members")
def _(desk: Desk) -> None:
    with consumer(desk, client_id="billing") as (_, name):
        (member,) = desk.log.group(desk.name).members()
        assert (member.client_id, member.partitions) == ("billing", (name,))


@case("ConsumerGroup", "offsets")
def _(desk: Desk) -> None:
    with group(desk) as (made, name):
        assert {tp: committed.offset for tp, committed in made.offsets().items()} == {name: 1}


@case("ConsumerGroup", "oldest_unread_ms")
def _(desk: Desk) -> None:
    with group(desk) as (made, _):
        assert made.oldest_unread_ms() == 1_000


@case("ConsumerGroup", "reset")
def _(desk: Desk) -> None:
    with group(desk) as (made, name):
        for to, after in (("latest", 3), (at_ms(500), 1), ("earliest", 0)):
            assert made.reset(to=to)[name].after == after
        assert made.reset(to="latest", dry_run=True)[name] == (0, 3)
        assert made.offsets()[name].offset == 0


@case("ConsumerGroup", "reset, of a group with members")
def _(desk: Desk) -> None:
    with consumer(desk), raising(GroupNotEmpty):
        desk.log.group(desk.name).reset(desk.name, to="latest")


@case("ConsumerGroup", "delete")
def _(desk: Desk) -> None:
    with group(desk) as (made, _):
        made.delete()
        assert desk.name not in desk.log.groups()


@case("ConsumerGroup", "delete_offsets")
def _(desk: Desk) -> None:
    with group(desk) as (made, _):
        made.delete_offsets(desk.name)
        assert made.offsets() == {}
