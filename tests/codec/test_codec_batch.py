"""Record batches: round trips, header fields, what is assigned in place, wrong types, 64-bit edges."""

import struct
from types import SimpleNamespace

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from encoding import encode_values
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from rounds import examples

from embedlog import codec
from embedlog.errors import CompressionUnavailable, CorruptRecord, InvalidArgument, InvalidType
from embedlog.model import Record

T = 1_700_000_000_000
MIN64, MAX64 = -(2**63), 2**63 - 1
CODECS = range(5)

some_bytes = st.none() | st.binary(max_size=300)
names = st.text(max_size=12)
header_lists = st.lists(st.tuples(names, some_bytes), max_size=4).map(tuple)
times = st.integers(T - 10**9, T + 10**9) | st.integers(MIN64, MAX64)
record_lists = st.lists(st.tuples(some_bytes, some_bytes, header_lists, times), min_size=1, max_size=40)


def opened(batch: bytes | bytearray, start_offset: int = 0) -> list[Record]:
    scanned = codec.scan(batch)
    assert scanned.error is None
    assert scanned.end == len(batch)
    (header,) = scanned.headers
    return codec.decode(batch, header, "t", 3, start_offset=start_offset)


def tuples(records: list[Record]) -> list[tuple[object, ...]]:
    return [(r.key, r.value, r.headers, r.timestamp_ms) for r in records]


@settings(max_examples=examples(200))
@given(record_lists, st.sampled_from(CODECS), st.integers(0, 2**62))
def test_records_round_trip(records: list, compression: int, base_offset: int) -> None:
    batch = codec.encode_batch(records, compression=compression, base_offset=base_offset)
    got = opened(batch)
    assert tuples(got) == records
    assert [r.offset for r in got] == list(range(base_offset, base_offset + len(records)))
    assert {(r.topic, r.partition, r.timestamp_type) for r in got} == {("t", 3, 0)}
    header = codec.read_header(batch)
    assert header.max_timestamp_ms == max(r[3] for r in records)
    assert codec.decode_values(batch, header) == [r[1] for r in records]


@given(st.lists(some_bytes, min_size=1, max_size=200), st.sampled_from(CODECS))
def test_values_round_trip(values: list[bytes | None], compression: int) -> None:
    batch = encode_values(values, T, compression=compression)
    assert tuples(opened(batch)) == [(None, value, (), T) for value in values]
    assert codec.decode_values(batch, codec.read_header(batch)) == values


@settings(max_examples=examples(40))
@given(
    record_lists.filter(lambda records: all(0 <= r[3] < 2**40 * 2 for r in records)), st.sampled_from(CODECS)
)
def test_kafka_libraries_read_our_batches(records: list, compression: int) -> None:
    batch = bytes(codec.encode_batch(records, compression=compression, base_offset=5))
    for library in (AiokafkaBatch, KafkaPythonBatch):
        theirs = library(batch)
        assert theirs.validate_crc()
        got = [(r.offset, r.key, r.value, tuple(r.headers), r.timestamp) for r in theirs]
        assert got == [(5 + i, *record) for i, record in enumerate(records)]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000])
def test_the_offset_deltas_varint_grows(count: int) -> None:
    values = [b"v%d" % i for i in range(count)]
    assert [r.value for r in opened(encode_values(values, T))] == values
    records = [(v, v, (("h", v),), T + i) for i, v in enumerate(values)]
    assert tuples(opened(codec.encode_batch(records))) == records


@pytest.mark.parametrize(
    "size", [0, 1, 56, 57, 63, 64, 8184, 8185, 8191, 8192, 16_383, 16_384, 1 << 20, 3 << 20]
)
def test_the_lengths_varints_grow(size: int) -> None:
    data = bytes(size)
    for records in ([(None, data, (), T)], [(data, data, (("name", data),), T), (data, None, (), T + size)]):
        assert tuples(opened(codec.encode_batch(records))) == records


