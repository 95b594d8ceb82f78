"""Parses the options of `format("embedlog")`: those of Spark's Kafka source, by the same names.

The start of a read is set by startingTimestamp, else startingOffsetsByTimestamp, else startingOffsets; its
end likewise. Each is parsed into a Limit, a plain value; offsets.py resolves it to offsets.

Names are case-insensitive, as everywhere in Spark. Imports no pyspark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from ..clients.reader import ISOLATION_LEVELS
from ..config import MAX_INT32, MAX_INT64
from ..errors import InvalidArgument, shown
from ..fields import Secret
from ..model import TopicPartition
from ..wire_client.settings import is_secret
from .access import LogLocation
from .option_table import COMPRESSION, KAFKA, Use, check_names

LATEST: Final = -1
EARLIEST: Final = -2

_ADDRESS: Final = "kafka://"
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MOST_PARTITIONS: Final = 100_000
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Selection(NamedTuple):
    """The partitions to read: all of named topics, all of topics that match a pattern, or listed ones."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None


class Limit(NamedTuple):
    """The start or end of a read: "earliest", "latest", "offsets" (may include EARLIEST and LATEST), "times"
    (milliseconds, by partition), or one "time" for all. `option` names the option that set it."""

    kind: Literal["earliest", "latest", "offsets", "times", "time"]
    option: str
    by_partition: Mapping[TopicPartition, int] = {}
    time_ms: int = 0

    def time_of(self, tp: TopicPartition) -> int | None:
        """The time for a partition; None unless times are limits."""
        if self.kind == "time":
            return self.time_ms
        return self.by_partition[tp] if self.kind == "times" else None


class ReadOptions(NamedTuple):
    """The options of a read, validated as far as possible without the log."""

    location: LogLocation
    selection: Selection
    start: Limit
    end: Limit
    latest_where_no_record: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    read_committed: bool = True
    skip_damaged: bool = False
    damage_report_path: str | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 0
    commit_to_group: str | None = None


class WriteOptions(NamedTuple):
    """The options of a write, validated as far as possible without the log."""

    location: LogLocation
    topic: str | None = None
    compression: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None


