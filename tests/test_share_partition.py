"""A share group's partition as a state machine: transition by transition, and at random against a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rounds import examples

from embedlog.errors import EmbedlogError, LockLost
from embedlog.groups.machines.finished_ranges import FinishedRanges
from embedlog.groups.machines.share_events import ShareChange, StoredShare
from embedlog.groups.machines.share_partition import SharePartition
from embedlog.model import (
    Acknowledgement,
    AcknowledgeType,
    DeliveryState,
    ShareDelay,
    ShareLock,
    ShareRejection,
    StateBatch,
)

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
AVAILABLE, ACKNOWLEDGED, ARCHIVED = DeliveryState
LOCK_MS, MOST = 1_000, 3


class Changes:
    """What has been stored of a partition: folds changes, the latest word on each offset counts."""

    def __init__(self, start_offset: int = 0) -> None:
        self.start_offset = start_offset
        self.states: dict[int, tuple[DeliveryState, int]] = {}
        self.said: dict[int, ShareLock | ShareDelay | ShareRejection] = {}
        self.next_delivery_id = 1

    def store(self, change: ShareChange, *, only_ours: bool = False) -> None:
        """only_ours: a crash came before the second of a change's two records."""
        for lock in change.locks:
            self.next_delivery_id = max(self.next_delivery_id, lock.delivery_id + 1)
            for offset in range(lock.first_offset, lock.last_offset + 1):
                self.said[offset] = lock._replace(first_offset=offset, last_offset=offset)
        self.said.update((delay.offset, delay) for delay in change.delays)
        self.said.update((rejection.offset, rejection) for rejection in change.rejections)
        if only_ours:
            return
        for first, last, state, count in change.batches:
            self.states.update(dict.fromkeys(range(first, last + 1), (state, count)))
        self.start_offset = max(self.start_offset, change.start_offset)

    def replace(self, stored: StoredShare) -> None:
        """Take over a snapshot."""
        self.states, self.said = {}, {}
        self.next_delivery_id = stored.next_delivery_id
        self.store(ShareChange(stored.start_offset, *stored[1:5]))

    def load(self) -> StoredShare:
        said = [self.said[offset] for offset in sorted(self.said)]
        return StoredShare(
            self.start_offset,
            [StateBatch(o, o, *self.states[o]) for o in sorted(self.states) if o >= self.start_offset],
            [each for each in said if isinstance(each, ShareLock)],
            [each for each in said if isinstance(each, ShareDelay)],
            [each for each in said if isinstance(each, ShareRejection)],
            self.next_delivery_id,
        )


class Driver:
    """A partition whose changes are stored, in simulated time."""

    def __init__(self, *, ordered_by_key: bool = False, start_offset: int = 0) -> None:
        self.changes = Changes(start_offset)
        self.ordered_by_key = ordered_by_key
        self.now_ms = 10_000
        self.wall_ms = 1_700_000_000_000
        self.restart()

    def restart(self) -> None:
        self.partition = SharePartition(self.changes.load(), ordered_by_key=self.ordered_by_key)

    def make(self, change: ShareChange) -> None:
        self.changes.store(change)
        if len(change.batches) == 1 and not any(change[2:]):
            [(first, last, state, _)] = change.batches
            if first == last and state is ACKNOWLEDGED and first % 3:  # both ways
                self.partition.accepted(first, change.start_offset)
                return
        self.partition.apply(change)

    def scan(self, last: int, **given: tuple[bytes | None, int]) -> None:
        """All records up to `last`, with o5=(key, due_ms) for some."""
        first = self.partition.next_fetch_offset
        records = [(o, *given.get(f"o{o}", (None, 0))) for o in range(first, last + 1)]
        self.partition.scan(records, last + 1, self.wall_ms)

    def acquire(self, most: int, member_id: str = "m") -> list[tuple[int, int, int]]:
        """(offset, delivery id, delivery count) of each record."""
        offsets = self.partition.take(most)
        change = self.partition.lock(offsets, member_id, self.now_ms + LOCK_MS)
        self.make(change)
        return [
            (offset, lock.delivery_id, lock.delivery_count)
            for lock in change.locks
            for offset in range(lock.first_offset, lock.last_offset + 1)
        ]

    def decide(self, *acknowledgements: Acknowledgement) -> tuple[ShareChange, list[EmbedlogError | None]]:
        change, results = self.partition.acknowledge(
            acknowledgements,
            lock_ms=LOCK_MS,
            max_deliveries=MOST,
            now_ms=self.now_ms,
            wall_ms=self.wall_ms,
        )
        if [each.type for each in acknowledgements] == [ACCEPT]:
            _, offset, delivery_id, *_ = acknowledgements[0]
            shorter = self.partition.accept(offset, delivery_id, self.now_ms)
            assert shorter == ((change.start_offset, *change.batches) if change.batches else None)
        return change, results

    def acknowledge(self, offset: int, delivery_id: int, kind: AcknowledgeType, **given: Any) -> bool:
        """Whether it was applied, now or before."""
        change, [error] = self.decide(Acknowledgement(0, offset, delivery_id, kind, **given))
        self.make(change)
        assert error is None or isinstance(error, LockLost)
        return error is None

    def expire(self) -> None:
        self.make(self.partition.expire(self.now_ms, MOST))

    def archive(self) -> None:
        self.make(self.partition.archive(self.partition.rejecting))

    def ready(self) -> list[int]:
        taken = self.partition.take(1 << 30)
        self.partition.put_back(taken)
        return taken

    def locked(self) -> dict[int, tuple[int, int, str, int]]:
        return {
            offset: (lock.delivery_id, lock.delivery_count, lock.member_id, lock.until_ms)
            for lock in self.partition.stored().locks
            for offset in range(lock.first_offset, lock.last_offset + 1)
            if lock.until_ms
        }