def test_header_fields() -> None:
    batch = encode_values(
        [b"a", b"b", b"c"],
        T,
        compression=codec.ZSTD,
        level=1,
        base_offset=77,
        leader_epoch=5,
        producer_id=2**40,
        producer_epoch=9,
        base_sequence=2**31 - 2,
        transactional=True,
        timestamp_type=1,
    )
    header = codec.read_header(b"??" + batch, 2)
    assert header.pos == 2
    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (77, 79, 80)
    assert (header.leader_epoch, header.magic, header.compression, header.timestamp_type) == (5, 2, 4, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 9, 2**31 - 2)
    assert header.last_sequence == 0
    assert header.is_transactional and not header.is_control and not header.has_delete_horizon
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.record_count) == (T, T, 3)
    theirs = AiokafkaBatch(bytes(batch))
    assert (theirs.base_offset, theirs.is_transactional, theirs.producer_id) == (77, True, 2**40)


def test_without_a_producer_there_is_no_last_sequence() -> None:
    assert codec.read_header(encode_values([b"a", b"b"], T)).last_sequence == -1


def test_offset_and_epoch_are_assigned_in_place() -> None:
    batch = bytearray(b"xx") + encode_values([b"a", b"b"], T)
    codec.assign(batch, 2**62, 2**31 - 1, 2)
    header = codec.scan(batch, 2).headers[0]
    assert (header.base_offset, header.leader_epoch) == (2**62, 2**31 - 1)


@pytest.mark.parametrize("compression", CODECS)
def test_append_time_is_every_records_time(compression: int) -> None:
    records = [(b"k", b"v", (), T), (None, b"w", (), T - 5)]
    batch = bytearray(b"xx") + codec.encode_batch(records, compression=compression)
    codec.set_append_time(batch, T + 99, 2)
    del batch[:2]
    got = opened(batch)
    assert [(r.timestamp_ms, r.timestamp_type) for r in got] == [(T + 99, 1)] * 2
    theirs = KafkaPythonBatch(bytes(batch))
    assert theirs.validate_crc()
    assert [r.timestamp for r in theirs] == [T + 99] * 2


def test_a_delete_horizon_leaves_the_timestamps() -> None:
    batch = codec.encode_batch([(b"k", b"v", (), T), (b"k", None, (), T + 7)])
    batch[22] |= 0x40
    batch[17:21] = codec.crc32c(batch[21:]).to_bytes(4, "big")
    assert codec.read_header(batch).has_delete_horizon
    assert [r.timestamp_ms for r in opened(batch)] == [T, T + 7]


def test_records_below_the_start_are_left_out() -> None:
    batch = encode_values([b"%d" % i for i in range(100)], T, base_offset=1000)
    assert [r.offset for r in opened(batch, 1098)] == [1098, 1099]
    assert opened(batch, 1100) == []
    assert len(opened(batch, 3)) == 100


@pytest.mark.parametrize("ends", [(MIN64, MAX64), (MAX64, MIN64), (MAX64, MAX64), (MIN64, MIN64), (-1, 0)])
def test_timestamps_at_the_edges(ends: tuple[int, int]) -> None:
    records = [(None, b"v", (), t) for t in (*ends, 0, *ends)]
    assert tuples(opened(codec.encode_batch(records))) == records


def test_the_last_possible_offset() -> None:
    batch = encode_values([b"a", b"b"], T, base_offset=MAX64 - 2)
    assert [r.offset for r in opened(batch)] == [MAX64 - 2, MAX64 - 1]
    codec.assign(batch, MAX64 - 1, 0)
    with pytest.raises(CorruptRecord, match="impossible offsets"):
        codec.read_header(batch)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_are_taken(kind: type) -> None:
    records = [(kind(b"key"), kind(b"value"), (("h", kind(b"x")),), T), (None, kind(b""), (), T)]
    assert tuples(opened(codec.encode_batch(records))) == [
        (b"key", b"value", (("h", b"x"),), T),
        (None, b"", (), T),
    ]
    wide = memoryview(b"12345678").cast("I")
    assert opened(encode_values([wide, wide[::-1], b"x"], T))[0].value == b"12345678"


