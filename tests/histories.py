"""What processes did to topics and saw of them, and what must not be found in it.

A history says of each transaction what it sent, where, and how it ended, of each reader what it got, and what
the topic holds in the end. `anomalies` finds what Jepsen's Kafka workload looks for:

    lost write         a committed value is not there
    duplicate          a value is there at two offsets
    torn transaction   one of a transaction's values is there, another one is not
    aborted read       a reader got a value of an aborted transaction
    uncommitted read   a reader got a value before its writer asked for the commit
    two values         an offset had one value for one process, another one for another
    reordered send     a process sent a before b to a partition, and a lies after b
    reordered poll     a reader got b before a
    skipped            a reader passed over a value that is there
    real-time order    a transaction ended before another one began, and lies after it
    lost offsets       a group's committed offset, or the last stable offset, went back

A transaction whose outcome its process has not learned may be there or not, but as a whole. Times are of the
machine's monotonic clock, which its processes share.

Source of the idea: Jepsen's analyses of Kafka-like systems; Adya, Liskov, O'Neil, "Generalized Isolation
Level Definitions".
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]
NEVER = float("inf")


class Found(NamedTuple):
    """A value at a place."""

    partition: int
    offset: int
    value: str


class Sent(NamedTuple):
    """A value that was sent; the offset is None if its producer does not know it."""

    partition: int
    value: str
    offset: int | None = None


class Read(NamedTuple):
    """What a reader got at once, and when."""

    when: float
    found: tuple[Found, ...]


class Mark(NamedTuple):
    """An observation of an offset that must never decrease: a group's, or the last stable one."""

    when: float
    name: str
    offset: int


@dataclass
class Transaction:
    """What one transaction sent. `asked` is when its commit was asked for."""

    process: str
    began: float
    sent: list[Sent] = field(default_factory=list)
    asked: float = NEVER
    ended: float = NEVER
    outcome: Outcome = "aborted"


