"""Transactional producers of one partition, and the records that read_committed returns at any time."""

from __future__ import annotations

import random
from collections.abc import Callable

from embedlog.codec import decode, encode_batch, encode_control_batch, read_header, transaction_end
from embedlog.model import Appended
from embedlog.partition import Partition

Appending = Callable[[bytearray], int]

PRODUCERS = (1, 2, 3)


def coordinated(partition: Partition, batch: bytearray) -> Appended:
    """Append a batch as a coordinator of version-1 transactions would have it appended."""
    header = read_header(batch)
    if header.is_control:
        (record,) = decode(batch, header, *partition.name)
        return partition.end_transaction(
            header.producer_id,
            header.producer_epoch,
            commit=transaction_end(record.key, record.value).commit,
            timestamp_ms=header.max_timestamp_ms,
            transaction_version=1,
        )
    if header.is_transactional:
        partition.allow_transaction(header.producer_id, header.producer_epoch, transaction_version=1)
    return partition.append(batch)


class Transactions:
    """Appends through a function from encoded batch to base offset, and tracks what is committed."""

    def __init__(self, append: Appending) -> None:
        self.append = append
        self.committed: dict[int, bytes] = {}
        self.open: dict[int, dict[int, bytes]] = {}
        self.sequences: dict[int, int] = {}

    def send(self, producer: int, *values: bytes) -> None:
        """Send a batch of a transaction; the first one begins it."""
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(values)
        first = self.append(
            encode_batch(
                [(value, value, (), 1_000) for value in values],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )
        self.open.setdefault(producer, {}).update(enumerate(values, first))

    def end(self, producer: int, *, commit: bool) -> None:
        marker = encode_control_batch(
            commit=commit, producer_id=producer, producer_epoch=0, timestamp_ms=1_000
        )
        self.append(marker)
        records = self.open.pop(producer, {})
        if commit:
            self.committed.update(records)

    def plain(self, value: bytes) -> None:
        """Send a record outside any transaction."""
        self.committed[self.append(encode_batch([(value, value, (), 1_000)]))] = value

    def expected(self, log_start_offset: int = 0) -> list[tuple[int, bytes]]:
        """(offset, value) of committed records before the oldest open transaction."""
        stable = min((min(records) for records in self.open.values()), default=1 << 62)
        return [each for each in sorted(self.committed.items()) if log_start_offset <= each[0] < stable]

    def step(self, rng: random.Random, number: int) -> None:
        """A random action; a third of the transactions are aborted."""
        producer = rng.choice(PRODUCERS)
        value = b"%d" % number
        if rng.random() < 0.2:
            self.plain(value)
        elif producer in self.open and rng.random() < 0.5:
            self.end(producer, commit=rng.random() < 0.66)
        else:
            self.send(producer, *[value + b".%d" % i for i in range(rng.randrange(1, 4))])
