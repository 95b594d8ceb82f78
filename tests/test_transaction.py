"""A transactional id as a state machine: request by request, and at random with crashes between its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rounds import examples

from embedlog.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionError,
)
from embedlog.groups.machines.transaction import (
    LARGEST_EPOCH,
    Change,
    ProducerIdAndEpoch,
    Transaction,
)
from embedlog.model import TopicPartition
from embedlog.wire.transaction_state import (
    TransactionMetadata,
    TransactionState,
    decode_value,
    encode_value,
)

TIMEOUT_MS = 1_000
A, B, C = PARTITIONS = [TopicPartition("t", number) for number in range(3)]


class Crash(Exception):
    """The process dies."""


class SimulatedPartition:
    """What a partition does with batches of transactions, and what a read_committed reader sees of it."""

    def __init__(self) -> None:
        self.log: list[
            tuple[str, int, int, int]
        ] = []  # (what, producer id, epoch, number of the transaction)
        self.epochs: dict[int, int] = {}
        self.open: dict[int, int] = {}  # producer id -> index of the first batch
        self.allowed: dict[int, int] = {}  # in memory

    def restart(self) -> None:
        self.allowed = {}

    def allow(self, producer: ProducerIdAndEpoch) -> None:
        if producer.producer_epoch < self.epochs.get(producer.producer_id, -1):
            raise InvalidProducerEpoch(str(producer))
        self.allowed[producer.producer_id] = producer.producer_epoch

    def append(self, producer: ProducerIdAndEpoch, number: int) -> None:
        producer_id, epoch = producer
        if epoch < self.epochs.get(producer_id, -1):
            raise InvalidProducerEpoch(str(producer))
        if producer_id not in self.open:
            if self.allowed.get(producer_id) != epoch:
                raise InvalidTxnState(str(producer))
            self.open[producer_id] = len(self.log)
        self.epochs[producer_id] = epoch
        self.log.append(("data", producer_id, epoch, number))

    def end(self, producer_id: int, epoch: int, *, commit: bool, version: int) -> None:
        known = self.epochs.get(producer_id, -1)
        if epoch < known or (version >= 2 and epoch == known and producer_id in self.open):
            raise InvalidProducerEpoch(str(producer_id))
        self.epochs[producer_id] = epoch
        self.open.pop(producer_id, None)
        self.allowed.pop(producer_id, None)
        self.log.append(("commit" if commit else "abort", producer_id, epoch, 0))

    def outcomes(self) -> dict[int, set[str]]:
        """Transaction -> how its batches here ended: commit, abort, open."""
        found: dict[int, set[str]] = {}
        pending: dict[int, list[int]] = {}
        for what, producer_id, _, number in self.log:
            if what == "data":
                pending.setdefault(producer_id, []).append(number)
            else:
                for ended in pending.pop(producer_id, []):
                    found.setdefault(ended, set()).add(what)
        for numbers in pending.values():
            for number in numbers:
                found.setdefault(number, set()).add("open")
        return found


class Coordinator:
    """Carries out what a Transaction decides, step by step; each step may be the last before a crash."""

    def __init__(self, first: TransactionMetadata | None = None) -> None:
        self.records = [] if first is None else [encode_value(first)]
        self.partitions = {name: SimulatedPartition() for name in PARTITIONS}
        self.ids = itertools.count(7_000)  # durable
        self.now_ms = 1_000_000
        self.steps_left: int | None = None  # until a crash
        self.transaction = Transaction("id")
        self.load()

    def step(self, work: Callable[[], object]) -> None:
        """The crash comes before a step, or after it: then the next step does not begin."""
        if self.steps_left == 0:
            raise Crash
        if self.steps_left is not None:
            self.steps_left -= 1
        work()

    def make(self, change: Change | None) -> None:
        if change is not None:
            self.step(lambda: self.records.append(encode_value(change.metadata)))
            self.transaction.apply(change)

    def load(self) -> None:
        self.steps_left = None
        for partition in self.partitions.values():
            partition.restart()
        last = decode_value(self.records[-1]) if self.records else None
        transaction = self.transaction = Transaction("id", last)
        if transaction.is_ongoing:
            for name in transaction.metadata.partitions:
                self.partitions[name].allow(transaction.producer)
        elif transaction.is_prepared:
            self.finish()

    def finish(self) -> None:
        transaction = self.transaction
        producer_id, epoch = transaction.producer
        commit, version = transaction.commits, transaction.metadata.client_version
        for name in sorted(transaction.unmarked):
            end = self.partitions[name].end
            self.step(partial(end, producer_id, epoch, commit=commit, version=version))
            transaction.unmarked.discard(name)
        self.make(transaction.complete(self.now_ms))

    # -- requests --------------------------------------------------------------------------------------

    def initialize(self, expected: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        transaction = self.transaction
        transaction.check_initialize(expected)
        if transaction.is_ongoing:
            self.make(transaction.fence(self.now_ms))
        if transaction.is_prepared:
            self.finish()
        self.make(
            transaction.initialize(
                timeout_ms=TIMEOUT_MS,
                expected=expected,
                now_ms=self.now_ms,
                new_producer_id=lambda: next(self.ids),
            )
        )
        return transaction.producer

    def add(self, producer: ProducerIdAndEpoch, name: TopicPartition, version: int) -> None:
        self.make(
            self.transaction.add_partitions(producer, [name], client_version=version, now_ms=self.now_ms)
        )
        self.step(lambda: self.partitions[name].allow(producer))

    def append(self, producer: ProducerIdAndEpoch, name: TopicPartition, number: int) -> None:
        self.step(lambda: self.partitions[name].append(producer, number))

    def end(self, producer: ProducerIdAndEpoch, version: int, *, commit: bool) -> ProducerIdAndEpoch:
        self.make(
            self.transaction.end(
                producer,
                commit=commit,
                client_version=version,
                now_ms=self.now_ms,
                new_producer_id=lambda: next(self.ids),
            )
        )
        if self.transaction.is_prepared:
            self.finish()
        return self.transaction.producer

    def tick(self) -> None:
        deadline_ms = self.transaction.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.make(self.transaction.fence(self.now_ms))
            self.finish()


# -- request by request ------------------------------------------------------------------------------------


def coordinator(epoch: int = 0, state: TransactionState = TransactionState.EMPTY) -> Coordinator:
    metadata = TransactionMetadata(5_000, epoch, TIMEOUT_MS, state, last_update_ms=900_000, client_version=2)
    return Coordinator(metadata)


def stored(made: Coordinator) -> list[tuple[str, int, int]]:
    found = [decode_value(record) for record in made.records]
    return [(each.state.name, each.producer_id, each.producer_epoch) for each in found]


@pytest.mark.parametrize("commit", [True, False])
def test_the_records_of_a_transaction(commit: bool) -> None:
    made = Coordinator()
    producer = made.initialize()
    assert producer == (7_000, 0)
    made.add(producer, A, 2)
    made.now_ms += 5
    made.add(producer, B, 2)
    made.add(producer, B, 2)  # it is part of it
    next_producer = made.end(producer, 2, commit=commit)
    assert next_producer == (7_000, 1)
    name = "COMMIT" if commit else "ABORT"
    assert stored(made) == [
        ("EMPTY", 7_000, 0),
        ("ONGOING", 7_000, 0),
        ("ONGOING", 7_000, 0),
        (f"PREPARE_{name}", 7_000, 1),
        (f"COMPLETE_{name}", 7_000, 1),
    ]
    ongoing, prepared, complete = (decode_value(record) for record in made.records[2:])
    assert ongoing == TransactionMetadata(
        *(7_000, 0, TIMEOUT_MS, TransactionState.ONGOING, frozenset({A, B})),
        *(1_000_005, 1_000_000, 7_000, -1, 2),
    )
    assert (prepared.partitions, prepared.start_ms) == (frozenset({A, B}), 1_000_000)
    assert (complete.partitions, complete.start_ms) == (frozenset(), 1_000_000)
    marker = "commit" if commit else "abort"
    assert [made.partitions[name].log for name in PARTITIONS] == [
        [(marker, 7_000, 1, 0)],
        [(marker, 7_000, 1, 0)],
        [],
    ]


def test_before_version_2_an_end_keeps_the_epoch() -> None:
    made = coordinator(3)
    producer = ProducerIdAndEpoch(5_000, 3)
    for _ in range(2):
        made.add(producer, A, 1)
        assert made.end(producer, 1, commit=True) == producer
        assert made.end(producer, 1, commit=True) == producer, "repeated"
        with pytest.raises(InvalidTxnState, match="was committed"):
            made.end(producer, 1, commit=False)
    assert made.partitions[A].log == [("commit", 5_000, 3, 0)] * 2


@pytest.mark.parametrize(
    ("state", "commit", "repeated", "result"),
    [
        # The table of KIP-890, "Retry" and "Current".
        ("EMPTY", False, True, ProducerFenced),
        ("EMPTY", False, False, "raised"),
        ("EMPTY", True, True, ProducerFenced),
        ("EMPTY", True, False, InvalidTxnState),
        ("COMPLETE_ABORT", False, True, "same"),
        ("COMPLETE_ABORT", False, False, "raised"),
        ("COMPLETE_ABORT", True, True, InvalidTxnState),
        ("COMPLETE_ABORT", True, False, InvalidTxnState),
        ("COMPLETE_COMMIT", False, True, InvalidTxnState),
        ("COMPLETE_COMMIT", False, False, "raised"),
        ("COMPLETE_COMMIT", True, True, "same"),
        ("COMPLETE_COMMIT", True, False, InvalidTxnState),
    ],
)
def test_ends_without_an_open_transaction(state: str, commit: bool, repeated: bool, result: object) -> None:
    made = coordinator(5, TransactionState[state])
    producer = ProducerIdAndEpoch(5_000, 4 if repeated else 5)
    if isinstance(result, str):
        epoch = 6 if result == "raised" else 5
        assert made.end(producer, 2, commit=commit) == (5_000, epoch)
        assert made.transaction.metadata.state.name == ("COMPLETE_ABORT" if result == "raised" else state)
    else:
        with pytest.raises(result):  # type: ignore[call-overload]
            made.end(producer, 2, commit=commit)
        assert len(made.records) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_without_a_new_epoch_is_not_repeated_by_a_fenced_producer(commit: bool) -> None:
    made = Coordinator()
    fenced = made.initialize()
    producer = made.initialize()
    made.add(producer, A, 1)
    made.end(producer, 1, commit=commit)
    with pytest.raises(ProducerFenced):
        made.end(fenced, 2, commit=commit)


@pytest.mark.parametrize(
    ("epoch", "commit", "error", "match"),
    [
        (4, True, ConcurrentTransactions, "still being ended"),  # it repeats the end
        (4, False, InvalidTxnState, "is being committed"),
        (5, True, ConcurrentTransactions, "still being ended"),  # it has the answer, and is ahead
        (5, False, ConcurrentTransactions, "still being ended"),
        (3, True, ProducerFenced, "is fenced"),
    ],
)
def test_while_an_end_is_prepared(
    epoch: int, commit: bool, error: type[TransactionError], match: str
) -> None:
    made = coordinator(4)
    producer = ProducerIdAndEpoch(5_000, 4)
    made.add(producer, A, 2)
    transaction = made.transaction
    ended = transaction.end(producer, commit=True, client_version=2, now_ms=0, new_producer_id=lambda: 0)
    assert ended is not None
    transaction.apply(ended)
    late = ProducerIdAndEpoch(5_000, epoch)
    with pytest.raises(error, match=match):
        transaction.end(late, commit=commit, client_version=2, now_ms=0, new_producer_id=lambda: 0)
    for each in (None, transaction.producer):
        with pytest.raises(ConcurrentTransactions):
            transaction.initialize(timeout_ms=1, expected=each, now_ms=0, new_producer_id=lambda: 0)
    with pytest.raises(ConcurrentTransactions):
        transaction.add_partitions(transaction.producer, [A], client_version=2, now_ms=0)
    with pytest.raises(ConcurrentTransactions):
        transaction.check_in_transaction(transaction.producer, [A])
    assert transaction.unmarked == {A}
    assert (transaction.deadline_ms(), transaction.expires_ms(1)) == (None, None)


def test_a_new_producer_aborts_the_open_transaction_of_the_last_one() -> None:
    made = Coordinator()
    first = made.initialize()
    made.add(first, A, 2)
    made.append(first, A, 1)
    second = made.initialize()
    assert second == (7_000, 3), "fence raises it by two, the new producer by one"
    assert made.partitions[A].outcomes() == {1: {"abort"}}
    for commit in (True, False):
        with pytest.raises(ProducerFenced, match="'id' is fenced"):
            made.end(first, 2, commit=commit)
    with pytest.raises(ProducerFenced):
        made.add(first, B, 2)
    with pytest.raises(ProducerFenced):
        made.initialize(first)
    with pytest.raises(InvalidProducerEpoch):
        made.append(first, A, 2)
    with pytest.raises(InvalidTxnState):
        made.append(first, B, 2)
    with pytest.raises(InvalidProducerIdMapping, match="another producer id than 6: 7000"):
        made.add(ProducerIdAndEpoch(6, 0), A, 2)


def test_a_transaction_is_aborted_after_its_time() -> None:
    made = Coordinator()
    producer = made.initialize()
    assert made.transaction.deadline_ms() is None
    made.add(producer, A, 2)
    made.append(producer, A, 1)
    made.now_ms += TIMEOUT_MS - 1
    made.add(producer, B, 2)  # does not prolong it
    made.tick()
    assert made.transaction.is_ongoing
    made.now_ms += 1
    made.tick()
    assert made.partitions[A].outcomes() == {1: {"abort"}}
    for commit in (True, False):
        with pytest.raises(ProducerFenced):
            made.end(producer, 2, commit=commit)


def test_a_producer_goes_on_with_a_higher_epoch() -> None:
    """KIP-360: it gives its own epoch, and may repeat the request. Another producer's begin ends that."""
    made = Coordinator()
    first = made.initialize()
    raised = made.initialize(first)
    assert raised == (7_000, 1)
    assert made.initialize(first) == raised, "repeated"
    assert made.initialize(raised) == (7_000, 2)
    with pytest.raises(ProducerFenced):
        made.initialize(first)
    made.initialize()
    for epoch in (2, 1, -1):
        with pytest.raises(ProducerFenced):
            made.initialize(ProducerIdAndEpoch(7_000, epoch))


