"""The design documents' producer: finds brokers in ZooKeeper or a list; synchronous, or with a queue.

    with Producer(zk_connect="localhost:2181") as producer:
        producer.send(ProducerData("clicks", [b"one", b"two"], key="user-7"))

    send -> (producer_type="async": producer_queue.py) -> the event handler -> the encoder
         -> a (broker, partition) for each message: the partitioner, over zookeeper_partitions.py
         -> a request to each broker (dispatching.py), over its connections (producer_pool.py)

Here a partitioner returns an index into the sorted list of (broker, partition). embedlog's own producer and
Kafka's later clients take it for the partition's number, so a key may go to another partition there once
leaders have moved.

With ZooKeeper a request that a broker rejected or did not answer is retried up to num_retries times, at the
partition's current leader: at least once. With a list it fails.

Source: Kafka 0.7 and 0.10 design, "Producer APIs"; names and defaults of settings are 0.7's and 0.8's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ...config import MAX_INT32
from ...errors import Closed, InvalidArgument, InvalidType, shown
from ...files.names import check_topic_name
from ...runtime.closing import Closing
from ...runtime.locks import Lock
from ...synonyms import PRODUCER_ARGUMENTS
from ...validation import also_named, check_choice, check_int, is_several
from .dispatching import ListSender, ProduceOptions, Retries, ZooKeeperSender
from .producer_data import (
    CallbackHandler,
    DefaultEncoder,
    DefaultEventHandler,
    DefaultPartitioner,
    Encoder,
    Event,
    EventHandler,
    Partitioner,
    ProducerData,
    Sender,
)
from .producer_pool import ProducerPool, parse_broker_list
from .producer_queue import FOREVER, ProducerQueue, QueueLimits

if TYPE_CHECKING:  # it needs kazoo
    from .zookeeper_partitions import ZooKeeperPartitions

_TYPES: Final = ("sync", "async")

T = TypeVar("T")


class Producer(Closing):
    """Sends messages to the brokers of a cluster. Thread-safe. A context manager.

    Args:
        zk_connect: "host:port,host:port/chroot" of the ZooKeeper that registers brokers and topics.
        broker_list: the brokers, instead of zk_connect: "host:port,..." or "id:host:port,...". May be the
            address of a load balancer.
        producer_type: "sync": `send` returns when the brokers have the events; "async": when they are queued.
        compression_codec: "none", "gzip", "snappy", "lz4" or "zstd".
        acks: 1: the leader has appended the events; -1: all in-sync replicas have; 0: there is no response.
        encoder: an `Encoder`, or a class to instantiate.
        event_handler: an `EventHandler`, or a class.
        callback_handler: a `CallbackHandler`, or a class; for "async".
        partitioner: a `Partitioner`, or a class; with zk_connect only.
        queue_time_ms: for "async", the time after which a batch is sent.
        batch_size: for "async", the number of events with which a batch is sent.
        queue_size: for "async", how many events may wait.
        queue_enqueue_timeout_ms: how long `send` waits for space in the queue before it raises
            BufferExhausted; -1: without limit, 0: not at all.
        num_retries: with zk_connect, how often a request is retried.
        retry_backoff_ms: the pause before each retry.
        request_timeout_ms: for connecting, and for each response.
        zk_session_timeout_ms: of the ZooKeeper session.
        zookeeper_auth: "user:password" of the session. `zookeeper_sasl_mechanism` and `zookeeper_ssl_...` are
            the settings of a broker (docs/reference/settings.md).
        client_id: the name that is sent to the brokers.
        client_config: a file with settings of TLS and SASL for the brokers. With zk_connect, the producer
            connects to their endpoints of that security protocol.

    The names of Kafka's design documents (`queue.time`, `partitioner.class`) and of Kafka 0.8 are accepted
    too, for example `Producer(**{"producer.type": "async"})`.

    Raises UnknownSetting, InvalidArgument, InvalidType, CompressionUnavailable, ZooKeeperUnavailable.
    """

    @also_named(PRODUCER_ARGUMENTS)
    def __init__(
        self,
        zk_connect: str | None = None,
        *,
        broker_list: str | None = None,
        producer_type: str = "sync",
        compression_codec: str | int = "none",
        acks: int = 1,
        encoder: Encoder | None = None,
        partitioner: Partitioner | None = None,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
        queue_time_ms: float = 5_000,
        batch_size: int = 200,
        queue_size: int = 10_000,
        queue_enqueue_timeout_ms: float = FOREVER,
        num_retries: int = 3,
        retry_backoff_ms: float = 100,
        request_timeout_ms: int = 10_000,
        zk_session_timeout_ms: int = 6_000,
        zookeeper_auth: str | None = None,
        zookeeper_sasl_mechanism: str = "",
        zookeeper_ssl_client_enable: bool = False,
        zookeeper_ssl_endpoint_identification_algorithm: str = "https",
        zookeeper_ssl_keystore_location: str = "",
        zookeeper_ssl_truststore_location: str = "",
        client_id: str = "embedlog",
        client_config: str = "",
    ) -> None:
        _check_source(zk_connect, broker_list, partitioner)
        check_choice("producer_type", producer_type, _TYPES)
        check_int("zk_session_timeout_ms", zk_session_timeout_ms, low=1, high=MAX_INT32)
        options = ProduceOptions.checked(acks, request_timeout_ms, compression_codec)
        retries = Retries.checked(num_retries, retry_backoff_ms)
        limits = QueueLimits.checked(queue_time_ms, batch_size, queue_size, queue_enqueue_timeout_ms)
        self._encoder: Encoder = _plug_in("encoder", encoder, DefaultEncoder, "to_message")
        self._handler: EventHandler = _plug_in("event_handler", event_handler, DefaultEventHandler, "handle")
        self._callbacks = _plug_in(
            "callback_handler", callback_handler, CallbackHandler, "before_enqueue", "after_sending"
        )
        chooser: Partitioner = _plug_in("partitioner", partitioner, DefaultPartitioner, "partition")
        self._lock = Lock()
        self._closed = False
        self.pool = ProducerPool(options.timeout_ms / 1000, client_id, client_config)
        self._partitions: ZooKeeperPartitions | None = None
        if zk_connect is None:
            self.pool.follow(parse_broker_list(broker_list))
            self._sender: Sender = ListSender(self.pool, options)
        else:
            security = (
                zookeeper_ssl_client_enable,
                zookeeper_ssl_keystore_location,
                zookeeper_ssl_truststore_location,
                zookeeper_ssl_endpoint_identification_algorithm != "",
                zookeeper_sasl_mechanism,
            )
            self._partitions = _follow(zk_connect, self.pool, zk_session_timeout_ms, zookeeper_auth, security)
            self._sender = ZooKeeperSender(self._partitions, self.pool, chooser, options, retries)
        is_async = producer_type == "async"
        self._queue = ProducerQueue(self._handle, self._callbacks, limits) if is_async else None

    def send(self, data: ProducerData | Iterable[ProducerData]) -> None:
        """Send one `ProducerData`, or several.

        A "sync" producer returns when the brokers have all events. Raises the broker's error,
        BrokerUnavailable, TopicNotFound; some events may have been appended. An "async" producer returns when
        they are queued. Raises BufferExhausted. Both raise InvalidType, InvalidTopicName, Closed.
        """
        events = _events(data)
        if self._closed:
            raise Closed("the producer is closed")
        if self._queue is None:
            if events:
                self._handle(events)
            return
        for event in events:
            self._queue.put(event)

    def close(self) -> None:
        """Send the queued events and close the connections. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._queue is not None:
            self._queue.close()
        self._handler.close()
        self._callbacks.close()
        if self._partitions is not None:
            self._partitions.close()
        self.pool.close()

    def _handle(self, events: Sequence[Event]) -> None:
        self._handler.handle(events, self._sender, self._encoder)


