"""The design documents' high-level consumer: a group shares streams of records, coordinated by ZooKeeper.

    with ConsumerConnector("localhost:2181", "billing", auto_offset_reset="smallest") as connector:
        (stream,) = connector.create_message_streams({"clicks": 1})["clicks"]
        for record in stream: ...

    create_message_streams -> ZooKeeperMember  registers, rebalances, commits; one thread     member.py
                              Fetchers         one thread for each broker that is read from   fetchers.py
                              MessageStream    the application's end, one thread each         streams.py

This is Kafka's consumer from before group coordinators: each member computes its own partitions, and
ZooKeeper records the owners. It uses the first versions of Fetch, which brokers with a ZooKeeper have: no
headers, no zstd (see SimpleConsumer). `Log.consumer` needs no ZooKeeper.

Source: Kafka 0.7 and 0.10 implementation, "High-level API"; Kafka's ZookeeperConsumerConnector.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ...config import MAX_INT32
from ...errors import Closed, ConcurrentUse, InvalidArgument, InvalidType
from ...files.names import check_topic_name
from ...model import TopicPartition
from ...runtime.thread_guard import ThreadGuard
from ...synonyms import CONNECTOR_ARGUMENTS
from ...validation import also_named, check_group, check_int, check_text
from ..zookeeper import paths
from ..zookeeper.client import ZooKeeper
from ..zookeeper.contents import BLACK_LIST, STATIC, WHITE_LIST, Subscription
from ..zookeeper.security import Security
from .connector_settings import ConnectorSettings
from .member import ZooKeeperMember
from .registry import now_ms
from .streams import Decoder, MessageStream
from .topic_filter import compiled


class ConsumerConnector:
    """A consumer of a group, coordinated by ZooKeeper. A context manager, which shuts it down. Thread-safe.

    Args:
        zookeeper_connect: "host:port,host:port/chroot" of the cluster's ZooKeeper.
        group_id: consumers of one group share the partitions.
        zookeeper_auth: "user:password", if ZooKeeper requires authentication.
        settings: with underscores or dots; see docs/reference/settings.md, "Of a ConsumerConnector".

    Raises InvalidArgument, InvalidType, InvalidGroup, UnknownSetting, InvalidSetting, ZooKeeperUnavailable.
    """

    @also_named(CONNECTOR_ARGUMENTS)
    def __init__(
        self, zookeeper_connect: str, group_id: str, *, zookeeper_auth: str | None = None, **settings: Any
    ) -> None:
        check_text("zookeeper_connect", zookeeper_connect)
        check_group(group_id)
        self._settings = ConnectorSettings().with_changes(settings)
        paths.consumer(
            group_id, self._settings.consumer_id or "any"
        )  # rejects ids that cannot be znode names
        self.group_id = group_id
        self._guard = ThreadGuard()
        self._streams: dict[tuple[str | None, int], MessageStream] = {}
        self._member: ZooKeeperMember | None = None
        self._closed = False
        self._zookeeper = ZooKeeper(
            zookeeper_connect,
            session_timeout_s=self._settings.zookeeper_session_timeout_ms / 1000,
            connect_timeout_s=self._settings.zookeeper_connection_timeout_ms / 1000,
            auth=zookeeper_auth,
            security=Security.of(self._settings),
        )

    def __repr__(self) -> str:
        return f"<embedlog.cluster.classic.ConsumerConnector {self.group_id} {self.consumer_id}>"

    @property
    def consumer_id(self) -> str:
        """This consumer's id in the registry; "" before it has streams. It changes with each session."""
        return self._member.consumer_id if self._member is not None else ""

    def owned(self) -> dict[TopicPartition, int]:
        """Return the partitions that this consumer owns, with the number of each one's stream."""
        return self._member.owned() if self._member is not None else {}

    def create_message_streams(
        self,
        topic_count_map: Mapping[str, int],
        *,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
    ) -> dict[str, list[MessageStream]]:
        """Create the given number of streams for each topic. A topic may be created later.

        Registers this consumer and waits for its first rebalance. A connector creates streams once, by this
        method or by `create_message_streams_by_filter`. Decoders get only keys and values that are not None.

        Raises InvalidArgument, InvalidType, InvalidTopicName; ConcurrentUse at a second call; Closed. Raises
        RebalanceFailed if other members own the partitions for longer than `rebalance_max_retries` times
        `rebalance_backoff_ms`, or the error of the rebalance. Either of these shuts the connector down.
        """
        if not isinstance(topic_count_map, Mapping):
            raise InvalidType(
                f"topic_count_map must be {{topic: streams}}, not {type(topic_count_map).__name__}"
            )
        for topic, count in topic_count_map.items():
            check_topic_name(topic)
            check_int(f"the number of streams of {topic}", count, low=1, high=MAX_INT32)
        if not topic_count_map:
            raise InvalidArgument("name at least one topic")
        keys = [(topic, number) for topic, count in topic_count_map.items() for number in range(count)]
        self._start(Subscription(dict(topic_count_map), STATIC, now_ms()), keys, key_decoder, value_decoder)
        return {
            topic: [self._streams[topic, number] for number in range(count)]
            for topic, count in topic_count_map.items()
        }

    def create_message_streams_by_filter(
        self,
        num_streams: int = 1,
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
    ) -> list[MessageStream]:
        """Create streams of all topics, now and later, that match a whitelist, or do not match a blacklist.

        A list is a regular expression in Java's syntax that must match whole names. A comma means "or"
        (topic_filter.py lists the exceptions). Internal topics are left out unless `exclude_internal_topics`
        is False. The rest is as in `create_message_streams`.
        """
        check_int("num_streams", num_streams, low=1, high=MAX_INT32)
        if (whitelist is None) == (blacklist is None):
            raise InvalidArgument("give a whitelist or a blacklist")
        expression, pattern = (whitelist, WHITE_LIST) if whitelist is not None else (blacklist, BLACK_LIST)
        check_text(f"the {pattern.replace('_', '')}", expression)
        assert expression is not None
        compiled(expression)
        keys = [(None, number) for number in range(num_streams)]
        self._start(
            Subscription({expression: num_streams}, pattern, now_ms()), keys, key_decoder, value_decoder
        )
        return [self._streams[key] for key in keys]

    def commit_offsets(self) -> None:
        """Commit the offsets of all delivered records, except those that other threads still process.

        Returns when they are stored. Raises ZooKeeperUnavailable, BrokerUnavailable, BrokerError, Closed.
        """
        self._check_process()
        for stream in self._streams.values():
            stream.acknowledge()
        if self._member is not None:
            self._member.commit()
        elif self._closed:
            raise Closed("the connector is shut down")

    def shutdown(self) -> None:
        """Leave the group: stop reading, commit (with `auto_commit_enable`) and release the partitions.

        Ends the streams. Waits at most `rebalance_handover_ms` for records that other threads still process.
        Idempotent. May be called from any thread.
        """
        if self._guard.forked:
            return
        for stream in list(self._streams.values()):
            stream.acknowledge()
        with self._guard:
            if not self._closed:
                self._closed = True
                if self._member is not None:
                    self._member.close()
                self._zookeeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _start(
        self,
        subscription: Subscription,
        keys: list[tuple[str | None, int]] | list[tuple[str, int]] | list[tuple[None, int]],
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        for name, decoder in (("key_decoder", key_decoder), ("value_decoder", value_decoder)):
            if decoder is not None and not callable(decoder):
                raise InvalidType(f"{name} must be callable, not {type(decoder).__name__}")
        self._check_process()
        with self._guard:
            if self._closed:
                raise Closed("the connector is shut down")
            if self._member is not None:
                raise ConcurrentUse("a connector creates its streams once: make another connector")
            for key in keys:
                self._streams[key] = MessageStream(
                    max_chunks=self._settings.queued_max_message_chunks,
                    timeout_ms=self._settings.consumer_timeout_ms,
                    key_decoder=key_decoder,
                    value_decoder=value_decoder,
                    on_room=self._fetch_more,
                    is_current=self._is_current,
                )
            static = subscription.pattern == STATIC
            self._member = ZooKeeperMember(
                self._zookeeper,
                self.group_id,
                subscription,
                list(self._streams.values()),
                lambda name, number: self._streams[name.topic if static else None, number],
                self._settings,
            )
        try:
            self._member.start()
        except BaseException:
            self.shutdown()
            raise

    def _fetch_more(self) -> None:
        if self._member is not None:
            self._member.fetch_more()

    def _is_current(self) -> bool:
        return self._member is not None and self._member.is_current

    def _check_process(self) -> None:
        """Raises ForkedHandle."""
        if self._guard.forked:
            self._guard.acquire()
