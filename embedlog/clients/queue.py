"""The work queue: a topic whose records are jobs, handed out one by one to any number of workers.

    queue = log.queue("jobs", group="mailers")
    queue.send(b"...", delay_ms=60_000)
    for job in queue:
        with job: ...

    send     appends a record; one that is due later has the time in a header, so any producer can send one
    take     a job from job_source.py, its value decoded; the job itself is in job.py
    run      calls a function with each job, and goes on after one that fails

A job whose value or key does not decode is rejected with its error, and the next one is taken: a poison
record is a dead letter, not the end of the queue. So is a job whose record is damaged. One whose record is
gone, since it was deleted, is accepted.

`Intake` is what the queue for tasks (aio/queue.py) shares with this one.

Source of the idea: Kafka's share groups (KIP-932) and its KafkaShareConsumer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Generic, Protocol, Self, TypeVar, overload
from weakref import WeakSet

from ..backends.port import Backend
from ..backends.port.coordinators import KEPT_FOREVER
from ..config import MAX_INT32
from ..errors import (
    Closed,
    CorruptRecord,
    DeserializationError,
    InvalidArgument,
    InvalidType,
    LockLost,
    OffsetOutOfRange,
    QueueEmpty,
    TopicNotFound,
    UnsupportedByBackend,
)
from ..files.names import check_topic_name
from ..model import (
    DUE_HEADER,
    AcknowledgeType,
    K,
    Record,
    RecordMetadata,
    ShareGroupOptions,
    TopicDescription,
    V,
    of_one_or_two,
)
from ..runtime.closing import Closing, closes
from ..runtime.wakeups import Wakeup
from ..units import duration
from ..validation import as_seconds, check_flag, check_group, check_int, check_topic, is_coroutine_function
from .job import LONGEST_DELAY_MS, Backoff, Job, error_line
from .job_source import HeldJob, JobSource, Waiting
from .options import QueueOptions, queue_options
from .reader import read_at, read_range, time_ms
from .record_input import HeadersInput, as_headers, now_ms
from .record_serde import RecordSerde

D = TypeVar("D")

_FOREVER: Final = float("inf")
NO_DEFAULT: Final[Any] = object()
"""The default of `take`: no default."""

_logger = logging.getLogger(__name__)


class QueueLog(Protocol):
    """What a queue needs of its log."""

    @property
    def backend(self) -> Backend: ...
    @property
    def append(self) -> Callable[..., RecordMetadata]: ...
    @property
    def describe_topic(self) -> Callable[[str], TopicDescription]: ...
    @property
    def create_topic(self) -> Callable[..., TopicDescription]: ...


class Intake(Generic[V, K]):
    """Makes jobs of what a source hands out: reads and decodes records, and ends those that cannot be."""

    def __init__(
        self,
        backend: Backend,
        source: JobSource,
        serde: RecordSerde[V, K],
        backoff: Backoff,
        keeps_delays: bool,
    ) -> None:
        self.source = source
        self.backoff = backoff
        self._backend = backend
        self._serde = serde
        self._keeps_delays = keeps_delays

    def due_headers(self, headers: HeadersInput | None, delay_ms: int | None, at: datetime | None) -> Any:
        """The headers of a job. Raises InvalidType, InvalidArgument, UnsupportedByBackend."""
        if delay_ms is None and at is None:
            return headers
        if at is None:
            check_int("delay_ms", delay_ms, low=0, high=LONGEST_DELAY_MS)
            assert delay_ms is not None
            due_ms = now_ms() + delay_ms
        elif delay_ms is not None:
            raise InvalidArgument("give delay_ms or at, not both")
        elif not isinstance(at, datetime):
            raise InvalidType(f"at must be a datetime, not {type(at).__name__}")
        else:
            due_ms = max(0, time_ms(at))
        if not self._keeps_delays:
            raise UnsupportedByBackend(
                "delay_ms and at: brokers deliver a job at once; send it when it is due, or open the log's "
                "directory"
            )
        return (*as_headers(headers), (DUE_HEADER, b"%d" % due_ms))

    def taken(self, wait_s: float = _FOREVER) -> tuple[HeldJob, Record[V, K]] | None:
        """What the next job is made of; None if there is none within wait_s, or at the end.

        Waits in this thread.
        """
        deadline = None
        while True:
            held_job = self.source.take()
            if held_job is None:
                deadline = deadline or time.monotonic() + wait_s
                held_job = self._wait(deadline)
                if held_job is None:
                    return None
            try:
                record = self.record_of(held_job)
            except BaseException:
                self.source.put_back(held_job)
                raise
            if record is not None:
                return held_job, record

    def _wait(self, deadline: float) -> HeldJob | None:
        source = self.source
        has_asked = False
        while not source.stopped:
            wakeup = Wakeup()
            waiting = Waiting(wakeup.signal, blocks=True)
            try:
                source.enter(waiting)
                left_s = deadline - time.monotonic()
                if left_s <= 0 and has_asked:
                    return None
                if source.ask(waiting, left_s * 1000):
                    wakeup.sleep()  # the coordinator keeps the time
                else:
                    wakeup.sleep(min(left_s, threading.TIMEOUT_MAX))
                has_asked = True
            finally:
                source.leave(waiting)
            if waiting.error is not None:
                raise waiting.error
            held_job = source.take()
            if held_job is not None:
                return held_job
        return None

    def at_hand(self, held_job: HeldJob) -> Record[V, K] | None:
        """The record of a job, decoded, without waiting for anything; None if it takes a `record_of`."""
        record = held_job.delivery.record
        if record is None:
            return None
        try:
            return self._serde.decode(record)
        except DeserializationError:
            return None

    def record_of(self, held_job: HeldJob) -> Record[V, K] | None:
        """The record of a job, decoded; None if there is no use in handing it out, and it is settled.

        May wait for a disk, or for the owner. Raises StorageError, Closed.
        """
        record, source = held_job.delivery.record, self.source
        if record is None:
            try:
                record = self._read(held_job)
            except CorruptRecord as error:
                self._refuse(held_job, error)
                return None
            except OffsetOutOfRange:
                record = None
            if record is None:
                _logger.warning("%s: its record has been deleted", source.name_of(held_job))
                self._settle(held_job, AcknowledgeType.ACCEPT)
                return None
        try:
            return self._serde.decode(record)
        except DeserializationError as error:
            self._refuse(held_job, error)
            return None

    def _read(self, held_job: HeldJob) -> Record | None:
        """The record of a job; jobs that are next get theirs, too."""
        source, (partition, offset, *_) = self.source, held_job.delivery
        end = source.following(held_job)
        if end == offset + 1:
            return read_at(self._backend, source.topic, partition, offset, "read_uncommitted")
        records = read_range(self._backend, source.topic, partition, offset, end)
        if not records or records[0].offset != offset:
            return None
        source.bring(records[1:])
        return records[0]

    def _refuse(self, held_job: HeldJob, error: CorruptRecord | DeserializationError) -> None:
        _logger.error("%s: rejected: %s", self.source.name_of(held_job), error)
        self._settle(held_job, AcknowledgeType.REJECT, error_line(error))

    def _settle(self, held_job: HeldJob, kind: AcknowledgeType, error: str = "") -> None:
        try:
            self.source.settle(held_job, kind, error=error)
        except LockLost:
            pass  # another process comes to the same conclusion


@of_one_or_two
class Queue(Closing, Generic[V, K]):
    """A work queue over a topic: an iterator of `Job`. From `Log.queue`, or `Topic.queue` for typed values.

    Any number of threads and processes may take jobs of one group. Each job goes to one of them at a time. A
    group gets each record of the topic, from the first one on, whether `send` or a producer has appended it.

    Args:
        log: the log.
        topic: created if it is missing, with `partitions` and delete_policy="finished": a segment is deleted
            when all groups have finished its jobs.
        group: queues of one group share the jobs. Each group gets all jobs.
        serde: encodes and decodes values and keys (see `Topic.queue`); by default they are bytes.
        lock_ms: how long a job is locked for the process that has it. The lock is renewed while the job is in
            hand. So this is how soon others get the job if the process is killed, or stalls.
        max_deliveries: how often a job is delivered before it is rejected.
        backoff_ms: how long a failed job waits for its next delivery: a random time between half of this and
            all of it. It doubles with each delivery.
        max_backoff_ms: the longest such wait.
        ordered_by_key: deliver the jobs of a key one after the other, in the order of their offsets. Jobs
            without a key are not ordered.
        dead_letter_topic: where rejected jobs go; None for nowhere. `{topic}` stands for the topic's name.
        prefetch: the most jobs to fetch ahead. Short jobs are fetched ahead: as many as take about 200 ms,
            and no more than an even share. A job that has waited here for a second is given back, uncounted.
        flush: make sends and settled jobs durable on return. By default they survive a crash of the process
            on return, and a crash of the machine soon (`flush_ms`).
        accept_linger_ms: how long the accept at the end of `with job:` may wait, so that several go in one
            request; at most a third of `lock_ms`. If the process is killed before, the job is delivered
            again. With 0 the block ends when its job is accepted. `job.accept()` does not wait for others.
        partitions: how many partitions a new topic gets. One is enough for any number of workers.

    A group has the options that were given last, so give all its queues the same options.

    Any number of threads may use a queue. A forked child can only send: its parent's jobs are not its own, so
    anything else raises ForkedHandle. A queue that is garbage-collected without `close` gives its jobs back.

    Over brokers it uses their share groups (Apache Kafka 4.2 or newer, `embedlog serve`). There each delivery
    counts, nothing is fetched ahead, and a new topic keeps its records. ordered_by_key, flush and delays of
    sent jobs raise UnsupportedByBackend, and so do brokers without share groups; what the group's limits do
    not allow raises InvalidArgument.

    Raises InvalidArgument, InvalidType, InvalidGroup, StorageError, Closed. Raises ReadOnly with mode="r".
    """

    def __init__(
        self,
        log: QueueLog,
        topic: str,
        group: str = "default",
        serde: RecordSerde[V, K] | None = None,
        *,
        lock_ms: int = 30_000,
        max_deliveries: int = 5,
        backoff_ms: int = 1_000,
        max_backoff_ms: int = 60_000,
        ordered_by_key: bool = False,
        dead_letter_topic: str | None = "dlq.{topic}",
        prefetch: int = 100,
        flush: bool = False,
        accept_linger_ms: int = 0,
        partitions: int = 1,
    ) -> None:
        check_topic(topic)
        check_group(group)
        check_int("lock_ms", lock_ms, low=1, high=MAX_INT32)
        check_int("max_deliveries", max_deliveries, low=1, high=_MOST_DELIVERIES)
        check_int("backoff_ms", backoff_ms, low=0, high=LONGEST_DELAY_MS)
        check_int("max_backoff_ms", max_backoff_ms, low=0, high=LONGEST_DELAY_MS)
        check_flag("ordered_by_key", ordered_by_key)
        if dead_letter_topic is not None:
            check_topic(dead_letter_topic)
            dead_letter_topic = check_topic_name(dead_letter_topic.replace("{topic}", topic))
            if dead_letter_topic == topic:
                raise InvalidArgument(f"the dead letters of {topic!r} need another topic: they would be jobs")
        check_int("prefetch", prefetch, low=1, high=_MOST_PREFETCHED)
        check_flag("flush", flush)
        check_int("accept_linger_ms", accept_linger_ms, low=0, high=MAX_INT32)
        check_int("partitions", partitions, low=1)
        backend = log.backend
        coordinator = backend.share_coordinator
        options = ShareGroupOptions(lock_ms, max_deliveries, ordered_by_key, dead_letter_topic)
        keeps_delays = coordinator.keeps_delays
        if flush:
            backend.check_append(flush=True)
        coordinator.prepare(group, options)
        try:
            log.describe_topic(topic)
        except TopicNotFound:
            settings = {"delete_policy": "finished"} if keeps_delays else KEPT_FOREVER
            log.create_topic(topic, partitions, exist_ok=True, **settings)
        self.topic = topic
        self.group = group
        self._log = log
        self.serde: RecordSerde[V, K] = RecordSerde() if serde is None else serde
        self.flush = flush
        self._source = JobSource(
            coordinator,
            topic,
            group,
            options,
            prefetch=prefetch if keeps_delays else 1,  # what was fetched ahead could not go back
            flush=flush,
            accept_linger_ms=accept_linger_ms,
        )
        self._backoff = backoff = Backoff(backoff_ms, max_backoff_ms)
        self.intake: Intake[V, K] = Intake(backend, self._source, self.serde, backoff, keeps_delays)
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<embedlog.Queue {self.topic!r}, group {self.group}: {state}>"

    # -- sending ---------------------------------------------------------------------------------------

    def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersInput | None = (),
        delay_ms: int | None = None,
        at: datetime | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Append a job. On return it survives a crash of this process and, with flush=True, of the machine.

        Args:
            value: as for `Log.append`.
            key: as for `Log.append`.
            headers: as for `Log.append`.
            partition: as for `Log.append`.
            delay_ms: deliver it this much later, by the wall clock. The delay survives restarts.
            at: deliver it at this time instead, or at once if it is past. A naive datetime is local time.

        Raises the errors of `Log.append`, SerializationError, and, for a delay over brokers,
        UnsupportedByBackend. On error nothing was sent, except perhaps after FlushFailed. It also works in a
        forked child of a process that shares the log.
        """
        serde = self.serde
        return self._log.append(
            self.topic,
            serde.encode_value(value),
            key=serde.encode_key(key),
            headers=self.intake.due_headers(headers, delay_ms, at),
            partition=partition,
            flush=self.flush,
        )

    # -- taking ----------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job[V, K]:
        """Wait for the next job. The iteration ends at `close`."""
        job = self._take(_FOREVER)
        if job is None:
            raise StopIteration
        return job

    @overload
    def take(self, timeout_ms: float = 0) -> Job[V, K]: ...
    @overload
    def take(self, timeout_ms: float = 0, *, default: D) -> Job[V, K] | D: ...

    def take(self, timeout_ms: float = 0, *, default: Any = NO_DEFAULT) -> Any:
        """Take a job, as soon as there is one. Ctrl-C takes no job.

        If none comes within `timeout_ms` (or math.inf), or at `stop`, returns `default` where it is given, as
        in `while (job := queue.take(default=None)) is not None`. Otherwise raises QueueEmpty, so that
        `with queue.take(...) as job` says what is missing.

        Raises StorageError, BrokerUnavailable, TopicNotFound, Closed, ForkedHandle.
        """
        wait_s = as_seconds("timeout_ms", timeout_ms)
        if self._closed:
            raise Closed("the queue is closed")
        job = self._take(wait_s)
        return job if job is not None else nothing_taken(self._source, wait_s, default)

    def run(self, handler: Callable[[Job[V, K]], object]) -> None:
        """Call a function with each job, one after the other, until `stop` or `close`.

        Each call is as a `with job:` block, except that an Exception is logged and the next job is taken: the
        job is delivered again after a back-off, or is a dead letter. Anything else that the function raises,
        such as SystemExit, ends this call, and so does an error of the log. To handle several jobs at a time,
        call this in several threads, or declare the function as a worker (`embedlog.worker`).

        Raises StorageError, BrokerUnavailable, TopicNotFound, ForkedHandle. Raises InvalidType if the handler
        is a coroutine function: `embedlog.aio` and workers call those.
        """
        if is_coroutine_function(handler):
            raise InvalidType("a coroutine function can handle jobs in embedlog.aio, or as a worker")
        for job in self:
            job._attempt(handler)

    def _take(self, wait_s: float) -> Job[V, K] | None:
        job_and_record = self.intake.taken(wait_s)
        if job_and_record is None:
            return None
        held_job, record = job_and_record
        try:
            return Job(self._source, held_job, record, self._backoff)
        except BaseException:  # Ctrl-C
            self._source.put_back(held_job)
            raise

    # -- the end ---------------------------------------------------------------------------------------

    @closes
    def stop(self) -> None:
        """Take no more jobs: iterations end. Jobs in hand can still be settled. Any thread may call it."""
        self._source.stop()

    @closes
    def close(self) -> None:
        """Take no more jobs, and give back those in hand, uncounted. Safe to call again, in any thread.

        This gives back the jobs of other threads, too: their `accept` raises LockLost. If such a job fails
        before it is delivered again, its delivery counts all the same. To let threads finish their jobs, call
        `stop` first, and `close` when they have finished.
        """
        self._closed = True
        self._source.close()

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed


def open_queue(
    log: QueueLog,
    topic: str,
    group: str,
    options: QueueOptions,
    serde: RecordSerde[V, K] | None,
    clients: WeakSet[Closing],
) -> Queue[V, K]:
    """See `Log.queue`. clients: what the log closes."""
    queue = Queue(log, topic, group, serde, **queue_options(options))
    clients.add(queue)
    return queue


def nothing_taken(source: JobSource, wait_s: float, default: D) -> D:
    """What `take` returns if there is no job. Raises QueueEmpty."""
    if default is not NO_DEFAULT:
        return default
    name = f"{source.topic!r}, group {source.group}"
    if source.stopped:
        raise QueueEmpty(f"the queue of {name} was stopped: it takes no more jobs")
    within = f" within {duration(wait_s)}" if wait_s else ""
    raise QueueEmpty(f"no job of {name}{within}: take(default=None) gives None instead of this error")


_MOST_DELIVERIES: Final = 32_767  # as Kafka counts them
_MOST_PREFETCHED: Final = 10_000
