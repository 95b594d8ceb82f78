"""What a broker counts while it works, for whoever asks later: requests, their times, records in and out.

A request costs one look into its response for an error code, one search for its time's place, and a lock that
nobody else holds. The numbers only grow. Nothing is counted where nobody has asked for a meter.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..wire.apis import APIS
from ..wire.error_codes import ErrorCode
from ..wire.messages import Response
from ..wire.schema import wire_of

LIMITS_S: Final = (
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
"""Upper limits of the histogram's buckets, in seconds; there is one more above them."""

_Finder = Callable[[Any], int]


class Times(NamedTuple):
    """How long the requests of one API took: how many in each bucket, and all together in seconds."""

    counts: list[int]
    total_s: float


class Meter:
    """Counts. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[int, int]] = Counter()
        self._counts = {key: [0] * (len(LIMITS_S) + 1) for key in APIS}
        self._seconds = dict.fromkeys(APIS, 0.0)
        self._finders = {key: finder(exchange.response) for key, exchange in APIS.items()}
        self.produced_batches = self.produced_records = self.produced_bytes = 0
        self.fetched_bytes = 0

    def answered(self, key: int, response: Response | None, seconds: float) -> None:
        """A request of an API has its answer: after so long, from its header being read on."""
        code = 0 if response is None else self._finders[key](response)
        place = bisect_left(LIMITS_S, seconds)
        with self._lock:
            self._requests[key, code] += 1
            self._counts[key][place] += 1
            self._seconds[key] += seconds

    def produced(self, records: int, size: int) -> None:
        """A batch has been appended."""
        with self._lock:
            self.produced_batches += 1
            self.produced_records += records
            self.produced_bytes += size

    def fetched(self, size: int) -> None:
        """So many bytes of records go to a consumer."""
        with self._lock:
            self.fetched_bytes += size

    def requests(self) -> dict[tuple[str, str], int]:
        """How many there were, by API and the first error in the answer (NONE where there was none)."""
        with self._lock:
            counts = dict(self._requests)
        return {
            (APIS[key].api.name, ErrorCode(code).name): count for (key, code), count in sorted(counts.items())
        }

    def times(self) -> dict[str, Times]:
        """By API, of those that were asked for."""
        with self._lock:
            return {
                APIS[key].api.name: Times(list(counts), self._seconds[key])
                for key, counts in self._counts.items()
                if any(counts)
            }


def finder(message: type) -> _Finder:
    """A function that finds the first error code in messages of a class; 0 where there is none."""
    wires = wire_of(message)
    own = any(name == "error_code" for name, _ in wires)
    arrays = [
        (name, finder(wire.element))
        for name, wire in wires
        if wire.kind == "array" and isinstance(wire.element, type)
    ]
    inner = [(name, find) for name, find in arrays if find is not _nothing]
    if not inner:
        return _own if own else _nothing

    def find(found: Any) -> int:
        if own and found.error_code:
            return int(found.error_code)
        for name, find_in in inner:
            for element in getattr(found, name) or ():
                code = find_in(element)
                if code:
                    return code
        return 0

    return find


def _own(found: Any) -> int:
    return int(found.error_code)


def _nothing(found: Any) -> int:
    return 0
