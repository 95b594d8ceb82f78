"""The settings of a copied topic: what its target must be told to keep what the source keeps.

    the topic's own        are stated, as the target understands them
    any other              is stated if the target would do otherwise: the defaults of the two may differ.
                           A directory keeps records without limit, Apache Kafka for seven days
    what keeps records     is always stated to brokers (KEEPING): their defaults may change at any time

What a target cannot be told is omitted by name. A flush that only the source's default postpones is not
stated: brokers flush late because they have replicas.

All names are Kafka's, and all values the texts of its protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ..backends.port import TopicConfigs
from ..config import FINISHED, MAX_INT64, UNLIMITED, TopicSettings, as_texts
from ..retention import POLICIES
from ..synonyms import plain

_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_PAST: Final = "message.timestamp.before.max.ms"
_POLICY: Final = "delete.policy"
KEEPING: Final = ("retention.ms", "retention.bytes", "cleanup.policy", _TIMESTAMP_TYPE)
"""The settings without which the target would not keep the records as the source does."""

# Of the brokers themselves; and the limit of the past that Kafka had before 3.6.
_NEVER_COPIED: Final = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.timestamp.difference.max.ms",
)
_FLUSHES: Final = ("flush.messages", "flush.ms")


class Stated(NamedTuple):
    """The settings to state, those of KEEPING first; and those that cannot be, with the reasons."""

    settings: dict[str, str]
    omitted: dict[str, str]


def for_directory(source: TopicConfigs, kept: TopicSettings, defaults: Mapping[str, str]) -> Stated:
    """What to state to a directory with these defaults.

    kept: the source's settings as embedlog has them; without limits if the source tells none.
    """
    texts = source.effective or {name: as_texts(kept.as_dict())[name] for name in KEEPING}
    return Stated(_differing(texts, source.own, defaults, always=()), {})


def for_brokers(source: TopicConfigs, kept: TopicSettings, defaults: Mapping[str, str]) -> Stated:
    """What to state to brokers that would give the topic these defaults; none if they do not tell.

    A broker takes what is appended as new. So a copy has CreateTime, or it would get other times; and no
    limit of the past, since records get older until they are copied.
    """
    texts = {name: value for name, value in source.effective.items() if name not in _NEVER_COPIED}
    own = source.own - {_TIMESTAMP_TYPE, _PAST}
    omitted = {}
    knows_policies = _POLICY in defaults and all(name in POLICIES for name in kept.delete_policies)
    retention_ms, retention_bytes = kept.retention_ms, kept.retention_bytes
    if not knows_policies:
        retention_ms, retention_bytes = _limits(kept, by_modification=False)
        texts.pop(_POLICY, None)
        if _POLICY in own:
            omitted[_POLICY] = f"what {kept.delete_policy} would delete is kept there"
            own -= {_POLICY}
    if kept.append_time:
        omitted[_TIMESTAMP_TYPE] = "the copies keep the times of their source"
    if kept.message_timestamp_before_max_ms < MAX_INT64:
        omitted[_PAST] = "records get older until they are copied; set it after the last one"
    texts |= {
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
        "cleanup.policy": kept.cleanup_policy,
        _TIMESTAMP_TYPE: "CreateTime",
        _PAST: str(MAX_INT64),
    }
    return Stated(_differing(texts, own, defaults, always=KEEPING), omitted)


def missing(source: TopicSettings, target: TopicSettings, *, at_brokers: bool) -> dict[str, str]:
    """What an existing topic must be given to keep what the source's keeps; empty if it does."""
    alike = source.delete_policies == target.delete_policies
    ours = _limits(source, by_modification=alike) if source.deletes else (UNLIMITED, UNLIMITED)
    theirs = _limits(target, by_modification=True) if target.deletes else (UNLIMITED, UNLIMITED)
    limits = zip(("retention.ms", "retention.bytes"), ours, theirs, strict=True)
    changes = {name: str(ours) for name, ours, theirs in limits if _is_less(theirs, ours)}
    if target.compacts and not source.compacts:
        changes["cleanup.policy"] = source.cleanup_policy
    elif target.compacts:
        for name in ("delete_retention_ms", "min_compaction_lag_ms"):
            if getattr(target, name) < getattr(source, name):
                changes |= as_texts({name: getattr(source, name)})
    if at_brokers and target.append_time:
        changes[_TIMESTAMP_TYPE] = "CreateTime"
    return changes


def _differing(
    texts: Mapping[str, str], own: frozenset[str], defaults: Mapping[str, str], always: tuple[str, ...]
) -> dict[str, str]:
    """The settings that are to be stated. Without known defaults, all that embedlog has."""

    def is_stated(name: str) -> bool:
        if name in always or name in own:
            return True
        if not defaults:
            return plain(name) in TopicSettings.names()
        if name not in defaults or texts[name] == defaults[name]:
            return False
        return name not in _FLUSHES or int(texts[name]) < int(defaults[name])

    names = sorted(filter(is_stated, texts), key=lambda name: (name not in KEEPING, name))
    return {name: texts[name] for name in names}


def _limits(settings: TopicSettings, *, by_modification: bool) -> tuple[int, int]:
    """For how long (ms) and how much (bytes) a topic keeps what it may delete; -1: without limit.

    by_modification: whether it counts that segments go by their files' times, which are later than the
    records'.
    """
    policies = settings.delete_policies
    if FINISHED in policies:
        return UNLIMITED, UNLIMITED
    by_time = "record_timestamp" in policies or (by_modification and "modification_time" in policies)
    return (
        settings.retention_ms if by_time else UNLIMITED,
        settings.retention_bytes if "bytes" in policies else UNLIMITED,
    )


def _is_less(limit: int, other: int) -> bool:
    return limit != UNLIMITED and (other == UNLIMITED or limit < other)
