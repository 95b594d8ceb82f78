"""Partition choice: the hash every Kafka client uses, sticky batches, a user's own partitioner."""

from __future__ import annotations

import threading
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.clients import partitioner as partitioner_module
from embedlog.clients.partitioner import (
    MAX_REMEMBERED_KEY_BYTES,
    StickyPartitioner,
    choose_partition,
    key_hashes,
    murmur2,
    notify_new_batch,
    partition_for_key,
)
from embedlog.errors import EmbedlogError, InvalidArgument, InvalidType

with warnings.catch_warnings():
    # kafka-python reads its schemas by a call that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kafka_murmur2

# Key, murmur2, partition of 12: written down once from kafka-python 3.0.12.
GOLDEN = [
    (b"", 275646681, 9),
    (b"a", 2731586172, 4),
    (b"21", 3321034988, 0),
    (b"foo", 597841616, 8),
    (b"user", 843406574, 2),
    (b"user-7", 696778364, 8),
    (b"a-little-bit-long-string", 3308985760, 8),
    (b"a-little-bit-longer-string", 2808662467, 11),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", 4236069325, 5),
    (bytes(range(256)), 2346620022, 10),
    (b"\xff\xfe\xfd", 998637092, 8),
]


@pytest.mark.parametrize(("key", "hashed", "partition"), GOLDEN)
def test_golden_hashes(key: bytes, hashed: int, partition: int) -> None:
    assert murmur2(key) == hashed
    assert kafka_murmur2(key) == hashed
    assert partition_for_key(key, 12) == partition


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 131, 132, 133, 4096, 4099])
def test_every_tail_and_reader_hashes_as_kafka(length: int) -> None:
    for fill in (b"\x00", b"\x7f", b"\x80", b"\xff"):
        assert murmur2(fill * length) == kafka_murmur2(fill * length)


@given(st.binary(max_size=300))
def test_any_key_hashes_as_kafka(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key)


@given(st.binary(max_size=300), st.integers(1, 10_000))
def test_partition_of_a_key_is_kafkas(key: bytes, partitions: int) -> None:
    expected = (kafka_murmur2(key) & 0x7FFFFFFF) % partitions
    assert partition_for_key(key, partitions) == expected
    assert StickyPartitioner()("t", key, None, partitions) == expected


def test_remembered_hashes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner_module, "MAX_REMEMBERED_HASHES", 100)
    for number in range(1000):
        key = b"bounded-%d" % number
        assert partition_for_key(key, 7) == (kafka_murmur2(key) & 0x7FFFFFFF) % 7
    assert len(key_hashes) <= 100
    long_key = b"x" * (MAX_REMEMBERED_KEY_BYTES + 1)
    partition_for_key(long_key, 7)
    assert long_key not in key_hashes


def test_null_keys_stick_until_the_batch_is_sent() -> None:
    partitioner = StickyPartitioner()
    first = partitioner("t", None, b"v", 5)
    assert {partitioner("t", None, b"%d" % n, 5) for n in range(100)} == {first}
    partitioner.on_new_batch("t", 5, first)
    second = partitioner("t", None, b"v", 5)
    assert second != first
    partitioner.on_new_batch("t", 5, first)
    assert partitioner("t", None, b"v", 5) == second, "a batch of another partition moves nothing"


def test_over_many_batches_every_partition_gets_its_share() -> None:
    partitioner = StickyPartitioner()
    counts = [0] * 4
    for _ in range(4000):
        chosen = partitioner("t", None, None, 4)
        counts[chosen] += 1
        partitioner.on_new_batch("t", 4, chosen)
    assert min(counts) > 700


def test_topics_stick_apart_and_one_partition_is_always_itself() -> None:
    partitioner = StickyPartitioner()
    chosen = partitioner("a", None, None, 8)
    partitioner.on_new_batch("b", 8, chosen)
    assert partitioner("a", None, None, 8) == chosen
    assert partitioner("one", None, None, 1) == 0
    partitioner.on_new_batch("one", 1, 0)
    assert partitioner("one", None, None, 1) == 0


def test_a_topic_made_again_with_fewer_partitions() -> None:
    partitioner = StickyPartitioner()
    while partitioner("t", None, None, 50) < 2:
        partitioner.on_new_batch("t", 50, partitioner("t", None, None, 50))
    assert partitioner("t", None, None, 2) in (0, 1)


def test_threads_always_get_a_partition() -> None:
    partitioner = StickyPartitioner()
    wrong: list[int] = []

    def work() -> None:
        for _ in range(3000):
            chosen = partitioner("t", None, None, 3)
            if not 0 <= chosen < 3:
                wrong.append(chosen)
            partitioner.on_new_batch("t", 3, chosen)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("answer", [-1, 3, 10**20])
def test_a_partition_out_of_range_is_refused(answer: int) -> None:
    with pytest.raises(InvalidArgument, match="topic 't' has 3"):
        choose_partition(lambda *_: answer, "t", b"k", b"v", 3)


@pytest.mark.parametrize("answer", [None, "1", 1.0, True])
def test_a_non_integer_answer_is_refused(answer: object) -> None:
    with pytest.raises(InvalidType, match="must return an int") as caught:
        choose_partition(lambda *_: answer, "t", b"k", b"v", 3)
    assert isinstance(caught.value, EmbedlogError)


def test_a_user_partitioner_may_ignore_batches() -> None:
    seen = []

    def mine(topic: str, key: bytes | None, value: bytes | None, num_partitions: int) -> int:
        seen.append((topic, key, value, num_partitions))
        return 2

    assert choose_partition(mine, "t", b"k", b"v", 3) == 2
    notify_new_batch(mine, "t", 3, 2)
    assert seen == [("t", b"k", b"v", 3)]