def test_any_buffer_is_read() -> None:
    batch = encode_values([b"a", b"b"], T)
    for kind in (bytes, bytearray, memoryview):
        got = opened(kind(batch))
        assert [r.value for r in got] == [b"a", b"b"]
        assert all(type(r.value) is bytes for r in got)


def test_generators_are_taken() -> None:
    rows = ((None, b"%d" % i, (), T) for i in range(3))
    assert len(opened(codec.encode_batch(rows))) == 3  # type: ignore[arg-type]


WRONG = [
    (
        lambda: encode_values(["text"], T),
        r"value must be bytes, not str: encode it \(value.encode\(\)\)",
    ),
    (lambda: encode_values([b"a", 7], T), "value must be bytes .*, not int"),
    (lambda: encode_values([[1, 2]], T), "value must be bytes .*, not list"),
    (lambda: encode_values([b"a"], "now"), "timestamp_ms must be int .*, not str"),
    (lambda: encode_values([b"a"], None), "timestamp_ms must be int .*, not NoneType"),
    (lambda: encode_values([b"a"], 1.5), "timestamp_ms must be int .*, not float"),
    (lambda: encode_values([b"a"], MAX64 + 1), "fit 64 bits"),
    (lambda: encode_values([b"a"], MIN64 - 1), "fit 64 bits"),
    (lambda: codec.encode_batch([("k", b"v", (), T)]), "key must be bytes, not str"),
    (lambda: codec.encode_batch([(b"k", SimpleNamespace(), (), T)]), "value must be bytes .*SimpleNamespace"),
    (lambda: codec.encode_batch([(b"k", b"v", (), T), 5]), r"must be a tuple \(key, value, .*\), not 5"),  # type: ignore[list-item]
    (lambda: codec.encode_batch([(b"k", b"v", ())]), "must be a tuple .*timestamp_ms"),
    (lambda: codec.encode_batch([(b"k", b"v", (), "x")]), "timestamp_ms must be int"),
    (lambda: codec.encode_batch([(b"k", b"v", (), T), (b"k", b"v", (), None)]), "timestamp_ms must be int"),
    (lambda: codec.encode_batch([(b"k", b"v", ((b"h", b"x"),), T)]), "header name must be str, not bytes"),
    (lambda: codec.encode_batch([(b"k", b"v", (("h", "x"),), T)]), "header value must be bytes, not str"),
    (lambda: codec.encode_batch([(b"k", b"v", ("h",), T)]), "headers must be pairs"),
    (lambda: codec.encode_batch([(b"k", b"v", 7, T)]), "headers must be pairs"),
    (lambda: codec.encode_batch([(b"k", b"v", (("h", b"x", 1),), T)]), "headers must be pairs"),
]


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_wrong_types_are_named(call, text: str) -> None:
    with pytest.raises(InvalidType, match=text):
        call()


def test_impossible_arguments() -> None:
    with pytest.raises(InvalidArgument, match="at least one record"):
        codec.encode_batch([])
    with pytest.raises(CompressionUnavailable):
        encode_values([b"a"], T, compression=5)
    for name in ("producer_id", "producer_epoch", "base_sequence", "base_offset", "leader_epoch"):
        with pytest.raises(InvalidArgument, match="out of range"):
            encode_values([b"a"], T, **{name: 2**64})


@pytest.mark.parametrize("commit", [True, False])
def test_control_batches(commit: bool) -> None:
    batch = codec.encode_control_batch(
        commit=commit, producer_id=44, producer_epoch=2, timestamp_ms=T, coordinator_epoch=6, base_offset=9
    )
    header = codec.read_header(batch)
    assert header.is_control and header.is_transactional
    assert (header.base_offset, header.producer_id, header.producer_epoch) == (9, 44, 2)
    (record,) = opened(batch)
    assert record.key == struct.pack(">hh", 0, commit)
    assert record.value == struct.pack(">hi", 0, 6)
    assert codec.control_type(record.key) == (codec.COMMIT if commit else codec.ABORT)
    assert codec.transaction_end(record.key, record.value) == (commit, 6)
    for theirs in (AiokafkaBatch(bytes(batch)), KafkaPythonBatch(bytes(batch))):
        assert theirs.is_control_batch and theirs.is_transactional
        assert theirs.validate_crc()


