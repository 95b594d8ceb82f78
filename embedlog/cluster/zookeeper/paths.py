"""Every path in ZooKeeper: built and parsed only here, from one table. No I/O.

    /brokers/ids/[broker]                                  e   a live broker and its address
    /brokers/seqid                                         p   generates broker ids
    /brokers/topics/[topic]                                p   the topic's partitions and their replicas
    /brokers/topics/[topic]/partitions/[partition]/state   p   leader, in-sync replicas, epochs
    /brokers/topics/[topic]/[broker]                       e   0.7: number of its partitions on the broker
    /controller                                            e   the broker that elects leaders
    /controller_epoch                                      p   number of controllers elected so far
    /config/topics/[topic]                                 p   the topic's settings
    /config/users/[user]                                   p   the user's quotas and SCRAM credentials
    /config/users/[user]/clients/[client id]               p   of a client id of this user
    /config/clients/[client id]                            p   the client id's quotas
    /config/ips/[address]                                  p   the address's quotas
    /config/changes/config_change_[number]                 p   a notification: whose settings have changed
    /embedlog/sasl_secret                                  p   embedlog's: behind what unknown users have
    /admin/delete_topics/[topic]                           p   a topic to be deleted
    /cluster/id                                            p   the cluster's id
    /latest_producer_id_block                              p   the block of producer ids claimed last
    /consumers/[group]/ids/[consumer]                      e   a consumer and its subscription
    /consumers/[group]/offsets/[topic]/[partition]         p   the group's committed offset
    /consumers/[group]/owners/[topic]/[partition]          e   the consumer thread that reads the partition
    /kafka-acl/[resource type]/[name]                      p   the ACLs of a resource; * for all
    /kafka-acl-extended/prefixed/[resource type]/[name]    p   the ACLs of resources whose names begin so
    /kafka-acl-changes/acl_changes_[number]                p   which ACLs of a resource have changed
    /kafka-acl-extended-changes/acl_changes_[number]       p   the same for prefixes

e: ephemeral, deleted with its creator's session; p: persistent. Paths are relative to the chroot.
Users, client ids and addresses are written as in an URL; "<default>" stands for all others.
In 0.7 the name of a partition is "[broker]-[partition]", which consumers use in place of the number.

Source: Kafka 0.7, 0.10 and 2.7 design, "ZooKeeper directories"; Kafka 2.x's names.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from ...errors import InvalidArgument
from ...model import TopicPartition

BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
TOPIC_CONFIGS: Final = "/config/topics"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE: Final = f"{CONFIG_CHANGES}/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"
CLUSTER_ID: Final = "/cluster/id"
PRODUCER_IDS: Final = "/latest_producer_id_block"
CONSUMERS: Final = "/consumers"
ACLS: Final = "/kafka-acl"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
ACL_CHANGES: Final = "/kafka-acl-changes"
PREFIXED_ACL_CHANGES: Final = "/kafka-acl-extended-changes"
ACL_CHANGE: Final = "acl_changes_"
USERS: Final = "/config/users"
SASL_SECRET: Final = "/embedlog/sasl_secret"
_DEFAULT: Final = "<default>"

_NUMBER: Final = r"(0|[1-9][0-9]{0,9})"
_NAME: Final = r"([^/]+)"
_PARTITION: Final = r"((?:0|[1-9][0-9]{0,9})(?:-(?:0|[1-9][0-9]{0,9}))?)"

# Kind, form, and the names of the variable parts.
_FORMS: Final[list[tuple[str, re.Pattern[str], tuple[str, ...]]]] = [
    (kind, re.compile(form.replace("#", _NUMBER).replace("?", _PARTITION).replace("*", _NAME)), names)
    for kind, form, names in (
        ("broker", f"{BROKER_IDS}/#", ("broker",)),
        ("broker_sequence", BROKER_SEQUENCE, ()),
        ("partition_state", f"{TOPICS}/*/partitions/#/state", ("topic", "partition")),
        ("topic_of_broker", f"{TOPICS}/*/#", ("topic", "broker")),
        ("topic", f"{TOPICS}/*", ("topic",)),
        ("controller", CONTROLLER, ()),
        ("controller_epoch", CONTROLLER_EPOCH, ()),
        ("topic_config", f"{TOPIC_CONFIGS}/*", ("topic",)),
        ("deletion", f"{DELETE_TOPICS}/*", ("topic",)),
        ("cluster_id", CLUSTER_ID, ()),
        ("producer_ids", PRODUCER_IDS, ()),
        ("consumer", f"{CONSUMERS}/*/ids/*", ("group", "consumer")),
        ("offset", f"{CONSUMERS}/*/offsets/*/?", ("group", "topic", "partition")),
        ("owner", f"{CONSUMERS}/*/owners/*/?", ("group", "topic", "partition")),
        ("acl", f"{ACLS}/*/*", ("resource_type", "name")),
        ("prefixed_acl", f"{PREFIXED_ACLS}/*/*", ("resource_type", "name")),
    )
]
_NO_NUMBERS: Final = frozenset({"topic", "group", "consumer", "resource_type", "name"})
_IMPOSSIBLE: Final = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class ParsedPath(NamedTuple):
    """A parsed path. `kind` is the name of the function below that builds it, `values` are its arguments."""

    kind: str
    values: dict[str, str | int]


def parse(path: str) -> ParsedPath | None:
    """Returns None for any other path."""
    for kind, form, names in _FORMS:
        match = form.fullmatch(path)
        if match is not None:
            return ParsedPath(
                kind,
                {
                    name: text if name in _NO_NUMBERS or not text.isdigit() else int(text)
                    for name, text in zip(names, match.groups(), strict=True)
                },
            )
    return None


def broker(broker: int) -> str:
    return f"{BROKER_IDS}/{broker}"


def broker_sequence() -> str:
    return BROKER_SEQUENCE


def topic(topic: str) -> str:
    return f"{TOPICS}/{_name(topic)}"


def topic_of_broker(topic: str, broker: int) -> str:
    """The partitions that a broker of 0.7 has of a topic."""
    return f"{TOPICS}/{_name(topic)}/{broker}"


def partitions(topic: str) -> str:
    """The parent of a topic's partitions."""
    return f"{TOPICS}/{_name(topic)}/partitions"


