"""Fetchers: a thread for each broker that leads owned partitions, and one that finds the leaders.

    claims without a fetcher --> the finder looks up their leaders --> the fetcher of that broker
         ^                                                              |  multifetch -> streams
         +---- the broker is gone, or does not lead the partition ------+

A fetcher requests all of its partitions whose streams have room at once, waits at the broker while there are
no records, and ends with its last partition: a consumer is connected only to the brokers that it reads from.
If a partition has no leader, the finder tries again after a pause that doubles, or when it is woken.

Invariants: a claim has one fetcher, or waits for one; a claim that is not `alive` is removed in the next
turn, and its stream refuses records of a fetch under way; no thread here holds a lock while it waits for a
broker or for ZooKeeper.

Source: Kafka 0.10 implementation, "High-level API"; Kafka's ConsumerFetcherManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from ...errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerError,
    BrokerUnavailable,
    EmbedlogError,
    OffsetOutOfRange,
    TlsFailed,
    TopicNotFound,
)
from ...model import TopicPartition
from ...runtime.locks import ConditionLock
from ..coordination import BrokerAddress
from .connector_settings import ConnectorSettings
from .simple_consumer import EARLIEST_TIME, LATEST_TIME, FetchRequest, MessageSet, SimpleConsumer
from .streams import Claim

_RESPONSE_BYTES: Final = 64 << 20
_MIN_BYTES: Final = 16 << 10
_MAX_PAUSE_S: Final = 2.0
_RESETS: Final = {"smallest": EARLIEST_TIME, "largest": LATEST_TIME}

# Another broker leads the partition, or this one will shortly.
_MOVED: Final = (BrokerUnavailable, BrokerError, TopicNotFound)

# The broker does not want us: asking again would not help.
_REFUSED: Final = (AuthenticationFailed, AuthorizationFailed, TlsFailed)

_logger = logging.getLogger(__name__)

Leaders = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, BrokerAddress]]


class Fetchers:
    """All fetchers of one consumer.

    Args:
        leaders: returns the leaders' addresses; partitions without a leader are left out.
        on_start: called in a fetcher's thread when a claim's first offset has been found.
    """

    def __init__(self, leaders: Leaders, settings: ConnectorSettings, on_start: Callable[[], None]) -> None:
        self._leaders = leaders
        self.settings = settings
        self.on_start = on_start
        self.changed = threading.Condition(ConditionLock())
        self._unassigned: set[Claim] = set()
        self._fetchers: dict[BrokerAddress, _Fetcher] = {}
        self._woken = False
        self._closed = False
        self._finder = threading.Thread(target=self._find, name="embedlog-leader-finder", daemon=True)
        self._finder.start()

    def add(self, claims: Collection[Claim]) -> None:
        """Fetch these partitions."""
        with self.changed:
            self._unassigned.update(claims)
            self.wake()

    def wake(self) -> None:
        """Check again: a stream has room, a claim has ended, or the brokers have changed."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def brokers(self) -> list[BrokerAddress]:
        """The brokers with a connection."""
        with self.changed:
            return sorted(self._fetchers)

    def close(self) -> None:
        """Stop. Pending fetches end, and their records are dropped."""
        with self.changed:
            self._closed = True
            self._unassigned.clear()
            for fetcher in self._fetchers.values():
                fetcher.closed = True
            self.changed.notify_all()
        self._finder.join()

    # -- for fetchers ----------------------------------------------------------------------------------

    def reassign(self, claims: Iterable[Claim]) -> None:
        """Find the new leader of these. The lock is held."""
        self._unassigned.update(claims)
        self.changed.notify_all()

    def ended(self, fetcher: _Fetcher) -> None:
        """The fetcher has no claims left. The lock is held."""
        if self._fetchers.get(fetcher.address) is fetcher:
            del self._fetchers[fetcher.address]

    # -- the finder ------------------------------------------------------------------------------------

    def _find(self) -> None:
        shortest = self.settings.refresh_leader_backoff_ms / 1000
        pause = shortest
        while True:
            with self.changed:
                while not self._closed and not self._unassigned:
                    self.changed.wait()
                if self._closed:
                    return
                self._unassigned = {claim for claim in self._unassigned if claim.alive}
                claims = {claim.name: claim for claim in self._unassigned}
                self._woken = False
            try:
                leaders = self._leaders(claims)
            except EmbedlogError as error:
                _logger.warning("The leaders of partitions cannot be found: %s", error)
                leaders = {}
            with self.changed:
                if self._closed:
                    return
                for name, address in leaders.items():
                    claim = claims[name]
                    if claim in self._unassigned:
                        self._unassigned.discard(claim)
                        self._fetcher(address).claims.add(claim)
                self.changed.notify_all()
                if not self._unassigned:
                    pause = shortest
                    continue
                self.changed.wait_for(lambda: self._closed or self._woken, pause)
                pause = min(pause * 2, _MAX_PAUSE_S)

    def _fetcher(self, address: BrokerAddress) -> _Fetcher:
        fetcher = self._fetchers.get(address)
        if fetcher is None:
            fetcher = self._fetchers[address] = _Fetcher(self, address)
            fetcher.start()
        return fetcher


