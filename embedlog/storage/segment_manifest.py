"""The list of a partition's segments, by which a missing one is detected.

Offsets alone do not reveal it: a compacted topic has gaps anyway, and without its first segment a log merely
seems to begin later. So a partition with more than one segment, or whose first does not begin at 0, has a
file `segment-manifest`:

    2                            version
    3                            number of lines
    0 27508 120 4096 2a7f00c1 1700000000000 1700000003600
                                 base offset, bytes, batches, records, sum of the batches' heads, the earliest
                                 and the latest timestamp of its records
    4096 - - - - - -             sealed, and not summarized yet
    8192                         the active segment: its base offset
    crc32 5f2b7e10               of everything before this line

Compaction and deletion replace the file, and the background does soon after a roll; never while an append
waits. A segment ends where the next one begins. The summary of a sealed segment (bytes, batches,
records, sum of heads, timestamps) is made in the background, by reading it after it was sealed; `embedlog
verify` compares it. The sum (record_batch.heads_sum) depends on each batch's CRC and on all that its CRC
leaves out. The timestamps (segment_times.py) are hints: `-` if they are not known. Version 1 had none.
Version 0 had the CRC-32 of the file instead of the sum, which is kept as `crc32:2a7f00c1`.

Theory of operation: two rules ensure that a crash at any step never looks like damage.

    A segment enters the list after its name is durable, and leaves it, durably, before its file is removed.
    A segment that is not listed is adopted; one wholly before the log start may be missing.

So the list may lack segments between any two steps of rolling, recovery, compaction and repair, but a listed
segment existed, and no step of ours has removed it. A list that cannot be read, or that an older version may
have left outdated (Catalog.manifests_trusted), is rebuilt from the directory.

A reader cannot read the list and the directory at the same moment. It reads the list before and after the
directory: a segment that both lists name existed all the time, or is missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..codec import BatchHeader, heads_sum
from ..codec.rules import Rules
from ..config import MAX_INT64, TopicSettings
from ..errors import CorruptCheckpoint, CorruptRecord, counted
from ..files.filesystem import FileSystem
from ..files.names import SEGMENT_MANIFEST_FILE
from ..index import OffsetEntries, TimeEntries
from ..runtime.locks import Lock
from ..scan.batch_scan import Run, scan_batches
from ..segment import Files, Segment

logger = logging.getLogger(__name__)

_VERSION: Final = "2"
_WITHOUT_TIMES: Final = "1"
_WITH_CRC: Final = "0"
_CRC: Final = "crc32 "
_OF_FILE: Final = "crc32:"
_UNKNOWN: Final = "-"
_CHUNK: Final = 1 << 18
_HEADS_MODULUS: Final = 1 << 32


class Summary(NamedTuple):
    """What a sealed segment holds. `digest` is the sum of its batches' heads, or the CRC-32 of its file.
    `times` are its earliest and its latest timestamp (no record: the earliest is the larger); None if they
    are not known."""

    size: int
    batches: int
    records: int
    digest: int
    of_file: bool = False
    times: tuple[int, int] | None = None

    def __str__(self) -> str:
        batches, records = counted(self.batches, "batch"), counted(self.records, "record")
        return f"{batches} with {records} in {counted(self.size, 'byte')}"


class Missing(NamedTuple):
    """A listed segment without a file. `next_offset` is where the next one begins, None for the last."""

    base_offset: int
    next_offset: int | None
    summary: Summary | None

    @property
    def reason(self) -> str:
        """What is wrong, and what is known of the segment."""
        return "the segment is missing" + (f": {self.summary}" if self.summary is not None else "")


class SegmentManifest:
    """One partition's list. Safe between threads."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.path = os.path.join(directory, SEGMENT_MANIFEST_FILE)
        self._lock = Lock()
        self._sealed: dict[int, Summary | None] = {}
        self._active = -1
        self._exists = False
        self._stale = False  # the file lacks some segments

    def load(self) -> None:
        """Read the file; without one the list is empty. Raises CorruptCheckpoint, OSError."""
        try:
            text = self._fs.read_file(self.path)
        except FileNotFoundError:
            return
        self._exists = True
        try:
            self._sealed, self._active = _decode(text)
        except ValueError as error:
            raise CorruptCheckpoint(str(error), path=self.path) from None

    def distrust(self) -> None:
        """Forget what was read: only the directory counts."""
        self._sealed, self._active = {}, -1

    @property
    def summaries(self) -> dict[int, Summary]:
        """The summaries of sealed segments, by base offset."""
        with self._lock:
            return {base: summary for base, summary in self._sealed.items() if summary is not None}

    def summary(self, base_offset: int) -> Summary | None:
        """That of one segment, if it has one."""
        return self._sealed.get(base_offset)

    def missing(self, present: Collection[int], log_start_offset: int) -> list[Missing]:
        """The listed segments whose base offsets are not in `present`, except those before the log start."""
        listed = sorted(self._sealed) + ([self._active] if self._active >= 0 else [])
        gone = [base for base in listed if base not in present]
        if not gone:
            return []
        bases = sorted({*listed, *present})
        following = ((base, bisect_right(bases, base)) for base in gone)
        missing = [
            Missing(base, bases[i] if i < len(bases) else None, self._sealed.get(base))
            for base, i in following
        ]
        return [m for m in missing if m.next_offset is None or m.next_offset > log_start_offset]

    # -- changes ---------------------------------------------------------------------------------------

    def begin(self, segments: Sequence[Segment], summaries: dict[int, Summary]) -> None:
        """The first list, of a copy whose directory is not durable yet. Raises OSError."""
        with self._lock:
            self._sealed = {s.base_offset: summaries.get(s.base_offset) for s in segments[:-1]}
            self._active = segments[-1].base_offset
            if self._active:
                self._write(name_durable=False)

    def differs(self, segments: Sequence[Segment]) -> bool:
        """Whether `adopt` would write the file."""
        with self._lock:
            return self._changed(segments) is not None

    def adopt(self, segments: Sequence[Segment]) -> None:
        """List exactly these segments, which all exist. Writes the file if that changes it.

        If the write fails, the file lacks some segments, which does no harm; the next change tries again.
        """
        with self._lock:
            changed = self._changed(segments)
            if changed is not None:
                self._sealed, self._active = changed
                self._try_to_write()

    def _changed(self, segments: Sequence[Segment]) -> tuple[dict[int, Summary | None], int] | None:
        """The list of exactly these segments, sealed and active; None if the file need not change."""
        active = segments[-1].base_offset
        if not (active or self._exists):
            return None
        sealed = {segment.base_offset: self._sealed.get(segment.base_offset) for segment in segments[:-1]}
        return (sealed, active) if (sealed, active) != (self._sealed, self._active) else None

    def save(self) -> None:
        """Write what rolls have added. Handles errors as `adopt`."""
        with self._lock:
            if self._stale:
                self._try_to_write()

    def rolled(self, sealed: int, active: int) -> None:
        """One segment was sealed and the next begun, by base offset. Writes nothing, since appends wait."""
        with self._lock:
            self._sealed[sealed] = None
            self._active, self._stale = active, True

    def release(self, first: int, end: int) -> None:
        """When this returns, the files of segments with first <= base offset < end may be removed.

        Raises OSError: they may not.
        """
        with self._lock:
            if not any(first <= base < end for base in self._sealed):
                return
            before = self._sealed
            self._sealed = {base: summary for base, summary in before.items() if not first <= base < end}
            try:
                self._write(name_durable=True)
            except BaseException:
                self._sealed = before
                raise

    def relist(self, segments: Sequence[Segment], changing: Collection[int]) -> None:
        """List exactly these segments; those whose base offset is in `changing` are about to change.

        Raises OSError.
        """
        with self._lock:
            if not segments:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.unlink(self.path)
                self._fs.sync_dir(os.path.dirname(self.path))
                self._sealed, self._active, self._exists = {}, -1, False
                return
            sealed = [segment.base_offset for segment in segments[:-1] if segment.base_offset not in changing]
            self._sealed = {base: self._sealed.get(base) for base in sealed}
            self._active = segments[-1].base_offset
            self._write(name_durable=True)

    def deleted(self, before_offset: int) -> None:
        """Drop segments before the log start. Handles errors as `adopt`: those may be missing anyway."""
        with self._lock:
            remaining = {base: summary for base, summary in self._sealed.items() if base >= before_offset}
            if remaining != self._sealed:
                self._sealed = remaining
                self._try_to_write()

    def note(self, summaries: dict[int, Summary]) -> None:
        """Add summaries of sealed segments that are still listed without one, and times to those without.
        Handles errors as `adopt`."""
        with self._lock:
            additions = {
                base: summary if before is None else before._replace(times=summary.times)
                for base, summary in summaries.items()
                if (before := self._sealed.get(base, summary)) is not summary
            }
            if additions:
                self._sealed = {**self._sealed, **additions}
                self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self._write(name_durable=False)
        except OSError as error:
            self._stale = True
            logger.warning("%s could not be written: %s", self.path, error)

    def _write(self, *, name_durable: bool) -> None:
        self._fs.write_file(self.path, _encode(self._sealed, self._active), name_durable=name_durable)
        self._exists, self._stale = True, False