def partition(partition: TopicPartition) -> str:
    """The parent of a partition's state."""
    return f"{partitions(partition.topic)}/{partition.partition}"


def partition_state(topic: str, partition: int) -> str:
    return f"{partitions(topic)}/{partition}/state"


def controller() -> str:
    return CONTROLLER


def controller_epoch() -> str:
    return CONTROLLER_EPOCH


def topic_config(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{_name(topic)}"


def config_entity(entity_path: str) -> str:
    """The node of "users/[name]" and the like, with names that are `sanitized`; or of their parent."""
    return f"/config/{entity_path}"


def sanitized(name: str | None) -> str:
    """The name of a user, client id or address as a step of a path; None is the default."""
    return _DEFAULT if name is None else quote(name, safe="").replace("~", "%7E")


def unsanitized(step: str) -> str | None:
    """The reverse of `sanitized`."""
    return None if step == _DEFAULT else unquote(step)


def deletion(topic: str) -> str:
    return f"{DELETE_TOPICS}/{_name(topic)}"


def cluster_id() -> str:
    return CLUSTER_ID


def producer_ids() -> str:
    return PRODUCER_IDS


def consumers(group: str) -> str:
    """The parent of a group's members."""
    return f"{CONSUMERS}/{_name(group)}/ids"


def consumer(group: str, consumer: str) -> str:
    return f"{consumers(group)}/{_name(consumer)}"


def offsets(group: str, topic: str) -> str:
    """The parent of a group's offsets in a topic."""
    return f"{CONSUMERS}/{_name(group)}/offsets/{_name(topic)}"


def offset(group: str, topic: str, partition: int | str) -> str:
    return f"{offsets(group, topic)}/{partition}"


def owners(group: str, topic: str) -> str:
    """The parent of a topic's owners."""
    return f"{CONSUMERS}/{_name(group)}/owners/{_name(topic)}"


def owner(group: str, topic: str, partition: int | str) -> str:
    return f"{owners(group, topic)}/{partition}"


def acl(resource_type: str, name: str) -> str:
    return f"{ACLS}/{_name(resource_type)}/{_name(name)}"


def prefixed_acl(resource_type: str, name: str) -> str:
    return f"{PREFIXED_ACLS}/{_name(resource_type)}/{_name(name)}"


def _name(name: str) -> str:
    """Raises InvalidArgument for a name that cannot be one step of a path."""
    if not name or name in (".", "..", "zookeeper") or _IMPOSSIBLE.search(name):
        raise InvalidArgument(f"{name!r} cannot be a name in ZooKeeper")
    return name