@dataclass
class History:
    """Transactions in the order of each process, readers by name, and the topic in the end."""

    transactions: list[Transaction] = field(default_factory=list)
    readers: dict[str, list[Read]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    final: dict[int, list[Found]] = field(default_factory=dict)


class Anomaly(NamedTuple):
    """Its name, as above, and what shows it."""

    kind: str
    shown_by: str


def anomalies(history: History) -> list[Anomaly]:
    """All that are found; an empty list if there are none."""
    found: list[Anomaly] = []
    for check in (_places, _transactions, _reads, _orders, _real_time, _marks):
        found += check(history)
    return found


def _everything(history: History) -> Iterator[Found]:
    for values in history.final.values():
        yield from values
    for reads in history.readers.values():
        for read in reads:
            yield from read.found
    for each in history.transactions:
        if each.outcome == "committed":
            yield from (Found(s.partition, s.offset, s.value) for s in each.sent if s.offset is not None)


def _places(history: History) -> Iterator[Anomaly]:
    values: dict[tuple[int, int], set[str]] = defaultdict(set)
    for found in _everything(history):
        values[found.partition, found.offset].add(found.value)
    for place, of_place in values.items():
        if len(of_place) > 1:
            yield Anomaly("two values", f"{place}: {sorted(of_place)}")
    counts = Counter(each.value for in_partition in history.final.values() for each in in_partition)
    for value, count in counts.items():
        if count > 1:
            yield Anomaly("duplicate", f"{value!r} {count} times")


def _transactions(history: History) -> Iterator[Anomaly]:
    there = {each.value for in_partition in history.final.values() for each in in_partition}
    for each in history.transactions:
        missing = [sent.value for sent in each.sent if sent.value not in there]
        present = len(each.sent) - len(missing)
        if each.outcome == "committed" and missing:
            yield Anomaly("lost write", f"{missing} of {each.process}")
        if missing and present:
            yield Anomaly("torn transaction", f"{each.process}: {missing} missing, {present} there")


def _reads(history: History) -> Iterator[Anomaly]:
    sender = {sent.value: each for each in history.transactions for sent in each.sent}
    reads = [*itertools.chain.from_iterable(history.readers.values())]
    for in_partition in history.final.values():
        reads.append(Read(NEVER, tuple(in_partition)))
    for read in reads:
        for found in read.found:
            by = sender.get(found.value)
            if by is None:
                continue  # it was not sent in a transaction
            if by.outcome == "aborted":
                yield Anomaly("aborted read", f"{found} of {by.process}")
            elif read.when < by.asked:
                yield Anomaly("uncommitted read", f"{found} {by.asked - read.when:.6f} s too early")


def _orders(history: History) -> Iterator[Anomaly]:
    at = {each.value: each for in_partition in history.final.values() for each in in_partition}
    last_sent: dict[tuple[str, int], Found] = {}
    for each in history.transactions:
        for sent in each.sent:
            found = at.get(sent.value)
            if found is None:
                continue
            before = last_sent.get((each.process, sent.partition))
            if before is not None and before.offset > found.offset:
                yield Anomaly("reordered send", f"{each.process}: {before} was sent before {found}")
            last_sent[each.process, sent.partition] = found
    for name, reads in history.readers.items():
        got: dict[int, list[Found]] = defaultdict(list)
        for read in reads:
            for found in read.found:
                got[found.partition].append(found)
        for partition, in_partition in got.items():
            for one, next_one in itertools.pairwise(in_partition):
                if next_one.offset <= one.offset:
                    yield Anomaly("reordered poll", f"{name}: {next_one} after {one}")
            offsets = {each.offset for each in in_partition}
            for there in history.final.get(partition, ()):
                within = in_partition[0].offset < there.offset < in_partition[-1].offset
                if within and there.offset not in offsets:
                    yield Anomaly("skipped", f"{name} has not got {there}")


def _real_time(history: History) -> Iterator[Anomaly]:
    """If one transaction ends before another begins, its values come first in each partition."""
    by_value = {
        sent.value: each for each in history.transactions if each.outcome != "aborted" for sent in each.sent
    }
    for in_partition in history.final.values():
        newest_beginning, of_whom = -NEVER, None
        for found in in_partition:
            each = by_value.get(found.value)
            if each is None:
                continue
            if each.outcome == "committed" and each.ended < newest_beginning:
                yield Anomaly("real-time order", f"{found} lies after {of_whom}, which began later")
            if each.began > newest_beginning:
                newest_beginning, of_whom = each.began, found


def _marks(history: History) -> Iterator[Anomaly]:
    highest: dict[str, Mark] = {}
    for mark in sorted(history.marks):
        before = highest.setdefault(mark.name, mark)
        if mark.offset < before.offset:
            yield Anomaly("lost offsets", f"{before.name}: {before.offset:,}, then {mark.offset:,}")
        else:
            highest[mark.name] = mark


# -- histories of processes that are killed --------------------------------------------------------------


class Diary:
    """Writes what a process does into a file, each step before or after it is taken; survives kill -9."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, *facts: object) -> None:
        os.write(self._file, json.dumps([event, time.monotonic(), *facts]).encode() + b"\n")

    def begin(self) -> None:
        self.note("begin")

    def sent(self, values: Iterable[Sequence[Any]]) -> None:
        """(partition, value, offset or None): before it is tried, and again with the offset afterwards."""
        self.note("sent", [list(each) for each in values])

    def ask(self) -> None:
        """The commit is asked for next."""
        self.note("ask")

    def ended(self, outcome: Outcome) -> None:
        self.note("ended", outcome)

    def read(self, found: Iterable[Sequence[Any]]) -> None:
        """(partition, offset, value): before anything else is done with them."""
        self.note("read", [list(each) for each in found])

    def mark(self, name: str, offset: int) -> None:
        """Call it with what was seen at once, from one process per name: later marks are later ones."""
        self.note("mark", name, offset)


def told(diaries: Mapping[str, Path]) -> History:
    """The history that diaries tell; `final` is for the caller to add."""
    history = History()
    for process, path in diaries.items():
        current: Transaction | None = None
        reads: list[Read] = []
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # it was killed within the write
            event, when, *facts = json.loads(line)
            if event == "begin":
                current = Transaction(process, when)
                history.transactions.append(current)
            elif event == "sent":
                assert current is not None
                sent = [Sent(*each) for each in facts[0]]
                again = {each.value for each in sent}
                current.sent = [each for each in current.sent if each.value not in again] + sent
            elif event == "ask":
                assert current is not None
                current.asked, current.outcome = when, "unknown"
            elif event == "ended":
                assert current is not None
                current.ended, current.outcome = when, facts[0]
            elif event == "read":
                reads.append(Read(when, tuple(Found(*each) for each in facts[0])))
            elif event == "mark":
                history.marks.append(Mark(when, *facts))
        if reads:
            history.readers[process] = reads
    return history