class MissingSegment(Segment):
    """Stands in for a segment whose file is missing: reading it raises CorruptRecord."""

    def __init__(self, files: Files, directory: str, missing: Missing, interval: int, end: int) -> None:
        super().__init__(files, directory, missing.base_offset, end, interval)
        self.size = missing.summary.size if missing.summary is not None and missing.summary.size else 1
        self.modified_ms = self.created_ms = 0
        self.missing = missing

    def _error(self) -> CorruptRecord:
        return CorruptRecord(
            self.missing.reason,
            path=self.path,
            pos=0,
            offset=self.base_offset,
            last_offset=max(self.next_offset - 1, self.base_offset),
        )

    def pread(self, size: int, pos: int) -> bytes:
        raise self._error()

    def pread_into(self, buffer: bytearray | memoryview, pos: int) -> int:
        raise self._error()

    def entries(self) -> tuple[OffsetEntries, TimeEntries]:
        raise self._error()

    @property
    def largest_timestamp_ms(self) -> int:
        """Unknown: so large that look-ups by time do not skip it."""
        return MAX_INT64

    def batch_after_damage(
        self, pos: int, end: int, min_offset: int, limit_offset: int, *, may_have_gaps: bool
    ) -> BatchHeader | None:
        return None


def with_missing(
    files: Files,
    directory: str,
    present: Iterable[Segment],
    missing: Iterable[Missing],
    settings: TopicSettings,
) -> list[Segment]:
    """Segments in order, including stand-ins for the missing ones."""
    absent = [
        MissingSegment(
            files,
            directory,
            absence,
            settings.index_interval_bytes,
            absence.base_offset if absence.next_offset is None else absence.next_offset,
        )
        for absence in missing
    ]
    segments = sorted([*present, *absent], key=lambda segment: segment.base_offset)
    for i, segment in enumerate(segments[1:]):
        segments[i].next_offset = segment.base_offset
    return segments


