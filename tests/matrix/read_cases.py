"""Cases of the matrix: how a `Log` is read; its groups, offsets and transactions; `Mirror`."""

from __future__ import annotations

import re
import threading
from itertools import islice

import embedlog
from embedlog import (
    Closed,
    FileOffsetStore,
    Mirror,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
)

from .cases import Desk, GivenUp, at_ms, case, polled, raising, soon

# -- reading -------------------------------------------------------------------------------------------


@case("Log", "read")
def _(desk: Desk) -> None:
    desk.topic(2, records=5)
    desk.log.append(desk.name, b"other", partition=1)
    assert sorted(desk.values()) == [b"0", b"1", b"2", b"3", b"4", b"other"]
    assert desk.values(partition=0, start=1, end=3) == [b"1", b"2"]
    assert desk.values(partition=0, start=at_ms(1_000), end=at_ms(3_000)) == [b"1", b"2"]
    assert desk.values(start="latest") == []


@case("Log", "read(start=datetime), out of order")
def _(desk: Desk) -> str | None:
    desk.topic()
    for time_ms in (3_000, 1_000, 2_000):
        desk.log.append(desk.name, b"%d" % time_ms, timestamp_ms=time_ms)
    values = desk.values(start=at_ms(2_000))
    if values == [b"3000", b"2000"]:
        return None
    assert values == [b"3000", b"1000", b"2000"]
    return "from the first record at or after the time, with all that follow it"


@case("Log", "read(follow=True)")
def _(desk: Desk) -> None:
    desk.topic(records=1)
    following = desk.log.read(desk.name, follow=True)
    assert next(following).value == b"0"
    later = threading.Timer(0.05, lambda: desk.log.append(desk.name, b"later"))
    later.start()
    assert next(following).value == b"later"
    later.join()


@case("Log", 'read(isolation_level="read_uncommitted")')
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.transaction(desk.name) as tx:
        tx.append(desk.name, b"open")
        assert desk.values() == []
        assert desk.values(isolation_level="read_uncommitted") == [b"open"]
    desk.committed([b"open"])


@case("Log", "read_values")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    assert list(desk.log.read_values(desk.name, start=at_ms(1_000))) == [b"1", b"2"]


@case("Log", "read_at")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    assert desk.log.read_at(desk.name, 0, 1).value == b"1"
    with raising(embedlog.OffsetOutOfRange):
        desk.log.read_at(desk.name, 0, 3)


@case("Log", "read_arrow")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    batches = list(desk.log.read_arrow(desk.name, columns=["offset", "value"]))
    assert [value for batch in batches for value in batch["value"].to_pylist()] == [b"0", b"1", b"2"]


@case("Log", "sql")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    query = f'SELECT max("offset") FROM "{desk.name}" WHERE "offset" < $n'
    assert desk.log.sql(query, n=2).fetchall() == [(1,)]


@case("Log", "to_pandas")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    assert list(desk.log.to_pandas(desk.name)["offset"]) == [0, 1, 2]


@case("Log", "to_polars")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    assert desk.log.to_polars(desk.name)["offset"].to_list() == [0, 1, 2]


@case("Log", "topic")
def _(desk: Desk) -> None:
    desk.topic()
    orders = desk.log.topic(desk.name, dict, key_type=str)
    orders.append({"total": 12}, key="alice")
    assert [(record.key, record.value) for record in orders.read()] == [("alice", {"total": 12})]


@case("Log", "consumer")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    with desk.log.consumer(desk.name, stop_at_end=True) as consumer:
        assert [record.value for record in consumer] == [b"0", b"1", b"2"]


@case("Log", "consumer(group=...)")
def _(desk: Desk) -> None:
    """A second consumer goes on where the first ended."""
    desk.topic(records=3)
    for values in ([b"0", b"1", b"2"], [b"later"]):
        with desk.log.consumer(desk.name, group=desk.name) as consumer:
            assert [record.value for record in polled(consumer, len(values))] == values
            consumer.commit()
        desk.log.append(desk.name, b"later")


@case("Log", "consumer, of a pattern")
def _(desk: Desk) -> None:
    desk.topic(records=1)
    with desk.log.consumer(re.compile(f"{desk.name}.*"), metadata_refresh_ms=50) as consumer:
        polled(consumer, 1)
        desk.log.create_topic(f"{desk.name}-later")
        desk.log.append(f"{desk.name}-later", b"later")
        assert polled(consumer, 1)[0].value == b"later"


@case("Log", "consumer(assignors=...)")
def _(desk: Desk) -> None:
    desk.topic(2, records=1)
    for assignor in ("roundrobin", "sticky", "range"):
        with desk.log.consumer(desk.name, group=desk.name, assignors=[assignor]) as consumer:
            polled(consumer, 1)
            assert desk.log.group(desk.name).describe().protocol == assignor


@case("Log", "consumer(on_assigned=..., on_revoked=...)")
def _(desk: Desk) -> None:
    """Two members share the partitions."""
    desk.topic(2)
    calls: list[tuple[str, int]] = []
    options = {
        "on_assigned": lambda partitions: calls.append(("assigned", len(partitions))),
        "on_revoked": lambda partitions: calls.append(("revoked", len(partitions))),
    }
    with desk.log.consumer(desk.name, group=desk.name, **options) as first:
        soon(lambda: first.poll(20) or len(first.assignment()), 2)
        with desk.log.consumer(desk.name, group=desk.name) as second:
            soon(lambda: [len(each.poll(20) or each.assignment()) for each in (first, second)], [1, 1])
    assert calls[0] == ("assigned", 2) and ("revoked", 2) in calls