class _Fetcher(threading.Thread):
    """Fetches from one broker; `claims` are its partitions, under the lock of all fetchers."""

    def __init__(self, fetchers: Fetchers, address: BrokerAddress) -> None:
        super().__init__(name=f"embedlog-fetcher-{address.node_id}", daemon=True)
        settings = fetchers.settings
        self.address = address
        self.claims: set[Claim] = set()
        self.closed = False
        self._fetchers = fetchers
        self._settings = settings
        self._consumer = SimpleConsumer(
            address.host,
            address.port,
            settings.socket_timeout_ms,
            settings.fetch_message_max_bytes,
            settings.client_id,
            client_config=settings.client_config,
        )

    def run(self) -> None:
        with self._consumer:
            while True:
                claims = self._ready()
                if claims is None:
                    return
                try:
                    moved_claims = self._fetch(claims)
                except _REFUSED as error:
                    for claim in claims:
                        self._fail(claim, error)
                    continue
                except EmbedlogError as error:
                    _logger.info("Broker %d: %s", self.address.node_id, error)
                    moved_claims = claims
                except Exception:  # a defect: the partitions must not wait for a dead thread
                    _logger.exception("Broker %d", self.address.node_id)
                    moved_claims = claims
                if moved_claims:
                    self._pause()
                    with self._fetchers.changed:
                        self.claims.difference_update(moved_claims)
                        self._fetchers.reassign(moved_claims)

    def _ready(self) -> list[Claim] | None:
        """Wait for claims to fetch. Returns None when this fetcher has ended."""
        with self._fetchers.changed:
            while True:
                self.claims = {claim for claim in self.claims if claim.alive}
                if self.closed or not self.claims:
                    self._fetchers.ended(self)
                    return None
                ready_claims = [claim for claim in self.claims if claim.stream.has_room()]
                if ready_claims:
                    return ready_claims
                self._fetchers.changed.wait()

    def _pause(self) -> None:
        """Wait before asking for the leader: other brokers may not know it yet."""
        with self._fetchers.changed:
            self._fetchers.changed.wait_for(
                lambda: self.closed, self._settings.refresh_leader_backoff_ms / 1000
            )

    def _fetch(self, claims: list[Claim]) -> list[Claim]:
        """Fetch once and deliver to the streams. Returns the claims that this broker does not lead."""
        moved_claims = [claim for claim in claims if claim.fetch_offset is None and not self._begin(claim)]
        requested = {claim.name: claim for claim in claims if claim.fetch_offset is not None}
        if not requested:
            return moved_claims
        size = min(self._settings.fetch_message_max_bytes, max(_RESPONSE_BYTES // len(requested), _MIN_BYTES))
        requests = [FetchRequest(*name, claim.fetch_offset or 0, size) for name, claim in requested.items()]
        responses = self._consumer.multifetch(
            requests,
            max_wait_ms=self._settings.fetch_wait_max_ms,
            min_bytes=self._settings.fetch_min_bytes,
        )
        for response in responses:
            claim = requested[TopicPartition(response.request.topic, response.request.partition)]
            if not self._take(claim, response):
                moved_claims.append(claim)
        return moved_claims

    def _take(self, claim: Claim, response: MessageSet) -> bool:
        """Deliver a response. Returns False if another broker leads the partition."""
        error = response.error
        if error is None:
            if not response.records or claim.stream.put(claim, response.records):
                claim.fetch_offset = response.next_offset
            return True
        if isinstance(error, OffsetOutOfRange) and self._settings.auto_offset_reset in _RESETS:
            _logger.warning("%s; reset to the %s offset", error, self._settings.auto_offset_reset)
            claim.fetch_offset = None
            return True
        if isinstance(error, _MOVED):
            _logger.info("%s", error)
            return False
        self._fail(claim, error)
        return True

    def _begin(self, claim: Claim) -> bool:
        """Find a claim's first offset. Returns False if another broker leads the partition."""
        time_ms = _RESETS.get(self._settings.auto_offset_reset)
        if time_ms is None:
            self._fail(
                claim,
                OffsetOutOfRange(f"{claim.name}: the group has no offset, and auto_offset_reset is error"),
            )
            return True
        try:
            (offset,) = self._consumer.get_offsets_before(*claim.name, time_ms, 1)
        except _REFUSED:
            raise
        except _MOVED as error:
            _logger.info("%s", error)
            return False
        claim.begin(offset)
        self._fetchers.on_start()
        return True

    def _fail(self, claim: Claim, error: EmbedlogError) -> None:
        """Report the error to the application, and stop fetching the partition."""
        claim.stream.put(claim, (), error)
        with self._fetchers.changed:
            self.claims.discard(claim)
