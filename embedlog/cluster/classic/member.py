"""A consumer as a member of its group: one thread that registers, rebalances and commits.

    register    1 our id into /consumers/[group]/ids, with what we read
                2, 3, 4 watches: the group's ids, the brokers' ids, the topics (set by reading them)
                5 rebalance
    rebalance   read     members, topics, brokers                    registry.py
                compute  the partitions assigned to us               rebalance.py, steps 1 to 7
                release  partitions no longer assigned to us         step 8
                           stop reading -> wait for the application's current record -> commit -> release
                claim    newly assigned partitions                   step 9
                           create the owner's node -> look up the offset -> fetch
    commit      every auto_commit_interval_ms, on request, and before a release: the offsets of all owned
                partitions, even of those without new records, so that none of them expires

Every watch triggers a rebalance; one that finds nothing to do costs a few reads. A partition that stays
assigned is not touched: its node stays, and fetching continues. A partition that another member still owns is
watched, and claimed when it is released or after rebalance_backoff_ms.

When the ZooKeeper session ends, the consumer drops all partitions without a commit, since other members may
own them by now, and registers again under a new id. It does the same if ZooKeeper has been silent for so long
that the session may have ended (coordination/lease.py); from then on the streams deliver nothing.

Invariants: a partition is fetched only while this consumer owns it in the registry; it is released only after
its stream has stopped delivering it and, if possible, its offset is committed; failed steps are retried for
as long as the consumer lives.

Source: Kafka 0.7 and 0.10 implementation, "Consumer registration algorithm", "Consumer rebalancing
algorithm".
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Final

from ...errors import Closed, EmbedlogError, RebalanceFailed
from ...model import TopicPartition
from ...runtime.locks import ConditionLock
from ..coordination.lease import Lease, clock
from ..zookeeper.client import ZooKeeper
from ..zookeeper.contents import STATIC, Subscription
from .connector_settings import ConnectorSettings
from .fetchers import Fetchers
from .group_offsets import GroupOffsets
from .rebalance import assigned_to, streams_for
from .registry import Registry
from .streams import Claim, MessageStream

_CHECK_S: Final = 1.0  # between checks of the session
_UNCONNECTED: Final = 0  # the session's id while there is no connection

_logger = logging.getLogger(__name__)


class ZooKeeperMember:
    """One consumer of a group and its thread.

    Args:
        subscription: the topics to read.
        stream: returns the stream of a partition, given the stream's number.
        streams: all streams.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        group: str,
        subscription: Subscription,
        streams: Collection[MessageStream],
        stream: Callable[[TopicPartition, int], MessageStream],
        settings: ConnectorSettings,
    ) -> None:
        self._zookeeper = zookeeper
        self._subscription = subscription
        self._streams = streams
        self._stream = stream
        self._settings = settings
        self._internal = not settings.exclude_internal_topics
        self._registry = Registry(zookeeper, group, self.rebalance_soon, settings.client_config)
        self._offsets = GroupOffsets(self._registry, settings)
        self._fetchers = Fetchers(self._registry.leaders, settings, self.commit_soon)
        self._changed = threading.Condition(ConditionLock())
        self._must_rebalance = True
        self._commit_soon = False
        self._closing = False
        self._requested_commits: list[Future[None]] = []
        self._first_rebalance: Future[None] = Future()
        self._id = ""
        self._session = 0
        self._session_over = False
        self._lease = Lease(zookeeper)
        self._abandoned: dict[str, list[TopicPartition]] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._registered: dict[TopicPartition, int] = {}
        self._attempts = 0
        self._retry_at: float | None = None
        self._commit_at = time.monotonic()
        zookeeper.on_session(self._session_changed)
        self._thread = threading.Thread(target=self._run, name="embedlog-consumer", daemon=True)

    # -- for the connector: any thread -----------------------------------------------------------------

    @property
    def consumer_id(self) -> str:
        """The current id in the registry."""
        return self._id

    @property
    def is_current(self) -> bool:
        """Whether it certainly still owns its partitions."""
        return self._lease.is_valid

    def start(self) -> None:
        """Start, and wait for the first rebalance. Raises RebalanceFailed, or the rebalance's own error."""
        self._thread.start()
        self._first_rebalance.result()

    def owned(self) -> dict[TopicPartition, int]:
        """The partitions that it reads, each with its stream's number."""
        reading = tuple(self._claims)
        return {name: number for name, number in self._registered.copy().items() if name in reading}

    def fetch_more(self) -> None:
        """Fetch more: a stream has room."""
        self._fetchers.wake()

    def rebalance_soon(self) -> None:
        """Rebalance: something has changed in ZooKeeper."""
        with self._changed:
            self._must_rebalance = True
            self._changed.notify_all()

    def commit_soon(self) -> None:
        """Request a commit soon."""
        with self._changed:
            self._commit_soon = True
            self._changed.notify_all()

    def commit(self) -> None:
        """Commit the consumed offsets. Raises the commit's error; Closed."""
        commit: Future[None] = Future()
        with self._changed:
            if self._closing:
                raise Closed("the consumer is shut down")
            self._requested_commits.append(commit)
            self._changed.notify_all()
        commit.result()

    def close(self) -> None:
        """Release all partitions, leave the group, end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            commits = self._wait()
            if commits is None:
                break
            try:
                self._turn(commits)
            except EmbedlogError as error:
                _logger.warning("Consumer %s: %s", self._id or "(not registered)", error)
                self._failed(commits, error)
            except Exception as error:  # a defect: the group must not wait for a dead thread
                _logger.exception("Consumer %s", self._id)
                self._failed(commits, error)
        self._end()

    def _wait(self) -> list[Future[None]] | None:
        """Wait for work. Returns the futures of requested commits; None at the end."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                due = [self._commit_at] if self._settings.auto_commit_enable else []
                due += [self._retry_at] if self._retry_at is not None else []
                if (
                    self._must_rebalance
                    or self._requested_commits
                    or self._commit_soon
                    or any(due_at <= now for due_at in due)
                ):
                    commits, self._requested_commits = self._requested_commits, []
                    return commits
                if self._registered and not self._is_current():
                    self._must_rebalance = True
                    continue
                wait_s = min(due, default=now + _CHECK_S) - now
                self._changed.wait(min(wait_s, _CHECK_S) if self._registered else wait_s)
            return None

    def _turn(self, commits: list[Future[None]]) -> None:
        if self._id and not self._is_current():
            self._drop_all()
        if commits or self._commit_is_due():
            self._commit(commits)
        now = time.monotonic()
        with self._changed:
            retried = self._retry_at is not None and self._retry_at <= now
            if not (self._must_rebalance or retried):
                return
            self._must_rebalance = False
        if retried:
            self._retry_at = None
            self._attempts += 1
        if not self._id:
            self._register()
        if self._rebalance():
            self._attempts = 0
            self._retry_at = None
            if not self._first_rebalance.done():
                self._first_rebalance.set_result(None)
        else:
            self._schedule_retry(None)

    def _failed(self, commits: list[Future[None]], error: Exception) -> None:
        """An attempt failed and will be retried."""
        for commit in commits:
            if not commit.done():
                commit.set_exception(error)
        self._schedule_retry(error)

    def _schedule_retry(self, error: Exception | None) -> None:
        if self._retry_at is None:
            self._retry_at = time.monotonic() + self._settings.rebalance_backoff_ms / 1000
        if self._attempts > self._settings.rebalance_max_retries and not self._first_rebalance.done():
            self._first_rebalance.set_exception(
                error
                or RebalanceFailed(
                    f"consumer {self._id} could not claim all of its partitions in {self._attempts} "
                    "attempts: other members of the group own them. rebalance_max_retries times "
                    "rebalance_backoff_ms must be longer than the session of a member that died"
                )
            )

    def _end(self) -> None:
        try:
            if self._id and self._is_current():
                self._release(list(self._registered), self._settings.rebalance_handover_ms)
                self._registry.unregister(self._id)
        except EmbedlogError as error:
            _logger.warning("Consumer %s could not unregister: %s", self._id, error)
        for stream in self._streams:
            stream.drop(self._claims.values())
            stream.close()
        self._fetchers.close()
        self._offsets.close()
        self._lease.stop()
        for commit in self._requested_commits:
            commit.set_exception(Closed("the consumer was shut down"))
        if not self._first_rebalance.done():
            self._first_rebalance.set_exception(Closed("the consumer was shut down"))

    # -- registration and rebalance --------------------------------------------------------------------

    def _register(self) -> None:
        name = self._settings.consumer_id or socket.gethostname()
        for former_id, owned in self._abandoned.copy().items():
            self._registry.abandon(former_id, owned)  # perhaps in this very session
            del self._abandoned[former_id]
        self._session_over = False
        since, session, consumer = clock(), self._zookeeper.session_id, f"{name}:{uuid.uuid4()}"
        self._abandoned[consumer] = []
        self._registry.register(consumer, self._subscription)
        del self._abandoned[consumer]
        self._id, self._session = consumer, session
        self._lease.begin(session, since)
        _logger.info("Consumer %s is in group %s", consumer, self._registry.group)

    def _rebalance(self) -> bool:
        """One attempt. Returns False if other members still own some of the assigned partitions."""
        members = self._registry.members()
        if self._id not in members:
            _logger.warning("Consumer %s is no longer in the registry", self._id)
            self._drop_all()
            return False
        self._registry.watch_brokers()
        topics = self._registry.partitions(self._topics())
        assigned = assigned_to(self._id, members, topics, internal=self._internal)
        stopped_names = {name for name, claim in self._claims.items() if not claim.alive}
        released = [
            name
            for name, number in self._registered.items()
            if assigned.get(name) != number or name in stopped_names
        ]
        if released:
            self._release(released, self._settings.rebalance_handover_ms)
        unclaimed = {name: number for name, number in assigned.items() if name not in self._claims}
        refused = self._claim(unclaimed) if unclaimed else set()
        if released or unclaimed:
            _logger.info(
                "Consumer %s: %d partitions of %d topics, %d released, %d claimed, %d still owned by others",
                self._id,
                len(self._registered),
                len({name.topic for name in self._registered}),
                len(released),
                len(unclaimed) - len(refused),
                len(refused),
            )
        self._fetchers.wake()
        return not refused

    def _topics(self) -> list[str]:
        if self._subscription.pattern == STATIC:
            return list(self._subscription.topics)
        return [
            topic
            for topic in self._registry.topics()
            if streams_for(topic, self._subscription, internal=self._internal)
        ]

    def _claim(self, stream_numbers: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Claim partitions and begin to fetch them. Returns those that could not be claimed."""
        self._registered.update(stream_numbers)  # in case the response is lost
        claimed = self._registry.claim(self._id, stream_numbers)
        for name in set(stream_numbers) - claimed:
            del self._registered[name]
        try:
            offsets = self._offsets.fetch(self._id, sorted(claimed))
        except EmbedlogError:
            self._release(list(claimed), 0)
            raise
        claims = [
            Claim(name, self._stream(name, stream_numbers[name]), offsets.get(name))
            for name in sorted(claimed)
        ]
        self._claims.update((claim.name, claim) for claim in claims)
        self._fetchers.add(claims)
        return set(stream_numbers) - claimed

    def _release(self, names: Collection[TopicPartition], handover_ms: int) -> None:
        """Stop reading partitions, commit their offsets, and release them.

        If the commit fails they stay owned, but unread, until the next attempt; after the last attempt they
        are released anyway.
        """
        claims = [self._claims[name] for name in names if name in self._claims]
        for stream in self._streams:
            stream.stop(claims)
        self._fetchers.wake()
        deadline = time.monotonic() + handover_ms / 1000
        for stream in self._streams:
            stream.wait_for(claims, deadline)
            stream.drop(claims)
        if self._settings.auto_commit_enable:
            try:
                self._store(claims)
            except EmbedlogError as error:
                if not self._closing and self._attempts < self._settings.rebalance_max_retries:
                    raise
                _logger.warning("Offsets were not committed, so records will be read again: %s", error)
        for name in names:
            self._claims.pop(name, None)
        self._registry.release(self._id, names)
        for name in names:
            self._registered.pop(name, None)

    def _drop_all(self) -> None:
        """The session has ended: other members may own the partitions by now."""
        _logger.warning("Consumer %s: the ZooKeeper session has ended, all partitions are dropped", self._id)
        for stream in self._streams:
            stream.drop(self._claims.values())
        self._lease.end()
        self._abandoned[self._id] = list(self._registered)
        self._claims.clear()
        self._registered.clear()
        self._fetchers.wake()
        self._id = ""
        self.rebalance_soon()

    # -- committing ------------------------------------------------------------------------------------

    def _commit_is_due(self) -> bool:
        with self._changed:
            soon, self._commit_soon = self._commit_soon, False
        return self._settings.auto_commit_enable and (soon or self._commit_at <= time.monotonic())

    def _commit(self, commits: list[Future[None]]) -> None:
        self._commit_at = time.monotonic() + self._settings.auto_commit_interval_ms / 1000
        try:
            self._store(self._claims.values())
        except EmbedlogError as error:
            _logger.warning("Consumer %s: offsets were not committed: %s", self._id, error)
            for commit in commits:
                commit.set_exception(error)
        else:
            for commit in commits:
                commit.set_result(None)

    def _store(self, claims: Collection[Claim]) -> None:
        """Commit the consumed offsets of these claims."""
        refused = self._offsets.commit(
            self._id, {claim.name: claim.consumed for claim in claims if claim.consumed is not None}
        )
        if refused:
            _logger.warning(
                "Consumer %s no longer owns %s: not committed",
                self._id,
                ", ".join(map(str, sorted(refused))),
            )
            self._lose([claim for claim in claims if claim.name in refused])

    def _lose(self, claims: Collection[Claim]) -> None:
        """Stop reading partitions that are no longer owned, and rebalance."""
        for stream in self._streams:
            stream.drop(claims)
        for claim in claims:
            self._claims.pop(claim.name, None)
            self._registered.pop(claim.name, None)
        self._registry.lost(self._id, [claim.name for claim in claims])
        self._fetchers.wake()
        self.rebalance_soon()

    # -- the session -----------------------------------------------------------------------------------

    def _is_current(self) -> bool:
        """Whether the session, and so the ownership, is certainly valid."""
        return (
            not self._session_over
            and self._zookeeper.session_id in (self._session, _UNCONNECTED)
            and self._lease.is_valid
        )

    def _session_changed(self, there_is_one: bool) -> None:
        if not there_is_one:
            self._session_over = True
            self._lease.end()
        self.rebalance_soon()
