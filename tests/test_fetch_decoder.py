"""Fetched chunks to records: checks, dropped records, and damage that hides no record."""

from __future__ import annotations

import pytest
from encoding import encode_values
from hypothesis import given
from hypothesis import strategies as st

from embedlog import codec
from embedlog.codec.fetch_decoder import Decoded, Records, Values, decode_chunk
from embedlog.errors import CorruptRecord, DecompressedTooLarge, UnknownMagic
from embedlog.model import AbortedTransaction, Fetched

pytestmark = pytest.mark.plain

PRODUCER, OTHER = 7, 8


def batch(base: int, *values: bytes, epoch: int = 0, compression: int = codec.NONE) -> bytes:
    return bytes(
        encode_values(list(values), 1_000, base_offset=base, leader_epoch=epoch, compression=compression)
    )


def transactional(base: int, *values: bytes, producer: int = PRODUCER) -> bytes:
    return bytes(
        encode_values(
            list(values),
            1_000,
            base_offset=base,
            leader_epoch=0,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def marker(base: int, *, commit: bool, producer: int = PRODUCER) -> bytes:
    return bytes(
        codec.encode_control_batch(
            commit=commit,
            producer_id=producer,
            producer_epoch=0,
            timestamp_ms=1_000,
            base_offset=base,
            leader_epoch=0,
        )
    )


def fetched(
    *batches: bytes,
    end: int = 1_000,
    gaps: bool = False,
    epochs: tuple[tuple[int, int], ...] = (),
    aborted: tuple[AbortedTransaction, ...] = (),
) -> Fetched:
    return Fetched(b"".join(batches), 0, end, end, aborted, "clicks_0/00000000000.kafka", 500, gaps, epochs)


def chunk(
    data: Fetched, offset: int, *, at_boundary: bool = False, read_committed: bool = False
) -> tuple[list[bytes | None], int, int]:
    records, values = Records("clicks", 0), Values()
    decoded, also = (
        decode_chunk(data, "clicks", 0, offset, sink, at_boundary=at_boundary, read_committed=read_committed)
        for sink in (records, values)
    )
    assert also == decoded
    assert values.taken == [record.value for record in records.taken]
    return values.taken, *decoded


def damage(data: Fetched, offset: int, *, at_boundary: bool = False) -> CorruptRecord:
    with pytest.raises(CorruptRecord) as caught:
        decode_chunk(data, "clicks", 0, offset, Records("clicks", 0), at_boundary=at_boundary)
    return caught.value


def test_an_empty_chunk_is_the_end() -> None:
    assert decode_chunk(fetched(), "clicks", 0, 5, Values()) == Decoded(5, -1)


def test_records_begin_at_the_offset_asked_for() -> None:
    data = fetched(batch(5, b"5", b"6", b"7"), batch(8, b"8"))
    assert chunk(data, 6) == ([b"6", b"7", b"8"], 9, 0)
    sink = Records("clicks", 3)
    decode_chunk(data, "clicks", 3, 6, sink)
    assert [(r.topic, r.partition, r.offset, r.timestamp_ms) for r in sink.taken[:1]] == [
        ("clicks", 3, 6, 1_000)
    ]


@pytest.mark.parametrize("compression", [codec.GZIP, codec.SNAPPY, codec.LZ4, codec.ZSTD])
def test_compressed_batches(compression: int) -> None:
    assert chunk(fetched(batch(0, b"a", b"b", compression=compression)), 0) == ([b"a", b"b"], 2, 0)


def test_a_chunk_ends_at_a_new_leader_epoch() -> None:
    data = fetched(batch(0, b"0"), batch(1, b"1"), batch(2, b"2", epoch=3), epochs=((0, 0), (3, 2)))
    assert chunk(data, 0) == ([b"0", b"1"], 2, 0)
    assert chunk(data._replace(data=batch(2, b"2", epoch=3)), 2) == ([b"2"], 3, 3)


def test_a_chunk_ends_when_enough_was_decompressed() -> None:
    zeros = bytes(20 << 20)
    data = fetched(*(batch(base, zeros, compression=codec.ZSTD) for base in range(4)))
    sink = Records("clicks", 0)
    assert decode_chunk(data, "clicks", 0, 0, sink).next_offset == len(sink.taken) == 2


@pytest.mark.parametrize("compression", [codec.NONE, codec.GZIP])
@pytest.mark.parametrize("end", range(11))
def test_a_chunk_ends_at_its_limit(end: int, compression: int) -> None:
    batches = [
        batch(base, *(b"%d" % i for i in range(base, base + 3)), compression=compression)
        for base in (0, 3, 6)
    ]
    records, values = Records("clicks", 0), Values()
    for sink in (records, values):
        decode_chunk(fetched(*batches), "clicks", 0, 0, sink, end=end)
    assert [record.offset for record in records.taken] == list(range(min(end, 9)))
    assert values.taken == [record.value for record in records.taken]


def test_a_decompression_bomb_is_refused() -> None:
    data = fetched(batch(0, bytes(1 << 20), compression=codec.ZSTD))
    with pytest.raises(DecompressedTooLarge) as caught:
        decode_chunk(data, "clicks", 0, 0, Values(), max_decompressed_bytes=1 << 16)
    assert (caught.value.path, caught.value.pos, caught.value.offset) == (data.path, 500, 0)


# -- what the CRC leaves out -------------------------------------------------------------------------


def test_a_gap_is_damage_unless_compaction_may_have_made_it() -> None:
    batches = batch(0, b"0"), batch(5, b"5")
    assert chunk(fetched(*batches, gaps=True), 0) == ([b"0", b"5"], 6, 0)
    assert chunk(fetched(*batches), 0) == ([b"0"], 1, 0)
    error = damage(fetched(batches[1]), 1)
    assert (error.path, error.pos, error.offset) == ("clicks_0/00000000000.kafka", 500, 1)
    assert "begins at offset 5 where 1 must be" in str(error)


def test_an_overlap_is_damage() -> None:
    first = batch(0, b"0", b"1")
    assert chunk(fetched(first, batch(1, b"x")), 0) == ([b"0", b"1"], 2, 0)
    assert chunk(fetched(first, batch(1, b"x", b"y")), 0) == ([b"0", b"1"], 2, 0)
    assert "before it holds already" in str(damage(fetched(batch(1, b"x", b"y")), 2, at_boundary=True))
    assert chunk(fetched(batch(1, b"x", b"y")), 2) == ([b"y"], 3, 0)


def test_a_batch_that_ends_before_the_offset_is_damage() -> None:
    assert "ends at offset 4, before 9" in str(damage(fetched(batch(4, b"4")), 9))


def test_a_batch_past_the_end_of_the_log_is_damage() -> None:
    data = fetched(batch(0, b"0"), batch(1, b"1", b"2"), end=2)
    assert chunk(data, 0) == ([b"0"], 1, 0)
    assert "past the log's end 2" in str(damage(fetched(batch(1, b"1", b"2"), end=2), 1))


def test_a_batch_of_the_wrong_leader_epoch_is_damage() -> None:
    history = ((0, 0), (2, 10))
    assert chunk(fetched(batch(10, b"10", epoch=2), epochs=history), 10) == ([b"10"], 11, 2)
    assert "leader epoch 1" in str(damage(fetched(batch(10, b"10", epoch=1), epochs=history), 10))
    assert chunk(fetched(batch(9, b"9", epoch=0), epochs=((2, 10),)), 9) == ([b"9"], 10, 0)


@given(st.data())
def test_one_flipped_byte_never_changes_a_record(data: st.DataObject) -> None:
    good = batch(3, b"three", b"four") + batch(5, b"five") + batch(6, b"six")
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[at] ^= data.draw(st.integers(1, 255))
    chunk_of = fetched(bytes(flipped), epochs=((0, 0),))
    right = [b"three", b"four", b"five", b"six"]
    try:
        values, next_offset, epoch = chunk(chunk_of, 3, at_boundary=True)
    except CorruptRecord as error:
        assert (error.path, error.offset) == (chunk_of.path, 3)
        return
    assert values == right[: len(values)]
    assert next_offset == 3 + len(values)
    assert epoch == 0


# -- damage ------------------------------------------------------------------------------------------


def test_records_before_damage_come_first_then_the_error() -> None:
    good, bad = batch(0, b"0", b"1"), bytearray(batch(2, b"2", b"3", b"4"))
    bad[-1] ^= 1
    assert chunk(fetched(good, bytes(bad), batch(5, b"5")), 0) == ([b"0", b"1"], 2, 0)
    error = damage(fetched(bytes(bad), batch(5, b"5")), 2)
    assert (error.pos, error.offset) == (500, 2)


def test_damage_after_a_dropped_batch_keeps_its_position() -> None:
    bad = bytearray(batch(1, b"1"))
    bad[-1] ^= 1
    assert chunk(fetched(marker(0, commit=True), bytes(bad)), 0) == ([], 1, 0)


def test_garbage_another_format_and_half_a_batch() -> None:
    assert damage(fetched(bytes(200)), 0).pos == 500
    old = bytearray(batch(0, b"0"))
    old[16] = 1
    assert isinstance(damage(fetched(bytes(old)), 0), UnknownMagic)
    assert "ends before its length says" in str(damage(fetched(batch(0, bytes(100))[:-1]), 0))
    assert chunk(fetched(batch(0, b"0"), batch(1, bytes(100))[:-1]), 0) == ([b"0"], 1, 0)


def test_an_undecodable_batch_is_damage_after_the_valid_ones() -> None:
    torn = bytearray(batch(1, bytes(1_000), compression=codec.ZSTD))
    torn[codec.HEADER_SIZE + 2] ^= 0xFF
    crc = codec.crc32c(bytes(torn[21:]))
    torn[17:21] = crc.to_bytes(4, "big")
    assert chunk(fetched(batch(0, b"0"), bytes(torn)), 0) == ([b"0"], 1, 0)
    error = damage(fetched(bytes(torn)), 1)
    assert (error.path, error.pos, error.offset, error.last_offset) == (
        "clicks_0/00000000000.kafka",
        500,
        1,
        1,
    )


# -- transactions ------------------------------------------------------------------------------------


def test_control_batches_are_never_given_out_but_move_the_position() -> None:
    data = fetched(transactional(0, b"0"), marker(1, commit=True))
    assert chunk(data, 0) == ([b"0"], 2, 0)
    assert chunk(data, 0, read_committed=True) == ([b"0"], 2, 0)
    assert chunk(fetched(marker(1, commit=False)), 1) == ([], 2, 0)


def test_read_committed_drops_only_aborted_records() -> None:
    data = fetched(
        transactional(0, b"aborted 0", b"aborted 1"),
        batch(2, b"plain 2"),
        transactional(3, b"other 3", producer=OTHER),
        transactional(4, b"aborted 4"),
        marker(5, commit=False),
        transactional(6, b"committed 6"),
        marker(7, commit=True),
        marker(8, commit=True, producer=OTHER),
        aborted=(AbortedTransaction(PRODUCER, 0, 5, 3),),
    )
    committed = [b"plain 2", b"other 3", b"committed 6"]
    assert chunk(data, 0, read_committed=True) == (committed, 9, 0)
    assert len(chunk(data, 0)[0]) == 6


def test_read_committed_from_the_middle_of_an_aborted_transaction() -> None:
    data = fetched(
        transactional(4, b"aborted 4"),
        marker(5, commit=False),
        transactional(6, b"again aborted 6"),
        marker(7, commit=False),
        batch(8, b"8"),
        aborted=(AbortedTransaction(PRODUCER, 6, 7, 6), AbortedTransaction(PRODUCER, 0, 5, 3)),
    )
    assert chunk(data, 4, read_committed=True) == ([b"8"], 9, 0)