def test_a_producer_whose_answer_to_an_end_was_lost_goes_on() -> None:
    made = Coordinator()
    first = made.initialize()
    made.add(first, A, 2)
    ended = made.end(first, 2, commit=True)
    assert made.initialize(first) == ended


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_with_the_largest_epoch_gives_a_new_producer_id(commit: bool) -> None:
    made = coordinator(LARGEST_EPOCH)
    last = ProducerIdAndEpoch(5_000, LARGEST_EPOCH)
    made.add(last, A, 2)
    made.append(last, A, 1)
    assert made.end(last, 2, commit=commit) == (7_000, 0)
    marker = "commit" if commit else "abort"
    assert made.partitions[A].log[-1] == (marker, 5_000, LARGEST_EPOCH + 1, 0)
    assert made.end(last, 2, commit=commit) == (7_000, 0), "repeated"
    with pytest.raises(InvalidTxnState):
        made.end(last, 2, commit=not commit)
    assert made.initialize(last) == (7_000, 0), "repeated"
    with pytest.raises(InvalidProducerIdMapping):
        made.add(last, A, 2)
    assert made.initialize() == (7_000, 1)
    for end in (True, False):
        with pytest.raises(InvalidProducerIdMapping):
            made.end(last, 2, commit=end)


def test_what_a_producer_goes_on_with_is_known_before_the_markers_are_written() -> None:
    made = coordinator(LARGEST_EPOCH)
    last = ProducerIdAndEpoch(5_000, LARGEST_EPOCH)
    made.add(last, A, 2)
    prepared = made.transaction.end(
        last, commit=True, client_version=2, now_ms=made.now_ms, new_producer_id=lambda: 9_000
    )
    assert prepared is not None
    made.transaction.apply(prepared)
    assert made.transaction.producer == (5_000, LARGEST_EPOCH + 1), "the markers' epoch"
    assert made.transaction.next_producer == (9_000, 0)