def missing_to_readers(
    fs: FileSystem, directory: str, before: SegmentManifest, present: Collection[int], log_start_offset: int
) -> list[Missing]:
    """What is missing from a listing of the directory; `before` is the list as read before that listing.

    Raises OSError, CorruptCheckpoint.
    """
    missing = before.missing(present, log_start_offset)
    if missing:
        after = SegmentManifest(fs, directory)
        after.load()
        missing_bases = {absence.base_offset for absence in after.missing(present, log_start_offset)}
        missing = [absence for absence in missing if absence.base_offset in missing_bases]
    return missing


def summarize(segment: Segment, step: Callable[[int], None] = lambda size: None) -> Summary:
    """Read a sealed segment, all of which must be valid, for all but its times. `step` is called with the
    size of each step.

    Raises CorruptRecord, OSError.
    """
    batches = records = heads = 0
    rules = Rules(segment.base_offset, may_have_gaps=True)
    for span in scan_batches(segment.pread_into, 0, segment.size, rules, sum_heads=True):
        if isinstance(span, Run):
            batches, records = batches + span.scanned.batches, records + span.scanned.records
            heads += span.scanned.heads
            step(span.end - span.pos)
        else:
            batches, records = batches + 1, records + span.record_count
            heads += heads_sum([span])
    return Summary(segment.size, batches, records, heads % _HEADS_MODULUS)