def write_options(options: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Parse a user's options for a write. Raises InvalidArgument, UnknownSetting."""
    check_names(options, "write")
    typed = _Typed(options)
    location, name, version = typed.location(), typed.text("txnAppId"), typed.text("txnVersion")
    if stream and version is not None:
        raise InvalidArgument("txnVersion is for batches: in a stream it is the number of the micro-batch")
    if not stream and (name is None) != (version is None):
        raise InvalidArgument("a batch is remembered by txnAppId and txnVersion together: give both, or none")
    if name is not None and location.path is None:
        raise InvalidArgument("txnAppId is for a directory: what goes through brokers is not remembered")
    if name == "" or typed.text("topic") == "":
        raise InvalidArgument("txnAppId and topic cannot be empty")
    return WriteOptions(
        location=location,
        topic=typed.text("topic"),
        compression=typed.choice(COMPRESSION, _CODECS) if typed.text(COMPRESSION) is not None else None,
        txn_app_id=name,
        txn_version=None if version is None else _number("txnVersion", version, 0, MAX_INT64),
    )


def read_options(options: Mapping[str, str], use: Use) -> ReadOptions:
    """Parse a user's options for a batch or a stream. Raises InvalidArgument, UnknownSetting."""
    check_names(options, use)
    typed = _Typed(options)
    start = typed.limit("starting", "latest" if use == "stream" else "earliest")
    end = typed.limit("ending", "latest")
    if use == "batch":
        _check_batch(start, end)
    most, least = typed.count("maxOffsetsPerTrigger"), typed.count("minOffsetsPerTrigger") or 0
    if most is not None and least > most:
        raise InvalidArgument(
            f"minOffsetsPerTrigger is {least:,}, more than maxOffsetsPerTrigger, which is {most:,}"
        )
    return ReadOptions(
        location=typed.location(),
        selection=typed.selection(),
        start=start,
        end=end,
        latest_where_no_record=typed.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        fail_on_data_loss=typed.flag("failOnDataLoss", True),
        min_partitions=typed.count("minPartitions", _MOST_PARTITIONS),
        max_records_per_partition=typed.count("maxRecordsPerPartition"),
        include_headers=typed.flag("includeHeaders", False),
        read_committed=typed.isolation() == "read_committed",
        skip_damaged=typed.skip_damaged(),
        damage_report_path=typed.damage_report_path(),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=typed.duration_ms("maxTriggerDelay", 900_000),
        commit_to_group=typed.text("commitOffsetsToGroup") or None,
    )


class _Typed:
    """Raw options, with a typed accessor for each kind of value."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        return None if value is None else str(value).strip()

    def location(self) -> LogLocation:
        path, servers = self.text("path"), self.text("kafka.bootstrap.servers")
        settings: tuple[tuple[str, str | Secret], ...] = tuple(
            sorted(
                (name.removeprefix(KAFKA), Secret(value) if is_secret(name.removeprefix(KAFKA)) else value)
                for name, value in self._options.items()
                if name.startswith(KAFKA)
                and name not in ("kafka.bootstrap.servers", "kafka.isolation.level", COMPRESSION)
            )
        )
        if path and servers:
            raise InvalidArgument("path and kafka.bootstrap.servers name two logs: give one of them")
        if path and path.startswith(_ADDRESS):
            servers = path.removeprefix(_ADDRESS)
        if servers:
            return LogLocation(address=f"kafka://{servers}", settings=settings)
        if not path:
            raise InvalidArgument(
                'which log? Give its directory or its brokers: .load("./data"), .load("kafka://host:9092"); '
                "in SQL CREATE TEMPORARY VIEW ... USING embedlog OPTIONS (path '...', ...) or, since Spark "
                "does not pass the options of a table, SELECT ... FROM t WITH (path = '...', ...)"
            )
        if settings:
            raise InvalidArgument(f"kafka.{settings[0][0]} is for brokers, and path names a directory")
        return LogLocation(path=_local_path(path))

    def selection(self) -> Selection:
        selections = [name for name in _SELECTIONS if self.text(name) is not None]
        if len(selections) != 1:
            what = f"not {' and '.join(selections)}" if selections else "which say what to read"
            raise InvalidArgument(f"give exactly one of {', '.join(_SELECTIONS)}, {what}")
        name = selections[0]
        text = self.text(name) or ""
        if name == "subscribe":
            topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
            if not topics:
                raise InvalidArgument(f"subscribe names no topic: {shown(text)}")
            return Selection(topics=topics)
        if name == "subscribePattern":
            try:
                re.compile(text)
            except (re.error, RecursionError, OverflowError) as error:
                raise InvalidArgument(f"subscribePattern is no regular expression: {error}") from None
            if not text:
                raise InvalidArgument("subscribePattern is empty")
            return Selection(pattern=text)
        return Selection(partitions=self._assigned(text))

    def _assigned(self, text: str) -> tuple[TopicPartition, ...]:
        example = '{"clicks": [0, 1]}'
        assigned = []
        for topic, numbers in _json("assign", text, example).items():
            if not isinstance(numbers, list):
                raise InvalidArgument(f"assign must be like {example}; {shown(topic)} has {shown(numbers)}")
            assigned += [_partition("assign", topic, number, example) for number in numbers]
        if not assigned:
            raise InvalidArgument(f"assign names no partition: {shown(text)}")
        return tuple(dict.fromkeys(assigned))

    def limit(self, which: str, default: Literal["earliest", "latest"]) -> Limit:
        """Where reading begins ("starting") or ends ("ending")."""
        name = f"{which}Timestamp"
        time = self.text(name)
        if time is not None:
            return Limit("time", name, time_ms=_number(name, time, 0, MAX_INT64))
        name = f"{which}OffsetsByTimestamp"
        times = self.text(name)
        if times is not None:
            return Limit("times", name, _by_partition(name, times, 0))
        name = f"{which}Offsets"
        offsets = self.text(name)
        if offsets is None:
            return Limit(default, name)
        if offsets.lower() == "earliest":
            return Limit("earliest", name)
        if offsets.lower() == "latest":
            return Limit("latest", name)
        if not offsets.startswith("{"):
            raise InvalidArgument(
                f'{name} must be earliest, latest, or offsets like {{"clicks": {{"0": 23, "1": -1}}}}, '
                f"not {shown(offsets)}"
            )
        return Limit("offsets", name, _by_partition(name, offsets, EARLIEST))

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidArgument(f"{name} must be true or false, not {shown(text)}")
        return text.lower() == "true"

    def count(self, name: str, high: int = MAX_INT64) -> int | None:
        text = self.text(name)
        return None if text is None else _number(name, text, 1, high)

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.lower())
        unit = _UNITS_MS.get(match[2]) if match is not None else None
        if match is None or unit is None:
            raise InvalidArgument(f"{name} must be a time like 500ms, 30s, 15m or 1h, not {shown(text)}")
        return int(match[1]) * unit

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        text = self.text(name)
        if text is None:
            return choices[0]
        if text.lower() not in choices:
            raise InvalidArgument(f"{name} must be {' or '.join(choices)}, not {shown(text)}")
        return text.lower()

    def isolation(self) -> str:
        names = ("isolation_level", "kafka.isolation.level")
        levels = {self.choice(name, ISOLATION_LEVELS) for name in names if self.text(name)}
        if len(levels) > 1:
            raise InvalidArgument(f"{' and '.join(names)} say different things: give one of them")
        return levels.pop() if levels else "read_committed"

    def skip_damaged(self) -> bool:
        skip = self.flag("skipDamaged", False)
        if skip and self.location().address:
            raise InvalidArgument(
                "skipDamaged needs the log's directory: brokers do not tell where damage ends"
            )
        return skip

    def damage_report_path(self) -> str | None:
        path = self.text("damageReportPath")
        if not path:
            return None
        if not self.flag("skipDamaged", False):
            raise InvalidArgument("damageReportPath reports what skipDamaged=true passes over: give both")
        return _local_path(path, "damageReportPath")


def _check_batch(start: Limit, end: Limit) -> None:
    if start.kind == "latest" or LATEST in start.by_partition.values():
        raise InvalidArgument("startingOffsets cannot be latest (-1) in a batch: it would read nothing")
    if end.kind == "earliest" or (end.kind == "offsets" and EARLIEST in end.by_partition.values()):
        raise InvalidArgument("endingOffsets cannot be earliest (-2): it would read nothing")
    if start.kind == end.kind and start.kind in ("offsets", "times"):
        only = set(start.by_partition) ^ set(end.by_partition)
        if only:
            raise InvalidArgument(
                f"{start.option} and {end.option} must name the same partitions; only one of them names "
                f"{', '.join(map(str, sorted(only)))}"
            )
        for tp, first in start.by_partition.items():
            if 0 <= end.by_partition[tp] < first:
                raise InvalidArgument(
                    f"{tp}: {start.option} is {first:,}, after {end.option}, which is "
                    f"{end.by_partition[tp]:,}"
                )


def _local_path(path: str, what: str = "the log's directory") -> str:
    """A directory's absolute path; executors run with another working directory."""
    if _URI.match(path) is None:
        return os.path.abspath(path)
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path)
    mounted = f": /dbfs{unquote(parts.path)} where DBFS is" if parts.scheme == "dbfs" else ""
    raise InvalidArgument(
        f"{shown(path)}: {what} must be on a file system that is mounted here, and on all executors{mounted}"
    )


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} must be JSON like {example}: {error}") from None
    if not isinstance(body, dict):
        raise InvalidArgument(f"{name} must be JSON like {example}, not {shown(text)}")
    return body


def _by_partition(name: str, text: str, low: int) -> dict[TopicPartition, int]:
    example = '{"clicks": {"0": 23, "1": 0}}'
    offsets = {}
    for topic, numbers in _json(name, text, example).items():
        if not isinstance(numbers, dict):
            raise InvalidArgument(f"{name} must be like {example}; {shown(topic)} has {shown(numbers)}")
        for number, value in numbers.items():
            if type(value) is not int or not low <= value <= MAX_INT64:
                raise InvalidArgument(f"{name} has {shown(value)} for {topic} {number}: no such number")
            offsets[_partition(name, topic, number, example)] = value
    if not offsets:
        raise InvalidArgument(f"{name} names no partition: {shown(text)}")
    return offsets


def _partition(name: str, topic: str, number: object, example: str) -> TopicPartition:
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 11:
        number = int(number)
    if type(number) is not int or not 0 <= number <= MAX_INT32:
        raise InvalidArgument(f"{name} must be like {example}; {shown(number)} is no partition of {topic}")
    return TopicPartition(topic, number)


def _number(name: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
        raise InvalidArgument(f"{name} must be a number of {low:,} or more, not {shown(text)}")
    return int(text)
