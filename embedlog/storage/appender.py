"""Appends to one partition: assigns offsets, applies the rules of sequences, and waits for durability.

`append` is all or nothing. It takes the append lock, decides all that is to be decided about the batches (the
expected offset, duplicates, a new leader epoch, a new segment), and leaves the writing to `LogWriter`. What
needs no decision takes `fast_append` instead. Appends that must be durable share fsyncs (group_commit.py).

Input is checked where it enters the engine: records in clients/append.py, a network client's batches in
cluster/batch_validation.py. What only the log knows is checked here: offsets, sequences, room in a segment.

Invariant: offsets are assigned without gaps, except after `skip_to`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..codec import TIMESTAMP_TYPE_BIT, assign_all, encode_one
from ..config import MAX_INT32, MAX_INT64
from ..errors import InvalidArgument, RecordTooLarge, UnexpectedOffset, shown
from ..fast_append import FastAppend
from ..model import Appended, Headers, PartitionState, RecordMetadata
from .active_segment import ActiveSegment
from .group_commit import GroupCommit, Waiter, append_all
from .host import PartitionHost
from .log_flusher import LogFlusher
from .log_state import LogState
from .log_writer import LogWriter

# An append needs these often; naming them here saves it a call or a look-up in a class.
_new: Final = tuple.__new__
_ONLINE: Final = PartitionState.ONLINE


class Appender:
    """Appends to one partition. All methods are safe between threads."""

    def __init__(
        self,
        log: LogState,
        active: ActiveSegment,
        writer: LogWriter,
        flusher: LogFlusher,
        host: PartitionHost,
    ) -> None:
        self._log = log
        self._active = active
        self._writer = writer
        self._flusher = flusher
        self._host = host
        self._bounded = host.bounded
        self.fast_append = FastAppend(log, active, writer, host.appends, self._bounded)
        self.group_commit = GroupCommit(self._serve, lambda: log.flushed.offset)

    # -- appending -------------------------------------------------------------------------------------

    def append(
        self, batches: bytearray, *, flush: bool = False, expected_offset: int | None = None
    ) -> Appended:
        """Append encoded batches: all or nothing.

        Args:
            batches: whole record batches without gaps between them; their base offsets and leader epochs are
                filled in, in place.
            flush: return only when they are durable (waiters share one fsync).
            expected_offset: append only if this is the log end.

        Raises:
            UnexpectedOffset, RecordTooLarge, DiskFull, LogFull, StorageError: nothing was appended.
            OutOfOrderSequence, InvalidProducerEpoch: nothing was appended.
            PartitionFailed: it refuses appends since a write or fsync failed.
            FlushFailed: the records were appended and may be lost.
        """
        log = self._log
        if log.state is not _ONLINE:  # else make_room would delete records for nothing
            raise log.refusal()
        self.make_room(len(batches))
        if (flush or log.settings.flush_messages <= 1) and self.group_commit.is_busy:
            return self.group_commit.append(batches, expected_offset)
        with log.append_lock:
            appended, waits = self._append(batches, expected_offset)
        for wake in log.listeners:
            wake()
        if waits or flush:
            self._active.durable_append()
            self.flush(appended.last_offset + 1)
            return appended._replace(durable=True)
        return appended

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        flush: bool = False,
        expected_offset: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Append one record, uncompressed; otherwise as `append`."""
        if not flush:
            metadata = self.fast_append.append_one(key, value, timestamp_ms, expected_offset, headers)
            if metadata is not None:
                return metadata
        attributes = TIMESTAMP_TYPE_BIT if self._log.settings.append_time else 0
        batch = encode_one(key, value, timestamp_ms, attributes, 0, 0, headers)
        appended = self.append(batch, flush=flush, expected_offset=expected_offset)
        return RecordMetadata(*self._log.name, appended.base_offset, timestamp_ms, appended.durable)

    def append_copied(self, batches: bytearray) -> Appended:
        """Append batches and accept any producer sequences: a mirror's source has gaps. Otherwise as
        `append`."""
        if self._log.state is not _ONLINE:
            raise self._log.refusal()
        self.make_room(len(batches))
        return self.append_unchecked(batches, None)

    def append_unchecked(self, batches: bytearray, expected_offset: int | None) -> Appended:
        """As `append_copied`, where room has been made."""
        with self._log.append_lock:
            appended, waits = self._append(batches, expected_offset, check_sequences=False)
        self._log.wake_listeners()
        if waits:
            self.flush(appended.last_offset + 1)
        return appended

    def skip_to(self, offset: int) -> bool:
        """The next record gets this offset; what lies between the log end and it stays a gap.

        Returns whether the partition has no records and begins with it. Raises InvalidArgument, StorageError.
        """
        log = self._log
        with log.append_lock:
            if not log.is_sound():
                raise log.refusal()
            empty = not any(each.size for each in log.segments)
            if offset == log.next_offset:
                return empty and offset > log.log_start_offset
            if offset < log.next_offset or not log.may_have_gaps:
                raise InvalidArgument(
                    f"{log.name} ends at {log.next_offset:,}: {offset:,} cannot be its next offset"
                )
            self._writer.skip_to(offset)
            return empty

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[Callable[[bytearray], Appended]]:
        """Keep other appenders out. Yields the function that appends meanwhile; it flushes nothing."""
        with self._log.append_lock:
            yield lambda batches: self._append(batches, None)[0]
        self._log.wake_listeners()

    def may_wait(self, size: int) -> bool:
        """May an append of that size wait for the disk (fsync, a new segment, making room)? A hint."""
        log = self._log
        return (
            log.settings.flush_messages < MAX_INT64
            or self._bounded
            or log.segments[-1].size + size > log.settings.segment_bytes
        )

    def make_room(self, size: int) -> None:
        """Call before an append takes a lock: it may delete segments of other partitions. Raises LogFull."""
        if self._bounded:
            log = self._log
            self._host.make_room(self._active.growth(log.segments[-1].size, size, log.settings))

    def _append(
        self, batches: bytearray, expected_offset: int | None, *, check_sequences: bool = True
    ) -> tuple[Appended, bool]:
        """Append lock held. Returns what was appended, and whether it completes flush_messages."""
        log, writer = self._log, self._writer
        if log.state is not _ONLINE or log.append_in_flight:
            raise log.refusal()
        base = log.next_offset
        if expected_offset is not None and expected_offset != base:
            raise UnexpectedOffset(
                f"{log.name}: the log ends at {base:,}, not at {shown(expected_offset)}; nothing was "
                "appended",
                expected=expected_offset,
                actual=base,
            )
        if log.new_epoch:
            writer.start_epoch()
        size = len(batches)
        placed, sequenced, next_offset = assign_all(batches, base, log.leader_epoch)
        if sequenced and check_sequences:
            sent = log.producers.repeated(batches, sequenced, log.segments)
            if sent is not None:
                durable = sent.last_offset < log.flushed.offset
                return Appended(sent.base_offset, sent.last_offset, sent.timestamp_ms, durable), False
        segment = log.segments[-1]
        if segment.size and (
            segment.size + size > log.settings.segment_bytes or next_offset - segment.base_offset > MAX_INT32
        ):
            segment = writer.roll()
        elif size > MAX_INT32:
            raise RecordTooLarge(
                f"{size:,} bytes in one append: a segment holds at most {MAX_INT32:,}; split it"
            )
        if not self._active.is_open:
            writer.open_active()
        pos = segment.size
        try:
            writer.write(segment, pos, batches)
            for batch_size, last_offset, timestamp_ms in placed:
                segment.grow(batch_size, last_offset, timestamp_ms)
            if sequenced:
                log.producers.note(batches, sequenced)
            writer.commit(segment, pos + size, next_offset)
        except BaseException:
            if not sequenced:
                writer.take_back(segment, pos, base)
            raise
        appended = _new(Appended, (base, next_offset - 1, placed[-1][2], False))
        return appended, next_offset - log.flushed.offset >= log.settings.flush_messages

    # -- rolling ---------------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Begin a new segment, unless the active one is empty. Says whether it did."""
        log = self._log
        with log.append_lock:
            if not log.is_sound() or not log.segments[-1].size:
                return False
            self._writer.roll()
            return True

    def roll_if_older(self, than_ms: int) -> bool:
        """Begin a new segment if the active one was created before this time."""
        return self._log.segments[-1].created_ms < than_ms and self.roll()

    # -- flushing --------------------------------------------------------------------------------------

    def flush(self, up_to: int | None = None) -> None:
        """Return when everything appended before `up_to` (default: before now) is durable.

        Concurrent callers share fsyncs. Raises FlushFailed; the partition refuses appends from then on.
        """
        self.group_commit.flush(self._log.next_offset if up_to is None else up_to)

    def _serve(self, waiters: Sequence[Waiter]) -> None:
        """Append the batches of waiters in order, and flush. Raises FlushFailed."""
        refused = 0
        if brought := [waiter for waiter in waiters if waiter.batches is not None]:
            with self._log.append_lock:
                refused = append_all(brought, self._append)
            self._active.durable_append()
            self._log.wake_listeners()
        if refused < len(waiters):
            self._flusher.sync()
