"""The mirror: discovers topics, assigns their partitions to workers, and reports lag.

    run()  ->  every refresh_ms: discovers topics and partitions, creates missing ones in the target with the
               source's partition count and settings, and assigns them to workers
               every second: commits positions (brokers) and reports the status
    workers    four for each source; each copies its share of the partitions (worker.py)

Records keep partition, key, value, headers and timestamps, and get new offsets in the target. Topics of the
same name from several sources are merged; records of one source's partition keep their order. A named source
gets topics of its own (name.topic). Aborted transactions are not copied; records of an open transaction are
copied once it commits.

A mirror never deletes from its target: a topic that is deleted in the source stays, and a recreated one is
appended after the old records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ..backends.port import Interrupt
from ..config import MAX_INT32
from ..errors import (
    Closed,
    EmbedlogError,
    InvalidArgument,
    InvalidSetting,
    InvalidType,
    TopicNotFound,
    shown,
)
from ..log import Log
from ..model import PartitionOffsets, TopicDescription
from ..open import open as open_log
from ..runtime.closing import Closing, closes
from ..runtime.locks import Lock, Thread, wait_for
from ..runtime.wakeups import OneShotEvent
from ..validation import as_path, check_choice, check_flag, check_group, check_int, check_replication_factor
from .group_sync import MIRRORS, GroupSync
from .source import CLIENT_SETTINGS, Source, parse_sources
from .status import MirroredTopic, MirrorStatus
from .target import MirrorPosition, Target, target_of
from .topic_maker import TopicMaker
from .worker import TRANSIENT, PartitionCopy, Worker

logger = logging.getLogger(__name__)

_WORKERS: Final = 4  # for each source
_TICK_MS: Final = 1_000
_PATIENCE_S: Final = 3.0
_UNANSWERED_S: Final = 5.0  # an append that takes longer is reported in the status
_STARTS: Final = ("earliest", "latest")


class Mirror(Closing):
    """Continuously copies topics of one or several logs into another log. A context manager.

    Args:
        sources: an address, a directory, a Log, or several of them. "kafka://a,kafka://b" are two sources.
            "east=kafka://a" is one with a name, which its topics get as a prefix ("east.clicks").
        target: a directory, created if missing; an address; or a Log opened for writing.
        topics: a regular expression, compiled or not, that must match the whole topic name; default: all.
        exclude: a regular expression; topics whose whole name it matches are not copied.
        start: where to start copying topics that exist at the first start: "earliest" or "latest". Later
            topics are copied from their beginning.
        group: for brokers as target, the prefix of the consumer groups that store source positions; by
            default "mirror". A dash and the source's name follow, or its id if it has no name.
        groups: the consumer groups whose committed offsets are carried, translated: True for all, or a
            regular expression that matches whole names. A group that has members in the target, or whose
            offsets there others have set, is left alone. Several sources need names then.
        sync_group_offsets_interval_ms: how often to carry them; they are carried at the end, too.
        refresh_ms: how often to discover topics and partitions.
        replication_factor: of topics that are created in the target; see `Log.create_topic`.
        source_settings: client settings (ClientSettings, client_config) for all sources that are addresses.
            If sources need different ones, open them, and pass the Logs.
        target_settings: client settings for a target that is an address.

    A directory gets each record exactly once, even after kills; brokers get it at least once
    (docs/reference/mirroring.md).
    The mirror closes the logs that it opened. Raises InvalidArgument, InvalidType, InvalidGroup, and errors
    of `embedlog.open`.
    """

    def __init__(
        self,
        sources: str | os.PathLike[str] | Log | Iterable[str | os.PathLike[str] | Log],
        target: str | os.PathLike[str] | Log,
        *,
        topics: str | re.Pattern[str] = ".*",
        exclude: str | re.Pattern[str] | None = None,
        start: str = "earliest",
        group: str | None = None,
        groups: bool | str | re.Pattern[str] = False,
        sync_group_offsets_interval_ms: int = 10_000,
        refresh_ms: int = 5_000,
        replication_factor: int | None = None,
        source_settings: Mapping[str, Any] | None = None,
        target_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._included = _pattern("topics", topics)
        self._excluded = None if exclude is None else _pattern("exclude", exclude)
        check_choice("start", start, _STARTS)
        check_int("refresh_ms", refresh_ms, low=1, high=MAX_INT32)
        check_replication_factor(replication_factor)
        interval_ms = sync_group_offsets_interval_ms
        check_int("sync_group_offsets_interval_ms", interval_ms, low=1, high=MAX_INT32)
        carried = _groups(groups)
        if group is not None:
            check_group(group)
        locations = parse_sources(sources)
        self._start = start
        self._refresh_s = refresh_ms / 1000
        self._wakeup = Interrupt()
        self._lock = Lock()
        self._runner: Thread | None = None  # that of `run`
        self._stopped = False
        self._ended = OneShotEvent()
        self._error: BaseException | None = None
        self._discovered = False  # whether discovery has completed once
        self._unsettled: str | None = None  # why some topics are not copied
        self._topics: dict[tuple[int, str], _CopiedTopic] = {}
        self._workers: list[list[Worker]] = []
        with contextlib.ExitStack() as opened:
            checked = []
            for name, location in locations:  # sources first: a mistyped one must not create the target
                source = Source(location, name, source_settings)
                opened.callback(source.close)
                _check_outside(target, source)
                checked.append(source)
            self.target = target if isinstance(target, Log) else _opened(opened, target, target_settings)
            prefix = group or MIRRORS
            self._target: Target = target_of(self.target, prefix)
            self._topic_maker = TopicMaker(self.target.backend, replication_factor)
            self._groups: GroupSync | None = None
            if carried is not None:
                _check_apart(checked)
                self._groups = GroupSync(self._target, self.target, carried, prefix, interval_ms / 1000)
            self.sources: list[Source] = []
            for source in checked:
                self._check_source(source)
                self.sources.append(source)
            self._opened = opened.pop_all()

    def __repr__(self) -> str:
        sources = ", ".join(repr(source.path) for source in self.sources)
        state = "stopped" if self._stopped else "not started" if self._runner is None else "running"
        return f"<embedlog.Mirror of {sources} to {self.target.path!r}: {state}>"

    def run(
        self,
        *,
        until_caught_up: bool = False,
        on_status: Callable[[MirrorStatus], object] | None = None,
    ) -> MirrorStatus:
        """Copy until `stop`, or with until_caught_up until all that existed at the start is copied.

        Calls `on_status` about once a second. Returns the final status. Waits without limit for unreachable
        brokers and full disks. Raises the error if it cannot continue: damage in a source, a record that the
        target rejects, a failed partition; InvalidSetting if a topic would keep less in the target. A mirror
        runs once; a second `run` raises Closed.
        """
        check_flag("until_caught_up", until_caught_up)
        if on_status is not None and not callable(on_status):
            raise InvalidType(f"on_status must be callable, not {type(on_status).__name__}")
        with self._lock:
            if self._runner is not None or self._stopped:
                raise Closed("a mirror runs once: make another one")
            self._runner = Thread()
        trouble: str | None = None
        discover_at = 0.0
        try:
            self._workers = [
                [Worker(source, self._failed, self._wakeup.set) for _ in range(_WORKERS)]
                for source in self.sources
            ]
            while not self._stopped and self._error is None:
                self._wakeup.clear()
                try:
                    self._target.commit()  # first: new assignments resume from it
                    if time.monotonic() >= discover_at:
                        self._discover()
                        discover_at = time.monotonic() + self._refresh_s
                    if self._groups is not None:
                        self._groups.step(self._copies)
                    trouble = self._unsettled
                except TRANSIENT as error:
                    if trouble is None:
                        logger.warning("%s; trying again", error)
                    trouble = str(error)
                status = self._status(trouble)
                self._target.note(status, running=True)
                if on_status is not None:
                    on_status(status)
                if until_caught_up and status.caught_up:
                    trouble = self._carry_last()
                    if trouble is None:
                        break
                if self._error is None and not self._stopped:
                    self._wakeup.wait(min(_TICK_MS, max(discover_at - time.monotonic(), 0.01) * 1000))
        finally:
            try:
                self._end()
            finally:
                self._ended.set()
        if self._error is not None:
            raise self._error
        return self._status(None)

    def stop(self) -> None:
        """Ask `run` to end cleanly. Any thread and signal handlers may call it."""
        self._stopped = True
        self._wakeup.set()

    @closes
    def close(self) -> None:
        """Stop, wait for `run` to return, and close the logs that the mirror opened. Idempotent."""
        self.stop()
        if self._runner is not None:
            wait_for(self._runner, self._ended.wait)
        self._opened.close()

    # -- the workers -----------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._wakeup.set()

    def _end(self) -> None:
        workers = [worker for workers_of_source in self._workers for worker in workers_of_source]
        for worker in workers:
            worker.stop()
        until = time.monotonic() + _PATIENCE_S
        if not all(worker.join(until - time.monotonic()) for worker in workers):
            self._opened.close()  # unblocks workers that wait for unreachable brokers
        for worker in workers:
            worker.join()
        try:
            self._target.commit()
            self._target.note(self._status(None), running=False)
            if self._groups is not None:
                self._groups.sync(self._copies)
        except EmbedlogError as error:
            logger.warning("positions could not be committed; some records will come again: %s", error)

    # -- groups ----------------------------------------------------------------------------------------

    @property
    def _copies(self) -> list[PartitionCopy]:
        return [copy for topic in self._topics.values() for copy in topic.copies]

    def _carry_last(self) -> str | None:
        """Carry groups as they are now; why that has to be tried again."""
        try:
            if self._groups is not None:
                self._groups.sync(self._copies)
        except TRANSIENT as error:
            return str(error)
        return None

    # -- topics ----------------------------------------------------------------------------------------

    def _discover(self) -> None:
        """Discover topics and partitions and assign them to workers. Raises the TRANSIENT errors."""
        new_topics = []
        for number, source in enumerate(self.sources):
            topics = {topic.name: topic for topic in source.topics(self._included, self._excluded)}
            for key in [key for key in self._topics if key[0] == number]:
                mirrored, latest = self._topics[key], topics.get(key[1])
                if latest is None or latest.topic_id != mirrored.topic.topic_id:
                    self._release(mirrored, "deleted" if latest is None else "deleted and recreated")
                elif mirrored.is_gone:
                    self._release(mirrored, "deleted in the mirror, or lacks partitions, and is copied again")
                if mirrored.is_gone and not mirrored.is_busy:
                    del self._topics[key]
            for name, topic in topics.items():
                already_mirrored = self._topics.get((number, name))
                if already_mirrored is None or (
                    not already_mirrored.is_gone and already_mirrored.topic.partitions < topic.partitions
                ):
                    new_topics.append((number, topic))
        for number, topic in self._made(new_topics):
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile; the next discovery handles it
                self._assign(number, self.sources[number], topic, self._topics.get((number, topic.name)))
        self._discovered = True

    def _made(self, topics: list[tuple[int, TopicDescription]]) -> list[tuple[int, TopicDescription]]:
        """Make topics in the target, all before any is copied. Returns those that it has now.

        Raises InvalidSetting in the first discovery if settings are to be settled; later ones tell it, and
        the other topics go on.
        """
        made, refusals = [], []
        for number, topic in topics:
            try:
                source = self.sources[number]
                self._topic_maker.make(source, topic, partial(self._target.positions, source, topic))
                made.append((number, topic))
            except TopicNotFound:
                continue
            except InvalidSetting as refusal:
                refusals.append(str(refusal))
        unsettled = "; ".join(refusals) or None
        if unsettled is not None and not self._discovered:
            raise InvalidSetting(unsettled)
        if unsettled is not None and unsettled != self._unsettled:
            logger.warning("%s", unsettled)
        self._unsettled = unsettled
        return made

    def _assign(
        self, number: int, source: Source, topic: TopicDescription, already_mirrored: _CopiedTopic | None
    ) -> None:
        positions = self._target.positions(source, topic)
        edges = source.backend.offsets(topic.name)
        mirrored = already_mirrored or _CopiedTopic(source, topic)
        at_end = self._start == "latest" and not self._discovered
        for partition in range(len(mirrored.copies), min(topic.partitions, len(edges))):
            edge = edges[partition]
            position = positions.get(partition)
            if position is None:
                position = MirrorPosition(edge.log_end_offset if at_end else edge.log_start_offset)
            goal = 0 if self._discovered else edge.log_end_offset
            copy = PartitionCopy(source, topic, partition, self._target, position, goal)
            mirrored.copies.append(copy)
            worker = min(self._workers[number], key=lambda candidate: len(candidate.copies))
            worker.copies = (*worker.copies, copy)
            worker.wake()
        mirrored.topic = topic._replace(partitions=len(mirrored.copies))
        self._topics[number, topic.name] = mirrored

    def _release(self, topic: _CopiedTopic, why: str) -> None:
        """Take a topic from its workers. A copy that is busy finishes its current chunk."""
        if not topic.released:
            logger.warning("%s: topic %r was %s", topic.source.path, topic.topic.name, why)
        topic.released = True
        for copy in topic.copies:
            copy.gone = True
        for worker in [assigned for workers_of_source in self._workers for assigned in workers_of_source]:
            worker.copies = tuple(copy for copy in worker.copies if not copy.gone)

    def _check_source(self, source: Source) -> None:
        """Raises InvalidArgument if it is the target (an endless copy) or another source (duplicates)."""
        log_id = source.backend.log_id
        if log_id and log_id == self.target.backend.log_id:
            raise InvalidArgument(
                f"{source.path} and {self.target.path} are the same log: it would be copied into itself"
            )
        for twin in self.sources:
            if twin.name == source.name and (twin.backend.log_id or twin.path) == (log_id or source.path):
                raise InvalidArgument(
                    f"{source.path} and {twin.path} are the same log: name it once, with all its addresses"
                )

    # -- status ----------------------------------------------------------------------------------------

    def _status(self, trouble: str | None) -> MirrorStatus:
        topics = tuple(topic.status() for topic in self._topics.values())
        troubles = (worker.trouble for workers_of_source in self._workers for worker in workers_of_source)
        trouble = trouble or next((reason for reason in troubles if reason is not None), None)
        return MirrorStatus(
            topics,
            sum(topic.records for topic in topics),
            sum(topic.bytes for topic in topics),
            sum(topic.behind for topic in topics),
            self._discovered and all(topic.is_caught_up for topic in self._topics.values()),
            trouble or self._unanswered_append(),
            () if self._groups is None else self._groups.status,
        )

    def _unanswered_append(self) -> str | None:
        """The trouble to report if the target has not answered an append for a while."""
        for topic in self._topics.values():
            for copy in topic.copies:
                since = copy.appends_since
                if since is not None and time.monotonic() - since > _UNANSWERED_S:
                    return f"{self.target.path} takes no records just now: waiting for it"
        return None


class _CopiedTopic:
    """A topic of a source, and the copies of its partitions."""

    def __init__(self, source: Source, topic: TopicDescription) -> None:
        self.source = source
        self.topic = topic
        self.copies: list[PartitionCopy] = []
        self.released = False
        self._edges: dict[int, PartitionOffsets] = {}

    @property
    def is_gone(self) -> bool:
        """Whether any of its partitions is gone."""
        return any(copy.gone for copy in self.copies)

    @property
    def is_busy(self) -> bool:
        return any(copy.busy for copy in self.copies)

    @property
    def is_caught_up(self) -> bool:
        return all(copy.caught_up or copy.gone for copy in self.copies)

    def status(self) -> MirroredTopic:
        """The topic's status. If the source is unreachable, its last known offsets are used."""
        with contextlib.suppress(EmbedlogError):
            self._edges = self.source.backend.offsets(self.topic.name)
        return MirroredTopic(
            self.source.path,
            self.topic.name,
            self.source.target_topic(self.topic.name),
            len(self.copies),
            sum(copy.records for copy in self.copies),
            sum(copy.bytes for copy in self.copies),
            sum(
                self._edges[copy.name.partition].lag_at(copy.position)
                for copy in self.copies
                if copy.name.partition in self._edges
            ),
        )