def test_the_largest_epoch_can_be_fenced() -> None:
    made = coordinator(LARGEST_EPOCH)
    last = ProducerIdAndEpoch(5_000, LARGEST_EPOCH)
    made.add(last, A, 2)
    made.append(last, A, 1)
    assert made.initialize() == (7_000, 0)
    assert made.partitions[A].log[-1] == ("abort", 5_000, LARGEST_EPOCH + 1, 0)
    for commit in (True, False):
        with pytest.raises(ProducerFenced):
            made.end(last, 2, commit=commit)


def test_epoch_exhaustion_by_begins() -> None:
    made = coordinator(LARGEST_EPOCH - 1)
    assert made.initialize() == (5_000, LARGEST_EPOCH)
    assert made.initialize() == (7_000, 0)
    made = coordinator(LARGEST_EPOCH)
    last = ProducerIdAndEpoch(5_000, LARGEST_EPOCH)
    assert made.initialize(last) == (7_000, 0)
    assert made.initialize(last) == (7_000, 0), "repeated"
    with pytest.raises(ProducerFenced):
        made.initialize(ProducerIdAndEpoch(5_000, LARGEST_EPOCH - 1))


def test_after_a_time_out_with_the_largest_epoch_no_repetition_gives_away_the_last_one() -> None:
    made = coordinator(LARGEST_EPOCH)
    last = ProducerIdAndEpoch(5_000, LARGEST_EPOCH)
    made.add(last, A, 2)
    made.now_ms += TIMEOUT_MS
    made.tick()
    assert made.transaction.producer == (5_000, LARGEST_EPOCH + 1)
    with pytest.raises(ProducerFenced):
        made.end(last, 2, commit=False)
    assert made.initialize() == (7_000, 0)


