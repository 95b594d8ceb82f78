"""Batches with a valid CRC and undecodable records: reading, verify and repair agree on them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import batches, segments
from encoding import encode_values
from faults import crash, open_log, partition_of, store_of
from housekeeping import housekeep

import embedlog
from embedlog import Log
from embedlog.codec import (
    DEFAULT_MAX_BYTES,
    GZIP,
    HEADER_SIZE,
    ZSTD,
    compress,
    crc32c,
    read_header,
    recompressed,
    set_max_timestamp,
)
from embedlog.codec.record_batch import CRC_POS, LENGTH_OVERHEAD, LENGTH_POS, RECORD_COUNT_POS
from embedlog.errors import CorruptRecord
from embedlog.store.repair import RepairReport, repair_partition
from embedlog.store.verify import DAMAGE, verify_log

_COUNT = 3
_COMPACT = {"cleanup_policy": "compact"}


def _good() -> bytearray:
    return encode_values([b"%d" % number * 20 for number in range(_COUNT)], 5)


def _sealed(batch: bytearray) -> bytearray:
    """The batch with the length and the CRC that fit its bytes."""
    struct.pack_into(">i", batch, LENGTH_POS, len(batch) - LENGTH_OVERHEAD)
    struct.pack_into(">I", batch, CRC_POS, crc32c(bytes(batch[CRC_POS + 4 :])))
    return batch


def _wrong_length() -> bytearray:
    batch = _good()
    batch[HEADER_SIZE] = 0x7E
    return _sealed(batch)


def _count_too_low() -> bytearray:
    batch = _good()
    struct.pack_into(">i", batch, RECORD_COUNT_POS, _COUNT - 1)
    return _sealed(batch)


def _count_too_high() -> bytearray:
    batch = _good()
    return _sealed(batch[: -(len(batch) - HEADER_SIZE) // _COUNT])


def _offset_delta_out_of_range() -> bytearray:
    batch = _good()
    batch[HEADER_SIZE + 3] = 0x7E
    return _sealed(batch)


def _undecompressable() -> bytearray:
    batch = recompressed(_good(), read_header(_good()), GZIP)
    batch[-6] ^= 1
    return _sealed(batch)


def _damaged_inside_compression() -> bytearray:
    batch = _wrong_length()
    return recompressed(batch, read_header(batch), ZSTD)


def _too_large() -> bytearray:
    batch = recompressed(_good(), read_header(_good()), ZSTD)
    return _sealed(batch[:HEADER_SIZE] + compress(ZSTD, bytes(DEFAULT_MAX_BYTES + 1)))


_KINDS: dict[str, Callable[[], bytearray]] = {
    "length": _wrong_length,
    "count too low": _count_too_low,
    "count too high": _count_too_high,
    "offset delta": _offset_delta_out_of_range,
    "not decompressable": _undecompressable,
    "inside compression": _damaged_inside_compression,
    "too large": _too_large,
}


def _append(log: Log, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.append("t", b"v%d" % number, key=b"k%d" % number)


def _read(log: Log) -> list[int]:
    return [record.offset for record in log.read("t", 0)]


def _repaired(path: Path) -> RepairReport:
    assert repair_partition(path, "t", 0, dry_run=True).changed
    report = repair_partition(path, "t", 0)
    assert verify_log(path, deep=True).findings == ()
    assert not repair_partition(path, "t", 0).changed
    return report


@pytest.mark.parametrize("settings", [{}, _COMPACT], ids=["plain", "compacted"])
@pytest.mark.parametrize("place", ["sealed", "active", "last"])
@pytest.mark.parametrize("kind", _KINDS)
def test_batches_corrupt_to_a_reader_are_found_and_repaired(
    path: Path, kind: str, place: str, settings: dict[str, str]
) -> None:
    behind = {"sealed": 400, "active": 5, "last": 0}[place]
    end = 10 + _COUNT + behind
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=20_000, **settings)
        _append(log, 0, 10)
        partition_of(log).append(_KINDS[kind]())
        _append(log, 10 + _COUNT, behind)
    files = segments(path / "t_0")
    assert (len(files) > 1) == (place == "sealed")
    size = next(header.size for header in batches(files[0]) if header.base_offset == 10)

    with embedlog.open(path) as log:
        found: list[int] = []
        with pytest.raises(CorruptRecord) as raised:
            found.extend(record.offset for record in log.read("t", 0))
    assert found == list(range(10))
    assert (raised.value.path, raised.value.offset) == (str(files[0]), 10)

    report = verify_log(path, deep=True)
    (finding,) = report.findings
    assert not report.ok
    assert (finding.kind, finding.path, finding.pos) == (DAMAGE, str(files[0]), raised.value.pos)
    assert (finding.first_offset, finding.last_offset, finding.size) == (10, 12, size)
    assert finding.reason == raised.value.reason

    before = files[0].read_bytes()
    mended = _repaired(path)
    (cut,) = mended.set_aside
    assert (cut.pos, cut.size, cut.reason) == (finding.pos, size, finding.reason)
    assert Path(cut.cut_path).read_bytes() == before[cut.pos : cut.pos + cut.size]
    assert (mended.offsets_gone, mended.relabelled) == (((10, 12),), ())

    with embedlog.open(path) as log:
        assert log.health().status == "ok"
        rest = [*range(10), *range(10 + _COUNT, end)]
        assert _read(log) == rest
        following = end if behind else 10
        assert log.append("t", b"new", key=b"new").offset == following
        assert _read(log) == [*rest, following]
    assert verify_log(path, deep=True).findings == ()


def test_several_in_a_row_between_good_ones(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        _append(log, 0, 2)
        for kind in ("length", "inside compression"):
            partition_of(log).append(_KINDS[kind]())
        partition_of(log).append(recompressed(_good(), read_header(_good()), ZSTD))
        partition_of(log).append(_wrong_length())
        _append(log, 14, 2)
    report = verify_log(path, deep=True)
    assert [(each.first_offset, each.last_offset) for each in report.findings] == [(2, 4), (5, 7), (11, 13)]
    assert report.records == 7
    assert _repaired(path).offsets_gone == ((2, 4), (5, 7), (11, 13))
    with embedlog.open(path) as log:
        assert _read(log) == [0, 1, 8, 9, 10, 14, 15]


def test_a_whole_segment_of_them(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=1_024)
        while len(segments(path / "t_0")) < 3:
            partition_of(log).append(_wrong_length())
        _append(log, log.offsets("t")[0].log_end_offset, 2)
        end = log.offsets("t")[0].log_end_offset
    _repaired(path)
    with embedlog.open(path) as log:
        assert log.health().status == "ok"
        assert _read(log) == [end - 2, end - 1]


def test_undecodable_batches_under_a_wrong_base_offset(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        _append(log, 0, 2)
        partition_of(log).append(_wrong_length())
        _append(log, 5, 2)
    (segment,) = segments(path / "t_0")
    data = bytearray(segment.read_bytes())
    data[batches(segment)[2].pos + 7] ^= 0x40
    segment.write_bytes(data)
    (finding,) = verify_log(path, deep=True).findings
    assert (finding.first_offset, finding.last_offset) == (2, 4)
    report = _repaired(path)
    assert (report.offsets_gone, report.relabelled) == (((2, 4),), ())
    with embedlog.open(path) as log:
        assert _read(log) == [0, 1, 5, 6]


def test_undecodable_batches_past_the_recovery_point_are_not_a_torn_tail(path: Path) -> None:
    """The next open keeps a batch whose CRC matches."""
    log = open_log(path)
    log.create_topic("t")
    _append(log, 0, 2)
    housekeep(store_of(log))
    partition_of(log).append(_wrong_length())
    crash(log)
    (path / "writer-state").unlink()  # what a reboot leaves of it is not to be relied on
    (finding,) = verify_log(path, deep=True).findings
    assert finding.kind == DAMAGE
    _repaired(path)
    with embedlog.open(path) as log:
        assert _read(log) == [0, 1]


@pytest.mark.parametrize("codec", [None, ZSTD])
@pytest.mark.parametrize("behind", [0, 3])
def test_a_too_small_max_timestamp_is_corrected(path: Path, codec: int | None, behind: int) -> None:
    batch = _good()
    if codec is not None:
        batch = recompressed(batch, read_header(batch), codec)
    set_max_timestamp(batch, 4)
    with embedlog.open(path) as log:
        log.create_topic("t")
        _append(log, 0, 2)
        partition_of(log).append(batch)
        _append(log, 5, behind)
        whole = list(log.read("t", 0))
    (finding,) = verify_log(path, deep=True).findings
    assert (finding.kind, finding.records_lost) == (DAMAGE, 0)
    report = _repaired(path)
    (label,) = report.relabelled
    assert (label.first_offset, label.last_offset, label.reason) == (2, 4, finding.reason)
    assert (report.set_aside, report.offsets_gone) == ((), ())
    assert batches(segments(path / "t_0")[0])[2].max_timestamp_ms == 5
    with embedlog.open(path) as log:
        assert list(log.read("t", 0)) == whole
