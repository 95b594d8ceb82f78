"""Counts a broker's requests, their durations, and the records and bytes produced and fetched.

A request costs one search of its response for an error code, one search for its histogram bucket, and an
uncontended lock. Counters only grow. A broker without a metrics port has no meter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...runtime.locks import Lock
from ...wire.apis import APIS
from ...wire.error_codes import ErrorCode
from ...wire.messages import Response
from ...wire.schema import wire_of

BUCKETS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)
"""Upper bounds of the histogram's buckets, in seconds; one more bucket has no bound."""

_ErrorCodeFinder = Callable[[Any], int]


class Durations(NamedTuple):
    """A histogram of the durations of one API's requests: the count in each bucket, the sum in seconds."""

    counts: list[int]
    total_s: float


class Meter:
    """Counts requests and records. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[tuple[int, int]] = Counter()
        self._counts = {key: [0] * (len(BUCKETS_S) + 1) for key in APIS}
        self._seconds = dict.fromkeys(APIS, 0.0)
        self._finders = {key: error_code_finder(exchange.response) for key, exchange in APIS.items()}
        self.produced_batches = self.produced_records = self.produced_bytes = 0
        self.fetched_bytes = 0

    def count_request(self, key: int, response: Response | None, seconds: float) -> None:
        """Count an answered request; `seconds` from decoding its header to its response."""
        code = 0 if response is None else self._finders[key](response)
        bucket = bisect_left(BUCKETS_S, seconds)
        with self._lock:
            self._requests[key, code] += 1
            self._counts[key][bucket] += 1
            self._seconds[key] += seconds

    def count_produced(self, records: int, size: int) -> None:
        """Count an appended batch."""
        with self._lock:
            self.produced_batches += 1
            self.produced_records += records
            self.produced_bytes += size

    def count_fetched(self, size: int) -> None:
        """Count bytes of records that go to a consumer."""
        with self._lock:
            self.fetched_bytes += size

    def requests(self) -> dict[tuple[str, str], int]:
        """Number of requests by API and first error in the response (NONE if there was none)."""
        with self._lock:
            counts = dict(self._requests)
        return {
            (APIS[key].api.name, ErrorCode(code).name): count for (key, code), count in sorted(counts.items())
        }

    def durations(self) -> dict[str, Durations]:
        """Durations by API, of the APIs that were requested."""
        with self._lock:
            return {
                APIS[key].api.name: Durations(list(counts), self._seconds[key])
                for key, counts in self._counts.items()
                if any(counts)
            }


def error_code_finder(message: type) -> _ErrorCodeFinder:
    """A function that finds the first error code in a message of this class; 0 if there is none."""
    wires = wire_of(message)
    own = any(name == "error_code" for name, _ in wires)
    arrays = [
        (name, error_code_finder(wire.element))
        for name, wire in wires
        if wire.kind == "array" and isinstance(wire.element, type)
    ]
    inner = [(name, find) for name, find in arrays if find is not _find_nothing]
    if not inner:
        return _find_own if own else _find_nothing

    def find(response: Any) -> int:
        if own and response.error_code:
            return int(response.error_code)
        for name, find_in in inner:
            for nested in getattr(response, name) or ():
                code = find_in(nested)
                if code:
                    return code
        return 0

    return find


def _find_own(response: Any) -> int:
    return int(response.error_code)


def _find_nothing(response: Any) -> int:
    return 0