# -- transition by transition


def test_records_are_handed_out_in_order_once_and_accepted() -> None:
    driver = Driver()
    driver.scan(9)
    assert driver.acquire(4) == [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]
    assert driver.acquire(100, "other") == [(offset, 2, 1) for offset in range(4, 10)]
    assert driver.acquire(1) == []
    for offset in (1, 0, 3):
        assert driver.acknowledge(offset, 1, ACCEPT)
    assert driver.partition.start_offset == 2
    assert driver.acknowledge(2, 1, ACCEPT)
    assert driver.partition.start_offset == driver.changes.start_offset == 4


def test_a_hand_out_is_stored_as_ranges() -> None:
    driver = Driver()
    driver.scan(99)
    taken = driver.partition.take(100)
    change = driver.partition.lock(taken, "m", 20_000)
    assert change == ShareChange(locks=[ShareLock(0, 99, 1, 1, "m", 20_000)])
    driver.make(change)
    change, errors = driver.decide(*(Acknowledgement(0, offset, 1, ACCEPT) for offset in range(99)))
    assert errors == [None] * 99
    assert change[:2] == (99, [StateBatch(0, 98, ACKNOWLEDGED, 1)])
    assert not any(change[2:])


def test_what_was_put_back_comes_first() -> None:
    driver = Driver()
    driver.scan(5)
    driver.partition.put_back(driver.partition.take(3))
    assert driver.partition.take(10) == [0, 1, 2, 3, 4, 5]


def test_a_late_accept_loses_its_lock() -> None:
    driver = Driver()
    driver.scan(0)
    driver.acquire(1)
    driver.now_ms += LOCK_MS
    assert not driver.acknowledge(0, 1, ACCEPT)  # though nobody has noticed yet that it expired
    driver.expire()
    assert driver.acquire(1) == [(0, 2, 2)]
    assert not driver.acknowledge(0, 1, ACCEPT)
    assert driver.acknowledge(0, 2, ACCEPT)
    assert not driver.acknowledge(0, 1, ACCEPT)


def test_a_repeated_acknowledgement_is_recognized_also_after_a_restart() -> None:
    driver = Driver()
    driver.scan(3)
    driver.acquire(4)
    given: list[tuple[int, AcknowledgeType, dict[str, Any]]] = [
        (0, ACCEPT, {}),
        (1, RELEASE, {"delay_ms": 5_000}),
        (2, REJECT, {"error": "poison"}),
        (3, RENEW, {}),
    ]
    for _ in range(2):
        for offset, kind, more in given:
            assert driver.acknowledge(offset, 1, kind, **more)
        driver.archive()
        driver.restart()
    assert driver.partition.stored().start_offset == 1
    assert not driver.acknowledge(0, 1, RELEASE)
    assert not driver.acknowledge(0, 1, RENEW)
    assert not driver.acknowledge(2, 1, ACCEPT)
    driver.changes.replace(driver.partition.stored())
    driver.restart()
    assert driver.acknowledge(0, 1, ACCEPT)
    assert driver.acknowledge(2, 1, REJECT)