def _pattern(name: str, pattern: object) -> re.Pattern[str]:
    """Raises InvalidArgument, InvalidType."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise InvalidType(f"{name} must be a regular expression, not {shown(pattern)}")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidArgument(f"{name}: {shown(pattern)} is not a regular expression: {error}") from None


def _groups(groups: object) -> re.Pattern[str] | None:
    """The groups to carry; None for none. Raises InvalidArgument, InvalidType."""
    if isinstance(groups, bool):
        return re.compile(".*", re.DOTALL) if groups else None
    return _pattern("groups", groups)


def _check_apart(sources: Iterable[Source]) -> None:
    """Raises InvalidArgument unless each source has topics of its own in the target: a committed offset of a
    topic that several sources share would be that of none of them."""
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise InvalidArgument(
            "groups=: several sources would share topics, in which one offset cannot be the position of a "
            "group in each: give each source a name of its own (east=LOG)"
        )


def _check_outside(target: object, source: Source) -> None:
    """Raises InvalidArgument for a target that would lie in the directory of a source."""
    if isinstance(target, Log) or (isinstance(target, str) and "://" in target) or "://" in source.path:
        return
    inner, outer = os.path.realpath(as_path(target, "target")), os.path.realpath(source.path)
    if inner != outer and os.path.commonpath([inner, outer]) == outer:
        raise InvalidArgument(f"{inner} lies in the log {source.path}: name a place outside it")


def _opened(opened: contextlib.ExitStack, target: object, settings: Mapping[str, Any] | None) -> Log:
    if isinstance(target, str) and "://" in target:
        # Retry until the target is back: an append given up may still have succeeded, and would repeat.
        patience = {"delivery_timeout_ms": MAX_INT32, **CLIENT_SETTINGS}
        return opened.enter_context(open_log(target, **{**patience, **(settings or {})}))
    return opened.enter_context(open_log(as_path(target, "target")))
