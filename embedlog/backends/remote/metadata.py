"""A cluster's metadata: partitions of topics, their leaders, and settings.

It is cached for metadata_max_age_ms (settings, which take a request of their own, ten times as long), and
dropped when a response shows that it is out of date; the retry then requests it again.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from ...config import TopicSettings
from ...errors import (
    BrokerUnavailable,
    EmbedlogError,
    PartitionNotFound,
    TlsFailed,
    TopicNotFound,
    UnsupportedByBackend,
    shown,
)
from ...files.names import check_topic_name
from ...model import TopicDescription, TopicPartition
from ...synonyms import plain
from ...wire.apis.create_topics import CreatableTopicConfigs
from ...wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ...wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from ...wire.error_codes import ErrorCode
from ...wire.schema import id_text
from ...wire_client.connection import NotKafka
from ...wire_client.settings import Address
from ..port import TopicConfigs
from .brokers import Brokers, Retry, check_code

T = TypeVar("T")

TOPIC: Final = 2
_OWN: Final = 1
STALE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Another broker may lead the partition by now."""
_UNSEEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
_SETTINGS_AGE: Final = 10  # times metadata_max_age_ms
_NAMED: Final = 10  # partitions in an error
_MAX_SETTINGS: Final = 1_000  # topics in one request


class View(NamedTuple):
    """A topic's metadata at a time (of time.monotonic). `leaders` by partition, -1 if there is none;
    `replicas` of partition 0, as Kafka's own tools count them."""

    name: str
    topic_id: str
    internal: bool
    leaders: tuple[int, ...]
    replicas: int
    at: float


class TopicConfig(NamedTuple):
    """A topic's settings: all of them, its own, and those that can be set, as the brokers tell them. Of the
    topic of that id."""

    settings: TopicSettings
    own: dict[str, object]
    configs: TopicConfigs
    topic_id: str
    at: float


class ClusterDescription(NamedTuple):
    """A cluster: its id (empty if unknown), the controller (-1: none), the brokers' addresses, and the
    leader of each partition by topic (-1: none)."""

    cluster_id: str
    controller: int
    brokers: dict[int, Address]
    leaders: dict[str, tuple[int, ...]]