def test_two_acknowledgements_of_one_delivery_in_one_call() -> None:
    driver = Driver()
    driver.scan(0)
    driver.acquire(1)
    given = [Acknowledgement(0, 0, 1, kind) for kind in (RELEASE, RELEASE, ACCEPT)]
    change, errors = driver.decide(*given)
    assert [type(each) for each in errors] == [type(None), type(None), LockLost]
    driver.make(change)
    assert driver.ready() == [0]


@pytest.mark.parametrize("how", ["delay", "expiry", "reject"])
def test_a_key_waits_whatever_becomes_of_its_first_record(how: str) -> None:
    driver = Driver(ordered_by_key=True)
    driver.scan(1, o0=(b"k", 0), o1=(b"k", 0))
    assert driver.acquire(9) == [(0, 1, 1)]
    if how == "delay":
        assert driver.acknowledge(0, 1, RELEASE, delay_ms=50)
        assert driver.ready() == []
        driver.wall_ms += 50
        driver.partition.due(driver.wall_ms, 9)
    elif how == "expiry":
        driver.now_ms += LOCK_MS
        driver.expire()
    else:
        assert driver.acknowledge(0, 1, REJECT)
        assert driver.ready() == []
        driver.archive()
    if how != "reject":
        assert driver.acquire(9) == [(0, 2, 2)]
        assert driver.acknowledge(0, 2, ACCEPT)
    assert driver.ready() == [1]


@pytest.mark.parametrize("delay_ms", [0, 50])
def test_what_was_out_when_order_is_asked_for_waits_from_then_on(delay_ms: int) -> None:
    driver = Driver()
    driver.scan(1)
    assert driver.acquire(9) == [(0, 1, 1), (1, 1, 1)]
    driver.ordered_by_key = True
    driver.restart()
    driver.scan(1, o0=(b"k", 0), o1=(b"k", 0))
    assert driver.acknowledge(1, 1, RELEASE, delay_ms=delay_ms)
    driver.wall_ms += delay_ms
    driver.partition.due(driver.wall_ms, 9)
    assert driver.ready() == []
    assert driver.acknowledge(0, 1, ACCEPT)
    assert driver.ready() == [1]


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_what_is_done_out_of_turn_stays_so_over_a_restart(from_snapshot: bool) -> None:
    driver = Driver()
    driver.scan(7)
    driver.acquire(7)
    for offset, kind in ((1, ACCEPT), (2, ACCEPT), (4, REJECT), (6, ACCEPT)):
        assert driver.acknowledge(offset, 1, kind)
    driver.archive()
    if from_snapshot:
        driver.changes.replace(driver.partition.stored())
    driver.restart()
    driver.scan(7)
    driver.now_ms += LOCK_MS
    driver.expire()
    assert driver.ready() == [0, 3, 5, 7]


@pytest.mark.parametrize("from_snapshot", [False, True])
@pytest.mark.parametrize("how", ["release", "delay", "expiry", "lock"])
def test_deliveries_are_counted_over_a_restart(how: str, from_snapshot: bool) -> None:
    driver = Driver()
    driver.scan(0)
    driver.acquire(1)
    if how == "expiry":
        driver.now_ms += LOCK_MS
        driver.expire()
    elif how != "lock":
        driver.acknowledge(0, 1, RELEASE, delay_ms=50 if how == "delay" else 0)
    if from_snapshot:
        driver.changes.replace(driver.partition.stored())
    driver.restart()
    driver.scan(0)
    if how == "lock":
        driver.now_ms += LOCK_MS
    driver.expire()
    assert driver.ready() == ([] if how == "delay" else [0])
    driver.wall_ms += 50
    driver.partition.due(driver.wall_ms, 9)
    assert driver.acquire(1) == [(0, 2, 2)]


@pytest.mark.parametrize("key", [None, b"k"])
def test_what_was_given_back_may_fail_until_it_is_handed_out_again(key: bytes | None) -> None:
    driver = Driver(ordered_by_key=True)
    driver.scan(2, o0=(key, 0), o1=(key, 0))
    driver.acquire(9)
    driver.make(driver.partition.release_member("m"))
    assert driver.acknowledge(0, 1, RELEASE, delay_ms=100)  # nothing tells its count
    assert driver.acknowledge(0, 1, RELEASE, delay_ms=100, counted=False, delivery_count=1)
    assert driver.ready()[0] == 0
    for _ in range(2):  # the second time it is recognized
        assert driver.acknowledge(0, 1, RELEASE, delay_ms=100, delivery_count=1)
        assert driver.ready() == ([2] if key else [1, 2])
        driver.restart()
        driver.scan(2, o0=(key, 0), o1=(key, 0))
    driver.wall_ms += 100
    driver.partition.due(driver.wall_ms, 9)
    assert driver.acquire(1) == [(0, 2, 2)]
    assert not driver.acknowledge(0, 1, RELEASE, delivery_count=1)
    driver.make(driver.partition.release_member("m"))
    assert not driver.acknowledge(0, 2, ACCEPT, delivery_count=2)
    assert driver.acknowledge(0, 2, REJECT, delivery_count=2, error="why")
    assert [each[1:4] for each in driver.partition.rejecting] == [(2, 2, "why")]
    driver.archive()
    assert driver.ready() == [1, 2]