def test_what_is_part_of_a_transaction() -> None:
    made = Coordinator()
    with pytest.raises(InvalidProducerIdMapping, match="no producer has begun with transactional id 'id'"):
        made.add(ProducerIdAndEpoch(1, 0), A, 1)
    producer = made.initialize()
    with pytest.raises(InvalidTxnState, match="not part of a transaction of 'id'"):
        made.transaction.check_in_transaction(producer, [A])
    made.add(producer, A, 1)
    made.transaction.check_in_transaction(producer, [A])
    with pytest.raises(InvalidTxnState):
        made.transaction.check_in_transaction(producer, [A, B])


def test_an_unused_id_expires() -> None:
    made = Coordinator()
    assert made.transaction.expires_ms(50) is None
    producer = made.initialize()
    assert made.transaction.expires_ms(50) == made.now_ms + 50
    made.add(producer, A, 2)
    assert made.transaction.expires_ms(50) is None
    made.now_ms += 7
    made.end(producer, 2, commit=True)
    assert made.transaction.expires_ms(50) == made.now_ms + 50


# -- at random ---------------------------------------------------------------------------------------------


@dataclass
class Client:
    """A producer that may be a zombie."""

    producer: ProducerIdAndEpoch
    version: int
    number: int | None = None  # of its transaction
    last_end: tuple[ProducerIdAndEpoch, bool] | None = None
    added: set[TopicPartition] = field(default_factory=set)


