"""Import of old log files: same records out, however often it runs, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import FaultyFileSystem, in_child, open_log, partition_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka_files import Row, T, file_07, fingerprint, message_set, put, record_batch, rows
from rounds import examples

import embedlog
from embedlog import InvalidArgument, Log, NotALog
from embedlog.codec import COMMIT, control_type, encode_control_batch, scan
from embedlog.errors import CorruptRecord, DirectoryError, InvalidTopicName, ReadOnly
from embedlog.mirroring.importing import import_files
from embedlog.store.verify import verify_log

pytestmark = pytest.mark.plain

KAFKA = "00000000000000000000.log"
CODECS = range(5)
OLD_SHAPES = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]


def read(log: Log, topic: str = "t", partition: int = 0) -> list[Row]:
    return [(r.offset, r.key, r.value) for r in log.read(topic, partition)]


def times(log: Log, topic: str = "t") -> list[int]:
    return [r.timestamp_ms for r in log.read(topic, 0)]


# -- formats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["kafka-python", "aiokafka"])
@pytest.mark.parametrize(("magic", "compression"), OLD_SHAPES)
def test_message_sets_keep_offsets_times_and_keys(
    tmp_path: Path, log: Log, magic: int, compression: int, library: str
) -> None:
    whole = rows(500, 400)
    sets = [whole[:3], whole[3:150], whole[150:]]
    parts = [message_set(part, magic, compression, library=library) for part in sets]
    put(tmp_path / "t-0", "00000000000000000500.log", *parts)
    report = import_files(tmp_path / "t-0", log)
    assert read(log) == whole
    assert times(log) == [T + offset if magic else -1 for offset, _, _ in whole]
    assert log.offsets("t")[0] == (500, 900, 900)
    (done,) = report.partitions
    assert (done.records, done.first_offset, done.log_end_offset, done.offsets_kept) == (400, 500, 900, True)
    stored = {header.compression for header in headers(log)}
    assert stored == {compression}


def headers(log: Log, topic: str = "t", partition: int = 0) -> list:
    found = []
    for segment, size in partition_of(log, topic, partition).readable_segments():
        found += list(segment.walk(0, size))
    return found


@pytest.mark.parametrize("library", ["kafka-python", "aiokafka"])
@pytest.mark.parametrize("compression", CODECS)
def test_record_batches_stay_as_they_are(tmp_path: Path, log: Log, compression: int, library: str) -> None:
    whole = rows(1000, 300)
    batches = [
        record_batch(whole[at : at + 100], compression, library=library) for at in range(0, len(whole), 100)
    ]
    put(tmp_path / "t-0", "00000000000000001000.log", batches[0])
    put(tmp_path / "t-0", "00000000000000001100.log", *batches[1:])
    import_files(tmp_path / "t-0", log)
    assert read(log) == whole
    assert [r.headers for r in log.read("t", 0)] == [(("n", b"%d" % offset),) for offset, _, _ in whole]
    segments = partition_of(log).readable_segments()
    stored = b"".join(segment.pread(size, 0) for segment, size in segments)
    for theirs, header in zip(batches, scan(stored).headers, strict=True):
        ours = stored[header.pos : header.pos + header.size]
        assert (ours[:12], ours[16:]) == (theirs[:12], theirs[16:])  # all but the leader epoch


def test_transactions_and_producers_are_kept(tmp_path: Path, log: Log) -> None:
    whole = rows(0, 8)
    marker = {"producer_id": 5, "producer_epoch": 1, "timestamp_ms": T}
    put(
        tmp_path / "t-0",
        KAFKA,
        record_batch(whole[:2], producer=(5, 1, 0), transactional=True),
        encode_control_batch(commit=False, base_offset=2, **marker),
        record_batch(whole[3:5], producer=(5, 1, 2), transactional=True),
        encode_control_batch(commit=True, base_offset=5, **marker),
        record_batch(whole[6:8], producer=(6, 0, 0)),
    )
    report = import_files(tmp_path / "t-0", log)
    assert report.records == 6
    assert read(log) == [*whole[3:5], *whole[6:8]]
    uncommitted = [record.offset for record in log.read("t", 0, isolation_level="read_uncommitted")]
    assert uncommitted == [0, 1, 3, 4, 6, 7]
    kept = [header for header in headers(log) if header.is_control]
    assert [header.producer_id for header in kept] == [5, 5]
    assert control_type(b"\0\0\0\1") == COMMIT
    assert import_files(tmp_path / "t-0", log).records == 0


def test_compacted_record_batches_keep_their_gaps(tmp_path: Path, log: Log) -> None:
    some = [*rows(10, 3), *rows(100, 2), *rows(5_000_000_000, 1)]
    parts = [record_batch(some[:3]), record_batch(some[3:5]), record_batch(some[5:])]
    put(tmp_path / "t-0", "00000000000000000010.log", *parts)
    import_files(tmp_path / "t-0", log)
    assert read(log) == some
    assert verify_log(log.path, deep=True).ok


@pytest.mark.parametrize(("magic", "compression"), [(0, 0), (1, 0)])
def test_compacted_message_sets_keep_their_gaps(
    tmp_path: Path, log: Log, magic: int, compression: int
) -> None:
    some = [row for row in rows(0, 3000) if row[0] % 5 in (1, 2) or row[0] > 2990] + rows(9_000, 4)
    put(tmp_path / "t-0", KAFKA, message_set(some, magic, compression))
    import_files(tmp_path / "t-0", log, compression="lz4")
    assert read(log) == some
    assert len(headers(log)) < 20  # gaps inside a batch do not cost a batch each
    assert import_files(tmp_path / "t-0", log).records == 0


@pytest.mark.parametrize(("magic", "compression"), [(0, 0), (1, 0), (1, 1), (1, 2)])
@pytest.mark.parametrize("name", ["my_topic-0/00000000000000000000.kafka", "my_topic_0/00000000000.kafka"])
def test_07_gets_new_offsets(tmp_path: Path, log: Log, name: str, magic: int, compression: int) -> None:
    payloads = [b"message %d" % number for number in range(2500)]
    first = file_07(payloads[:1000], magic, compression)
    directory = tmp_path / Path(name).parent
    put(directory, Path(name).name, first)
    digits = len(Path(name).stem)
    put(directory, f"{len(first):0{digits}d}.kafka", file_07(payloads[1000:], magic, compression))
    (done,) = import_files(directory, log).partitions
    assert [(r.offset, r.value, r.timestamp_ms) for r in log.read("my_topic", 0)] == [
        (offset, payload, -1) for offset, payload in enumerate(payloads)
    ]
    assert (done.topic, done.offsets_kept, done.files, done.problems) == ("my_topic", False, 2, ())


def test_a_file_whose_format_changes(tmp_path: Path, log: Log) -> None:
    whole = rows(0, 500)
    put(
        tmp_path / "t-0",
        KAFKA,
        message_set(whole[:100], 0),
        message_set(whole[100:200], 0, 1),
        message_set(whole[200:300], 1, 2),
        record_batch(whole[300:400]),
        message_set(whole[400:], 1),  # after a broker was taken back a version
    )
    report = import_files(tmp_path / "t-0", log)
    assert read(log) == whole
    assert report.problems == ()


# -- finding -------------------------------------------------------------------------------------------


def test_a_whole_log_directory(tmp_path: Path, log: Log) -> None:
    for number in range(3):
        put(tmp_path / "old" / f"a-{number}", KAFKA, record_batch(rows(number, 5)))
    put(tmp_path / "old" / "b.c_d-1", KAFKA, message_set(rows(0, 5), 1))
    internal = ["__cluster_metadata-0", "__transaction_state-3"]
    for name in internal:
        put(tmp_path / "old" / name, KAFKA, record_batch(rows(0, 1)))
    put(tmp_path / "old" / "a-7.0123456789abcdef-delete", KAFKA, record_batch(rows(0, 1)))
    put(tmp_path / "old" / "a-0", "00000000000000000000.index", b"\0" * 8)
    put(tmp_path / "old", "recovery-point-offset-checkpoint", b"0\n0\n")
    before = fingerprint(tmp_path / "old")
    seen: list[tuple[int, int]] = []
    report = import_files(tmp_path / "old", log, progress=lambda done, total: seen.append((done, total)))
    assert log.topics() == ["a", "b.c_d"]
    assert [log.describe_topic(name).partitions for name in log.topics()] == [3, 2]
    for number in range(3):
        assert read(log, "a", number) == rows(number, 5)
    assert read(log, "b.c_d", 1) == rows(0, 5)
    assert [Path(text.split(":")[0]).name for text in report.skipped] == internal
    assert seen[-1][0] == seen[-1][1] == sum(partition.bytes for partition in report.partitions)
    assert seen == sorted(seen)
    assert fingerprint(tmp_path / "old") == before


def test_one_topic_of_several_and_another_name(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "old" / "a-0", KAFKA, record_batch(rows(0, 5)))
    put(tmp_path / "old" / "b-1", KAFKA, record_batch(rows(0, 6)))
    import_files(tmp_path / "old", log, topic="b")
    assert log.topics() == ["b"]
    import_files(tmp_path / "old" / "b-1", log, topic="c")
    assert read(log, "c", 1) == rows(0, 6)
    with pytest.raises(InvalidArgument, match="has the topics a, b"):
        import_files(tmp_path / "old", log, topic="c")


def test_a_single_file(tmp_path: Path, log: Log) -> None:
    first = put(tmp_path / "t-2", KAFKA, record_batch(rows(0, 5)))
    second = put(tmp_path / "t-2", "00000000000000000005.log", record_batch(rows(5, 5)))
    import_files(second.rename(tmp_path / "t-2" / "00000000000000000005.log"), log)
    assert read(log, "t", 2) == rows(5, 5)
    (late,) = import_files(first, log).partitions  # the log begins after them: too late, and not silently
    assert (late.records, late.records_present, late.records_left_out) == (0, 0, 5)
    assert read(log, "t", 2) == rows(5, 5)
    loose = put(tmp_path / "loose", KAFKA, record_batch(rows(0, 5)))
    with pytest.raises(InvalidArgument, match="does not tell a topic"):
        import_files(loose, log)
    import_files(loose, log, topic="u")
    assert read(log, "u") == rows(0, 5)


def test_files_one_after_the_other(tmp_path: Path, log: Log) -> None:
    first = put(tmp_path / "t-0", KAFKA, record_batch(rows(0, 5)))
    second = put(tmp_path / "t-0", "00000000000000000008.log", record_batch(rows(8, 5)))
    import_files(first, log)
    import_files(second, log)
    import_files(second, log)
    assert read(log) == [*rows(0, 5), *rows(8, 5)]
    assert import_files(tmp_path / "t-0", log).records == 0


def test_an_embedlog_directory_is_a_source_too(tmp_path: Path, log: Log) -> None:
    with embedlog.open(tmp_path / "other") as other:
        other.create_topic("mine", partitions=2)
        other.append_many("mine", [b"%d" % n for n in range(100)], partition=1)
    import_files(tmp_path / "other", log)
    assert [r.value for r in log.read("mine", 1)] == [b"%d" % n for n in range(100)]


def test_sources_that_cannot_be_imported(tmp_path: Path, log: Log) -> None:
    with pytest.raises(DirectoryError, match="does not exist"):
        import_files(tmp_path / "nowhere", log)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALog, match="no log files"):
        import_files(tmp_path / "empty", log)
    with pytest.raises(InvalidArgument, match="imported into"):
        import_files(log.path, log)
    source = put(tmp_path / "t-0", KAFKA, record_batch(rows(0, 5)))
    with pytest.raises(InvalidArgument, match="format must be"):
        import_files(source, log, format="0.8")
    with pytest.raises(InvalidArgument, match="on_damage must be"):
        import_files(source, log, on_damage="ignore")
    with pytest.raises(InvalidTopicName):
        import_files(source, log, topic="../up")
    with pytest.raises(InvalidTopicName, match="another name"):
        import_files(source, log, topic="__consumer_offsets")
    put(tmp_path / "two" / "t-0", KAFKA, record_batch(rows(0, 5)))
    put(tmp_path / "two" / "t_0", KAFKA, record_batch(rows(0, 5)))
    with pytest.raises(InvalidArgument, match="as well"):
        import_files(tmp_path / "two", log)
    with embedlog.open(log.path, mode="r") as reader, pytest.raises(ReadOnly):
        import_files(source, reader)
    assert log.topics() == []


def test_a_topic_that_is_there_is_widened(tmp_path: Path, log: Log) -> None:
    log.create_topic("t", compression_type="gzip")
    log.append("t", b"of its own", partition=0)
    put(tmp_path / "t-2", KAFKA, message_set(rows(0, 5), 1))
    import_files(tmp_path / "t-2", log)
    assert log.describe_topic("t").partitions == 3
    assert read(log, "t", 2) == rows(0, 5)
    assert {header.compression for header in headers(log, "t", 2)} == {1}


def test_the_compression_asked_for(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "t-0", KAFKA, message_set(rows(0, 99), 1, 1), record_batch(rows(99, 99), 2))
    import_files(tmp_path / "t-0", log, compression="zstd")
    assert [header.compression for header in headers(log)] == [4, 2]


def test_only_files_with_gaps_may_have_gaps(tmp_path: Path, log: Log) -> None:
    store = log._writer()
    put(tmp_path / "whole-0", "00000000000000000700.log", record_batch(rows(700, 5)))
    put(tmp_path / "gaps-0", KAFKA, record_batch(rows(0, 5)), record_batch(rows(9, 5)))
    for name in ("whole", "gaps"):
        import_files(tmp_path / f"{name}-0", log)
    assert [store.topic(name).gaps for name in ("whole", "gaps")] == [False, True]
    with embedlog.open(tmp_path / "copy") as other:
        import_files(log.path, other, topic="gaps")
        assert read(other, "gaps") == [*rows(0, 5), *rows(9, 5)]


def test_appends_continue_after_an_import(tmp_path: Path, path: Path) -> None:
    put(tmp_path / "t-0", "00000000000000000700.log", record_batch(rows(700, 5)))
    with embedlog.open(path) as log:
        import_files(tmp_path / "t-0", log)
        assert log.append("t", b"new").offset == 705
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert log.offsets("t")[0] == (700, 706, 706)
        assert import_files(tmp_path / "t-0", log).records == 0
        assert [r.offset for r in log.read("t")] == list(range(700, 706))
    assert verify_log(path, deep=True).ok


# -- damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["0.7", "v0", "v1", "v1 gzip", "batch"])
def test_a_torn_tail_is_reported_and_no_error(tmp_path: Path, log: Log, kind: str) -> None:
    whole = rows(0, 30)
    parts = {
        "0.7": lambda part: file_07([value or b"" for _, _, value in part]),
        "v0": lambda part: message_set(part, 0),
        "v1": lambda part: message_set(part, 1),
        "v1 gzip": lambda part: message_set(part, 1, 1),
        "batch": record_batch,
    }[kind]
    start, torn = parts(whole[:20]), parts(whole[20:])
    topics = [len(torn) - 1, len(torn) // 2 + 1, 13, 3]
    for number, cut in enumerate(topics):
        put(tmp_path / f"t{number}-0", KAFKA, start, torn[:cut])
        (done,) = import_files(tmp_path / f"t{number}-0", log).partitions
        (problem,) = done.problems
        assert (problem.ends_file, problem.path.endswith(KAFKA)) == (True, True)
        got = [value for _, _, value in read(log, f"t{number}")]
        assert got == [value for _, _, value in whole[: len(got)]]
        assert len(got) >= 20
        assert problem.pos + problem.size == len(start) + cut


def test_zeros_after_the_records_of_a_preallocated_file(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "t-0", KAFKA, record_batch(rows(0, 5)), bytes(100_000))
    put(tmp_path / "t-0", "00000000000000000005.log", message_set(rows(5, 5), 1), bytes(5_000_000))
    report = import_files(tmp_path / "t-0", log)
    assert read(log) == rows(0, 10)
    assert [(problem.reason, problem.size) for problem in report.problems] == [
        ("zeros", 100_000),
        ("zeros", 5_000_000),
    ]


@pytest.mark.parametrize("kind", ["0.7", "v0", "v1", "v1 snappy", "batch"])
@pytest.mark.parametrize("where", ["length", "body"])
def test_damage_in_the_middle(tmp_path: Path, log: Log, kind: str, where: str) -> None:
    whole = rows(0, 30)
    make = {
        "0.7": lambda part: file_07([value or b"" for _, _, value in part], compression=1),
        "v0": lambda part: message_set(part, 0, 1),
        "v1": lambda part: message_set(part, 1, 1),
        "v1 snappy": lambda part: message_set(part, 1, 2),
        "batch": record_batch,
    }[kind]
    parts = [make(whole[at : at + 10]) for at in (0, 10, 20)]
    damaged = bytearray(parts[1])
    at = {"length": 1 if kind == "0.7" else 9, "body": len(damaged) - 5}[where]
    damaged[at] ^= 0x41
    source = put(tmp_path / "t-0", KAFKA, parts[0], bytes(damaged), parts[2])
    before = fingerprint(tmp_path / "t-0")
    with pytest.raises(CorruptRecord, match="10 records before it are imported") as caught:
        import_files(tmp_path / "t-0", log)
    assert (caught.value.path, caught.value.pos) == (str(source), len(parts[0]))
    assert [value for _, _, value in read(log)] == [value for _, _, value in whole[:10]]
    (done,) = import_files(tmp_path / "t-0", log, on_damage="skip").partitions
    (problem,) = done.problems
    assert (problem.pos, problem.size) == (len(parts[0]), len(parts[1]))
    assert [value for _, _, value in read(log)] == [value for _, _, value in [*whole[:10], *whole[20:]]]
    assert (done.records, done.records_present) == (10, 10)
    assert fingerprint(tmp_path / "t-0") == before


def test_an_end_cut_off_before_the_last_file_is_damage(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "t-0", KAFKA, record_batch(rows(0, 5)), record_batch(rows(5, 5))[:-3])
    put(tmp_path / "t-0", "00000000000000000010.log", record_batch(rows(10, 5)))
    with pytest.raises(CorruptRecord, match="incomplete"):
        import_files(tmp_path / "t-0", log)
    import_files(tmp_path / "t-0", log, on_damage="skip")
    assert read(log) == [*rows(0, 5), *rows(10, 5)]


def test_decreasing_offsets_are_damage(tmp_path: Path, log: Log) -> None:
    put(
        tmp_path / "t-0",
        KAFKA,
        record_batch(rows(0, 5)),
        record_batch(rows(3, 5)),
        message_set(rows(4, 2), 1),
    )
    with pytest.raises(CorruptRecord, match="offset 3 where 5 should come"):
        import_files(tmp_path / "t-0", log)
    report = import_files(tmp_path / "t-0", log, on_damage="skip")
    assert read(log) == rows(0, 6)
    assert len(report.problems) == 2


def test_noise_is_not_a_log_file(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "t-0", KAFKA, bytes(range(1, 256)) * 40)
    report = import_files(tmp_path / "t-0", log)
    assert read(log) == []
    assert report.problems[0].reason == "unknown format"
    with pytest.raises(CorruptRecord):
        put(tmp_path / "t-0", "00000000000000000005.log", record_batch(rows(5, 5)))
        import_files(tmp_path / "t-0", log)


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flip_never_costs_more_than_one_entry(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["v0", "v1", "v1 gzip", "batch"]))
    whole = rows(0, 40)
    make = {
        "v0": lambda part: message_set(part, 0),
        "v1": lambda part: message_set(part, 1),
        "v1 gzip": lambda part: message_set(part, 1, 1),
        "batch": record_batch,
    }[kind]
    size = 1 if kind in ("v0", "v1") else 4
    entries = [make(whole[at : at + size]) for at in range(0, len(whole), size)]
    damaged = bytearray(b"".join(entries))
    victim = data.draw(st.integers(1, len(entries) - 2))
    # The offset and the leader epoch are no part of any CRC: what a flip there does is another matter.
    inside = data.draw(st.integers(12 if size == 1 else 16, len(entries[victim]) - 1))
    damaged[sum(map(len, entries[:victim])) + inside] ^= 1 << data.draw(st.integers(0, 7))
    root = tmp_path_factory.mktemp("flip")
    put(root / "t-0", KAFKA, bytes(damaged))
    with open_log(root / "log") as log:
        import_files(root / "t-0", log, on_damage="skip")
        got = read(log)
    assert got == [*whole[: victim * size], *whole[(victim + 1) * size :]]


# -- again and again ---------------------------------------------------------------------------------------


def test_an_import_run_twice_imports_once(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "t-0", KAFKA, message_set(rows(0, 100), 1), record_batch(rows(100, 100)))
    assert import_files(tmp_path / "t-0", log).records == 200
    again = import_files(tmp_path / "t-0", log).partitions[0]
    assert (again.records, again.records_present) == (0, 200)
    assert read(log) == rows(0, 200)


def test_a_source_that_grew(tmp_path: Path, log: Log) -> None:
    source = put(tmp_path / "t-0", KAFKA, message_set(rows(0, 100), 1))
    import_files(tmp_path / "t-0", log)
    source.write_bytes(message_set(rows(0, 130), 1, 1) + record_batch(rows(130, 70)))
    done = import_files(tmp_path / "t-0", log).partitions[0]
    assert (done.records, done.records_present) == (100, 100)
    assert read(log) == rows(0, 200)


@pytest.mark.parametrize("kind", ["0.7", "v1", "batch"])
def test_other_records_are_neither_doubled_nor_hidden(tmp_path: Path, log: Log, kind: str) -> None:
    make = {
        "0.7": lambda part: file_07([value or b"" for _, _, value in part]),
        "v1": lambda part: message_set(part, 1),
        "batch": record_batch,
    }[kind]
    log.create_topic("t")
    log.append("t", b"of its own")
    put(tmp_path / "t-0", KAFKA, make(rows(0, 10)))
    with pytest.raises(
        InvalidArgument, match=r"holds other records than the source \(offset 0 is the first\)"
    ):
        import_files(tmp_path / "t-0", log)
    assert [value for _, _, value in read(log)] == [b"of its own"]


def test_appends_between_two_imports_are_noticed(tmp_path: Path, log: Log) -> None:
    source = put(tmp_path / "t-0", KAFKA, record_batch(rows(0, 10)))
    import_files(tmp_path / "t-0", log)
    log.append("t", b"of its own")
    assert import_files(tmp_path / "t-0", log).records == 0
    source.write_bytes(source.read_bytes() + record_batch(rows(10, 10)))
    with pytest.raises(InvalidArgument, match="holds other records"):
        import_files(tmp_path / "t-0", log)
    assert len(read(log)) == 11


def test_after_retention_nothing_comes_back(tmp_path: Path, log: Log) -> None:
    put(tmp_path / "t-0", KAFKA, record_batch(rows(0, 10)), record_batch(rows(10, 10)))
    import_files(tmp_path / "t-0", log)
    log.delete_records("t", 0, 15)
    (again,) = import_files(tmp_path / "t-0", log).partitions
    assert (again.records, again.records_present, again.records_left_out) == (0, 5, 15)
    partition_of(log).roll()
    log.delete_records("t", 0, 20)
    (again,) = import_files(tmp_path / "t-0", log).partitions
    assert (again.records, again.records_present, again.records_left_out) == (0, 0, 20)
    assert read(log) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["0.7", "v1", "batch"])
def test_killed_at_each_step_and_run_again(tmp_path: Path, kind: str) -> None:
    whole = rows(0, 1200) if kind == "0.7" else rows(700, 1200)
    make = {
        "0.7": lambda part: file_07([value or b"" for _, _, value in part]),
        "v1": lambda part: message_set(part, 1),
        "batch": record_batch,
    }[kind]
    for number, at in enumerate(range(0, 1200, 600)):
        parts = [make(whole[i : i + 100]) for i in range(at, at + 600, 100)]
        put(tmp_path / "t-1", f"{whole[0][0] + number * 600:020d}.log", *parts)

    def work(path: Path, exit_before: int | None) -> None:
        fs = FaultyFileSystem(path)
        fs.exit_before = exit_before
        with open_log(path, fs, segment_bytes=25_000) as log:
            import_files(tmp_path / "t-1", log, compression="none")

    step = 0
    while True:
        path = tmp_path / f"log{step}"
        path.mkdir()
        status = in_child(lambda path=path, step=step: work(path, step))
        work(path, None)
        with embedlog.open(path, mode="r") as log:
            got = [value for _, _, value in read(log, "t", 1)]
            assert got == [value for _, _, value in whole], f"killed before step {step}"
            start = log.offsets("t")[1].log_start_offset
            assert start == whole[0][0]
        assert verify_log(path, deep=True).ok
        if status == 0:
            break
        assert status == 77
        step += 1
    assert step > 30