def test_what_was_given_back_may_fail_for_the_last_time() -> None:
    driver = Driver()
    driver.scan(0)
    for number in range(1, MOST):
        driver.acquire(1)
        driver.acknowledge(0, number, RELEASE)
    assert driver.acquire(1) == [(0, MOST, MOST)]
    driver.make(driver.partition.release_member("m"))
    assert driver.ready() == [0]
    assert driver.acknowledge(0, MOST, RELEASE, delivery_count=MOST)
    assert driver.ready() == []
    assert [each[1:3] for each in driver.partition.rejecting] == [(MOST, MOST)]


def test_a_counted_release_counts_and_an_uncounted_one_does_not() -> None:
    driver = Driver()
    driver.scan(0)
    driver.acquire(1)
    assert driver.acknowledge(0, 1, RELEASE, counted=False)
    assert driver.acquire(1) == [(0, 2, 1)]
    assert driver.acknowledge(0, 2, RELEASE)
    assert driver.acquire(1) == [(0, 3, 2)]
    driver.make(driver.partition.release_member("m"))
    assert driver.acquire(1, "other") == [(0, 4, 2)]
    driver.make(driver.partition.release_member("m"))
    assert driver.ready() == []


@pytest.mark.parametrize("ending", ["release", "expiry", "reject"])
def test_after_the_last_delivery_it_is_rejected(ending: str) -> None:
    driver = Driver()
    driver.scan(1)
    for count in range(1, MOST + 1):
        [(_, delivery_id, delivered)] = driver.acquire(1)
        assert delivered == count
        if count < MOST:
            assert driver.acknowledge(0, delivery_id, RELEASE)
    if ending == "expiry":
        driver.now_ms += LOCK_MS
        driver.expire()
        error = "the lock of delivery 3 expired"
    else:
        kind = RELEASE if ending == "release" else REJECT
        assert driver.acknowledge(0, delivery_id, kind, error="poison")
        error = "poison"
    assert driver.partition.rejecting == [ShareRejection(0, delivery_id, MOST, error)]
    assert driver.ready() == [1]
    driver.restart()
    assert [each.error for each in driver.partition.rejecting] == [error]
    assert not driver.acknowledge(0, delivery_id, ACCEPT)
    driver.archive()
    assert driver.partition.start_offset == 1
    assert not driver.acknowledge(0, delivery_id, ACCEPT)


def test_a_lower_limit_rejects_what_was_delivered_more_often() -> None:
    driver = Driver()
    driver.scan(2)
    for _ in range(2):
        driver.acquire(2)
        driver.make(driver.partition.expire(driver.now_ms + LOCK_MS, MOST))
    driver.make(driver.partition.exhausted(2))
    assert [each.offset for each in driver.partition.rejecting] == [0, 1]
    assert driver.ready() == [2]


def test_delays_by_header_and_by_release() -> None:
    driver = Driver()
    driver.scan(2, o0=(None, driver.wall_ms + 100), o1=(None, driver.wall_ms))
    assert driver.partition.next_due_ms == driver.wall_ms + 100
    assert driver.acquire(9) == [(1, 1, 1), (2, 1, 1)]
    assert driver.acknowledge(2, 1, RELEASE, delay_ms=50)
    assert driver.ready() == []
    for _ in range(2):
        assert driver.partition.counts(0) == (0, 1, 2)
        driver.restart()
        driver.scan(2, o0=(None, driver.wall_ms + 100), o1=(None, driver.wall_ms))
    driver.wall_ms += 50
    driver.partition.due(driver.wall_ms, 100)
    assert driver.ready() == [2]
    driver.wall_ms += 50
    driver.partition.due(driver.wall_ms, 100)
    assert driver.acquire(9) == [(0, 2, 1), (2, 2, 2)]
    assert driver.partition.next_due_ms is None


