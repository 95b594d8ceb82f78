"""The contents of znodes: encodes Kafka 2.x's JSON, and decodes it and the texts of 0.7.

    broker           {"version":5,"host":"h","port":9092,"endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,
                      "timestamp":"1700000000000","listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},
                      "features":{}}                       and "rack" if the broker has one
                     0.7: "creator:host:port", or "host:port"
    topic            {"version":3,"topic_id":"...","partitions":{"0":[1]},"adding_replicas":{},
                      "removing_replicas":{}}              versions 1 and 2 have no id
    partition_state  {"version":1,"leader":1,"leader_epoch":0,"controller_epoch":1,"isr":[1]}
    controller       {"version":1,"brokerid":1,"timestamp":"1700000000000"}
    topic_config     {"version":1,"config":{"retention.ms":"60000"}}
                     the same for users, client ids and addresses
    config_change    {"version":2,"entity_path":"users/alice"}
    cluster_id       {"version":"1","id":"22 characters of a UUID"}
    producer_ids     {"version":1,"broker":1,"block_start":"0","block_end":"999"}         both included
    consumer         {"version":1,"subscription":{"clicks":2},"pattern":"static","timestamp":"1700000000000"}
                     0.7: {"clicks":2}, "*2*regex" (white list), "!2!regex" (black list)
    acl              {"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read",
                      "host":"*"}]}
    a change of it   "Topic:clicks"
                     {"version":1,"resourceType":"Topic","name":"clicks","patternType":"PREFIXED"}
    numbers          plain decimal text: offsets, the controller's epoch, a broker's partitions in 0.7
    owner            plain text: consumer id, a dash, the stream's number

Timestamps and the ends of a block of ids are strings in the JSON, as Kafka writes them. Unknown fields are
ignored, so that later versions can be read. Invalid contents raise CorruptZnode. No I/O.

Source: Kafka 0.7, 0.10 and 2.7 design, "ZooKeeper directories"; KIP-516 (topic ids in version 3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...errors import CorruptZnode, InvalidArgument
from ...security.acls import (
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
)

NO_LEADER: Final = -1
STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"

_BROKER_VERSION: Final = 5
_TOPIC_VERSION: Final = 3
_PLAINTEXT: Final = "PLAINTEXT"
_ENDPOINT: Final = re.compile(r"([A-Za-z0-9_.-]+)://\[?(.*?)\]?:([0-9]+)")
_PATTERNS: Final = frozenset({STATIC, WHITE_LIST, BLACK_LIST})
_OLD_PATTERNS: Final = {"*": WHITE_LIST, "!": BLACK_LIST}
_MAX_BYTES: Final = 1 << 20  # ZooKeeper's own limit of a znode


class Broker(NamedTuple):
    """A broker's registration.

    endpoints: (listener, host, port). protocols: of the listeners whose names are not those of protocols.
    host, port: of the plaintext listener; without one, which Kafka writes as null and -1, of the first one.
    """

    host: str
    port: int
    timestamp_ms: int
    rack: str | None = None
    jmx_port: int = -1
    endpoints: tuple[tuple[str, str, int], ...] = ()
    protocols: Mapping[str, str] = {}

    def at(self, listener: str) -> tuple[str, int]:
        """The address of a listener; if there is none of that name, `host` and `port`."""
        for name, host, port in self.endpoints:
            if name == listener:
                return host, port
        return self.host, self.port

    def encode(self) -> bytes:
        endpoints = self.endpoints or ((_PLAINTEXT, self.host, self.port),)
        protocols = {name: self.protocols.get(name, name) for name, _, _ in endpoints}
        by_protocol = {protocols[name]: (host, port) for name, host, port in reversed(endpoints)}
        host, port = by_protocol.get(_PLAINTEXT, (None, -1))
        fields: dict[str, Any] = {
            "version": _BROKER_VERSION,
            "host": host,
            "port": port,
            "endpoints": [f"{name}://{_bracketed(host)}:{port}" for name, host, port in endpoints],
            "jmx_port": self.jmx_port,
            "timestamp": str(self.timestamp_ms),
            "listener_security_protocol_map": protocols,
            "features": {},
        }
        if self.rack is not None:
            fields["rack"] = self.rack
        return _encode(fields)

    @classmethod
    def decode(cls, data: bytes) -> Broker:
        """Raises CorruptZnode."""
        text = _text(data, "a broker")
        if not text.lstrip().startswith("{"):
            return cls._decode_old(text)
        fields = _Fields(data, "a broker")
        endpoints = []
        for url in fields.get("endpoints", list, []):
            match = _ENDPOINT.fullmatch(str(url))
            if match is None:
                raise CorruptZnode(f"a broker's endpoint {url!r} is not name://host:port")
            endpoints.append((match[1], match[2], int(match[3])))
        host, port = fields.get("host", str, None), fields.get("port", int, -1)
        if (host is None or port < 0) and endpoints:
            # The first plaintext endpoint, or else the first.
            _, host, port = min(endpoints, key=lambda endpoint: endpoint[0] != _PLAINTEXT)
        if host is None or port < 0:
            raise CorruptZnode(f"a broker without host and port: {text[:200]!r}")
        return cls(
            host,
            port,
            fields.number("timestamp", 0),
            fields.get("rack", str, None),
            fields.get("jmx_port", int, -1),
            tuple(endpoints) or ((_PLAINTEXT, host, port),),
            {
                name: protocol
                for name, protocol in fields.get("listener_security_protocol_map", dict, {}).items()
                if name != protocol
            },
        )

    @classmethod
    def _decode_old(cls, text: str) -> Broker:
        parts = text.strip().rsplit(":", 2)
        host, port = (parts[-2], parts[-1]) if len(parts) > 1 else ("", "")
        if not host or not port.isdecimal():
            raise CorruptZnode(f"a broker that is neither JSON nor host:port: {text[:200]!r}")
        return cls(host, int(port), 0, endpoints=((_PLAINTEXT, host, int(port)),))


class TopicAssignment(NamedTuple):
    """A topic's partitions: number -> replicas, the preferred leader first.

    `topic_id` has 22 characters; None if a program without topic ids created the topic.
    """

    partitions: Mapping[int, Sequence[int]]
    topic_id: str | None = None
    adding: Mapping[int, Sequence[int]] = {}
    removing: Mapping[int, Sequence[int]] = {}

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"version": 2 if self.topic_id is None else _TOPIC_VERSION}
        if self.topic_id is not None:
            fields["topic_id"] = self.topic_id
        fields["partitions"] = _encode_partitions(self.partitions)
        fields["adding_replicas"] = _encode_partitions(self.adding)
        fields["removing_replicas"] = _encode_partitions(self.removing)
        return _encode(fields)

    @classmethod
    def decode(cls, data: bytes) -> TopicAssignment:
        """Raises CorruptZnode."""
        fields = _Fields(data, "a topic")
        return cls(
            fields.partitions("partitions"),
            fields.get("topic_id", str, None),
            fields.partitions("adding_replicas"),
            fields.partitions("removing_replicas"),
        )


class LeaderAndIsr(NamedTuple):
    """A partition's leader (or NO_LEADER), leader epoch and in-sync replicas."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int

    def encode(self) -> bytes:
        return _encode(
            {
                "version": 1,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "controller_epoch": self.controller_epoch,
                "isr": list(self.isr),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> LeaderAndIsr:
        """Raises CorruptZnode."""
        fields = _Fields(data, "a partition's state")
        return cls(
            fields.require("leader", int),
            fields.require("leader_epoch", int),
            tuple(fields.numbers("isr")),
            fields.require("controller_epoch", int),
        )


class Controller(NamedTuple):
    """The controller's broker id, and the time of its election."""

    broker: int
    timestamp_ms: int

    def encode(self) -> bytes:
        return _encode({"version": 1, "brokerid": self.broker, "timestamp": str(self.timestamp_ms)})

    @classmethod
    def decode(cls, data: bytes) -> Controller:
        """Raises CorruptZnode."""
        fields = _Fields(data, "the controller")
        return cls(fields.require("brokerid", int), fields.number("timestamp", 0))


class Subscription(NamedTuple):
    """A consumer's subscription: topic, or regex of a white or black list -> number of streams."""

    topics: Mapping[str, int]
    pattern: str
    timestamp_ms: int

    def encode(self) -> bytes:
        return _encode(
            {
                "version": 1,
                "subscription": dict(self.topics),
                "pattern": self.pattern,
                "timestamp": str(self.timestamp_ms),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Subscription:
        """Raises CorruptZnode."""
        text = _text(data, "a consumer").strip()
        match = re.fullmatch(r"([*!])([0-9]{1,9})\1(.*)", text, re.S)
        if match is not None:
            return cls({match[3]: int(match[2])}, _OLD_PATTERNS[match[1]], 0)
        fields = _Fields(data, "a consumer")
        if "subscription" not in fields:
            return cls(fields.counts(), STATIC, 0)
        pattern = fields.get("pattern", str, STATIC)
        if pattern not in _PATTERNS:
            raise CorruptZnode(
                f"a consumer's pattern is one of {', '.join(sorted(_PATTERNS))}, not {pattern!r}"
            )
        return cls(
            _Fields.of(fields.require("subscription", dict), "a consumer's subscription").counts(),
            pattern,
            fields.number("timestamp", 0),
        )


class ProducerIds(NamedTuple):
    """The block of producer ids claimed last: its broker, its first and last id (both inclusive)."""

    broker: int
    first: int
    last: int

    def encode(self) -> bytes:
        return _encode(
            {
                "version": 1,
                "broker": self.broker,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIds:
        """Raises CorruptZnode."""
        fields = _Fields(data, "the block of producer ids")
        return cls(fields.require("broker", int), fields.number("block_start"), fields.number("block_end"))


def encode_config(config: Mapping[str, str]) -> bytes:
    """A topic's own settings, under Kafka's dotted names."""
    return _encode({"version": 1, "config": dict(config)})


def decode_config(data: bytes) -> dict[str, str]:
    """Raises CorruptZnode."""
    config = _Fields(data, "a topic's settings").get("config", dict, {})
    return {str(name): str(value) for name, value in config.items()}


def encode_config_change(entity_path: str) -> bytes:
    """A notification: whose settings have changed."""
    return _encode({"version": 2, "entity_path": entity_path})


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Raises CorruptZnode."""
    cluster_id: str = _Fields(data, "the cluster's id").require("id", str)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,22}", cluster_id):
        raise CorruptZnode(
            f"the cluster's id is at most 22 of the characters a-z A-Z 0-9 _ -, not {cluster_id!r}"
        )
    return cluster_id


def encode_acl(rules: Iterable[Rule]) -> bytes:
    """The rules about one resource, or about what begins with its name."""
    return _encode(
        {
            "version": 1,
            "acls": [
                {
                    "principal": rule.principal,
                    "permissionType": rule.permission.spelling,
                    "operation": rule.operation.spelling,
                    "host": rule.host,
                }
                for rule in rules
            ],
        }
    )


def decode_acl(data: bytes) -> set[Rule]:
    """Raises CorruptZnode."""
    what = "an ACL"
    rules = set()
    for acl in _Fields(data, what).get("acls", list, []):
        fields = _Fields.of(acl, what)
        try:
            rules.add(
                Rule(
                    fields.require("principal", str),
                    fields.get("host", str, WILDCARD),
                    Operation.parse(fields.require("operation", str)),
                    Permission.parse(fields.require("permissionType", str)),
                )
            )
        except InvalidArgument as error:
            raise CorruptZnode(f"{what}: {error}") from None
    return rules


def encode_acl_change(resource: Resource) -> bytes:
    if resource.pattern is PatternType.LITERAL:
        return f"{resource.type.spelling}:{resource.name}".encode()
    return _encode(
        {
            "version": 1,
            "resourceType": resource.type.spelling,
            "name": resource.name,
            "patternType": resource.pattern.name,
        }
    )


def decode_acl_change(data: bytes) -> Resource:
    """Raises CorruptZnode."""
    text = _text(data, "a change of ACLs")
    try:
        if text.startswith("{"):
            fields = _Fields(data, "a change of ACLs")
            return Resource(
                ResourceType.parse(fields.require("resourceType", str)),
                fields.require("name", str),
                PatternType.parse(fields.require("patternType", str)),
            )
        kind, _, name = text.partition(":")
        return Resource(ResourceType.parse(kind), name)
    except InvalidArgument as error:
        raise CorruptZnode(f"a change of ACLs: {error}") from None


def encode_number(number: int) -> bytes:
    """An offset, an epoch or a number of partitions."""
    return b"%d" % number


def decode_number(data: bytes) -> int:
    """Raises CorruptZnode."""
    match = re.fullmatch(rb"\s*(-?[0-9]{1,19})\s*", data)
    if match is None:
        raise CorruptZnode(f"a number is decimal text, not {data[:40]!r}")
    return int(match[1])


def encode_owner(consumer: str, stream: int) -> bytes:
    """The owner of a partition: the consumer's id, a dash, the stream's number."""
    return f"{consumer}-{stream}".encode()


def decode_owner(data: bytes) -> tuple[str, int]:
    """The consumer's id and the stream's number. Raises CorruptZnode."""
    consumer, dash, stream = _text(data, "an owner").rpartition("-")
    if not dash or not consumer or not stream.isdecimal():
        raise CorruptZnode(f"an owner is consumer-stream, not {data[:100]!r}")
    return consumer, int(stream)


class _Fields:
    """The fields of a JSON object; a missing or invalid one raises CorruptZnode."""

    def __init__(self, data: bytes, what: str) -> None:
        try:
            document = json.loads(_text(data, what))
        except (ValueError, RecursionError) as error:
            raise CorruptZnode(f"{what} is not JSON ({error}): {data[:200]!r}") from None
        self._document = self._checked(document, what)
        self._what = what

    @classmethod
    def of(cls, document: object, what: str) -> _Fields:
        fields = cls.__new__(cls)
        fields._document, fields._what = cls._checked(document, what), what
        return fields

    @staticmethod
    def _checked(document: object, what: str) -> dict[str, Any]:
        if not isinstance(document, dict):
            raise CorruptZnode(f"{what} is not a JSON object but {str(document)[:200]}")
        return document

    def __contains__(self, name: str) -> bool:
        return name in self._document

    def require(self, name: str, kind: type) -> Any:
        if self._document.get(name) is None:
            raise CorruptZnode(f"{self._what} has no {name!r}: {json.dumps(self._document)[:200]}")
        return self.get(name, kind, None)

    def get(self, name: str, kind: type, default: Any) -> Any:
        value = self._document.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CorruptZnode(f"{self._what}: {name!r} is {str(value)[:100]!r}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A number that is written as a string."""
        value = self._document.get(name)
        if value is None and default is not None:
            return default
        try:
            return decode_number(str(value).encode())
        except CorruptZnode:
            raise CorruptZnode(f"{self._what}: {name!r} is {str(value)[:100]!r}, not a number") from None

    def numbers(self, name: str) -> list[int]:
        return self._all_numbers(name, self.require(name, list))

    def partitions(self, name: str) -> dict[int, Sequence[int]]:
        replicas = {}
        for number, brokers in self.get(name, dict, {}).items():
            if not re.fullmatch("[0-9]{1,9}", number) or not isinstance(brokers, list):
                raise CorruptZnode(f"{self._what}: {name!r} has {number!r}: {str(brokers)[:100]}")
            replicas[int(number)] = self._all_numbers(name, brokers)
        return dict(sorted(replicas.items()))

    def counts(self) -> dict[str, int]:
        """The whole object as names to numbers."""
        for name in self._document:
            self.require(name, int)
        return dict(self._document)

    def _all_numbers(self, name: str, values: list[Any]) -> list[int]:
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise CorruptZnode(f"{self._what}: {name!r} are not numbers: {str(values)[:100]}")
        return values


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _encode_partitions(brokers: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(number): list(brokers[number]) for number in sorted(brokers)}


def _text(data: bytes, what: str) -> str:
    if len(data) > _MAX_BYTES:
        raise CorruptZnode(f"{what} has {len(data):,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptZnode(f"{what} is not text: {data[:100]!r}") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