class Transactions(RuleBasedStateMachine):
    """Producers of one id, zombies among them, against what they were told; the process dies now and then.

    A transaction is all that was appended with one number. Whatever happens, all partitions end it the same
    way, as its producer was told; nothing of an earlier producer gets in after a new one has begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.clients: list[Client] = []
        self.told: dict[int, str] = {}  # transaction -> what its producer was told
        self.given: dict[ProducerIdAndEpoch, int] = {}  # to which client

    @initialize(epoch=st.sampled_from([None, 0, LARGEST_EPOCH - 3, LARGEST_EPOCH - 1]))
    def begin(self, epoch: int | None) -> None:
        self.made = Coordinator() if epoch is None else coordinator(epoch)

    def carry_out(self, work: Callable[[], None]) -> None:
        """A request. After a crash during it, the next process goes on; who asked does not know."""
        try:
            work()
        except Crash:
            self.made.load()
        except (TransactionError, InvalidProducerEpoch):
            pass

    def give(self, client: Client, producer: ProducerIdAndEpoch) -> None:
        index = self.clients.index(client)
        assert self.given.setdefault(producer, index) == index, "two producers with one id and epoch"
        assert producer.producer_epoch <= LARGEST_EPOCH
        client.producer = producer

    def is_current(self, client: Client) -> bool:
        return client is self.clients[-1]

    @rule(steps=st.integers(0, 6))
    def die_soon(self, steps: int) -> None:
        self.made.steps_left = steps

    @rule(version=st.sampled_from([1, 2]))
    def start(self, version: int) -> None:
        def work() -> None:
            producer = self.made.initialize()
            self.clients.append(Client(producer, version))
            self.give(self.clients[-1], producer)

        self.carry_out(work)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), name=st.sampled_from(PARTITIONS))
    def write(self, data: st.DataObject, name: TopicPartition) -> None:
        client = data.draw(st.sampled_from(self.clients))

        def work() -> None:
            if client.number is None:
                client.number = next(self.numbers)
            if name not in client.added:
                self.made.add(client.producer, name, client.version)
                client.added.add(name)
            self.made.append(client.producer, name, client.number)
            assert self.is_current(client), "a fenced producer has appended"

        self.carry_out(work)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), name=st.sampled_from(PARTITIONS))
    def write_late(self, data: st.DataObject, name: TopicPartition) -> None:
        """A batch comes after its transaction's end. Only version 2 tells it from the next one's batches."""
        client = data.draw(st.sampled_from(self.clients))
        if client.last_end is not None and client.version == 2:
            late = client.last_end[0]
            with pytest.raises((TransactionError, InvalidProducerEpoch)):
                self.made.partitions[name].append(late, -1)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        number, ended = client.number, client.producer
        client.number, client.added = None, set()

        def work() -> None:
            producer = self.made.end(ended, client.version, commit=commit)
            assert self.is_current(client), "a fenced producer has ended a transaction"
            self.give(client, producer)
            client.last_end = ended, commit
            if number is not None:
                self.told[number] = "commit" if commit else "abort"

        self.carry_out(work)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def repeat_end(self, data: st.DataObject) -> None:
        """The answer was lost."""
        client = data.draw(st.sampled_from(self.clients))
        if client.last_end is None or client.number is not None:
            return
        ended, commit = client.last_end

        def work() -> None:
            before = len(self.made.records)
            self.give(client, self.made.end(ended, client.version, commit=commit))
            assert len(self.made.records) == before, "a repeated end has ended another transaction"

        if ended != client.producer:  # else it would be the next end
            self.carry_out(work)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.number, client.added = None, set()

        def work() -> None:
            producer = self.made.initialize(client.producer)
            assert self.is_current(client)
            self.give(client, producer)

        self.carry_out(work)

    @rule(ms=st.integers(1, 2 * TIMEOUT_MS))
    def wait(self, ms: int) -> None:
        self.made.now_ms += ms
        self.carry_out(self.made.tick)

    @rule()
    def restart(self) -> None:
        self.made.load()

    @invariant()
    def every_transaction_has_one_outcome(self) -> None:
        if not hasattr(self, "made"):
            return
        found: dict[int, set[str]] = {}
        for partition in self.made.partitions.values():
            for number, outcomes in partition.outcomes().items():
                found.setdefault(number, set()).update(outcomes)
        for number, outcomes in found.items():
            assert len(outcomes) == 1, (number, outcomes)
            if number in self.told:
                assert outcomes == {self.told[number]}, (number, self.told[number], outcomes)

    def teardown(self) -> None:
        if hasattr(self, "made"):
            self.made.load()
            self.made.now_ms += TIMEOUT_MS
            self.made.tick()
            assert not any(partition.open for partition in self.made.partitions.values()), "it hangs"
            self.every_transaction_has_one_outcome()


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=examples(150), stateful_step_count=40)