@case("Log", "consumer(group_instance_id=...)")
def _(desk: Desk) -> None:
    desk.topic(records=1)
    with desk.log.consumer(desk.name, group=desk.name, group_instance_id="a") as consumer:
        polled(consumer, 1)
        (member,) = desk.log.group(desk.name).members()
        assert member.group_instance_id == "a"


@case("Log", "consumer(offset_store=...)")
def _(desk: Desk) -> None:
    desk.topic(records=2)
    store = FileOffsetStore(desk.scratch / "offsets")
    with desk.log.consumer(desk.name, group=desk.name, offset_store=store) as consumer:
        polled(consumer, 2)
        consumer.commit()
    name = TopicPartition(desk.name, 0)
    assert store.load(desk.name, [name])[name].offset == 2


@case("Log", 'consumer(auto_offset_reset="by_duration:PT1H")')
def _(desk: Desk) -> None:
    desk.topic(records=2)
    desk.log.append(desk.name, b"now")
    reset = "by_duration:PT1H"
    with desk.log.consumer(desk.name, auto_offset_reset=reset, stop_at_end=True) as consumer:
        assert [record.value for record in consumer] == [b"now"]


# -- groups and offsets --------------------------------------------------------------------------------


@case("Log", "groups")
def _(desk: Desk) -> None:
    desk.log.group(desk.name).reset(desk.topic(), to="earliest")
    assert desk.name in desk.log.groups()


@case("Log", "group")
def _(desk: Desk) -> None:
    assert desk.log.group(desk.name).name == desk.name


@case("Log", "describe_groups")
def _(desk: Desk) -> None:
    desk.log.group(desk.name).reset(desk.topic(records=3), to="earliest")
    (description,) = [group for group in desk.log.describe_groups() if group.group == desk.name]
    assert (description.state, description.topics, description.lag) == ("Empty", [desk.name], 3)


@case("Log", "offsets")
def _(desk: Desk) -> None:
    desk.topic(2, records=3)
    desk.log.delete_records(desk.name, 0, 1)
    edges = desk.log.offsets(desk.name)
    assert [(edges[number].log_start_offset, edges[number].log_end_offset) for number in (0, 1)] == [
        (1, 3),
        (0, 0),
    ]


@case("Log", "offsets, flushed_offset")
def _(desk: Desk) -> None:
    desk.topic(records=3, flush_messages=1)
    assert desk.log.offsets(desk.name)[0].flushed_offset == 3


@case("Log", "offset_for_time")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    found = desk.log.offset_for_time(desk.name, 0, 500)
    assert (found.offset, found.timestamp_ms) == (1, 1_000)
    assert desk.log.offset_for_time(desk.name, 0, 2_001) is None


@case("Log", "offsets_before(time_ms=-2 or -1)")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    desk.log.delete_records(desk.name, 0, 1)
    assert desk.log.offsets_before(desk.name, 0, -2, 1) == [1]
    assert desk.log.offsets_before(desk.name, 0, -1, 1) == [3]


@case("Log", "offsets_before")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    assert desk.log.offsets_before(desk.name, 0, -1, 5) == [3, 0]


# -- transactions --------------------------------------------------------------------------------------


@case("Log", "transaction")
def _(desk: Desk) -> None:
    desk.topic(2)
    for value, fails in ((b"committed", False), (b"aborted", True)):
        try:
            with desk.log.transaction(desk.name) as tx:
                tx.append(desk.name, value, partition=0)
                tx.append(desk.name, value, partition=1)
                if fails:
                    raise GivenUp
        except GivenUp:
            assert fails
    desk.committed([b"committed", b"committed"])


@case("Log", "transaction(flush=True)")
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.transaction(desk.name, flush=True) as tx:
        tx.append(desk.name, b"v")
    desk.committed([b"v"])


@case("Log", "transactions")
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.transaction(desk.name) as tx:
        tx.append(desk.name, b"v")
        (description,) = [each for each in desk.log.transactions() if each.transactional_id == desk.name]
        assert description.is_open and description.partitions == (TopicPartition(desk.name, 0),)
    soon(
        lambda: [each.state for each in desk.log.transactions() if each.transactional_id == desk.name],
        ["CompleteCommit"],
    )


@case("Log", "abort_transaction")
def _(desk: Desk) -> str | None:
    desk.topic()
    with raising(TransactionAborted, ProducerFenced) as raised, desk.log.transaction(desk.name) as tx:
        tx.append(desk.name, b"v")
        desk.log.abort_transaction(desk.name)
        assert desk.values() == []
        tx.append(desk.name, b"w")
    assert desk.values() == []
    fenced = isinstance(raised[0], ProducerFenced)
    return "its writer gets ProducerFenced, as Kafka's clients do" if fenced else None


# -- mirrors -------------------------------------------------------------------------------------------


def mirror(desk: Desk) -> Mirror:
    """Of a directory with a topic of three records into the log."""
    with embedlog.open(desk.scratch / "source") as source:
        source.create_topic(desk.name, 2)
        source.append_many(desk.name, [(b"%d" % number, b"v") for number in range(20)])
    return Mirror(desk.scratch / "source", desk.log, topics=desk.name, group=desk.name)


@case("Mirror", "run")
def _(desk: Desk) -> None:
    with mirror(desk) as copying:
        copying.run(until_caught_up=True)
    assert len(list(islice(desk.log.read(desk.name), 21))) == 20


@case("Mirror", "stop")
def _(desk: Desk) -> None:
    with mirror(desk) as copying:
        running = threading.Thread(target=copying.run)
        running.start()
        soon(lambda: desk.name in desk.log.topics(), True)
        copying.stop()
        running.join()


@case("Mirror", "close")
def _(desk: Desk) -> None:
    copying = mirror(desk)
    copying.close()
    with raising(Closed):
        copying.run(until_caught_up=True)
