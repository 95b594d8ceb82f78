"""Filter push-down: turns Spark's filters into bounds on partitions, offsets and times.

Spark applies every filter again to the rows it gets, so wide bounds only cost time. Supported are topic and
partition (partition pruning), offset (a range), and lower bounds of timestamp: the log can look up the first
record at or after a time, and each segment's largest timestamp. Spark applies every filter again.

Imports no pyspark: filters are recognized by their class names and attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from ..config import MAX_INT64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TESTS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": lambda given, wanted: bool(given == wanted),
    "EqualNullSafe": lambda given, wanted: bool(given == wanted),
    "In": lambda given, wanted: given in wanted,
    "GreaterThan": lambda given, wanted: bool(given > wanted),
    "GreaterThanOrEqual": lambda given, wanted: bool(given >= wanted),
    "LessThan": lambda given, wanted: bool(given < wanted),
    "LessThanOrEqual": lambda given, wanted: bool(given <= wanted),
    "StringStartsWith": lambda given, wanted: bool(given.startswith(wanted)),
    "StringEndsWith": lambda given, wanted: bool(given.endswith(wanted)),
    "StringContains": lambda given, wanted: wanted in given,
}
# By operator, for integers: the smallest value that passes, and one past the largest.
_LOWER_BOUND: Final[dict[str, Callable[[Any], int]]] = {
    "EqualTo": lambda wanted: int(wanted),
    "EqualNullSafe": lambda wanted: int(wanted),
    "In": lambda wanted: int(min(wanted)),
    "GreaterThan": lambda wanted: int(wanted) + 1,
    "GreaterThanOrEqual": lambda wanted: int(wanted),
}
_UPPER_BOUND: Final[dict[str, Callable[[Any], int]]] = {
    "EqualTo": lambda wanted: int(wanted) + 1,
    "EqualNullSafe": lambda wanted: int(wanted) + 1,
    "In": lambda wanted: int(max(wanted)) + 1,
    "LessThan": lambda wanted: int(wanted),
    "LessThanOrEqual": lambda wanted: int(wanted) + 1,
}


class _Test(NamedTuple):
    operator: str
    negated: bool
    wanted: Any

    def passes(self, given: object) -> bool:
        return _TESTS[self.operator](given, self.wanted) is not self.negated


class ScanBounds(NamedTuple):
    """The bounds that a query's filters set. Records outside need not be read."""

    topics: tuple[_Test, ...] = ()
    partitions: tuple[_Test, ...] = ()
    first_offset: int = 0
    end_offset: int = MAX_INT64
    not_before_ms: int | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition may have records within the bounds."""
        return all(test.passes(topic) for test in self.topics) and all(
            test.passes(partition) for test in self.partitions
        )


ALL: Final = ScanBounds()


def scan_bounds(filters: Iterable[Any]) -> ScanBounds:
    """The bounds set by a conjunction of Spark's filters. Unsupported filters are ignored."""
    found = ALL
    for each in filters:
        negated = type(each).__name__ == "Not"
        inner = each.child if negated else each
        operator, attribute = type(inner).__name__, tuple(getattr(inner, "attribute", ()))
        if operator not in _TESTS or len(attribute) != 1:
            continue
        column, test = attribute[0].lower(), _Test(operator, negated, inner.value)
        if column == "topic" and _are(str, test.wanted):
            found = found._replace(topics=(*found.topics, test))
        elif column == "partition" and _are(int, test.wanted):
            found = found._replace(partitions=(*found.partitions, test))
        elif negated:
            continue
        elif column == "offset" and _are(int, test.wanted):
            found = _narrowed(found, test)
        elif column == "timestamp" and operator in _LOWER_BOUND and _are(datetime, test.wanted):
            found = _not_before(found, test.wanted)
    return found


def _are(kind: type, wanted: object) -> bool:
    """Whether it is a value of that type, or a non-empty list of such values without nulls."""
    if isinstance(wanted, tuple | list):
        return bool(wanted) and all(isinstance(value, kind) for value in wanted)
    return isinstance(wanted, kind)


def _narrowed(found: ScanBounds, test: _Test) -> ScanBounds:
    if test.operator in _LOWER_BOUND:
        lower = _LOWER_BOUND[test.operator](test.wanted)
        found = found._replace(first_offset=max(found.first_offset, lower))
    if test.operator in _UPPER_BOUND:
        upper = _UPPER_BOUND[test.operator](test.wanted)
        found = found._replace(end_offset=min(found.end_offset, upper))
    return found


def _not_before(found: ScanBounds, wanted: datetime | Iterable[datetime]) -> ScanBounds:
    earliest = wanted if isinstance(wanted, datetime) else min(wanted)
    if earliest.tzinfo is None:
        return found
    time_ms = -((_EPOCH - earliest) // timedelta(milliseconds=1))
    if found.not_before_ms is not None:
        time_ms = max(time_ms, found.not_before_ms)
    return found._replace(not_before_ms=time_ms) if time_ms > 0 else found  # -1 is a record without a time
