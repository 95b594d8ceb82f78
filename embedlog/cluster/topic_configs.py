"""Topic settings as they come over the wire: Kafka's dotted names, texts for values.

Three kinds of names:
    those of `TopicSettings`: taken, checked, kept
    Kafka's for what there is nothing of here (replicas, tiers, old formats): taken where the value asks for
        what is so anyway, refused where it asks for something that would not be done; never kept
    any other: refused

A value that names a function of the program's own (delete.policy) can be set from inside the program alone:
a client must not choose what code a broker imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ..config import MAX_INT32, MAX_INT64, Settings, TopicSettings
from ..errors import InvalidSetting, InvalidType
from ..retention import POLICIES
from ..synonyms import BROKER_NAMES

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # Kafka's numbers for the types of settings
OWN, CHANGED, GIVEN_AT_START, DEFAULT = 1, 2, 4, 5  # and for where a value comes from: the topic, ...
_LISTS: Final = frozenset({"cleanup_policy", "delete_policy"})


class Fixed(NamedTuple):
    """A setting of Kafka's that has one value here: its type, that value, and which may be asked for."""

    type: int
    value: str
    taken: Callable[[str], bool]
    why: str


def _same(type: int, value: str, why: str) -> Fixed:
    return Fixed(type, value, lambda given: given.strip().lower() == value.lower(), why)


def _any(type: int, value: str) -> Fixed:
    return Fixed(type, value, lambda given: True, "")


_NO_REPLICAS: Final = "each partition has one replica"
_NO_TIERS: Final = "there is no tiered storage"
_NO_TIME_LIMIT: Final = "timestamps are taken as they are; message.timestamp.type=LogAppendTime gives others"

FIXED: Final[dict[str, Fixed]] = {
    "compression.gzip.level": _any(INT, "-1"),
    "compression.lz4.level": _any(INT, "9"),
    "compression.zstd.level": _any(INT, "3"),
    "follower.replication.throttled.replicas": _any(LIST, ""),
    "leader.replication.throttled.replicas": _any(LIST, ""),
    "local.retention.bytes": _same(LONG, "-2", _NO_TIERS),
    "local.retention.ms": _same(LONG, "-2", _NO_TIERS),
    "message.downconversion.enable": _same(BOOLEAN, "true", "old clients get their own formats"),
    "message.format.version": _any(STRING, "3.0-IV1"),
    "message.timestamp.after.max.ms": _same(LONG, str(MAX_INT64), _NO_TIME_LIMIT),
    "message.timestamp.before.max.ms": _same(LONG, str(MAX_INT64), _NO_TIME_LIMIT),
    "message.timestamp.difference.max.ms": _same(LONG, str(MAX_INT64), _NO_TIME_LIMIT),
    "min.insync.replicas": _same(INT, "1", _NO_REPLICAS),
    "remote.log.copy.disable": _same(BOOLEAN, "false", _NO_TIERS),
    "remote.log.delete.on.disable": _same(BOOLEAN, "false", _NO_TIERS),
    "remote.storage.enable": _same(BOOLEAN, "false", _NO_TIERS),
    "segment.index.bytes": _any(INT, "10485760"),
    "segment.jitter.ms": _any(LONG, "0"),
    "unclean.leader.election.enable": _any(BOOLEAN, "false"),
}
"""Sent by Kafka's tools, Connect, Streams, mirroring and operators; docs/settings.md tells them."""


_IN_A_BROKER: Final[dict[str, str]] = {
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "message.downconversion.enable": "log.message.downconversion.enable",
    "message.format.version": "log.message.format.version",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    **{own.replace("_", "."): theirs.replace("_", ".") for own, theirs in BROKER_NAMES.items()},
}


def checked(given: Mapping[str, str]) -> dict[str, Any]:
    """What is to be kept of a topic's settings that a client gives. Raises UnknownSetting, InvalidSetting."""
    own = parsed(TopicSettings, {name: value for name, value in given.items() if name not in FIXED})
    for name, value in given.items():
        fixed = FIXED.get(name)
        if fixed is not None and not fixed.taken(value):
            raise InvalidSetting(f"{name} is {fixed.value} here: {fixed.why}")
    policies = own.get("delete_policy", "")
    if policies and not all(name.strip() in POLICIES for name in policies.split(",")):
        raise InvalidSetting(
            f"over the wire delete.policy is one of {', '.join(POLICIES)}: a function of your own is given "
            "to the process that has the log open"
        )
    return own


def parsed(settings: type[Settings], given: Mapping[str, str]) -> dict[str, Any]:
    """Settings out of their texts; a text that is no number is a wrong value and not a wrong request.

    Raises UnknownSetting, InvalidSetting.
    """
    try:
        return settings.parse(given)
    except InvalidType as error:
        raise InvalidSetting(str(error)) from None


def dotted(name: str) -> str:
    """A setting's name in Kafka's spelling."""
    return name.replace("_", ".")


def broker_name(name: str) -> str:
    """What a topic's setting is called in a broker's configuration; any other name as it is."""
    return _IN_A_BROKER.get(name, name)


def text_of(value: object) -> str:
    """A value as it stands on the wire."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def type_of(settings: type[Settings], name: str, value: object) -> int:
    """Kafka's number for the type of a setting, by a value that it may have."""
    if name in _LISTS:
        return LIST
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INT if settings.rules.get(name, {}).get("high", MAX_INT64) <= MAX_INT32 else LONG
    return DOUBLE if isinstance(value, float) else STRING


class Value(NamedTuple):
    """A setting as clients are told of it; `synonyms` are its other values, as (value, source)."""

    name: str
    value: str
    source: int
    type: int
    read_only: bool = False
    synonyms: tuple[tuple[str, int], ...] = ()


def value_of(settings: type[Settings], name: str, values: Iterable[tuple[object, int]], **more: Any) -> Value:
    """A setting that has these values, with their sources; the first one counts."""
    found = [(value, source) for value, source in values]
    (first, source), texts = found[0], tuple((text_of(value), source) for value, source in found)
    return Value(dotted(name), texts[0][0], source, type_of(settings, name, first), synonyms=texts, **more)


def topic_values(defaults: TopicSettings, own: Mapping[str, Any]) -> list[Value]:
    """Every setting of a topic that has these of its own, under the defaults of a log."""
    shipped = TopicSettings().as_dict()
    found = []
    for name, default in defaults.as_dict().items():
        values = [(own[name], OWN)] if name in own else []
        if default != shipped[name]:
            values.append((default, GIVEN_AT_START))
        found.append(value_of(TopicSettings, name, [*values, (shipped[name], DEFAULT)]))
    found += [Value(name, fixed.value, DEFAULT, fixed.type, read_only=True) for name, fixed in FIXED.items()]
    return sorted(found)


def topic_defaults(defaults: TopicSettings) -> list[Value]:
    """The defaults of topics' settings, under their names in a broker's configuration."""
    return [
        value._replace(name=broker_name(value.name), read_only=True) for value in topic_values(defaults, {})
    ]