def disagreement(segment: Segment, noted: Summary, batches: int, records: int, heads: int) -> str | None:
    """How a sealed segment whose batches are valid differs from its summary; None if it does not.

    `heads` is the sum of the batches' heads, not yet reduced. Raises OSError.
    """
    summary = noted._replace(size=segment.size, batches=batches, records=records)  # times are hints
    if summary != noted:
        return f"the segment has {summary}; when it was sealed it had {noted}"
    digest = crc_of(segment) if noted.of_file else heads % _HEADS_MODULUS
    if digest != noted.digest:
        return "its batches are valid, but the segment's bytes are not those that it was sealed with"
    return None


def crc_of(segment: Segment) -> int:
    """The CRC-32 of a segment's file. Raises OSError."""
    crc = 0
    for pos in range(0, segment.size, _CHUNK):
        crc = zlib.crc32(segment.pread(min(_CHUNK, segment.size - pos), pos), crc)
    return crc


def _encode(sealed: dict[int, Summary | None], active: int) -> bytes:
    lines = [_line(base, summary) for base, summary in sorted(sealed.items())]
    text = "\n".join([_VERSION, str(len(lines) + 1), *lines, str(active), ""])
    return f"{text}{_CRC}{zlib.crc32(text.encode()):08x}\n".encode()


def _line(base: int, summary: Summary | None) -> str:
    if summary is None:
        return f"{base} - - - - - -"
    kind = _OF_FILE if summary.of_file else ""
    earliest, latest = summary.times or (_UNKNOWN, _UNKNOWN)
    counts = f"{summary.size} {summary.batches} {summary.records}"
    return f"{base} {counts} {kind}{summary.digest:08x} {earliest} {latest}"


def _decode(data: bytes) -> tuple[dict[int, Summary | None], int]:
    """Raises ValueError, which says what is wrong."""
    body, _, crc = data.rpartition(_CRC.encode())
    if crc != f"{zlib.crc32(body):08x}\n".encode():
        raise ValueError("its CRC does not match")
    version, count, *lines = body.decode().removesuffix("\n").split("\n")
    if version not in (_VERSION, _WITHOUT_TIMES, _WITH_CRC):
        raise ValueError(f"unknown version {version[:20]!r}")
    if len(lines) != int(count) or not lines:
        raise ValueError("the number of lines is not the stated one")
    sealed, active = list(_parsed(lines[:-1], version)), int(lines[-1])
    bases = [-1, *(base for base, _ in sealed), active, MAX_INT64 + 1]
    if not all(before < base for before, base in pairwise(bases)):
        raise ValueError("its base offsets are out of order or out of range")
    return dict(sealed), active


def _parsed(lines: list[str], version: str) -> Iterator[tuple[int, Summary | None]]:
    for line in lines:
        texts = line.split(" ")
        if version != _VERSION:
            texts += [_UNKNOWN, _UNKNOWN]
        base, size, batches, records, digest, earliest, latest = texts
        summary = None
        if size != _UNKNOWN:
            number = digest.removeprefix(_OF_FILE)
            of_file = version == _WITH_CRC or digest.startswith(_OF_FILE)
            counts = int(size), int(batches), int(records), int(number, 16)
            times = None if earliest == _UNKNOWN else (int(earliest), int(latest))
            in_range = all(0 <= count <= MAX_INT64 for count in counts)
            if not in_range or not all(-MAX_INT64 - 1 <= time <= MAX_INT64 for time in times or ()):
                raise ValueError("a number is out of range")
            summary = Summary(*counts, of_file, times)
        yield int(base), summary
