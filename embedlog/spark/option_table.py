"""The options of `format("embedlog")`: which there are, and for which use (docs/reference/spark.md)."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from ..errors import InvalidArgument, UnknownSetting, shown

logger = logging.getLogger(__name__)

COMPRESSION: Final = "kafka.compression.type"
KAFKA: Final = "kafka."

Use: TypeAlias = Literal["batch", "stream", "load", "write"]
"""load: valid in a batch or in a stream; Spark has not chosen yet."""


class Option(NamedTuple):
    """A row of the table. `uses`: "batch", "stream", "write", separated by spaces."""

    name: str
    uses: str
    default: str
    meaning: str


_READ: Final = "batch stream"
_ALL: Final = "batch stream write"

OPTIONS: Final = (
    Option("path", _ALL, "", "the log's directory, or kafka://host:port; also load()'s argument"),
    Option("kafka.bootstrap.servers", _ALL, "", "brokers instead of a path: host:port,host2:port"),
    Option("subscribe", _READ, "", "topics, separated by commas"),
    Option("subscribePattern", _READ, "", "a Python regular expression that must match the whole name"),
    Option("assign", _READ, "", 'partitions: {"clicks": [0, 1]}'),
    Option(
        "startingTimestamp", _READ, "",
        "milliseconds since the epoch: records at or after this time. In a stream: start each partition "
        "at its first such record",
    ),
    Option(
        "startingOffsetsByTimestamp", _READ, "",
        'the same for each partition: {"clicks": {"0": 1700000000000}}',
    ),
    Option(
        "startingOffsets", _READ, "earliest; latest in a stream",
        'earliest, latest (streams only), or offsets: {"clicks": {"0": 23, "1": -2}}, where -2 means '
        "earliest and -1 latest",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", _READ, "error",
        "if no record is at or after the time: error, or latest (start at the end)",
    ),
    Option(
        "endingTimestamp", "batch", "", "milliseconds: records before this time"
    ),
    Option("endingOffsetsByTimestamp", "batch", "", "the same for each partition"),
    Option("endingOffsets", "batch", "latest", "latest, or offsets, exclusive; -1 means latest"),
    Option(
        "failOnDataLoss", _READ, "true",
        "false: skip requested records that are gone (retention, a deleted topic), with a warning",
    ),
    Option("minPartitions", _READ, "", "cut the read into at least this many tasks, by bytes"),
    Option("maxRecordsPerPartition", _READ, "", "cut the read so that no task gets more offsets than this"),
    Option("includeHeaders", _READ, "false", "true: add a column headers"),
    Option(
        "isolation_level", _READ, "read_committed",
        "read_uncommitted: also records of aborted and open transactions; also kafka.isolation.level",
    ),
    Option(
        "skipDamaged", _READ, "false",
        "true: skip damaged batches, with a warning in the executor's log and an entry in damageReportPath. "
        "false: fail with an error that names segment, byte and offsets",
    ),
    Option(
        "damageReportPath", _READ, "",
        "with skipDamaged: a directory that gets a JSON file for each damaged range that was skipped: topic, "
        "partition, first_offset, last_offset, segment, pos, reason",
    ),
    Option(
        "maxOffsetsPerTrigger", "stream", "",
        "the most offsets in a micro-batch, shared among the partitions in proportion to their backlog, at "
        "least one for each",
    ),
    Option(
        "minOffsetsPerTrigger", "stream", "",
        "skip triggers until this many offsets wait, or maxTriggerDelay has passed",
    ),
    Option(
        "maxTriggerDelay", "stream", "15m",
        "the longest time to skip triggers: 500ms, 30s, 15m, 1h; milliseconds without a unit",
    ),
    Option(
        "commitOffsetsToGroup", "stream", "",
        "a consumer group that gets the offsets of each finished micro-batch, for tools that monitor its lag",
    ),
    Option("topic", "write", "", "the topic of all rows; without it, the column topic names each row's"),
    Option(COMPRESSION, "write", "the topic's", "none, gzip, snappy, lz4 or zstd"),
    Option(
        "txnAppId", "write", "in a stream the query's id",
        "identifies the write; in a batch, together with txnVersion",
    ),
    Option(
        "txnVersion", "write", "in a stream the micro-batch's number",
        "a growing number: a batch is skipped if its txnAppId has written this version, or a later one",
    ),
)  # fmt: skip

_KNOWN: Final = {option.name.lower(): option for option in OPTIONS}
# Spark's own options, which it passes on to sources.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "triggertype"})
_MEANINGLESS: Final = {
    "groupidprefix": "no consumer group takes part in reading",
    "fetchoffset.numretries": "kafka.default.api.timeout.ms says for how long brokers are asked",
    "fetchoffset.retryintervalms": "kafka.retry.backoff.ms says how often brokers are asked",
    "kafkaconsumer.polltimeoutms": "kafka.request.timeout.ms says for how long brokers are waited for",
    "kafka.group.id": "no consumer group takes part in reading (see commitOffsetsToGroup)",
    "kafka.auto.offset.reset": "startingOffsets says where reading begins",
    "kafka.key.deserializer": "keys are bytes; decode them with Spark's functions",
    "kafka.value.deserializer": "values are bytes; decode them with Spark's functions",
    "kafka.enable.auto.commit": "no consumer group takes part in reading",
    "kafka.interceptor.classes": "there is no Java client here",
}


def check_names(options: Mapping[str, object], use: Use) -> None:
    """Raises InvalidArgument, UnknownSetting for an option that this use does not have."""
    for typed in options:
        name = typed.lower()
        option = _KNOWN.get(name)
        if option is not None:
            _check_use(option, use)
        elif name in _MEANINGLESS:
            raise InvalidArgument(f"the option {typed} has no meaning here: {_MEANINGLESS[name]}")
        elif name not in _OF_SPARK and not name.startswith(KAFKA):
            raise UnknownSetting(_unknown(typed, use))


def _check_use(option: Option, use: Use) -> None:
    if _is_usable(option, use):
        return
    if use == "batch" and "stream" in option.uses:
        logger.warning("%s is for streams, and means nothing to a batch", option.name)
        return
    raise InvalidArgument(f"the option {option.name} is for {option.uses}, not for a {use}")


def _is_usable(option: Option, use: Use) -> bool:
    uses = ("batch", "stream") if use == "load" else (use,)
    return any(name in option.uses for name in uses)


def _unknown(typed: str, use: Use) -> str:
    usable = {option.name.lower(): option.name for option in OPTIONS if _is_usable(option, use)}
    near = difflib.get_close_matches(typed.lower(), usable, n=1, cutoff=0.6)
    hint = f"did you mean {usable[near[0]]}?" if near else f"there are {', '.join(usable.values())}"
    return f"unknown option {shown(typed)}: {hint}"
