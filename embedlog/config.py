"""Settings: their names, types, bounds and defaults. Kafka's names in Python's spelling.

A name may be written with dots as in Kafka (`retention.ms`), with underscores as a Python keyword
(`retention_ms`), or as one of the synonyms in synonyms.py. A topic's own settings override those given to
`embedlog.open`, which override the defaults here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from .errors import InvalidSetting, InvalidType, UnknownSetting, shown
from .fields import Fields, Secret
from .synonyms import LOG, TOPIC, Synonyms, plain

UNLIMITED = -1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_INT16 = (1 << 15) - 1
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1
MAX_STRING_BYTES = (1 << 15) - 1  # Kafka's strings have a length of 16 bits

FINISHED = "finished"
"""The delete policy of a topic of jobs."""

COMPRESSION_TYPES = ("producer", "none", "uncompressed", "gzip", "snappy", "lz4", "zstd")


def _choice(*allowed: str) -> dict[str, Any]:
    return {"allowed": allowed}


def _between(low: int, high: int) -> dict[str, Any]:
    return {"low": low, "high": high}


_RULES: dict[str, dict[str, Any]] = {
    "cleanup_policy": _choice("delete", "compact", "compact,delete", "delete,compact", ""),
    "compression_type": {**_choice(*COMPRESSION_TYPES), "same": {"none": "uncompressed"}},
    "delete_retention_ms": _between(0, MAX_INT64),
    "file_delete_delay_ms": _between(0, MAX_INT64),
    "flush_messages": _between(1, MAX_INT64),
    "flush_ms": _between(1, MAX_INT64),
    "index_interval_bytes": _between(0, MAX_INT32),
    "max_compaction_lag_ms": _between(1, MAX_INT64),
    # At most what a reader agrees to decompress (codec.DEFAULT_MAX_BYTES).
    "max_message_bytes": _between(61, 128 * MIB),
    "message_timestamp_after_max_ms": _between(0, MAX_INT64),
    "message_timestamp_before_max_ms": _between(0, MAX_INT64),
    "message_timestamp_type": _choice("CreateTime", "LogAppendTime"),
    "min_cleanable_dirty_ratio": _between(0, 1),
    "min_compaction_lag_ms": _between(0, MAX_INT64),
    "retention_bytes": _between(UNLIMITED, MAX_INT64),
    "retention_ms": _between(UNLIMITED, MAX_INT64),
    "segment_bytes": _between(1024, MAX_INT32),
    "segment_ms": _between(1, MAX_INT64),
    "group_initial_rebalance_delay_ms": _between(0, HOUR_MS),
    "group_max_session_timeout_ms": _between(1, MAX_INT32),
    "log_cleaner_backoff_ms": _between(1, MAX_INT64),
    "log_cleaner_dedupe_buffer_size": _between(64 * KIB, MAX_INT64),
    "log_cleaner_io_max_bytes_per_second": _between(1, MAX_INT64),
    "log_retention_check_interval_ms": _between(1, MAX_INT64),
    "max_bytes": _between(UNLIMITED, MAX_INT64),
    "max_open_files": _between(UNLIMITED, 1 << 20),
    "offsets_topic_num_partitions": _between(1, 10_000),
    "offsets_topic_segment_bytes": _between(1024, MAX_INT32),
    "on_full": _choice("reject", "drop_oldest"),
    "producer_id_expiration_ms": _between(1, MAX_INT64),
    "transaction_max_timeout_ms": _between(1, MAX_INT32),
    "transaction_state_log_num_partitions": _between(1, 10_000),
    "transactional_id_expiration_ms": _between(1, MAX_INT32),
}


@dataclass(frozen=True)
class Settings(Fields):
    """Parses, checks and lists settings: the base of all kinds."""

    rules: ClassVar[Mapping[str, Mapping[str, Any]]] = _RULES
    synonyms: ClassVar[Synonyms] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the settings, with underscores."""
        return tuple(cls.defaults())

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The default of each setting, by name."""
        return {setting.name: setting.default for setting in fields(cls)}

    @classmethod
    def resolved(cls, typed: str, value: Any) -> tuple[str, Any] | None:
        """The canonical name of a setting, and its value in the setting's unit. None for an unknown name.

        Raises InvalidType if the value cannot be converted.
        """
        name = plain(typed)
        meant = cls.synonyms.get(name)
        if meant is None:
            return (name, value) if name in cls.names() else None
        if meant.unit != 1 and value is not None:
            count = _converted(typed, value, int)
            value = count if count < 0 else count * meant.unit
        return meant.name, value

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Check and convert settings as users write them. Returns them by canonical name.

        Numbers and booleans may be text, as on a command line. Raises UnknownSetting, InvalidType,
        InvalidSetting (also if a setting is given under two names).
        """
        defaults = cls.defaults()
        parsed: dict[str, Any] = {}
        for typed, value in settings.items():
            resolved = cls.resolved(typed, value)
            if resolved is None:
                raise UnknownSetting(unknown_setting(typed, defaults, cls.synonyms))
            name, value = resolved
            if name in parsed:
                raise InvalidSetting(f"{name} is given twice, once as {typed}")
            parsed[name] = _checked(typed, value, type(defaults[name]), cls.rules.get(name, {}))
        return parsed

    @classmethod
    def parse_changes(cls, settings: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        """As `parse`. Also returns the names of settings with the value None, which are to be reset."""
        (changes,) = sorted_settings(settings, cls)
        removed = frozenset(name for name, value in changes.items() if value is None)
        return cls.parse({typed: value for typed, value in settings.items() if value is not None}), removed

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with these changes, which `parse` checks and converts."""
        return self.replaced(**self.parse(changes))


@dataclass(frozen=True)
class TopicSettings(Settings):
    """The settings of a topic. Times are in milliseconds, sizes in bytes; -1 means no limit."""

    synonyms: ClassVar[Synonyms] = TOPIC

    # Derived from the settings, once, for every append; not settings themselves.
    append_time: ClassVar[bool]
    compresses: ClassVar[bool]
    compacts: ClassVar[bool]
    limits_past: ClassVar[bool]
    limits_times: ClassVar[bool]

    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    delete_policy: str = "record_timestamp,bytes"
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_INT64
    flush_ms: int = 1_000
    index_interval_bytes: int = 4 * KIB
    max_compaction_lag_ms: int = MAX_INT64
    max_message_bytes: int = MIB + 12
    message_timestamp_after_max_ms: int = MAX_INT64
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    preallocate: bool = False
    retention_bytes: int = UNLIMITED
    retention_ms: int = UNLIMITED
    segment_bytes: int = GIB
    segment_ms: int = 7 * DAY_MS

    @property
    def deletes(self) -> bool:
        """Whether the delete policies delete old segments."""
        return "delete" in self.cleanup_policy

    @property
    def delete_policies(self) -> list[str]:
        """The names in `delete_policy`."""
        return [name.strip() for name in self.delete_policy.split(",")]

    @property
    def keeps_unfinished(self) -> bool:
        """Whether every policy keeps records that a share group has not finished, as in a topic of jobs."""
        return FINISHED in self.delete_policies

    def __post_init__(self) -> None:
        """append_time: records get the time of their append. compresses: appends compress unless they specify
        a codec. compacts: compaction keeps only the last record of each key. limits_past: records that are
        too old are refused; limits_times: these, or those of the future."""
        stated = self.compression_type not in ("producer", "uncompressed")
        self.__dict__["append_time"] = self.message_timestamp_type == "LogAppendTime"
        self.__dict__["compresses"] = stated
        self.__dict__["compacts"] = "compact" in self.cleanup_policy
        own_time = not self.append_time
        self.__dict__["limits_past"] = own_time and self.message_timestamp_before_max_ms < MAX_INT64
        self.__dict__["limits_times"] = self.limits_past or (
            own_time and self.message_timestamp_after_max_ms < MAX_INT64
        )


@dataclass(frozen=True)
class LogSettings(Settings):
    """The settings of a log as a whole."""

    synonyms: ClassVar[Synonyms] = LOG

    group_initial_rebalance_delay_ms: int = 0
    group_max_session_timeout_ms: int = 1_800_000
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 128 * MIB
    log_cleaner_io_max_bytes_per_second: int = MAX_INT64
    log_retention_check_interval_ms: int = 300_000
    max_bytes: int = UNLIMITED
    max_open_files: int = UNLIMITED
    offsets_topic_num_partitions: int = 50
    offsets_topic_segment_bytes: int = 100 * MIB
    on_full: str = "reject"
    producer_id_expiration_ms: int = DAY_MS
    transaction_max_timeout_ms: int = 900_000
    transaction_state_log_num_partitions: int = 50
    transactional_id_expiration_ms: int = 7 * DAY_MS


def dotted(name: str) -> str:
    """A setting's name in Kafka's spelling."""
    return name.replace("_", ".")


def format_value(value: object) -> str:
    """A setting's value on the wire."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings by their names, as they are on the wire."""
    return {dotted(name): format_value(value) for name, value in settings.items()}


_TRUTHS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def sorted_settings(settings: Mapping[str, Any], *kinds: type[Settings]) -> tuple[dict[str, Any], ...]:
    """Settings as users write them, separated by kind, with canonical names and units.

    A name belongs to the first kind that knows it. Raises UnknownSetting for a name that none knows,
    InvalidSetting if a setting is given under two names, InvalidType.
    """
    by_kind: tuple[dict[str, Any], ...] = tuple({} for _ in kinds)
    for typed, value in settings.items():
        name, plain_value, of_kind = _resolved_by_one(typed, value, kinds, by_kind)
        if name in of_kind:
            raise InvalidSetting(f"{name} is given twice, once as {typed}")
        of_kind[name] = plain_value
    return by_kind


def _resolved_by_one(
    typed: str, value: Any, kinds: tuple[type[Settings], ...], by_kind: tuple[dict[str, Any], ...]
) -> tuple[str, Any, dict[str, Any]]:
    for kind, of_kind in zip(kinds, by_kind, strict=True):
        resolved = kind.resolved(typed, value)
        if resolved is not None:
            return *resolved, of_kind
    names = [name for kind in kinds for name in kind.names()]
    raise UnknownSetting(
        unknown_setting(typed, names, [synonym for kind in kinds for synonym in kind.synonyms])
    )


def unknown_setting(typed: str, names: Iterable[str], synonyms: Iterable[str] = ()) -> str:
    """The error message for a name that is neither a setting nor a synonym."""
    names = tuple(names)
    import difflib

    similar_names = difflib.get_close_matches(plain(typed), (*names, *synonyms), n=1)
    hint = f"did you mean {similar_names[0]!r}?" if similar_names else f"the settings are {', '.join(names)}"
    return f"unknown setting {shown(typed)}: {hint}"


def _checked(name: str, value: Any, kind: type, rule: Mapping[str, Any]) -> Any:
    """The value converted to `kind` and checked by the rule. Raises InvalidType, InvalidSetting."""
    value = _converted(name, value, kind)
    if "allowed" in rule:
        # Accept "compact, delete" with a space.
        value = value.replace(" ", "")
        if value not in rule["allowed"]:
            allowed = ", ".join(choice or "'' (none)" for choice in rule["allowed"])
            raise InvalidSetting(f"{name} must be one of {allowed}, not {shown(value)}")
        value = rule.get("same", {}).get(value, value)  # two words for one choice: Kafka's is kept
    elif "low" in rule and not rule["low"] <= value <= rule["high"]:
        raise InvalidSetting(
            f"{name} must be between {rule['low']:,} and {rule['high']:,}, not {shown(value)}"
        )
    return value


def _converted(name: str, value: Any, kind: type) -> Any:
    if kind is Secret:
        if isinstance(value, str):
            return Secret(value)
        if isinstance(value, Secret):
            return value
        raise InvalidType(f"{name} must be a string, not {type(value).__name__}")
    if kind is type(None):  # an object: the code that uses it checks it
        return value
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _TRUTHS:
            return _TRUTHS[value.lower()]
    elif kind in (int, float):
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return kind(value.replace("_", ""))
        elif isinstance(value, kind) and not isinstance(value, bool):
            return value
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                return float(value)
    elif isinstance(value, str):
        return value
    elif isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    raise InvalidType(f"{name} must be {kind.__name__}, not {type(value).__name__} ({shown(value)})")