class Metadata:
    """The topics of a cluster. Thread-safe."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._views: dict[str, View] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._controller = -1
        self.cluster_id = ""  # empty if the brokers report none

    def connect(self) -> None:
        """Connect to a broker, without retries. Raises BrokerUnavailable."""
        deadline = time.monotonic() + self._brokers.settings.default_api_timeout_ms / 1000
        self._request([], deadline)

    def names(self) -> list[str]:
        """All topics, sorted."""
        response = self._brokers.retried(lambda deadline: self._request(None, deadline))
        return sorted(
            topic.name for topic in response.topics if topic.name is not None and not topic.error_code
        )

    def cluster(self) -> ClusterDescription:
        """The cluster as it is now. Raises BrokerUnavailable."""
        response = self._brokers.retried(lambda deadline: self._request(None, deadline))
        return ClusterDescription(
            response.cluster_id or "",
            response.controller_id,
            {broker.node_id: (broker.host, broker.port) for broker in response.brokers},
            {
                topic.name: _view(topic, topic.name, 0).leaders
                for topic in sorted(response.topics, key=lambda topic: topic.name or "")
                if topic.name is not None and not topic.error_code
            },
        )

    def view(self, topic: str) -> View:
        """A topic. Raises TopicNotFound, InvalidTopicName, InvalidType, BrokerUnavailable."""
        view = self._cached(topic)
        return (
            self._brokers.retried(lambda deadline: self._refresh(topic, deadline)) if view is None else view
        )

    def ask_each(self, ask: Callable[[Address], T], deadline: float) -> list[T]:
        """What each broker of the cluster answers. For an attempt: raises BrokerUnavailable if one does not,
        unless the others have removed it from the cluster: others have its work then."""
        answers = []
        for node in self._brokers.nodes():
            try:
                answers.append(ask(node))
            except BrokerUnavailable:
                self._request([], deadline)
                if node in self._brokers.nodes():
                    raise
        return answers

    def topic_id(self, topic: str, deadline: float) -> str:
        """A topic's id; "" if the brokers have none. For an attempt: raises as `leader`."""
        return (self._cached(topic) or self._refresh(topic, deadline)).topic_id

    def leader(self, name: TopicPartition, deadline: float) -> Address:
        """A partition's leader. For an attempt: raises Retry, PartitionNotFound, and as `view`."""
        view = self._cached(name.topic) or self._refresh(name.topic, deadline)
        if not 0 <= name.partition < len(view.leaders):
            view = self._refresh(name.topic, deadline)
            _check_partition(view, name.partition)
        return self._leader_of(view, name.partition)

    def last_leader(self, name: TopicPartition) -> Address | None:
        """A partition's leader as of the last response, however old; None if none is known.

        Sends no request.
        """
        view = self._views.get(name.topic)
        if view is None or not 0 <= name.partition < len(view.leaders):
            return None
        return self._brokers.addresses_by_node().get(view.leaders[name.partition])

    def lacks_leader(self, topic: str) -> bool:
        """Whether a partition had no leader as of the last response. Sends no request."""
        view = self._views.get(topic)
        return view is None or -1 in view.leaders

    def last_id(self, topic: str) -> str:
        """A topic's id as of the last response; "" if it is not known. Sends no request."""
        view = self._views.get(topic)
        return "" if view is None else view.topic_id

    def led_partitions(self, topic: str) -> list[int]:
        """The partitions of a topic whose leaders can be reached, as far as is known."""
        reachable: dict[Address | None, bool] = {None: False}
        led = []
        view = self._views.get(topic)
        for partition in range(0 if view is None else len(view.leaders)):
            leader = self.last_leader(TopicPartition(topic, partition))
            if leader is not None and leader not in reachable:
                reachable[leader] = self._brokers.can_reach(leader)
            if reachable[leader]:
                led.append(partition)
        return led

    def leaders(self, topic: str, deadline: float) -> dict[Address, list[int]]:
        """The partitions of a topic by leader. For an attempt: raises as `leader`."""
        view = self._cached(topic) or self._refresh(topic, deadline)
        by_leader: dict[Address, list[int]] = {}
        for partition in range(len(view.leaders)):
            by_leader.setdefault(self._leader_of(view, partition), []).append(partition)
        return by_leader

    def led(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[Address, dict[str, list[int]]]:
        """Partitions by leader and topic. For an attempt: raises as `leader`."""
        by_leader: dict[Address, dict[str, list[int]]] = {}
        for name in partitions:
            of_leader = by_leader.setdefault(self.leader(name, deadline), {})
            of_leader.setdefault(name.topic, []).append(name.partition)
        return by_leader

    def controller(self, deadline: float) -> Address:
        """The controller's address. For an attempt: raises Retry."""
        if self._controller < 0:
            self._request([], deadline)
        return self._brokers.node(self._controller)

    @contextlib.contextmanager
    def asking(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Forget the topics if a request to their leader fails: there may be another one, unless they were
        asked for a moment ago. The error names the partitions."""
        try:
            yield
        except BrokerUnavailable as error:
            names = list(partitions)
            for topic in {name.topic for name in names}:
                self._doubt(topic)
            if isinstance(error, NotKafka | TlsFailed):
                raise
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            raise type(error)(f"{', '.join(map(str, names[:_NAMED]))}{more}: {error}") from error

    def forget(self, topic: str) -> None:
        """A topic's metadata is out of date: the next look-up asks for it."""
        view = self._views.get(topic) if isinstance(topic, str) else None
        if view is not None:
            self._views[topic] = view._replace(at=-math.inf)

    def check_code(self, code: int, topic: str, subject: str, message: str | None = None) -> None:
        """Raises as `check_code`; forgets the topic if its metadata may be out of date."""
        if code in STALE:
            self.forget(topic)
        check_code(code, subject, message, {"topic": topic})

    def forget_controller(self) -> None:
        """Discard the controller's address, which is out of date."""
        self._controller = -1

    def forget_settings(self, topic: str) -> None:
        """Discard settings, which have changed."""
        self._configs.pop(topic, None)

    def check_partition(self, name: TopicPartition) -> None:
        """Raises PartitionNotFound if the topic has no such partition now, and as `view`."""
        if not 0 <= name.partition < len(self.view(name.topic).leaders):
            self.forget(name.topic)
            _check_partition(self.view(name.topic), name.partition)

    # -- settings ----------------------------------------------------------------------------------------

    def describe(self, topic: str) -> TopicDescription:
        """Raises as `view`."""
        view = self.view(topic)
        own = self.config(topic).own
        return TopicDescription(
            view.name, view.topic_id, len(view.leaders), dict(own), view.internal, view.replicas
        )

    def config(self, topic: str) -> TopicConfig:
        """A topic's settings; the defaults if the broker reports none. Raises as `view`."""
        config = self._cached_config(topic)
        if config is None:
            self.view(topic)
            config = self._brokers.retried(lambda deadline: self._request_config(topic, deadline))
        return config

    def _cached_config(self, topic: str) -> TopicConfig | None:
        config = self._configs.get(topic)
        if config is None or time.monotonic() - config.at > self._max_age_s * _SETTINGS_AGE:
            return None
        view = self._views.get(topic)
        return config if view is None or view.topic_id == config.topic_id else None

    def _request_config(self, topic: str, deadline: float) -> TopicConfig:
        """Request a topic's settings, and those of other known topics without cached ones."""
        others = {name for name in list(self._views) if name != topic and self._cached_config(name) is None}
        now = time.monotonic()
        ids = {name: view.topic_id for name, view in list(self._views.items())}
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
                for name in (topic, *islice(others, _MAX_SETTINGS))
            ]
        )
        try:
            response = self._brokers.ask_any(request, DescribeConfigsResponse, deadline)
        except UnsupportedByBackend:
            response = DescribeConfigsResponse()
        config = TopicConfig(TopicSettings(), {}, TopicConfigs({}), ids.get(topic, ""), now)
        for resource in response.results:
            if resource.resource_name != topic:
                if not resource.error_code and resource.resource_name in others:
                    self._configs[resource.resource_name] = _as_config(
                        resource, ids[resource.resource_name], now
                    )
                continue
            if resource.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.forget(topic)
                self._refresh(topic, deadline)
            if resource.error_code in _UNSEEN:
                break  # who may write to a topic need not see its settings
            check_code(resource.error_code, f"the settings of topic {topic!r}", resource.error_message)
            config = _as_config(resource, config.topic_id, now)
        self._configs[topic] = config
        return config

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _max_age_s(self) -> float:
        return self._brokers.settings.metadata_max_age_ms / 1000

    def _cached(self, topic: object) -> View | None:
        """A topic's cached metadata, unless it is too old."""
        view = self._views.get(topic) if isinstance(topic, str) else None
        if view is None:
            self._brokers.check_open()
            check_topic_name(topic)
            return None
        return view if time.monotonic() - view.at < self._max_age_s else None

    def _refresh(self, topic: str, deadline: float) -> View:
        """A topic's current metadata. Raises TopicNotFound, Retry."""
        response = self._request([topic], deadline)
        for topic_metadata in response.topics:
            if topic_metadata.name != topic:
                continue
            if topic_metadata.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._views.pop(topic, None)
                raise TopicNotFound(f"no topic {topic!r} at {self._brokers.path}; create_topic creates one")
            check_code(topic_metadata.error_code, f"topic {topic!r}", names={"topic": topic})
            return self._views[topic]
        raise Retry(BrokerUnavailable(f"{self._brokers.path}: the response lacks topic {topic!r}"))

    def _request(self, topics: Sequence[str] | None, deadline: float) -> MetadataResponse:
        """Request metadata from any broker and cache it; None for all topics."""
        request_topics = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        request = MetadataRequest(topics=request_topics, allow_auto_topic_creation=False)
        response = self._brokers.ask_any(request, MetadataResponse, deadline)
        self._brokers.learn({broker.node_id: (broker.host, broker.port) for broker in response.brokers})
        self._controller = response.controller_id
        self.cluster_id = response.cluster_id or ""
        now = time.monotonic()
        for topic in response.topics:
            if topic.name is not None and not topic.error_code:
                self._views[topic.name] = _view(topic, topic.name, now)
        return response

    def _leader_of(self, view: View, partition: int) -> Address:
        node = view.leaders[partition]
        if node < 0:
            self._doubt(view.name)
            raise Retry(BrokerUnavailable(f"{view.name} {partition} has no leader"))
        try:
            return self._brokers.node(node)
        except Retry:
            self._doubt(view.name)
            raise

    def _doubt(self, topic: str) -> None:
        """As `forget`, unless it was asked for a moment ago: each of its partitions may doubt it."""
        view = self._views.get(topic)
        if view is not None and time.monotonic() - view.at >= self._brokers.settings.retry_backoff_ms / 1000:
            self.forget(topic)


