"""Topic settings as they come over the wire: Kafka's dotted names, texts for values.

Three kinds of names:
    those of `TopicSettings`: accepts, checked, kept
    Kafka's for features that embedlog lacks (replicas, tiers, old formats): accepts if the value asks for
        what is so anyway, refused where it asks for something that would not be done; never kept
    any other: refused

A value that names a function of the program's own (delete.policy) can be set from inside the program alone:
a client must not choose what code a broker imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ...config import MAX_INT32, MAX_INT64, Settings, TopicSettings, dotted, format_value
from ...errors import InvalidSetting, InvalidType
from ...fields import Secret
from ...retention import POLICIES
from ...synonyms import BROKER_NAMES

# Kafka's numbers for the types of settings
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST, PASSWORD = 1, 2, 3, 5, 6, 7, 9
TOPIC, DYNAMIC, STATIC, DEFAULT, GROUP = 1, 2, 4, 5, 8  # and for where a value comes from: the topic, ...
_LISTS: Final = frozenset({"cleanup_policy", "delete_policy"})


class FixedConfig(NamedTuple):
    """A setting of Kafka's that has one value here, and the values that are accepted for it."""

    type: int
    value: str
    accepts: Callable[[str], bool]
    why: str


def _only(type: int, value: str, why: str) -> FixedConfig:
    return FixedConfig(type, value, lambda text: text.strip().lower() == value.lower(), why)


def _ignored(type: int, value: str) -> FixedConfig:
    return FixedConfig(type, value, lambda text: True, "")


_NO_REPLICAS: Final = "each partition has one replica"
_NO_TIERS: Final = "there is no tiered storage"
_TWO_LIMITS: Final = "it is message.timestamp.before.max.ms and message.timestamp.after.max.ms since Kafka 4"

FIXED: Final[dict[str, FixedConfig]] = {
    "compression.gzip.level": _ignored(INT, "-1"),
    "compression.lz4.level": _ignored(INT, "9"),
    "compression.zstd.level": _ignored(INT, "3"),
    "follower.replication.throttled.replicas": _ignored(LIST, ""),
    "leader.replication.throttled.replicas": _ignored(LIST, ""),
    "local.retention.bytes": _only(LONG, "-2", _NO_TIERS),
    "local.retention.ms": _only(LONG, "-2", _NO_TIERS),
    "message.downconversion.enable": _only(BOOLEAN, "true", "old clients get their own formats"),
    "message.format.version": _ignored(STRING, "3.0-IV1"),
    "message.timestamp.difference.max.ms": _only(LONG, str(MAX_INT64), _TWO_LIMITS),
    "min.insync.replicas": _only(INT, "1", _NO_REPLICAS),
    "remote.log.copy.disable": _only(BOOLEAN, "false", _NO_TIERS),
    "remote.log.delete.on.disable": _only(BOOLEAN, "false", _NO_TIERS),
    "remote.storage.enable": _only(BOOLEAN, "false", _NO_TIERS),
    "segment.index.bytes": _ignored(INT, "10485760"),
    "segment.jitter.ms": _ignored(LONG, "0"),
    "unclean.leader.election.enable": _ignored(BOOLEAN, "false"),
}
"""Sent by Kafka's tools, Connect, Streams, mirroring and operators; listed in docs/reference/settings.md."""


_BROKER_NAMES: Final[dict[str, str]] = {
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "message.downconversion.enable": "log.message.downconversion.enable",
    "message.format.version": "log.message.format.version",
    "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    **{own.replace("_", "."): theirs.replace("_", ".") for own, theirs in BROKER_NAMES.items()},
}


def validate_topic_configs(configs: Mapping[str, str]) -> dict[str, Any]:
    """A client's settings for a topic, as they are to be stored. Raises UnknownSetting, InvalidSetting."""
    own = parse_settings(TopicSettings, without_fixed(configs, FIXED))
    policies = own.get("delete_policy", "")
    if policies and not all(name.strip() in POLICIES for name in policies.split(",")):
        raise InvalidSetting(
            f"over the wire delete.policy is one of {', '.join(POLICIES)}; your own function is given to the "
            "process that has the log open"
        )
    return own


def without_fixed(configs: Mapping[str, str], table: Mapping[str, FixedConfig]) -> dict[str, str]:
    """The settings that are not in the table. Raises InvalidSetting for a value that it does not accept."""
    for name, value in configs.items():
        fixed = table.get(name)
        if fixed is not None and not fixed.accepts(value):
            raise InvalidSetting(f"{name} is {fixed.value} here: {fixed.why}")
    return {name: value for name, value in configs.items() if name not in table}


def fixed_entries(table: Mapping[str, FixedConfig]) -> list[ConfigEntry]:
    """Those settings as they are shown."""
    return [
        ConfigEntry(name, fixed.value, DEFAULT, fixed.type, read_only=True) for name, fixed in table.items()
    ]


def parse_settings(settings: type[Settings], configs: Mapping[str, str]) -> dict[str, Any]:
    """Parse settings; a string that is not a number is an invalid value rather than an invalid request.

    Raises UnknownSetting, InvalidSetting.
    """
    try:
        return settings.parse(configs)
    except InvalidType as error:
        raise InvalidSetting(str(error)) from None


def broker_name(name: str) -> str:
    """The name of a topic's setting in a broker's configuration; any other name unchanged."""
    return _BROKER_NAMES.get(name, name)


def config_type(settings: type[Settings], name: str, value: object) -> int:
    """Kafka's number for the type of a setting, given one of its values."""
    if name in _LISTS:
        return LIST
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INT if settings.rules.get(name, {}).get("high", MAX_INT64) <= MAX_INT32 else LONG
    return DOUBLE if isinstance(value, float) else STRING


class ConfigEntry(NamedTuple):
    """A setting in a response; `synonyms` are its values as (value, source), the effective one first."""

    name: str
    value: str
    source: int
    type: int
    read_only: bool = False
    synonyms: tuple[tuple[str, int], ...] = ()
    sensitive: bool = False  # its value is not told


def config_entry(
    settings: type[Settings], name: str, values: Iterable[tuple[object, int]], **more: Any
) -> ConfigEntry:
    """A setting with these values and their sources; the first one is effective."""
    synonyms = [(value, source) for value, source in values]
    if isinstance(settings.defaults()[name], Secret):
        return ConfigEntry(dotted(name), "", synonyms[0][1], PASSWORD, sensitive=True, **more)
    (first, source), texts = synonyms[0], tuple((format_value(value), source) for value, source in synonyms)
    return ConfigEntry(
        dotted(name), texts[0][0], source, config_type(settings, name, first), synonyms=texts, **more
    )


def topic_entries(defaults: TopicSettings, own: Mapping[str, Any]) -> list[ConfigEntry]:
    """Every setting of a topic with these own settings, over the defaults of its log."""
    shipped = TopicSettings().as_dict()
    entries = []
    for name, default in defaults.as_dict().items():
        values = [(own[name], TOPIC)] if name in own else []
        if default != shipped[name]:
            values.append((default, STATIC))
        entries.append(config_entry(TopicSettings, name, [*values, (shipped[name], DEFAULT)]))
    return sorted(entries + fixed_entries(FIXED))


def topic_default_entries(defaults: TopicSettings) -> list[ConfigEntry]:
    """The defaults of topic settings, under their names in a broker's configuration."""
    return [
        entry._replace(name=broker_name(entry.name), read_only=True) for entry in topic_entries(defaults, {})
    ]
