"""How much of its quota a client has used, and for how long it must wait.

A rate is measured over windows of `window_s`: the sum of the values in the last `number` windows, with the
current one, divided by the time that they cover. That time counts as at least `number - 1` windows, so that a
first burst may use what a client could have used until now. Beyond the limit, the wait is as long as the rate
needs to fall to it: excess / limit * time covered.

Changes of topics fill a token bucket instead: it holds `number` windows' worth of tokens, is full at first,
may be overdrawn once, and a client waits until it is not (KIP-599).

Time is an argument, in seconds of any clock that does not go back. Not thread-safe.

Source: Kafka's `Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils.throttleTime`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

_MAX_MS: Final = (1 << 31) - 1  # what a response has room for


class Windows(NamedTuple):
    """`quota.window.num` windows of `quota.window.size.seconds`."""

    number: int = 11
    window_s: float = 1.0

    @property
    def span_s(self) -> float:
        return self.number * self.window_s


class Meter(Protocol):
    """What a `Meters` keeps."""

    used_s: float  # when it was used last


class RateMeter:
    """A rate per second."""

    __slots__ = ("_samples", "_windows", "used_s")

    def __init__(self, windows: Windows, now_s: float) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()  # when each window began, and the sum in it
        self.used_s = now_s

    def record(self, amount: float, now_s: float) -> None:
        """Add a value; a negative one takes back."""
        self.used_s = now_s
        samples = self._samples
        if samples and now_s - samples[-1][0] < self._windows.window_s:
            samples[-1][1] += amount
        else:
            samples.append([now_s, amount])
        self._purge(now_s)

    def rate(self, now_s: float) -> float:
        """The rate now."""
        self._purge(now_s)
        return sum(amount for _, amount in self._samples) / self._covered_s(now_s)

    def throttle_ms(self, limit: float, now_s: float, max_ms: float = _MAX_MS) -> int:
        """How long to wait; 0 while the rate is within the limit."""
        excess = self.rate(now_s) - limit
        if excess <= 0:
            return 0
        return max(round(min(excess / limit * self._covered_s(now_s) * 1000, max_ms, _MAX_MS)), 1)

    def _covered_s(self, now_s: float) -> float:
        size, full_windows = self._windows.window_s, self._windows.number - 1
        elapsed = now_s - self._samples[0][0] if self._samples else 0.0
        missing = full_windows - int(elapsed / size)
        return max(elapsed + max(missing, 0) * size, size)

    def _purge(self, now_s: float) -> None:
        samples, span = self._samples, self._windows.span_s
        while samples and now_s - samples[0][0] >= span:
            samples.popleft()


class TokenBucket:
    """A rate per second, with bursts."""

    __slots__ = ("_tokens", "_windows", "used_s")

    def __init__(self, windows: Windows, now_s: float) -> None:
        self._windows = windows
        self._tokens = float("inf")  # full, whatever the limit is
        self.used_s = now_s

    def record(self, amount: float, limit: float, now_s: float) -> None:
        """Take tokens."""
        self._fill(limit, now_s)
        self._tokens -= amount

    def throttle_ms(self, limit: float, now_s: float) -> int:
        """How long it stays overdrawn; 0 if it is not."""
        self._fill(limit, now_s)
        if self._tokens >= 0:
            return 0
        return max(round(min(-self._tokens / limit * 1000, _MAX_MS)), 1)

    def _fill(self, limit: float, now_s: float) -> None:
        full = limit * self._windows.span_s
        self._tokens = min(full, self._tokens + max(now_s - self.used_s, 0) * limit)
        self.used_s = max(now_s, self.used_s)


_M = TypeVar("_M", bound=Meter)


class Meters(Generic[_M]):
    """Meters by key. One that was not used for `idle_s` is forgotten, as is the one used longest ago when
    there are `most`: a client that invents names costs no more than that."""

    def __init__(self, make: Callable[[float], _M], idle_s: float, most: int) -> None:
        self._make = make
        self._idle_s = idle_s
        self._most = most
        self._meters: OrderedDict[Hashable, _M] = OrderedDict()

    def __len__(self) -> int:
        return len(self._meters)

    def get(self, key: Hashable, now_s: float) -> _M:
        """The meter of this key, a new one if it has none."""
        meters = self._meters
        meter = meters.get(key)
        if meter is not None:
            meters.move_to_end(key)
            return meter
        while meters:
            oldest = next(iter(meters))
            if len(meters) < self._most and now_s - meters[oldest].used_s < self._idle_s:
                break
            del meters[oldest]
        meter = meters[key] = self._make(now_s)
        return meter
