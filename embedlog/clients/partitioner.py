"""Which partition a record goes to: murmur2 of its key as in Kafka's clients, sticky batches for null keys.

A record with a key goes to `(murmur2(key) & 0x7fffffff) % partitions`, so that records with the same key
stay in order, and lie where any Kafka client would have put them. Records without a key stick to one
partition until the batch they gather in is sent; then another is drawn at random. So batches get full, and
over many batches the partitions get the same share.

A user's own partitioner is any callable of the shape of `Partitioner`. Where it has a method
`on_new_batch(topic, num_partitions, previous)`, it is told that the batch of partition `previous` is being
sent, as Kafka's `Partitioner.onNewBatch` is.

Invariants: a key's partition depends on nothing but the key and the number of partitions; the memory of
hashes is bounded in entries and bytes; everything here may be called from any thread.

Source: murmur2 as in Kafka's `Utils.murmur2`; sticky batches as in KIP-480.
"""

from __future__ import annotations

import random
from struct import Struct
from typing import Protocol

from ..errors import InvalidArgument, InvalidType, shown

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF

MAX_REMEMBERED_HASHES = 32_768
MAX_REMEMBERED_KEY_BYTES = 128

# Ready-made readers of n little-endian words, for keys of the usual lengths.
_READERS = [Struct(f"<{words}I").unpack_from for words in range(MAX_REMEMBERED_KEY_BYTES // 4 + 1)]


class Partitioner(Protocol):
    """Chooses a record's partition.

    Called with the topic's name, the record's key and value (as they are written: bytes or None) and the
    topic's number of partitions; returns a number from 0 to num_partitions - 1. May be called from several
    threads at once.
    """

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int) -> int: ...


def murmur2(key: bytes) -> int:
    """MurmurHash2 of `key`, 32 bits, unsigned, with the seed of Kafka's clients."""
    length = len(key)
    words = length >> 2
    read = _READERS[words] if words < len(_READERS) else Struct(f"<{words}I").unpack_from
    h = _SEED ^ length
    for k in read(key):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ (k >> 24)) * _M & _MASK)
    if length & 3:
        h = (h ^ int.from_bytes(key[words << 2 :], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


class _Hashes(dict[bytes, int]):
    """Key -> murmur2 with the sign bit off, made at first use. Forgets everything once it is full."""

    def __missing__(self, key: bytes) -> int:
        hashed = murmur2(key) & _POSITIVE
        if len(key) <= MAX_REMEMBERED_KEY_BYTES:
            if len(self) >= MAX_REMEMBERED_HASHES:
                self.clear()
            self[key] = hashed
        return hashed


key_hashes = _Hashes()
"""Hashes of the keys seen of late, shared by all: `key_hashes[key] % num_partitions` is the partition."""


def partition_for_key(key: bytes, num_partitions: int) -> int:
    """The partition of a key among num_partitions, the same as any Kafka client's."""
    return key_hashes[key] % num_partitions


def _draw(count: int) -> int:
    """A number from 0 to count - 1: `random.randrange`, in a third of its time (`append` draws each time)."""
    return int(random.random() * count)


class StickyPartitioner:
    """The default: murmur2 of the key; without a key, one partition until its batch is sent, then another.

    Safe between threads without a lock: two threads that draw at the same moment draw twice, and the
    later one stays.
    """

    def __init__(self) -> None:
        self._current: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int) -> int:
        """The record's partition, from 0 to num_partitions - 1."""
        if key is not None:
            return key_hashes[key] % num_partitions
        current = self._current.get(topic)
        # A topic that was deleted and made again may have fewer partitions than it had.
        if current is None or current >= num_partitions:
            current = self._current[topic] = _draw(num_partitions)
        return current

    def on_new_batch(self, topic: str, num_partitions: int, previous: int) -> None:
        """The batch of partition `previous` is being sent: records without a key now go to another one.

        Nothing changes where they go elsewhere already.
        """
        if num_partitions > 1 and self._current.get(topic) == previous:
            drawn = _draw(num_partitions - 1)
            self._current[topic] = drawn + (drawn >= previous)


def choose_partition(
    partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None, num_partitions: int
) -> int:
    """What the partitioner says, checked. Raises InvalidType or InvalidArgument where it is no partition."""
    chosen = partitioner(topic, key, value, num_partitions)
    if type(chosen) is not int and (not isinstance(chosen, int) or isinstance(chosen, bool)):
        raise InvalidType(
            f"the partitioner must return an int, not {type(chosen).__name__} ({shown(chosen)})"
        )
    if not 0 <= chosen < num_partitions:
        raise InvalidArgument(
            f"the partitioner chose partition {shown(chosen)}: topic {topic!r} has {num_partitions}, "
            "numbered from 0"
        )
    return chosen


def notify_new_batch(partitioner: Partitioner, topic: str, num_partitions: int, previous: int) -> None:
    """Tell the partitioner, if it wants to know, that the batch of partition `previous` is being sent."""
    on_new_batch = getattr(partitioner, "on_new_batch", None)
    if on_new_batch is not None:
        on_new_batch(topic, num_partitions, previous)