def names_in(numbers_by_topic: Mapping[str, Sequence[int]]) -> Iterator[TopicPartition]:
    """The partitions of topics, from their numbers."""
    return (
        TopicPartition(topic, number) for topic, numbers in numbers_by_topic.items() for number in numbers
    )


def _view(topic: MetadataResponseTopic, name: str, now: float) -> View:
    leader_ids = {partition.partition_index: partition.leader_id for partition in topic.partitions}
    leaders = tuple(leader_ids.get(number, -1) for number in range(len(leader_ids)))
    replicas = next(
        (len(partition.replica_nodes) for partition in topic.partitions if not partition.partition_index), 1
    )
    return View(name, id_text(topic.topic_id), topic.is_internal, leaders, replicas, now)


def _check_partition(view: View, partition: int) -> None:
    if not 0 <= partition < len(view.leaders):
        raise PartitionNotFound(
            f"topic {view.name!r} has partitions 0 to {len(view.leaders) - 1}, not {shown(partition)}"
        )


def _as_config(resource: DescribeConfigsResult, topic_id: str, now: float) -> TopicConfig:
    everything = _parsed({config.name: config.value for config in resource.configs})
    of_topic = {config.name: config.value for config in resource.configs if config.config_source == _OWN}
    others = {plain(name): text for name, text in of_topic.items() if not TopicSettings.resolved(name, None)}
    settings = TopicSettings().with_changes(everything)
    return TopicConfig(settings, _parsed(of_topic) | others, settable(resource.configs), topic_id, now)


def settable(
    configs: Iterable[DescribeConfigsResourceResult] | Iterable[CreatableTopicConfigs],
) -> TopicConfigs:
    """The settings that brokers tell of, without those that they do not let anyone change."""
    listed = [config for config in configs if config.value is not None and not config.read_only]
    return TopicConfigs(
        {config.name: config.value or "" for config in listed},
        frozenset(config.name for config in listed if config.config_source == _OWN),
    )


def _parsed(texts: dict[str, str | None]) -> dict[str, Any]:
    """Parse a broker's settings; those that embedlog does not have are omitted."""
    settings: dict[str, Any] = {}
    for name, text in texts.items():
        if text is not None and TopicSettings.resolved(name, text) is not None:
            with contextlib.suppress(EmbedlogError):
                settings |= TopicSettings.parse({name: text})
    return settings