def test_a_job_that_has_been_delivered_is_not_delayed_when_the_clock_is_set_back() -> None:
    driver = Driver()
    due = {"o0": (None, driver.wall_ms + 100)}
    driver.scan(0, **due)
    driver.wall_ms += 100
    driver.partition.due(driver.wall_ms, 9)
    [(_, delivery_id, _)] = driver.acquire(1)
    assert driver.acknowledge(0, delivery_id, RELEASE)
    driver.wall_ms -= 50
    driver.restart()
    driver.scan(0, **due)
    assert driver.ready() == [0]


def test_a_restart_finds_a_delay_that_has_passed_and_its_count() -> None:
    driver = Driver()
    driver.scan(0)
    driver.acquire(1)
    change, _ = driver.decide(Acknowledgement(0, 0, 1, RELEASE, delay_ms=50))
    driver.changes.store(change, only_ours=True)
    driver.wall_ms += 100
    driver.restart()
    driver.scan(0)
    driver.partition.due(driver.wall_ms, 100)
    driver.changes.replace(driver.partition.stored())
    driver.restart()
    driver.partition.due(driver.wall_ms, 100)
    driver.scan(0)
    assert driver.acquire(1) == [(0, 2, 2)]


def test_a_key_waits_for_its_earlier_record() -> None:
    driver = Driver(ordered_by_key=True)
    keys = {f"o{offset}": (key, 0) for offset, key in enumerate([b"a", b"b", b"a", None, b"a", b"b"])}
    driver.scan(5, **keys)
    assert [offset for offset, *_ in driver.acquire(9)] == [0, 1, 3]
    assert driver.acknowledge(1, 1, ACCEPT)
    assert driver.ready() == [5]
    assert driver.acknowledge(0, 1, RELEASE, delay_ms=10)
    assert driver.ready() == [5]  # the delayed record holds back the later ones of its key
    driver.restart()
    driver.scan(5, **keys)
    assert driver.ready() == [5]
    driver.wall_ms += 10
    driver.partition.due(driver.wall_ms, 100)
    assert [offset for offset, *_ in driver.acquire(9)] == [0, 5]
    assert driver.acknowledge(0, 2, REJECT)
    assert driver.ready() == []
    driver.archive()
    assert driver.ready() == [2]


def test_a_renewed_lock_expires_later() -> None:
    driver = Driver()
    driver.scan(1)
    driver.acquire(2)
    driver.now_ms += LOCK_MS - 1
    assert driver.acknowledge(0, 1, RENEW, delay_ms=5)
    driver.now_ms += 1
    driver.expire()
    assert driver.ready() == [1]
    assert driver.partition.next_expiry_ms is not None
    driver.now_ms += 4
    driver.expire()
    assert driver.ready() == [0, 1]
    assert driver.partition.next_expiry_ms is None


def test_missing_offsets_are_done() -> None:
    driver = Driver(start_offset=5)
    driver.partition.scan([(7, None, 0), (9, None, 0)], 20, driver.wall_ms)
    assert driver.partition.start_offset == 7
    assert driver.acquire(9) == [(7, 1, 1), (9, 1, 1)]
    assert driver.acknowledge(9, 1, ACCEPT)
    assert driver.acknowledge(7, 1, ACCEPT)
    assert driver.partition.start_offset == driver.partition.next_fetch_offset == 20
    assert driver.changes.start_offset == 20


def test_ranges_are_scanned_as_records_are() -> None:
    driver = Driver()
    driver.partition.scan_range(0, 9, driver.wall_ms)
    driver.partition.scan_range(5, 14, driver.wall_ms)
    driver.partition.scan_range(17, 18, driver.wall_ms)
    assert driver.ready() == [*range(15), 17, 18]
    driver.acquire(3)
    assert driver.acknowledge(1, 1, ACCEPT)
    driver.restart()
    driver.partition.scan_range(0, 14, driver.wall_ms)
    assert driver.ready() == list(range(3, 15))


def test_records_deleted_from_the_log_are_done() -> None:
    driver = Driver()
    driver.scan(9)
    driver.acquire(3)
    assert driver.acknowledge(1, 1, RELEASE, delay_ms=5)
    assert driver.partition.log_start(0).is_empty
    driver.make(driver.partition.log_start(5))
    assert driver.partition.start_offset == driver.changes.start_offset == 5
    assert not driver.acknowledge(0, 1, ACCEPT)
    driver.partition.due(driver.wall_ms + 10, 100)
    assert driver.ready() == list(range(5, 10))
    driver.make(driver.partition.log_start(50))
    assert driver.partition.next_fetch_offset == 50
    assert driver.ready() == []


