"""Appends to one partition: assigns offsets, applies the rules of sequences, and waits for durability.

`append` is all or nothing. It takes the append lock, decides all that is to be decided about the batches (the
expected offset, duplicates, a new leader epoch, a new segment), and leaves the writing to `LogWriter`. What
needs no decision takes `fast_append` instead. Appends that must be durable share fsyncs (group_commit.py).

Input is checked where it enters the engine: records in clients/append.py, a network client's batches in
cluster/broker/batch_validation.py. What only the log knows is checked here: offsets, sequences, room in a
segment.

Invariant: offsets are assigned without gaps, except after `skip_to`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..codec import (
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TransactionEnd,
    assign_all,
    correct_max_timestamps,
    decode_pieces,
    encode_control_batch,
    encode_one,
    scan,
)
from ..config import MAX_INT32, MAX_INT64
from ..errors import InvalidArgument, InvalidTimestamp, RecordTooLarge, UnexpectedOffset, shown
from ..fast_append import FastAppend
from ..files.names import UNBOUNDED_TOPICS
from ..model import NO_TIMESTAMP, Appended, Headers, PartitionState, RecordMetadata
from .active_segment import ActiveSegment
from .group_commit import GroupCommit, Waiter, append_all
from .host import PartitionHost
from .log_flusher import LogFlusher
from .log_state import LogState
from .log_writer import LogWriter
from .producer_state_manager import RAISES_EPOCH

# An append needs these often; naming them here saves it a call or a look-up in a class.
_new: Final = tuple.__new__
_ONLINE: Final = PartitionState.ONLINE

_MAX_NAMED: Final = 10_000  # records in one error: a compressed batch may hold millions


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
        self._bounded = host.bounded and log.name.topic not in UNBOUNDED_TOPICS
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
            InvalidTimestamp: nothing was appended.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: nothing was appended.
            PartitionFailed: it refuses appends since a write or fsync failed.
            FlushFailed: the records were appended and may be lost.
        """
        log = self._log
        if log.state is not _ONLINE:  # else make_room would delete records for nothing
            raise log.refusal()
        if log.settings.limits_times:
            self.check_times(batches)
        if log.append_in_flight:
            self._mend()
        self.make_room(len(batches))
        if (flush or log.settings.flush_messages <= 1) and self.group_commit.is_busy:
            return self.group_commit.append(batches, expected_offset)
        with log.append_lock:
            appended, waits = self._append(batches, expected_offset)
        return self._appended(appended, waits or flush)

    def _appended(self, appended: Appended, waits: bool) -> Appended:
        """After an append: wakes readers, and waits until it is durable if that is wanted."""
        for wake in self._log.listeners:
            wake()
        if not waits:
            return appended
        self._active.durable_append()
        self.flush(appended.last_offset + 1)
        return appended._replace(durable=True)

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
            append_one = self.fast_append.append_one
            metadata = append_one(key, value, timestamp_ms, expected_offset, headers)
            if metadata is None and self._prepare():
                metadata = append_one(key, value, timestamp_ms, expected_offset, headers)
            if metadata is not None:
                return metadata
        attributes = TIMESTAMP_TYPE_BIT if self._log.settings.append_time else 0
        batch = encode_one(key, value, timestamp_ms, attributes, 0, 0, headers)
        appended = self.append(batch, flush=flush, expected_offset=expected_offset)
        return RecordMetadata(*self._log.name, appended.base_offset, timestamp_ms, appended.durable)

    def _prepare(self) -> bool:
        """Open the active file and report that the partition is dirty, which the fast path leaves to others.

        Says whether it did one of the two. A flush cycle that comes between this and the append takes the
        report back, and the append is an ordinary one. Raises StorageError.
        """
        log = self._log
        with log.append_lock:
            ready = self._active.is_open and log.dirty_reported
            if ready or self._bounded or log.append_in_flight or not log.is_sound():
                return False
            self._writer.open_active()
            self._writer.report_dirty()
            return True

    def append_copied(self, batches: bytearray) -> Appended:
        """Append batches and accept any sequences, transactions and markers: those of a mirror's source,
        which may have gaps. Their largest timestamps are corrected. Otherwise as `append`."""
        if self._log.state is not _ONLINE:
            raise self._log.refusal()
        correct_max_timestamps(batches)
        if self._log.append_in_flight:
            self._mend()
        self.make_room(len(batches))
        return self.append_unchecked(batches, None)

    def append_unchecked(self, batches: bytearray, expected_offset: int | None) -> Appended:
        """As `append_copied`, where room has been made."""
        with self._log.append_lock:
            appended, waits = self._append(batches, expected_offset, checks=False)
        return self._appended(appended, waits)

    def skip_to(self, offset: int) -> bool:
        """The next record gets this offset; what lies between the log end and it stays a gap.

        Returns whether the partition has no records and begins with it. Raises InvalidArgument, StorageError.
        """
        log = self._log
        with log.append_lock:
            if not log.is_sound():
                raise log.refusal()
            empty = not any(segment.size for segment in log.segments)
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
        """Whether an append of that size may wait for the disk (fsync, new segment, making room). A hint."""
        log = self._log
        return (
            log.settings.flush_messages < MAX_INT64
            or self._bounded
            or log.segments[-1].size + size > log.settings.segment_bytes
        )

    def _mend(self) -> None:
        """If Ctrl-C has left an append or a roll half-way, find out what the files have of it.

        Raises StorageError.
        """
        with self._log.append_lock:  # until an append that is under way has ended
            is_half_way = self._log.is_half_way()
        if is_half_way:
            self._host.reopen(*self._log.name)

    def make_room(self, size: int) -> None:
        """Call before an append takes a lock: it may delete segments of other partitions. Raises LogFull."""
        if self._bounded:
            log = self._log
            self._host.make_room(self._active.growth(log.segments[-1].size, size, log.settings))

    def check_times(self, batches: bytearray, first: int = 0) -> None:
        """Raises InvalidTimestamp for records outside the topic's limits of time (KIP-937).

        first: the number of the first record in what is appended."""
        settings, now_ms = self._log.settings, self._host.now_ms()
        first_ms = now_ms - settings.message_timestamp_before_max_ms
        last_ms = now_ms + settings.message_timestamp_after_max_ms
        wrong: list[tuple[int, int]] = []
        number, count = first, 0
        for header in scan(batches, check_crc=False).headers:
            if settings.limits_past or header.max_timestamp_ms > last_ms:
                times = (
                    record.timestamp_ms
                    for piece in decode_pieces(batches, header, "", -1)
                    for record in piece
                )
                for index, time_ms in enumerate(times, number):
                    if time_ms != NO_TIMESTAMP and not first_ms <= time_ms <= last_ms:
                        count += 1
                        if len(wrong) < _MAX_NAMED:
                            wrong.append((index, time_ms))
            number += header.record_count
        if wrong:
            index, time_ms = wrong[0]
            bounds = []
            if settings.message_timestamp_before_max_ms < MAX_INT64:
                bounds.append(f"the earliest is {_exactly(first_ms)}: message_timestamp_before_max_ms")
            if settings.message_timestamp_after_max_ms < MAX_INT64:
                bounds.append(f"the latest is {_exactly(last_ms)}: message_timestamp_after_max_ms")
            raise InvalidTimestamp(
                f"{self._log.name}: the timestamps of {count:,} of {number:,} records are out of range; "
                f"record {index:,} has {_exactly(time_ms)} ({', '.join(bounds)}); nothing was appended",
                records=wrong,
            )

    def _append(
        self,
        batches: bytearray,
        expected_offset: int | None,
        *,
        checks: bool = True,
        end: TransactionEnd | None = None,
    ) -> tuple[Appended, bool]:
        """Append lock held. Returns what was appended, and whether it completes flush_messages.

        `end`: what the batch says, if it is a marker of our own.
        """
        log, writer = self._log, self._writer
        if log.state is not _ONLINE or log.append_in_flight:
            raise log.refusal()
        base = log.next_offset
        if expected_offset is not None and expected_offset != base:
            return self._repeated_at(batches, expected_offset)
        if log.new_epoch:
            writer.start_epoch()
        size = len(batches)
        placed, sequenced, next_offset = assign_all(batches, base, log.leader_epoch)
        if sequenced and checks:
            repeated = self._repeated(sequenced)
            if repeated is not None:
                return repeated, False
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
                log.producers.note(batches, sequenced, self._host.now_ms(), end)
            writer.commit(segment, pos + size, next_offset)
        except BaseException:
            if not sequenced:
                writer.take_back(segment, pos, base)
            raise
        appended = _new(Appended, (base, next_offset - 1, placed[-1][2], False))
        return appended, next_offset - log.flushed.offset >= log.settings.flush_messages

    def _repeated(self, sequenced: Sequence[BatchHeader]) -> Appended | None:
        """The first append of these batches, if they are a producer's retry. Raises as `repeated`."""
        log = self._log
        sent = log.producers.repeated(sequenced, log.segments)
        if sent is None:
            return None
        durable = sent.last_offset < log.flushed.offset
        return Appended(sent.base_offset, sent.last_offset, sent.timestamp_ms, durable)

    def _repeated_at(self, batches: bytearray, expected_offset: int) -> tuple[Appended, bool]:
        """The first try, if the log ends elsewhere because that succeeded. Raises UnexpectedOffset if not."""
        log = self._log
        _, sequenced, _ = assign_all(batches, log.next_offset, log.leader_epoch)
        repeated = self._repeated(sequenced) if sequenced else None
        if repeated is not None and repeated.base_offset == expected_offset:
            return repeated, False
        raise UnexpectedOffset(
            f"{log.name}: the log ends at {log.next_offset:,}, not at {shown(expected_offset)}; nothing was "
            "appended",
            expected=expected_offset,
            actual=log.next_offset,
        )

    # -- transactions ----------------------------------------------------------------------------------

    def allow_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        transaction_version: int = RAISES_EPOCH,
        asked_at: int | None = None,
    ) -> None:
        """Permit a producer to open a transaction here, until its next marker. For the coordinator.

        In memory only. Without it the producer's transactional batches of this epoch are refused
        (InvalidTxnState), unless its transaction is open. A later epoch replaces an earlier one. With
        transaction_version 2, a producer that the partition does not know must begin with sequence 0.

        asked_at: the log end before another broker's coordinator was asked for the permission; None if the
        coordinator itself gives it now.

        Raises InvalidProducerEpoch: a later epoch has fenced it. ConcurrentTransactions: a marker of the
        producer was appended at or after `asked_at`. PartitionFailed, Closed.
        """
        log = self._log
        with log.append_lock:
            if log.state is not _ONLINE:
                raise log.refusal()
            log.producers.allow_transaction(producer_id, producer_epoch, transaction_version, asked_at)

    def allows_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transactional batches of this epoch would be taken."""
        return self._log.producers.allows_transaction(producer_id, producer_epoch)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        timestamp_ms: int,
        coordinator_epoch: int = 0,
        transaction_version: int = RAISES_EPOCH,
        flush: bool = False,
    ) -> Appended:
        """Append the marker that ends a producer's transaction: committed, or else aborted.

        From now on the epoch is the producer's, if that was lower, and it needs a new permission. A marker
        is appended if no transaction is open, too: the coordinator repeats those that it is not sure of. No
        segment is deleted to make room, and no size limit applies, so that a full log can end them.

        Args:
            producer_epoch: with transaction_version 2 one more than that of the transaction's batches, with
                earlier ones the same or more.
            flush: return only when the marker is durable (waiters share one fsync).

        Raises:
            InvalidProducerEpoch: the partition knows a later epoch, or (transaction_version 2) a transaction
                of the same epoch is open; a late marker. Nothing was appended.
            TransactionCoordinatorFenced: a later coordinator has ended one of its transactions. Nothing was
                appended.
            DiskFull, StorageError, PartitionFailed, Closed, FlushFailed: as `append`.
        """
        log = self._log
        marker = encode_control_batch(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=timestamp_ms,
            coordinator_epoch=coordinator_epoch,
        )
        if log.append_in_flight:
            self._mend()
        with log.append_lock:
            if log.state is not _ONLINE:
                raise log.refusal()
            log.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
            appended, waits = self._append(
                marker, None, checks=False, end=TransactionEnd(commit, coordinator_epoch)
            )
        return self._appended(appended, waits or flush)

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
        if appending := [waiter for waiter in waiters if waiter.batches is not None]:
            with self._log.append_lock:
                refused = append_all(appending, self._append)
            self._active.durable_append()
            self._log.wake_listeners()
        if refused < len(waiters):
            self._flusher.sync()


def _exactly(time_ms: int) -> str:
    from ..units import iso  # no append but a refused one needs it

    time, exact = iso(time_ms), f"{time_ms} ms"  # iso gives the same for a time that no calendar has
    return exact if time == exact else f"{time} ({exact})"