@pytest.mark.parametrize("number", ["producer_id", "producer_epoch", "timestamp_ms", "coordinator_epoch"])
def test_impossible_control_batches(number: str) -> None:
    numbers = {"producer_id": 1, "producer_epoch": 0, "timestamp_ms": T, number: 2**63}
    with pytest.raises(InvalidArgument, match="out of range"):
        codec.encode_control_batch(commit=True, **numbers)


@pytest.mark.parametrize(
    ("key", "kind"), [(None, -1), (b"", -1), (b"\0\0\0", -1), (b"\0\0\0\5", 5), (b"\0\1\0\1more", 1)]
)
def test_control_keys(key: bytes | None, kind: int) -> None:
    assert codec.control_type(key) == kind


@pytest.mark.parametrize(
    ("value", "epoch"),
    [(None, -1), (b"", -1), (b"\0\0\0\0\0", -1), (b"\xff\xff\0\0\0\1", -1), (b"\0\1\0\0\0\7more", 7)],
)
def test_control_values(value: bytes | None, epoch: int) -> None:
    assert codec.transaction_end(b"\0\0\0\1", value) == (True, epoch)
    assert codec.transaction_end(b"\0\0\0\5", value) == (False, epoch)


@given(record_lists, st.sampled_from(CODECS), st.randoms())
def test_filtering_keeps_offsets_and_everything_else(records: list, compression: int, chance) -> None:
    batch = b"xx" + codec.encode_batch(
        records, compression=compression, base_offset=50, producer_id=7, producer_epoch=1, base_sequence=3
    )
    header = codec.read_header(batch, 2)
    before = codec.decode(batch, header, "", -1)
    keep = [chance.random() < 0.5 for _ in records]
    wanted = {record.offset for record, wanted in zip(before, keep, strict=True) if wanted}
    kept = codec.filter_batch(batch, header, keep)
    assert kept == codec.filter_batch(batch, header, lambda record: record.offset in wanted)
    after = codec.scan(kept).headers[0]
    assert codec.decode(kept, after, "", -1) == [record for record in before if record.offset in wanted]
    changed = {"pos", "batch_length", "crc", "record_count"} | (set() if wanted else {"attributes"})
    for field in header._fields:
        assert field in changed or getattr(after, field) == getattr(header, field)
    assert after.record_count == len(wanted)


@pytest.mark.parametrize("gap", [1, 63, 64, 127, 128, 192])
def test_a_gap_between_records_of_one_shape(gap: int) -> None:
    """The bytes of an offset delta are compared one by one: some are the same before a gap and after it."""
    batch = encode_values([b"%04d" % i for i in range(400)], T, base_offset=50)
    keep = [not 100 <= i < 100 + gap for i in range(400)]
    kept = codec.filter_batch(batch, codec.read_header(batch), keep)
    expected = [(50 + i, b"%04d" % i) for i in range(400) if keep[i]]
    assert [(record.offset, record.value) for record in opened(kept)] == expected
    values = codec.decode_values(kept, codec.read_header(kept), start_offset=120)
    assert values == [value for offset, value in expected if offset >= 120]


def test_an_empty_batch_is_a_header() -> None:
    batch = encode_values([b"a", b"b"], T, compression=codec.ZSTD, producer_id=7, base_sequence=3)
    empty = codec.filter_batch(batch, codec.read_header(batch), [False, False])
    assert len(empty) == codec.HEADER_SIZE
    (header,) = codec.scan(empty).headers
    assert (header.record_count, header.last_offset, header.last_sequence) == (0, 1, 4)
    assert codec.decode(empty, header, "t", 0) == []
    assert codec.decode_values(empty, header) == []
    again = codec.filter_batch(empty, header, lambda record: True)
    assert again == empty


def test_filtering_needs_a_decision_for_each_record() -> None:
    batch = encode_values([b"a", b"b"], T)
    with pytest.raises(ValueError, match="1 decisions for 2 records"):
        codec.filter_batch(batch, codec.read_header(batch), [True])
