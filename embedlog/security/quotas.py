"""Quotas while a broker runs: what clients use, and for how long each has to wait.

The rules come from a store (quota_store.py) and are looked at again when they have changed; the meters
(quota_meters.py) are of this broker alone, as in Kafka. Without any quota nothing is measured.

Thread-safe.

Source: Kafka's `ClientQuotaManager`, `ClientRequestQuotaManager`, `ControllerMutationQuotaManager`,
`ConnectionQuotas`; KIP-13, KIP-55, KIP-124, KIP-219, KIP-599, KIP-612.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

from ..errors import EmbedlogError
from ..runtime.locks import Lock
from .quota_meters import Meters, RateMeter, TokenBucket, Windows
from .quota_rules import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    KEYS,
    REQUEST_PERCENTAGE,
    Applied,
    QuotaRules,
)
from .quota_store import QuotaStore

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # between looks at the store
_MOST_METERS: Final = 20_000  # of clients and addresses
_MOST_CLIENTS: Final = 5_000  # whose rules are kept at hand

Limits = Mapping[str, Applied]
"""The quotas of a client, by key."""


class Quotas:
    """The quotas of one broker.

    Args:
        store: has the rules.
        max_creation_rate: connections per second of the whole broker; may be set later.

    Raises what the store's `read` raises.
    """

    def __init__(
        self,
        store: QuotaStore,
        windows: Windows | None = None,
        max_creation_rate: float = math.inf,
    ) -> None:
        self.store = store
        self.windows = windows = windows or Windows()
        self._lock = Lock()
        self._rules = QuotaRules({})
        self._changes = -1
        self.look_at = 0.0  # when to `look` at the store again
        self._failing = False
        self.is_on = False  # some quota is of clients
        self._limits: dict[tuple[str, str], Limits] = {}
        self._rates = Meters(lambda now: RateMeter(windows, now), windows.span_s, _MOST_METERS)
        self._buckets = Meters(lambda now: TokenBucket(windows, now), windows.span_s, _MOST_METERS)
        self._created = RateMeter(windows, 0.0)
        self.max_creation_rate = max_creation_rate
        self.throttled = dict.fromkeys(KEYS, 0)  # answers that said to wait, by the quota's key
        self.throttle_ms = dict.fromkeys(KEYS, 0)  # what they said, in all
        self._apply(store)

    def __len__(self) -> int:
        """The number of meters."""
        return len(self._rates) + len(self._buckets)

    # -- rules -----------------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """See whether the quotas have changed; the next time at `look_at`."""
        self.look_at = now_s + _LOOK_S
        self.refresh()

    def refresh(self) -> None:
        """Take over what has changed in the store; keep the rules while it cannot be read."""
        try:
            self._apply(self.store)
        except EmbedlogError as error:
            if not self._failing:
                logger.error("the quotas of before apply: %s", error)
            self._failing = True
        else:
            self._failing = False

    def _apply(self, store: QuotaStore) -> None:
        changes = store.changes
        if changes == self._changes:
            return
        rules = QuotaRules(store.read())
        with self._lock:
            self._rules, self._changes, self._limits = rules, changes, {}
            self.is_on = rules.has_clients

    def limits(self, user: str, client_id: str) -> Limits:
        """The quotas of a client; empty if there are none."""
        key = user, client_id
        limits = self._limits.get(key)
        if limits is None:
            with self._lock:
                if len(self._limits) >= _MOST_CLIENTS:
                    self._limits.clear()
                limits = self._limits[key] = self._rules.applied(user, client_id)
        return limits

    # -- use -------------------------------------------------------------------------------------------

    def record(self, limits: Limits, key: str, amount: float, now_s: float) -> int:
        """Count bytes, or the seconds of a thread under request_percentage.

        Returns how long the client has to wait, in milliseconds. Bytes to a consumer that has to wait are not
        counted: it gets none.
        """
        quota = limits.get(key)
        if quota is None:
            return 0
        limit, max_ms = quota.limit, math.inf
        if key == REQUEST_PERCENTAGE:
            amount, max_ms = amount * 100, self.windows.window_s * 1000
        with self._lock:
            meter = self._rates.get((key, quota.user, quota.client_id), now_s)
            rate_before = meter.rate(now_s)
            meter.record(amount, now_s)
            throttle_ms = meter.throttle_ms(limit, now_s, max_ms)
            if throttle_ms and key == CONSUMER_BYTE_RATE:
                if rate_before <= 0:  # a batch larger than the windows allow would never be sent
                    return 0
                meter.record(-amount, now_s)
        return throttle_ms

    def most_fetched(self, limits: Limits) -> float:
        """The bytes that one response may have: more than the windows allow would never be answered."""
        quota = limits.get(CONSUMER_BYTE_RATE)
        if quota is None:
            return math.inf
        return quota.limit * (self.windows.number - 1) * self.windows.window_s

    def mutate(self, limits: Limits, partitions: int, now_s: float, *, strict: bool) -> tuple[bool, int]:
        """Count partitions that are created or deleted.

        Returns whether that may happen, and how long the client has to wait in milliseconds. `strict`:
        nothing may happen while the client has to wait, and what does not happen is not counted.
        """
        quota = limits.get(CONTROLLER_MUTATION_RATE)
        if quota is None:
            return True, 0
        with self._lock:
            bucket = self._buckets.get((quota.user, quota.client_id), now_s)
            if strict and (throttle_ms := bucket.throttle_ms(quota.limit, now_s)):
                return False, throttle_ms
            bucket.record(partitions, quota.limit, now_s)
            return True, 0 if strict else bucket.throttle_ms(quota.limit, now_s)

    def note(self, key: str, throttle_ms: int) -> None:
        """Count an answer that says to wait."""
        with self._lock:
            self.throttled[key] += 1
            self.throttle_ms[key] += throttle_ms

    # -- connections -----------------------------------------------------------------------------------

    def admit(self, address: str, now_s: float) -> int:
        """Count a connection from an address; returns for how long it is to be refused, in milliseconds."""
        if now_s >= self.look_at:
            self.look(now_s)
        if not self._rules.has_addresses:
            return 0
        limit = self._rules.connection_rate(address)
        if limit is None:
            return 0
        with self._lock:
            meter = self._rates.get((CONNECTION_CREATION_RATE, address), now_s)
            meter.record(1, now_s)
            throttle_ms = meter.throttle_ms(limit, now_s, self.windows.span_s * 1000)
            if throttle_ms:
                meter.record(-1, now_s)
        if throttle_ms:
            self.note(CONNECTION_CREATION_RATE, throttle_ms)
        return throttle_ms

    def accepted(self, now_s: float) -> int:
        """Count a connection to the broker; returns how long to accept no others, in milliseconds."""
        self._created.record(1, now_s)
        return self._created.throttle_ms(self.max_creation_rate, now_s, self.windows.span_s * 1000)

    def close(self) -> None:
        """Look at the store no more."""
        self.store.close()
