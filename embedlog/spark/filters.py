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
    "EqualTo": lambda column, literal: bool(column == literal),
    "EqualNullSafe": lambda column, literal: bool(column == literal),
    "In": lambda column, literal: column in literal,
    "GreaterThan": lambda column, literal: bool(column > literal),
    "GreaterThanOrEqual": lambda column, literal: bool(column >= literal),
    "LessThan": lambda column, literal: bool(column < literal),
    "LessThanOrEqual": lambda column, literal: bool(column <= literal),
    "StringStartsWith": lambda column, literal: bool(column.startswith(literal)),
    "StringEndsWith": lambda column, literal: bool(column.endswith(literal)),
    "StringContains": lambda column, literal: literal in column,
}
# By operator, for integers: the smallest value that passes, and one past the largest.
_LOWER_BOUND: Final[dict[str, Callable[[Any], int]]] = {
    "EqualTo": lambda literal: int(literal),
    "EqualNullSafe": lambda literal: int(literal),
    "In": lambda literal: int(min(literal)),
    "GreaterThan": lambda literal: int(literal) + 1,
    "GreaterThanOrEqual": lambda literal: int(literal),
}
_UPPER_BOUND: Final[dict[str, Callable[[Any], int]]] = {
    "EqualTo": lambda literal: int(literal) + 1,
    "EqualNullSafe": lambda literal: int(literal) + 1,
    "In": lambda literal: int(max(literal)) + 1,
    "LessThan": lambda literal: int(literal),
    "LessThanOrEqual": lambda literal: int(literal) + 1,
}


class _Test(NamedTuple):
    operator: str
    negated: bool
    literal: Any

    def passes(self, column: object) -> bool:
        return _TESTS[self.operator](column, self.literal) is not self.negated


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
    bounds = ALL
    for condition in filters:
        negated = type(condition).__name__ == "Not"
        inner = condition.child if negated else condition
        operator, attribute = type(inner).__name__, tuple(getattr(inner, "attribute", ()))
        if operator not in _TESTS or len(attribute) != 1:
            continue
        column, test = attribute[0].lower(), _Test(operator, negated, inner.value)
        if column == "topic" and _are(str, test.literal):
            bounds = bounds._replace(topics=(*bounds.topics, test))
        elif column == "partition" and _are(int, test.literal):
            bounds = bounds._replace(partitions=(*bounds.partitions, test))
        elif negated:
            continue
        elif column == "offset" and _are(int, test.literal):
            bounds = _narrowed(bounds, test)
        elif column == "timestamp" and operator in _LOWER_BOUND and _are(datetime, test.literal):
            bounds = _not_before(bounds, test.literal)
    return bounds


def _are(kind: type, literal: object) -> bool:
    """Whether it is a value of that type, or a non-empty list of such values without nulls."""
    if isinstance(literal, tuple | list):
        return bool(literal) and all(isinstance(value, kind) for value in literal)
    return isinstance(literal, kind)


def _narrowed(bounds: ScanBounds, test: _Test) -> ScanBounds:
    if test.operator in _LOWER_BOUND:
        lower = _LOWER_BOUND[test.operator](test.literal)
        bounds = bounds._replace(first_offset=max(bounds.first_offset, lower))
    if test.operator in _UPPER_BOUND:
        upper = _UPPER_BOUND[test.operator](test.literal)
        bounds = bounds._replace(end_offset=min(bounds.end_offset, upper))
    return bounds


def _not_before(bounds: ScanBounds, times: datetime | Iterable[datetime]) -> ScanBounds:
    earliest = times if isinstance(times, datetime) else min(times)
    if earliest.tzinfo is None:
        return bounds
    time_ms = -((_EPOCH - earliest) // timedelta(milliseconds=1))
    if bounds.not_before_ms is not None:
        time_ms = max(time_ms, bounds.not_before_ms)
    return bounds._replace(not_before_ms=time_ms) if time_ms > 0 else bounds  # -1 is a record without a time