def test_finished_ranges() -> None:
    ranges = FinishedRanges()
    for first, last, state in [
        (5, 6, ARCHIVED),
        (1, 2, ACKNOWLEDGED),
        (7, 8, ACKNOWLEDGED),
        (3, 3, ACKNOWLEDGED),
    ]:
        ranges.add(first, last, state)
    assert list(ranges) == [(1, 3, ACKNOWLEDGED), (5, 6, ARCHIVED), (7, 8, ACKNOWLEDGED)]
    assert [ranges.next_after(offset) for offset in (0, 1, 3, 4, 5, 9)] == [0, 4, 4, 4, 9, 9]
    assert ranges.missing(0, 12) == [(0, 0), (4, 4), (9, 11)]
    assert ranges.missing(2, 4) == []
    ranges.add(4, 4, ARCHIVED)
    assert list(ranges) == [(1, 3, ACKNOWLEDGED), (4, 6, ARCHIVED), (7, 8, ACKNOWLEDGED)]
    ranges.drop_before(9)
    assert len(ranges) == 0


# -- at random, against a model


@dataclass
class Job:
    """What ought to have become of a record."""

    key: bytes | None
    header_due_ms: int
    state: str = "waiting"  # or locked, rejecting, accepted, archived, gone (deleted or purged)
    count: int = 0
    delivery_id: int = 0  # of the lock, or what released, rejected or accepted it
    until_ms: int = 0
    due_ms: int = 0
    is_released: bool = False
    stored_due_ms: int = 0  # of a release: where a restart begins again

    @property
    def is_done(self) -> bool:
        return self.state in ("accepted", "archived", "gone")


