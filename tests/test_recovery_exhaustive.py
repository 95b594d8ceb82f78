"""A small log truncated at every byte, and with every byte of every file changed: never silently wrong.

What no checksum covers, and no other file bears out, cannot be detected. By design that is:

    embedlog.json           the log's id
    log-start-offset-       a log start that is too high hides records, one too low shows deleted ones
      checkpoint            that are still there (Kafka's format; one past the log's end is passed over)
    <offset>.txnindex       which transactions were aborted (the format is Kafka's)
    cleaner-offset-         what compaction takes for clean: it compacts less, or more, than it had to
      checkpoint
    writer.json             who holds the lock, as other programs are told
    batches with gaps       where compaction may leave gaps, a base offset that was raised into a gap
    look-ups by time        go by batch headers: a damaged one may be passed over (reading it is an error)
    lost files              a snapshot or .txnindex that is gone as a whole

Everything else is either detected, with an error or a report that names the file, or does no harm.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import UnsyncedFileSystem, crash, open_log, partition_of, store_of
from housekeeping import housekeep

from embedlog.codec import encode_batch, read_header
from embedlog.errors import EmbedlogError
from embedlog.log import Log
from embedlog.model import Record

pytestmark = [pytest.mark.plain, pytest.mark.slow]

CODECS = (0, 1, 2, 3, 4)
SETTINGS = {"segment_bytes": 1024, "index_interval_bytes": 0}


def make(path: Path, *, clean: bool, flushed: int | None = None) -> list[Record]:
    """Two segments, batches of every codec, timestamps that jump, an idempotent producer."""
    log = open_log(path, **SETTINGS)
    log.create_topic("t")
    partition = partition_of(log)
    for number in range(12):
        codec = CODECS[number % 5]
        rows = [
            (b"k%d" % i, b"value %d.%d" % (number, i) * 2, (), 1_000 + (number * 7919 + i) % 400)
            for i in range(number % 3 + 1)
        ]
        partition.append(
            encode_batch(rows, compression=codec, producer_id=3, producer_epoch=0, base_sequence=0)
            if number == 0
            else encode_batch(rows, compression=codec)
        )
        if flushed == number:
            housekeep(store_of(log))
    records = list(log.read("t"))
    assert len(list((path / "t_0").glob("*.kafka"))) == 2
    log.close() if clean else crash(log)
    return records


def first_at_or_after(records: list[Record], time_ms: int) -> tuple[int, int] | None:
    return next(((r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= time_ms), None)


# -- every cut -----------------------------------------------------------------------------------------


def test_truncation_at_every_byte_leaves_the_longest_valid_prefix(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    records = make(source, clean=False)
    _, last = sorted((source / "t_0").glob("*.kafka"))
    data = last.read_bytes()
    ends = {0: int(last.stem)}
    pos = 0
    while pos < len(data):
        header = read_header(data, pos)
        pos += header.size
        ends[pos] = header.next_offset
    for size in range(len(data) + 1):
        shutil.copytree(source, copy)
        (copy / "t_0" / last.name).write_bytes(data[:size])
        valid = max(end for end in ends if end <= size)
        survivors = [record for record in records if record.offset < ends[valid]]
        with open_log(copy, UnsyncedFileSystem(), **SETTINGS) as log:
            (report,) = log.recovery.partitions
            assert report.damage == []
            assert (report.log_end_offset, report.bytes_cut) == (ends[valid], size - valid)
            if report.cut_reason == "zeros":
                assert not any(data[valid:size])
            elif size > valid:
                assert report.cut_reason
                assert report.cut_path is not None
                assert Path(report.cut_path).read_bytes() == data[valid:size]
            else:
                assert report.cut_path is None
            assert list(log.read("t")) == survivors
            assert log.append("t", b"goes on").offset == ends[valid]
        with open_log(copy, UnsyncedFileSystem(), **SETTINGS) as log:
            assert log.recovery.clean and log.recovery.partitions == []
            found = list(log.read("t"))
            assert found[:-1] == survivors and found[-1].value == b"goes on"
        shutil.rmtree(copy)


@pytest.mark.parametrize("number", [0, 1])
def test_truncation_before_the_recovery_point_is_damage_at_every_byte(tmp_path: Path, number: int) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    records = make(source, clean=False, flushed=11)
    name = sorted((source / "t_0").glob("*.kafka"))[number].name
    data = (source / "t_0" / name).read_bytes()
    for size in range(len(data)):
        shutil.copytree(source, copy)
        (copy / "t_0" / name).write_bytes(data[:size])
        with open_log(copy, UnsyncedFileSystem(), **SETTINGS) as log:
            found = []
            with pytest.raises(EmbedlogError):
                for record in log.read("t"):
                    found.append(record)
            assert found == records[: len(found)]
            if number:
                assert log.health().status == "degraded"
                with pytest.raises(EmbedlogError, match="repair"):
                    log.append("t", b"x")
        assert (copy / "t_0" / name).read_bytes() == data[:size], "nothing is cut"
        shutil.rmtree(copy)


# -- every flip ----------------------------------------------------------------------------------------


def examine(log: Log, records: list[Record], *, told: bool, step: int) -> None:
    """Reads return the written records or raise an error; `told`: opening reported something.

    step: between the times that are looked up, in ms.
    """
    detected = told
    found: list[Record] = []
    try:
        for record in log.read("t"):
            found.append(record)
    except EmbedlogError:
        detected = True
    assert found == records[: len(found)]
    assert detected or len(found) == len(records), "records are missing, and nobody says so"
    for record in records:
        try:
            at = next(log.read("t", 0, start=record.offset))
            assert at == record
        except (EmbedlogError, StopIteration):
            assert detected, f"reading from {record.offset}"
    for time_ms in range(995, 1_405, step):
        try:
            at_time = log.offset_for_time("t", 0, time_ms)
        except EmbedlogError:
            assert detected
            continue
        wanted = first_at_or_after(records, time_ms)
        if (at_time and at_time[:2]) != wanted:
            assert detected, f"looking up {time_ms}: {at_time} is not {wanted}"
            # Damage may hide records from a look-up, but what it gives is there.
            assert at_time is None or (at_time.offset, at_time.timestamp_ms) in {
                (r.offset, r.timestamp_ms) for r in records
            }
    if not detected:
        assert log.append("t", b"goes on").offset == len(records)
        assert list(log.read("t"))[:-1] == records


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    for pos in range(len(data)):
        flipped = bytearray(data)
        flipped[pos] ^= 1 << pos % 8
        yield pos, bytes(flipped)


def check_flips(tmp_path: Path, pattern: str, *, clean: bool, flushed: int | None) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    records = make(source, clean=clean, flushed=flushed)
    paths = [path.relative_to(source) for path in sorted(source.rglob(pattern)) if path.is_file()]
    assert paths
    size = sum(path.stat().st_size for path in source.glob("t_0/*.kafka"))
    for path in paths:
        for pos, flipped in flips((source / path).read_bytes()):
            shutil.copytree(source, copy)
            (copy / path).write_bytes(flipped)
            try:
                log = open_log(copy, UnsyncedFileSystem(), **SETTINGS)
            except EmbedlogError as error:
                assert str(copy) in str(error), error
            else:
                report = log.recovery
                kept = [p.stat().st_size for p in copy.glob("t_0/*") if p.suffix in (".kafka", ".cut")]
                assert sum(kept) >= size, f"byte {pos} of {path}: bytes are gone"
                try:
                    step = 1 if "index" in pattern else 45
                    examine(log, records, told=bool(report.bytes_cut or report.damage), step=step)
                except AssertionError as error:
                    raise AssertionError(f"byte {pos} of {path}: {error}") from error
                finally:
                    log.close()
            shutil.rmtree(copy)


@pytest.mark.parametrize("state", ["clean", "crashed", "crashed behind a recovery point"])
@pytest.mark.soak
def test_every_flip_of_a_segment(tmp_path: Path, state: str) -> None:
    check_flips(tmp_path, "*.kafka", clean=state == "clean", flushed=8 if "point" in state else None)


@pytest.mark.parametrize("clean", [True, False])
def test_every_flip_of_an_index(tmp_path: Path, clean: bool) -> None:
    check_flips(tmp_path, "*.index", clean=clean, flushed=8)


@pytest.mark.parametrize("clean", [True, False])
def test_every_flip_of_a_time_index(tmp_path: Path, clean: bool) -> None:
    check_flips(tmp_path, "*.timeindex", clean=clean, flushed=8)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "leader-epoch-checkpoint",
        "*.snapshot",
        "embedlog.json",
        "topics.json",
    ],
)
def test_every_flip_of_the_small_files(tmp_path: Path, name: str, clean: bool) -> None:
    check_flips(tmp_path, name, clean=clean, flushed=8)


def test_every_flip_of_clean_shutdown(tmp_path: Path) -> None:
    check_flips(tmp_path, "clean-shutdown", clean=True, flushed=None)


def test_every_flip_of_writer_state(tmp_path: Path) -> None:
    """A reader goes by the file of a writer that may be dead: it must not believe all of it."""
    import embedlog

    source = tmp_path / "source"
    records = make(source, clean=False)
    path = source / "writer-state"
    for pos, flipped in flips(path.read_bytes()):
        path.write_bytes(flipped)
        with embedlog.open(source, mode="r") as log:
            found: list[Record] = []
            detected = False
            try:
                for record in log.read("t"):
                    found.append(record)
            except EmbedlogError:
                detected = True
            assert found == records[: len(found)], pos
            assert detected or len(found) == len(records), pos
