"""Partitioners: murmur2 of the key as in Kafka's clients, sticky batches for null keys.

A record with a key goes to `(murmur2(key) & 0x7fffffff) % partitions`: records with the same key stay in
order, in the partition that any Kafka client would choose. Records without a key stick to one partition until
its batch is sent; then the next partition is drawn at random. So batches fill up, and partitions get equal
shares over many batches. Over the wire it is drawn from those whose leaders can be reached.

A user's partitioner is any callable with the signature of `Partitioner`. If it has a method
`on_new_batch(topic, num_partitions, previous)`, that is called when the batch of partition `previous` is
sent, as Kafka's `Partitioner.onNewBatch`.

Invariants: a key's partition depends only on the key and the partition count; the hash cache is bounded in
entries and bytes; all functions are thread-safe.

Source: murmur2 as in Kafka's `Utils.murmur2`; sticky batches as in KIP-480.
"""

from __future__ import annotations

import random
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from ..errors import InvalidArgument, InvalidType, shown
from ..runtime.locks import calls_out

if TYPE_CHECKING:
    from ..backends.port import Delivery

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF

MAX_REMEMBERED_HASHES = 32_768
MAX_REMEMBERED_KEY_BYTES = 128

# Readers of n little-endian words, for keys of common lengths.
_READERS = [Struct(f"<{words}I").unpack_from for words in range(MAX_REMEMBERED_KEY_BYTES // 4 + 1)]


class Partitioner(Protocol):
    """Chooses the partition of a record.

    It is called with the topic, the record's encoded key and value (bytes or None) and the partition count.
    It returns a number from 0 to num_partitions - 1. It must be thread-safe.
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
    """A cache: key -> murmur2 without the sign bit. Cleared when full."""

    def __missing__(self, key: bytes) -> int:
        hashed = murmur2(key) & _POSITIVE
        if len(key) <= MAX_REMEMBERED_KEY_BYTES:
            if len(self) >= MAX_REMEMBERED_HASHES:
                self.clear()
            self[key] = hashed
        return hashed


key_hashes = _Hashes()
"""Hashes of recent keys, process-wide: `key_hashes[key] % num_partitions` is the partition."""


def partition_for_key(key: bytes, num_partitions: int) -> int:
    """The partition of a key, the same as any Kafka client's."""
    return key_hashes[key] % num_partitions


def _draw(count: int) -> int:
    """A random number from 0 to count - 1: `random.randrange`, in a third of the time."""
    return int(random.random() * count)


class StickyPartitioner:
    """The default: murmur2 of the key; without a key, one partition until its batch is sent.

    Records without a key go to partitions whose leaders can be reached, as far as that is known. Thread-safe
    without a lock: of two concurrent draws the later one stays.
    """

    def __init__(self, delivery: Delivery | None = None) -> None:
        self._delivery = delivery
        self.current: dict[str, int] = {}  # topic -> the partition of records without a key

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int) -> int:
        """The record's partition, from 0 to num_partitions - 1."""
        if key is not None:
            return key_hashes[key] % num_partitions
        current = self.current.get(topic)
        # A topic that was deleted and created again may have fewer partitions.
        if current is None or current >= num_partitions or self._is_away(topic, current):
            current = self.current[topic] = self._drawn(topic, num_partitions, -1)
        return current

    def on_new_batch(self, topic: str, num_partitions: int, previous: int) -> None:
        """The batch of partition `previous` is being sent: draw another partition for null keys.

        Does nothing if they go elsewhere already.
        """
        if num_partitions > 1 and self.current.get(topic) == previous:
            self.current[topic] = self._drawn(topic, num_partitions, previous)

    def _is_away(self, topic: str, partition: int) -> bool:
        return self._delivery is not None and not self._delivery.can_reach(topic, partition)

    def _drawn(self, topic: str, num_partitions: int, previous: int) -> int:
        """Another partition than `previous` (-1: any), of those that can be reached."""
        if self._delivery is not None:
            reachable = [number for number in self._delivery.reachable(topic) if number < num_partitions]
            others = [number for number in reachable if number != previous] or reachable
            if others:
                return others[_draw(len(others))]
        if previous < 0:
            return _draw(num_partitions)
        drawn = _draw(num_partitions - 1)
        return drawn + (drawn >= previous)


@calls_out
def choose_partition(
    partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None, num_partitions: int
) -> int:
    """The partitioner's choice, validated. Raises InvalidType or InvalidArgument if it is not a partition."""
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


@calls_out
def notify_new_batch(partitioner: Partitioner, topic: str, num_partitions: int, previous: int) -> None:
    """Call the partitioner's on_new_batch, if it has one."""
    on_new_batch = getattr(partitioner, "on_new_batch", None)
    if on_new_batch is not None:
        on_new_batch(topic, num_partitions, previous)