class SharePartitionMachine(RuleBasedStateMachine):
    """Operations in any order, with crashes between deciding, storing and applying, and between two records
    of one change."""

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        self.driver = Driver(ordered_by_key=ordered)
        self.jobs: dict[int, Job] = {}
        self.log_end = 0
        self.known_end = 0
        self.deliveries: list[tuple[int, int]] = []
        self.counts: dict[tuple[int, int], int] = {}  # of the deliveries

    @property
    def partition(self) -> SharePartition:
        return self.driver.partition

    # -- the log

    @rule(
        what=st.sampled_from(
            [
                "append",
                "acquire",
                "acquire",
                "acknowledge",
                "acknowledge",
                "acknowledge",
                "time",
                "restart",
                "other",
            ]
        ),
        crash=st.sampled_from([None] * 6 + ["decided", "half", "stored"]),
        seen=st.integers(0, 8),
        data=st.data(),
    )
    def step(self, what: str, crash: str | None, seen: int, data: st.DataObject) -> None:
        """One rule: of several, Hypothesis leaves some out of each run."""
        draw = data.draw
        self.scan(seen)
        match what:
            case "append":
                records = st.tuples(
                    st.sampled_from([None, b"a", b"b"]), st.sampled_from([0, 0, 0, 300, 2_000])
                )
                self.append(draw(st.lists(records, min_size=1, max_size=6)), draw(st.sampled_from([0, 0, 2])))
            case "acquire":
                self.acquire(draw(st.integers(1, 6)), draw(st.sampled_from("xy")), crash)
            case "acknowledge" if self.deliveries:
                given = st.lists(
                    st.sampled_from(self.deliveries[-8:]),
                    min_size=1,
                    max_size=4,
                    unique_by=lambda each: each[0],
                )
                kind = draw(st.sampled_from(AcknowledgeType))
                self.acknowledge(
                    draw(given), kind, draw(st.sampled_from([0, 0, 200, 1_500])), draw(st.booleans()), crash
                )
            case "time":
                self.pass_time(
                    draw(st.sampled_from([1, 250, LOCK_MS])), draw(st.sampled_from([0, 0, 1_000, -1_000]))
                )
            case "restart":
                self.restart(draw(st.booleans()))
            case "other":
                self.other(draw(st.integers(0, 9)), crash, draw(st.floats(0, 0.5)))

    def append(self, records: list[tuple[bytes | None, int]], gap: int) -> None:
        for key, delay_ms in records:
            self.jobs[self.log_end] = Job(key, self.driver.wall_ms + delay_ms if delay_ms else 0)
            self.log_end += 1
        self.log_end += gap

    def scan(self, most: int) -> None:
        first = self.partition.next_fetch_offset
        end = max(first, min(first + most, self.log_end))
        records = [
            (o, self.jobs[o].key, self.jobs[o].header_due_ms) for o in range(first, end) if o in self.jobs
        ]
        self.partition.scan(records, end, self.driver.wall_ms)
        for offset, _, due_ms in records:
            job = self.jobs[offset]
            if job.state == "waiting" and not job.count and not job.due_ms and due_ms > self.driver.wall_ms:
                job.due_ms = due_ms
        self.known_end = self.partition.next_fetch_offset

    def delete_records(self, part: float) -> None:
        before = int(self.partition.start_offset + part * (self.log_end - self.partition.start_offset))
        self._make(self.partition.log_start(before), None)
        for offset, job in self.jobs.items():
            if offset < before and not job.is_done:
                job.state = "gone"
        self.known_end = self.partition.next_fetch_offset

    # -- operations

    def acquire(self, most: int, member: str, crash: str | None) -> None:
        expected = self._ready()[:most]
        offsets = self.partition.take(most)
        assert offsets == expected
        until_ms = self.driver.now_ms + LOCK_MS
        delivery_id = self.partition.next_delivery_id
        change = self.partition.lock(offsets, member, until_ms)
        if crash != "decided":
            for offset in offsets:
                job = self.jobs[offset]
                assert job.state == "waiting"
                job.state, job.count, job.until_ms = "locked", job.count + 1, until_ms
                assert job.count <= MOST
                job.delivery_id, job.is_released = delivery_id, False
                assert (offset, delivery_id) not in self.deliveries
                self.deliveries.append((offset, delivery_id))
                self.counts[offset, delivery_id] = job.count
        self._make(change, crash)

    def acknowledge(
        self,
        chosen: list[tuple[int, int]],
        kind: AcknowledgeType,
        delay_ms: int,
        counted: bool,
        crash: str | None,
    ) -> None:
        given = [
            Acknowledgement(0, *each, kind, delay_ms, counted, "why", self.counts[each]) for each in chosen
        ]
        change, errors = self.driver.decide(*given)
        for (offset, delivery_id), error in zip(chosen, errors, strict=True):
            job = self.jobs[offset]
            if job.state != "gone":  # whose deliveries are not remembered
                is_late = self._fails_late(offset, delivery_id, kind, counted)
                is_accepted = is_late or self._is_accepted(job, delivery_id, kind)
                assert (error is None) == is_accepted, (offset, job)
        if crash != "decided":
            for offset, delivery_id in chosen:
                job = self.jobs[offset]
                if self._holds(job, delivery_id):
                    self._apply(job, kind, delay_ms, counted)
                elif self._fails_late(offset, delivery_id, kind, counted):
                    job.count += 1
                    self._apply(job, kind, delay_ms, counted)
        self._make(change, crash)

    def other(self, what: int, crash: str | None, part: float) -> None:
        match what:
            case 0 | 1:
                self.delete_records(part)
            case 2 | 3:
                self.release_member("x")
            case 4 | 5:
                self.expire(crash)
            case _:
                self.archive(crash)

    def release_member(self, member: str) -> None:
        held = {offset for offset, lock in self.driver.locked().items() if lock[2] == member}
        self._make(self.partition.release_member(member), None)
        for offset in held:
            self._apply(self.jobs[offset], RELEASE, 0, counted=False)

    def archive(self, crash: str | None) -> None:
        rejecting = [offset for offset, job in self.jobs.items() if job.state == "rejecting"]
        assert [each.offset for each in self.partition.rejecting] == rejecting
        if crash != "decided":
            for offset in rejecting:
                self.jobs[offset].state = "archived"
        given = self.partition.rejecting
        self._make(self.partition.archive(given), crash)
        if crash is None:
            assert self.partition.archive(given).is_empty

    # -- time

    def pass_time(self, ms: int, step_ms: int) -> None:
        self.driver.now_ms += ms
        self.driver.wall_ms += ms + step_ms
        self._expire()

    def expire(self, crash: str | None) -> None:
        self.driver.now_ms += LOCK_MS // 2
        self._make(self.partition.expire(self.driver.now_ms, MOST), crash)
        self._expire()

    def _expire(self) -> None:
        self.driver.expire()
        self.partition.due(self.driver.wall_ms, 1 << 30)
        for job in self.jobs.values():
            if job.state == "locked" and job.until_ms <= self.driver.now_ms:
                job.state = "rejecting" if job.count >= MOST else "waiting"
                job.due_ms = 0
            if job.due_ms <= self.driver.wall_ms:
                job.due_ms = 0

    # -- crashes

    def restart(self, from_snapshot: bool) -> None:
        if from_snapshot:
            self.driver.changes.replace(self.partition.stored())
            for job in self.jobs.values():
                job.stored_due_ms = job.due_ms
        self._restart()

    def _restart(self) -> None:
        self.driver.restart()
        for offset, job in self.jobs.items():
            if job.state == "waiting" and offset < self.known_end:
                # A delay by header is found when the record is read again.
                job.due_ms = job.stored_due_ms if job.is_released else 0
        self.known_end = self.partition.next_fetch_offset
        self._expire()

    def _make(self, change: ShareChange, crash: str | None) -> None:
        if crash is None:
            self.driver.make(change)
            return
        if crash != "decided":
            is_one_record = not (change.batches and (change.delays or change.rejections))
            self.driver.changes.store(change, only_ours=crash == "half" and not is_one_record)
        self._restart()

    # -- the model

    def _holds(self, job: Job, delivery_id: int) -> bool:
        return job.state == "locked" and job.delivery_id == delivery_id and job.until_ms > self.driver.now_ms

    def _fails_late(self, offset: int, delivery_id: int, kind: AcknowledgeType, counted: bool) -> bool:
        """Whether a delivery says that it has failed that was given back, uncounted, and is the last one."""
        job = self.jobs[offset]
        is_given_back = job.state == "waiting" and job.is_released and job.delivery_id == delivery_id
        has_failed = kind is REJECT or (kind is RELEASE and counted)
        return is_given_back and has_failed and job.count + 1 == self.counts[offset, delivery_id]

    def _is_accepted(self, job: Job, delivery_id: int, kind: AcknowledgeType) -> bool:
        if self._holds(job, delivery_id):
            return True
        if job.delivery_id != delivery_id:
            return False
        match job.state:
            case "accepted":
                return kind is ACCEPT
            case "rejecting" | "archived":
                return kind in (REJECT, RELEASE)
            case "waiting":
                return kind is RELEASE and job.is_released
        return False

    def _apply(self, job: Job, kind: AcknowledgeType, delay_ms: int, counted: bool) -> None:
        match kind:
            case AcknowledgeType.ACCEPT:
                job.state = "accepted"
            case AcknowledgeType.RENEW:
                job.until_ms = self.driver.now_ms + (delay_ms or LOCK_MS)
            case AcknowledgeType.RELEASE if not counted or job.count < MOST:
                job.state, job.is_released = "waiting", True
                job.count -= not counted
                job.due_ms = job.stored_due_ms = self.driver.wall_ms + delay_ms if delay_ms else 0
            case _:
                job.state = "rejecting"

    def _ready(self) -> list[int]:
        """What can be handed out: known, due, and the first of its key."""
        ready, keys = [], set()
        for offset, job in self.jobs.items():
            if job.is_done or offset >= self.known_end:
                continue
            is_first = job.key is None or job.key not in keys
            if self.driver.ordered_by_key:
                keys.add(job.key)
            if job.state == "waiting" and not job.due_ms and (is_first or not self.driver.ordered_by_key):
                ready.append(offset)
        return ready

    @invariant()
    def is_as_the_model_says(self) -> None:
        assert self.driver.ready() == self._ready()
        assert self.partition.ready_count == len(self._ready())
        locked = {o: (j.delivery_id, j.count) for o, j in self.jobs.items() if j.state == "locked"}
        assert {offset: lock[:2] for offset, lock in self.driver.locked().items()} == locked
        start = next((o for o, job in self.jobs.items() if not job.is_done), self.log_end)
        assert self.driver.changes.start_offset <= self.partition.start_offset <= start
        if self.known_end == self.log_end:
            assert self.partition.start_offset == start

    def teardown(self) -> None:
        """In the end every record is done."""
        if not hasattr(self, "driver"):
            return
        for _ in range(3 * len(self.jobs) + 1):
            self.pass_time(2 * LOCK_MS, 10_000)
            self.scan(1 << 20)
            self._expire()
            self.archive(None)
            self.acquire(1 << 20, "x", None)
            locked = [(o, job.delivery_id) for o, job in self.jobs.items() if job.state == "locked"]
            for offset, delivery_id in locked:
                assert self.driver.acknowledge(offset, delivery_id, ACCEPT)
                self.jobs[offset].state = "accepted"
        assert self.partition.start_offset == self.log_end
        assert all(job.is_done for job in self.jobs.values())


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