def _check_source(zk_connect: object, broker_list: object, partitioner: object) -> None:
    """Raises InvalidArgument unless the brokers come from one source, which a partitioner can use."""
    if (zk_connect is None) == (broker_list is None):
        raise InvalidArgument("give zk_connect or broker_list, and not both")
    if partitioner is not None and broker_list is not None:
        raise InvalidArgument("with broker_list the partition is random: a partitioner needs zk_connect")


def _follow(
    zk_connect: str,
    pool: ProducerPool,
    session_timeout_ms: int,
    auth: str | None,
    security: tuple[bool, str, str, bool, str],
) -> ZooKeeperPartitions:
    """The registries of a ZooKeeper, which keep the pool's brokers current; `security`: see `Security`."""
    from ..zookeeper.security import Security
    from .zookeeper_partitions import ZooKeeperPartitions

    return ZooKeeperPartitions(
        zk_connect,
        pool,
        session_timeout_s=session_timeout_ms / 1000,
        auth=auth,
        security=Security(*security),
    )


def _events(data: object) -> list[Event]:
    """One event for each value. Raises InvalidType, InvalidTopicName."""
    messages = [data] if isinstance(data, ProducerData) else data
    if not is_several(messages):
        raise InvalidType(f"send takes one ProducerData or several, not {shown(data)}")
    events: list[Event] = []
    for message in messages:
        if not isinstance(message, ProducerData):
            raise InvalidType(f"send takes one ProducerData or several, not {shown(message)}")
        check_topic_name(message.topic)
        values = message.data if isinstance(message.data, list) else [message.data]
        events += [Event(message.topic, value, message.key) for value in values]
    return events


def _plug_in(name: str, plug_in: T | None, default: Callable[[], T], *methods: str) -> T:
    """The plug-in, or an instance of it if it is a class: it must have these methods. None: the default.

    Raises InvalidType.
    """
    if plug_in is None:
        return default()
    if isinstance(plug_in, type):
        plug_in = plug_in()
    for method in methods:
        if not callable(getattr(plug_in, method, None)):
            raise InvalidType(f"{name} needs a method {method}, which {shown(plug_in)} lacks")
    return plug_in
