"""The consumer over a real log: groups, positions, commits, waiting, misuse."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from encoding import encode_values
from faults import partition_of
from transactions import coordinated

import embedlog
from embedlog import Record, TopicPartition
from embedlog.clients.consumer import Consumer
from embedlog.clients.offset_store import FileOffsetStore
from embedlog.errors import (
    Closed,
    CommitFailed,
    ConcurrentUse,
    ForkedHandle,
    GroupError,
    InvalidArgument,
    InvalidCommit,
    InvalidGroup,
    InvalidType,
    NotAssigned,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from embedlog.model import CommittedOffset

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def four(log: embedlog.Log) -> embedlog.Log:
    """Topic t with 4 partitions of 10 records: partition * 100 + offset, at 1,000 ms times the offset."""
    log.create_topic("t", partitions=4)
    for partition in range(4):
        fill(log, "t", partition, range(10))
    return log


def fill(log: embedlog.Log, topic: str, partition: int, offsets: range) -> None:
    for offset in offsets:
        value = str(partition * 100 + offset).encode()
        log.append(topic, value, partition=partition, timestamp_ms=1_000 * offset)


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def everything(consumer: Consumer) -> list[int]:
    """All that is there, by poll, and one poll more to come back for it."""
    found: list[int] = []
    while records := consumer.poll():
        found += numbers(records)
    return found


def settle(*consumers: Consumer) -> list[int]:
    """Poll in turn until the group has settled; what came meanwhile."""
    found: list[int] = []
    for _ in range(4):
        for consumer in consumers:
            found += numbers(consumer.poll(max_records=1))
    return found


ALL = [partition * 100 + offset for partition in range(4) for offset in range(10)]


# -- reading -----------------------------------------------------------------------------------------


def test_without_a_group_everything_is_read_in_order(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        found = everything(consumer)
        assert sorted(found) == ALL
        for partition in range(4):
            mine = [number for number in found if number // 100 == partition]
            assert mine == sorted(mine)


def test_iteration_until_the_end(four: embedlog.Log) -> None:
    with four.consumer("t", stop_at_end=True) as consumer:
        assert sorted(numbers(list(consumer))) == ALL
        four.append("t", b"7", partition=0)
        assert numbers(list(consumer)) == [7]


def test_partitions_take_turns(four: embedlog.Log) -> None:
    with four.consumer("t", max_poll_records=3) as consumer:
        assert [consumer.poll()[0].partition for _ in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_max_records(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        assert len(consumer.poll(max_records=25)) == 25
        assert len(consumer.poll(max_records=25)) == 15


def test_several_topics(four: embedlog.Log) -> None:
    four.create_topic("u")
    four.append("u", b"1000")
    with four.consumer(["t", "u"]) as consumer:
        assert consumer.subscription == ("t", "u")
        assert sorted(everything(consumer)) == [*ALL, 1000]


def test_a_pattern_picks_up_new_topics_and_no_internal_ones(four: embedlog.Log) -> None:
    with four.consumer("t", group="makes the internal topic exist") as other:
        other.poll()
        other.commit()
    with four.consumer(re.compile(r"t|new-.*|__.*"), metadata_refresh_ms=1) as consumer:
        assert list(consumer.subscription) == ["t"]
        everything(consumer)
        four.create_topic("new-1")
        four.create_topic("anew-1")
        four.append("new-1", b"5")
        assert numbers(consumer.poll(timeout_ms=60_000)) == [5]
        assert list(consumer.subscription) == ["new-1", "t"]


def test_new_partitions_are_read_alone_and_in_a_group(four: embedlog.Log) -> None:
    with (
        four.consumer("t", metadata_refresh_ms=1) as alone,
        four.consumer("t", group="g", metadata_refresh_ms=1) as member,
    ):
        everything(alone)
        everything(member)
        four.create_partitions("t", 6)
        four.append("t", b"500", partition=5)
        assert numbers(alone.poll(timeout_ms=60_000)) == [500]
        assert numbers(member.poll(timeout_ms=60_000)) == [500]
        assert len(member.assignment()) == 6


def test_a_large_record_is_returned_whole(log: embedlog.Log) -> None:
    log.create_topic("t")
    log.append("t", bytes(100_000))
    with log.consumer("t", fetch_max_bytes=10) as consumer:
        assert [len(record.value or b"") for record in consumer.poll()] == [100_000]


# -- positions ---------------------------------------------------------------------------------------


def test_positions_and_seeking(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        everything(consumer)
        assert consumer.position(T2) == 10
        consumer.seek(T2, 8)
        consumer.seek("t", 1, 9)
        assert consumer.position(T2) == 8
        assert sorted(everything(consumer)) == [109, 208, 209]
        consumer.seek_to_beginning(T3)
        assert everything(consumer) == list(range(300, 310))
        consumer.seek_to_beginning()
        consumer.seek_to_end(T0, T1, T2)
        assert everything(consumer) == list(range(300, 310))


def test_a_seek_drops_fetched_records(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        consumer.assign([T0])
        assert int(next(consumer).value or b"") == 0
        consumer.seek(T0, 7)
        assert int(next(consumer).value or b"") == 7
        assert numbers(consumer.poll(max_records=1)) == [8]
        consumer.seek(T0, 2)
        assert numbers(consumer.poll(max_records=1)) == [2]


def test_seek_to_time(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        consumer.seek_to_time(8_500)
        assert sorted(everything(consumer)) == [9, 109, 209, 309]
        consumer.seek_to_time(datetime.fromtimestamp(8, UTC), T1)
        assert everything(consumer) == [108, 109]
        consumer.seek_to_time(datetime(2100, 1, 1))
        assert everything(consumer) == []


def test_lag(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        assert consumer.lag() == dict.fromkeys((T0, T1, T2, T3), 10)
        consumer.seek(T1, 4)
        assert consumer.lag()[T1] == 6
        everything(consumer)
        assert set(consumer.lag().values()) == {0}
        four.append("t", b"1", partition=2)
        assert consumer.lag()[T2] == 1


def test_pause_and_resume(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        consumer.pause(T0, T1)
        assert consumer.paused() == {T0, T1}
        assert sorted(everything(consumer)) == ALL[20:]
        consumer.resume(T1)
        assert everything(consumer) == ALL[10:20]
        consumer.pause()
        assert consumer.poll() == []
        consumer.resume()
        assert consumer.paused() == set()
        assert everything(consumer) == ALL[:10]


def test_pausing_within_a_chunk_keeps_the_position(four: embedlog.Log) -> None:
    with four.consumer("t") as consumer:
        consumer.assign([T0, T1])
        assert int(next(consumer).value or b"") == 0
        consumer.pause(T0)
        assert int(next(consumer).value or b"") == 100
        consumer.resume(T0)
        assert sorted(everything(consumer)) == sorted(ALL[1:10] + ALL[11:20])


def test_an_iteration_tells_its_position_at_each_record(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        consumer.assign([T0])
        for record in consumer:
            assert consumer.position(T0) == record.offset + 1
            if record.offset % 3 == 0:
                consumer.commit()
                assert (committed := consumer.committed(T0)) is not None
                assert committed.offset == record.offset + 1
            if record.offset == 9:
                break


def test_records_fetched_by_an_iteration_can_be_polled(four: embedlog.Log) -> None:
    with four.consumer("t", stop_at_end=True) as consumer:
        consumer.assign([T0])
        found = []
        for record in consumer:
            found.append(int(record.value or b""))
            if found == [0]:
                found += numbers([next(consumer), next(consumer)])
            elif record.offset == 3:
                found += numbers(consumer.poll(max_records=2))
            elif record.offset == 7:
                break
        assert found == list(range(8))
        assert numbers(list(consumer)) == [8, 9]


def test_a_seek_and_a_pause_within_an_iteration(four: embedlog.Log) -> None:
    with four.consumer("t", stop_at_end=True) as consumer:
        consumer.assign([T0, T1])
        found = []
        for record in consumer:
            found.append(int(record.value or b""))
            if found == [0]:
                consumer.seek(T0, 8)
                consumer.pause(T1)
            elif found == [0, 8]:
                consumer.pause(T0)
                consumer.resume(T1)
        assert found == [0, 8, *ALL[10:20]]


def test_ctrl_c_loses_no_record_of_an_iteration(four: embedlog.Log) -> None:
    for _ in range(100):
        four.append_many("t", [b"x"] * 100, partition=0)
    seen: list[int] = []
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with four.consumer("t", fetch_max_bytes=2_000, stop_at_end=True) as consumer:
            consumer.assign([T0])
            while len(seen) < 10_010:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 0.003)
                    for record in consumer:
                        seen.append(record.offset)
                    armed = False
                except KeyboardInterrupt:
                    pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == list(range(10_010))


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_an_empty_poll_costs_the_same_for_any_number_of_partitions(log: embedlog.Log, mode: str) -> None:
    def calls(partitions: int) -> int:
        """The fewest calls that a poll makes which finds nothing, after all records were read.

        Now and then a poll does what is due by the clock.
        """
        topic = f"t{partitions}"
        log.create_topic(topic, partitions=partitions)
        for number in range(partitions):
            log.append(topic, b"x", partition=number)
        log.flush()  # the writer would state it later, and a reader then asks about all partitions once
        counts: list[int] = []

        def note(frame: object, event: str, argument: object) -> None:
            counts[-1] += event == "call"

        with (
            embedlog.open(log.path, mode="r") as reader,
            (log if mode == "rw" else reader).consumer(topic, metadata_refresh_ms=1 << 30) as consumer,
        ):
            while consumer.poll():
                pass
            assert consumer.poll() == []
            for _ in range(5):
                counts.append(0)
                sys.setprofile(note)
                try:
                    assert consumer.poll() == []
                finally:
                    sys.setprofile(None)
            for number in range(partitions):
                log.append(topic, b"y", partition=number)
            assert len(consumer.poll()) == partitions
        return min(counts)

    assert calls(1) == calls(40)


def test_assign(four: embedlog.Log) -> None:
    with four.consumer(group="g") as consumer:
        consumer.assign([T1, T3])
        assert consumer.assignment() == {T1, T3}
        assert sorted(everything(consumer)) == ALL[10:20] + ALL[30:]
        consumer.assign([T1])
        assert consumer.position(T1) == 10
        with pytest.raises(PartitionNotFound):
            consumer.assign([TopicPartition("t", 9)])
        with pytest.raises(TopicNotFound):
            consumer.assign([TopicPartition("nothing", 0)])
    with four.consumer(group="g") as consumer:
        consumer.assign([T1])
        assert consumer.poll() == []


def test_assign_leaves_the_group(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one, four.consumer("t", group="g") as two:
        settle(one, two)
        assert len(two.assignment()) == 2
        one.assign([T0])
        settle(two)
        assert len(two.assignment()) == 4


def test_out_of_range_follows_auto_offset_reset(four: embedlog.Log) -> None:
    for reset, expected in ("earliest", ALL[:10]), ("latest", []):
        with four.consumer(auto_offset_reset=reset) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 99)
            assert everything(consumer) == expected
    with four.consumer("t", auto_offset_reset="error") as consumer:
        with pytest.raises(OffsetOutOfRange, match="seek first"):
            consumer.poll()
        consumer.seek_to_end()
        consumer.seek(T0, 99)
        with pytest.raises(OffsetOutOfRange):
            consumer.poll()
        consumer.seek(T0, 9)
        assert everything(consumer) == [9]


def test_latest_begins_at_the_end(four: embedlog.Log) -> None:
    with four.consumer("t", auto_offset_reset="latest") as consumer:
        assert consumer.poll() == []
        four.append("t", b"1", partition=2)
        assert numbers(consumer.poll()) == [1]


# -- commits -----------------------------------------------------------------------------------------


def test_auto_commit_covers_records_before_the_next_poll(four: embedlog.Log) -> None:
    with four.consumer("t", group="g", max_poll_records=4) as consumer:
        assert numbers(consumer.poll()) == [0, 1, 2, 3]
    with four.consumer("t", group="g", max_poll_records=4) as consumer:
        assert numbers(consumer.poll()) == [0, 1, 2, 3]
        assert numbers(consumer.poll()) == [100, 101, 102, 103]
    with four.consumer("t", group="g") as consumer:
        assert sorted(everything(consumer)) == ALL[4:]
    with four.consumer("t", group="g") as consumer:
        assert everything(consumer) == []


def test_the_record_iterated_last_is_not_done(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        for record in consumer:
            if record.offset == 3:
                break
    with four.consumer("t", group="g") as consumer:
        assert (committed := consumer.committed(T0)) is not None
        assert committed.offset == 3


def test_auto_commit_by_time(four: embedlog.Log) -> None:
    with four.consumer("t", group="g", auto_commit_interval_ms=1) as consumer:
        assert len(everything(consumer)) == 40
        while (committed := consumer.committed(T3)) is None or committed.offset < 10:
            consumer.poll(timeout_ms=2)


def test_close_without_commit(four: embedlog.Log) -> None:
    consumer = four.consumer("t", group="g")
    assert len(everything(consumer)) == 40
    consumer.close(commit=False)
    with four.consumer("t", group="g") as again:
        assert len(everything(again)) == 40


def test_manual_commits(four: embedlog.Log) -> None:
    with four.consumer("t", group="g", auto_commit=False) as consumer:
        consumer.poll(max_records=4)
        consumer.commit()
        committed = consumer.committed(T0)
        assert committed is not None
        assert committed.offset == 4
        assert committed.leader_epoch >= 0
        consumer.commit({T1: 7, T2: CommittedOffset(5, -1, "half-way")})
        assert (committed := consumer.committed(T2)) is not None
        assert (committed.offset, committed.metadata) == (5, "half-way")
        consumer.poll()
    with four.consumer("t", group="g") as consumer:
        assert sorted(everything(consumer)) == [*range(4, 10), 107, 108, 109, *range(205, 210), *ALL[30:]]


def test_a_poll_after_an_iteration_commits_forwards(log: embedlog.Log) -> None:
    """The iteration has taken all that was fetched; the poll fetches more."""
    log.create_topic("t")
    tp = TopicPartition("t", 0)
    log.append_many("t", [b"0", b"1", b"2"])
    with log.consumer("t", group="g") as consumer:
        assert [next(consumer).value for _ in range(3)] == [b"0", b"1", b"2"]
        log.append("t", b"3")
        assert [record.value for record in consumer.poll(60_000)] == [b"3"]
    with log.consumer("t", group="g") as consumer:
        committed = consumer.committed(tp)
        assert committed is not None
        assert committed.offset == 3  # the poll's record is not done


def test_auto_commit_does_not_undo_a_commit_by_hand(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        consumer.assign([T0])
        for record in consumer:
            if record.offset == 5:
                consumer.commit()
                break
        consumer.close()
    with four.consumer("t", group="g") as consumer:
        assert min(n for n in everything(consumer) if n < 100) == 6


def test_rewinding_a_group_reads_again(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        assert len(everything(consumer)) == 40
        consumer.seek_to_beginning(T0)
        consumer.poll(max_records=1)
        consumer.poll(max_records=1)
    with four.consumer("t", group="g") as consumer:
        assert everything(consumer) == list(range(1, 10))


def test_a_commit_of_lost_partitions_fails(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one, four.consumer("t", group="g") as two:
        settle(one, two)
        gone = next(iter(two.assignment()))
        with pytest.raises(CommitFailed, match="no longer"):
            one.commit({gone: 5})


def test_impossible_commits(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        consumer.poll()
        with pytest.raises(InvalidCommit):
            consumer.commit({T0: -1})
        with pytest.raises(InvalidType):
            consumer.commit({T0: "5"})  # type: ignore[dict-item]
    with four.consumer("t") as consumer:
        consumer.poll()
        with pytest.raises(InvalidArgument, match="needs a group"):
            consumer.commit()


# -- groups ------------------------------------------------------------------------------------------


def test_two_consumers_of_a_group_polled_from_one_thread_share(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one, four.consumer("t", group="g") as two:
        found = Counter(settle(one, two))
        assert one.assignment() | two.assignment() == {T0, T1, T2, T3}
        assert not one.assignment() & two.assignment()
        while more := one.poll() + two.poll():
            found.update(numbers(more))
        assert sorted(found) == ALL
        two.close()
        settle(one)
        assert len(one.assignment()) == 4
        fill(four, "t", 3, range(10, 12))
        assert everything(one) == [310, 311]


def test_poll_does_not_wait_for_the_other_members(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one, four.consumer("t", group="g") as two:
        one.poll()
        for _ in range(50):
            assert two.poll() == []
        assert two.assignment() == set()
        settle(one, two)
        assert len(two.assignment()) == 2


def test_queue_semantics_in_one_group_and_topic_semantics_in_several(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=6)
    for number in range(600):
        log.append("t", str(number).encode(), partition=number % 6)
    found = {group: Counter[int]() for group in ("a", "b")}
    lock, complete = threading.Lock(), threading.Event()
    consumers = [log.consumer("t", group=group, max_poll_records=5) for group in found for _ in range(3)]

    def consume(group: str, consumer: Consumer) -> None:
        while not complete.is_set():
            # Come back only with what was given counted: a rebalance in between gives nothing twice.
            records = consumer.poll(timeout_ms=20)
            with lock:
                found[group].update(numbers(records))
                if all(len(counter) == 600 for counter in found.values()):
                    complete.set()

    threads = [
        threading.Thread(target=consume, args=("a" if index < 3 else "b", consumer))
        for index, consumer in enumerate(consumers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for consumer in consumers:
        consumer.close()
    assert found == {group: Counter(range(600)) for group in ("a", "b")}


def test_callbacks_keep_their_order(four: embedlog.Log) -> None:
    told: list[tuple[str, int]] = []

    def telling(what: str) -> Callable[[tuple[TopicPartition, ...]], None]:
        return lambda partitions: told.append((what, len(partitions)))

    one = four.consumer(
        "t",
        group="g",
        on_assigned=telling("one gets"),
        on_revoked=telling("one gives"),
        on_lost=telling("one lost"),
    )
    two = four.consumer("t", group="g", on_assigned=telling("two gets"), on_revoked=telling("two gives"))
    settle(one)
    settle(one, two)
    two.close()
    settle(one)
    one.close()
    assert told == [
        ("one gets", 4),
        ("one gives", 4),
        ("one gets", 2),
        ("two gets", 2),
        ("two gives", 2),
        ("one gives", 2),
        ("one gets", 4),
        ("one gives", 4),
    ]


def test_callbacks_may_seek_and_commit(four: embedlog.Log) -> None:
    def rewind(partitions: tuple[TopicPartition, ...]) -> None:
        one.seek_to_end(*partitions)
        one.seek(T0, 9)

    def commit(partitions: tuple[TopicPartition, ...]) -> None:
        one.commit()

    one = four.consumer("t", group="g", auto_commit=False, on_assigned=rewind, on_revoked=commit)
    assert everything(one) == [9]
    one.close()
    with four.consumer("t", group="g") as again:
        assert everything(again) == []


def test_a_rebalance_commits_before_it_gives_up(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one, four.consumer("t", group="g") as two:
        assert len(one.poll(max_records=40)) == 40
        assert settle(two, one) == []


def test_an_unreferenced_consumer_leaves_its_group(four: embedlog.Log) -> None:
    assigned = threading.Event()
    with four.consumer("t", group="g") as one:
        two = four.consumer("t", group="g")
        settle(one, two)
        assert len(one.assignment()) == 2
        one._assignment.on_assigned = lambda partitions: assigned.set()
        del two
        gc.collect()
        while not assigned.is_set():
            one.poll(timeout_ms=20)
        assert len(one.assignment()) == 4


def test_an_unreferenced_joining_consumer_leaves_too(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one:
        one.poll()
        two = four.consumer("t", group="g")
        assert two.poll() == []
        del two
        gc.collect()
        one.poll()
        while len(one.assignment()) < 4:
            one.poll(timeout_ms=20)


def test_a_user_assignor(four: embedlog.Log) -> None:
    class AllToTheFirst:
        name = "all-to-the-first"

        def assign(self, partitions: Any, subscriptions: Any) -> dict[str, list[TopicPartition]]:
            first = min(subscriptions)
            mine = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
            return {member: mine if member == first else [] for member in subscriptions}

    with (
        four.consumer("t", group="g", assignors=[AllToTheFirst()]) as one,
        four.consumer("t", group="g", assignors=[AllToTheFirst()]) as two,
    ):
        settle(one, two)
        assert sorted(map(len, (one.assignment(), two.assignment()))) == [0, 4]


def test_a_double_assignment_is_refused(four: embedlog.Log) -> None:
    class Twice:
        name = "twice"

        def assign(self, partitions: Any, subscriptions: Any) -> dict[str, list[TopicPartition]]:
            return {member: [T0] for member in subscriptions}

    with (
        four.consumer("t", group="g", assignors=[Twice()]) as one,
        four.consumer("t", group="g", assignors=[Twice()]) as two,
    ):
        one.poll()
        two.poll()
        with pytest.raises(InvalidArgument, match="gave t 0 to"):
            settle(one, two)


def test_a_static_member_comes_back_as_itself(four: embedlog.Log) -> None:
    rebalances: list[int] = []
    with four.consumer("t", group="g", on_revoked=lambda p: rebalances.append(len(p))) as one:
        two = four.consumer("t", group="g", group_instance_id="two")
        settle(one, two)
        before, mine = len(rebalances), two.assignment()
        two.close()
        with four.consumer("t", group="g", group_instance_id="two") as two:
            settle(one, two)
            assert two.assignment() == mine
            assert len(rebalances) == before


# -- waiting, waking, closing ------------------------------------------------------------------------


def test_poll_waits_for_records(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        everything(consumer)
        writer = threading.Timer(0.02, four.append, ("t", b"77"), {"partition": 1})
        writer.start()
        assert numbers(consumer.poll(timeout_ms=60_000)) == [77]
        writer.join()


def test_wakeup_ends_a_poll(four: embedlog.Log) -> None:
    with four.consumer("t", auto_offset_reset="latest") as consumer:
        consumer.wakeup()
        assert consumer.poll(timeout_ms=600_000) == []
        waker = threading.Timer(0.02, consumer.wakeup)
        waker.start()
        assert consumer.poll(timeout_ms=600_000) == []
        waker.join()


@pytest.mark.parametrize("group", [None, "g"])
def test_close_ends_an_iteration_from_another_thread(four: embedlog.Log, group: str | None) -> None:
    consumer = four.consumer("t", group=group)
    seen: list[Record] = []
    all_seen = threading.Event()

    def iterate() -> None:
        for record in consumer:
            seen.append(record)
            if len(seen) == 40:
                all_seen.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    all_seen.wait()
    consumer.close()
    thread.join()
    assert sorted(numbers(seen)) == ALL
    if group is not None:
        assert four.backend.coordinator is not None
        kept = four.backend.coordinator.committed_offsets("g", [T0, T1, T2, T3])
        # The thread may or may not have come back for the last record before the close.
        assert sum(committed.offset for committed in kept.values()) in (39, 40)


def test_close_wakes_a_member_that_waits_for_the_others(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as one:
        one.poll()
        two = four.consumer("t", group="g")
        assert two.poll() == []
        thread = threading.Thread(target=two.poll, kwargs={"timeout_ms": 600_000})
        thread.start()
        two.close()
        thread.join()


def test_a_sleeping_member_is_woken_by_a_rebalance(
    four: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.clients.membership.HEARTBEAT_INTERVAL_MS", 600_000)
    members: list[Consumer] = []
    one = four.consumer("t", group="g", metadata_refresh_ms=600_000)
    everything(one)
    thread = threading.Thread(target=list, args=(one,))
    thread.start()
    with four.consumer("t", group="g", on_assigned=lambda partitions: members[0].wakeup()) as two:
        members.append(two)
        assert two.poll(timeout_ms=600_000) == []
        assert len(two.assignment()) == 2
    one.close()
    thread.join()


def test_after_close(four: embedlog.Log) -> None:
    consumer = four.consumer("t")
    consumer.close()
    consumer.close()
    assert list(consumer) == []
    for use in consumer.poll, consumer.commit, consumer.lag, consumer.assignment, consumer.pause:
        with pytest.raises(Closed):
            use()
    assert "closed" in repr(consumer)


def test_closing_the_log_first(four: embedlog.Log) -> None:
    consumer = four.consumer("t", group="g")
    consumer.poll()
    consumer.poll()
    four.close()
    consumer.close()


def test_a_consumer_is_for_one_thread_at_a_time(four: embedlog.Log) -> None:
    waiting = threading.Event()
    consumer = four.consumer("t", group="g", on_assigned=lambda partitions: waiting.set())

    def iterate() -> None:
        for _ in consumer:
            pass

    thread = threading.Thread(target=iterate)
    thread.start()
    waiting.wait()
    with pytest.raises(ConcurrentUse):
        while True:
            consumer.poll()
    consumer.close()
    thread.join()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        consumer.poll()
        child = os.fork()
        if child == 0:
            try:
                consumer.poll()
            except ForkedHandle:
                consumer.close()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(consumer.assignment()) == 4


# -- isolation ---------------------------------------------------------------------------------------


def test_read_committed_over_real_transactional_batches(log: embedlog.Log) -> None:
    log.create_topic("t")

    def append(producer: int, sequence: int, *values: bytes) -> None:
        batch = encode_values(
            list(values),
            1_000,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        coordinated(partition_of(log), batch)

    def end(producer: int, *, commit: bool) -> None:
        partition_of(log).end_transaction(
            producer, 0, commit=commit, timestamp_ms=1_000, transaction_version=1
        )

    append(1, 0, b"100", b"101")
    append(2, 0, b"200")
    log.append("t", b"1")
    end(1, commit=False)
    append(1, 2, b"102")
    end(1, commit=True)
    with (
        log.consumer("t", isolation_level="read_committed") as careful,
        log.consumer("t", isolation_level="read_uncommitted") as careless,
    ):
        assert everything(careless) == [100, 101, 200, 1, 102]
        assert everything(careful) == []
        end(2, commit=True)
        assert everything(careful) == [200, 1, 102]
        assert careful.lag() == {T0: 0}
        append(3, 0, b"300")
        assert everything(careful) == []
        assert everything(careless) == [300]
        end(3, commit=False)
        assert everything(careful) == []
        log.append("t", b"2")
        assert everything(careful) == [2]


# -- a store of one's own ----------------------------------------------------------------------------


def test_a_reader_keeps_its_offsets_in_a_store(four: embedlog.Log, tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets.json")
    with embedlog.open(tmp_path / "log", mode="r") as reader:
        with pytest.raises(GroupError, match="offset_store="):
            reader.consumer("t", group="g")
        with reader.consumer("t", group="g", offset_store=store) as consumer:
            assert len(consumer.assignment()) == 4
            assert len(everything(consumer)) == 40
        assert store.load("g", [T0])[T0].offset == 10
        fill(four, "t", 1, range(10, 12))
        with reader.consumer("t", group="g", offset_store=store) as consumer:
            assert numbers(consumer.poll(timeout_ms=60_000)) == [110, 111]


def test_a_store_needs_a_group(four: embedlog.Log, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="needs group="):
        four.consumer("t", offset_store=FileOffsetStore(tmp_path / "offsets.json"))


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TopicNotFound, {"topics": "nothing"}),
        (InvalidType, {"topics": [7]}),
        (InvalidType, {"topics": re.compile(b"t")}),
        (InvalidArgument, {"topics": ["t", "t"]}),
        (InvalidGroup, {"group": ""}),
        (InvalidGroup, {"group": 7}),
        (InvalidArgument, {"auto_offset_reset": "oldest"}),
        (InvalidArgument, {"isolation_level": "serializable"}),
        (InvalidArgument, {"group": "g", "assignors": ["fair"]}),
        (InvalidArgument, {"auto_commit": True}),
        (InvalidArgument, {"max_poll_records": 0}),
        (InvalidType, {"fetch_max_bytes": "1 MiB"}),
        (InvalidArgument, {"auto_commit_interval_ms": -1}),
    ],
)
def test_wrong_arguments_fail_at_once(
    four: embedlog.Log, error: type[Exception], arguments: dict[str, Any]
) -> None:
    with pytest.raises(error):
        four.consumer(**({"topics": "t"} | arguments))


def test_wrong_use_of_a_consumer(four: embedlog.Log) -> None:
    with four.consumer("t", group="g") as consumer:
        with pytest.raises(NotAssigned):
            consumer.seek(T0, 0)
        consumer.poll()
        with pytest.raises(NotAssigned, match="it has t 0, t 1, t 2, t 3"):
            consumer.position(TopicPartition("t", 9))
        for wrong in (
            lambda: consumer.seek(T0, -1),
            lambda: consumer.seek(T0, "1"),  # type: ignore[arg-type]
            lambda: consumer.seek("t", 0),
            lambda: consumer.seek_to_time("now"),  # type: ignore[arg-type]
            lambda: consumer.poll("1 s"),  # type: ignore[arg-type]
            lambda: consumer.poll(max_records=0),
        ):
            with pytest.raises((InvalidType, InvalidArgument)):
                wrong()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_topic_deleted_under_a_consumer_is_dropped(log: embedlog.Log, group: str | None) -> None:
    log.create_topic("stays")
    log.create_topic("goes")
    with log.consumer(["stays", "goes"], group, metadata_refresh_ms=600_000) as consumer:
        log.append("goes", b"1")
        assert [record.value for record in consumer.poll(5_000)] == [b"1"]
        log.delete_topic("goes")
        log.append("stays", b"2")
        found: list[embedlog.Record] = []
        while not found:
            found = consumer.poll(100)
        assert [record.value for record in found] == [b"2"]
        while {tp.topic for tp in consumer.assignment()} != {"stays"}:
            consumer.poll(10)
