"""Sends the markers of transactions to the brokers that lead their partitions: WriteTxnMarkers.

    coordinator: a prepared end -> send -> a channel of each broker -> written -> coordinator: complete

The broker may be away: a marker is sent until it is written, or until its topic was deleted. What is queued
is lost with the process; the coordinator finds the prepared end in its log when it starts, and sends all
markers of it again. A partition takes a repeated one.

    NONE                                          written
    INVALID_PRODUCER_EPOCH                        not needed: the partition knows a later epoch
    UNKNOWN_TOPIC_OR_PARTITION, topic registered  sent again: the broker has not made it yet
    TRANSACTION_COORDINATOR_FENCED                sent again, without a coordinator epoch if this broker is
                                                  the coordinator
    anything else, and no answer                  sent again

Source: Kafka's TransactionMarkerChannelManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ....errors import EmbedlogError
from ....files.names import TRANSACTION_STATE_TOPIC
from ....groups.marker import NO_COORDINATOR_EPOCH, Marker
from ....groups.other_brokers import End, Place
from ....model import TopicPartition
from ....runtime.log_throttle import LogThrottle
from ....wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ....wire.error_codes import ErrorCode
from ...coordination import Coordination
from ...coordination.producer_id_block import ProducerIdBlock
from .broker_channel import BrokerChannels, BrokerClient, BrokerConnection

logger = logging.getLogger(__name__)

_Key: TypeAlias = tuple[End, TopicPartition]
_Result: TypeAlias = tuple[int, TopicPartition]

_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})


@dataclass(frozen=True)
class _Queued:
    marker: Marker
    written: Callable[[], None] = field(compare=False)


class MarkerSender:
    """Implements `groups.other_brokers.OtherBrokers` in a cluster. Thread-safe."""

    def __init__(self, coordination: Coordination, client: BrokerClient | None = None) -> None:
        self._coordination = coordination
        self.new_producer_id = ProducerIdBlock(coordination).next
        self._refused_log = LogThrottle()
        self._channels: BrokerChannels[_Key, _Queued] = BrokerChannels(
            "markers", coordination.address_of, self._send, client
        )

    def place(self, name: TopicPartition) -> Place:
        broker = self._coordination.broker_of(name)
        if broker is None:
            return Place.NOWHERE
        return Place.HERE if broker == self._coordination.node_id else Place.ELSEWHERE

    def send(self, end: End, name: TopicPartition, marker: Marker, written: Callable[[], None]) -> bool:
        broker = self._coordination.broker_of(name)
        if broker is None or broker < 0:
            return False  # not known just now
        return self._channels.add(broker, (end, name), _Queued(marker, written))

    def close(self) -> None:
        """Stop sending. Idempotent."""
        self._channels.close()

    def _send(
        self, broker: int, connection: BrokerConnection, queue: Mapping[_Key, _Queued]
    ) -> Collection[_Key]:
        """Send markers to a broker. Returns those to be sent again."""
        markers = {}
        for key, queued in queue.items():
            if self.place(key[1]) is Place.NOWHERE:
                logger.info("%s was deleted: it needs no marker", key[1])
                self._tell_coordinator(queued)
            else:
                markers[key] = queued
        if not markers:
            return ()
        try:
            response = connection.exchange(_request(markers), WriteTxnMarkersResponse)
        except EmbedlogError as error:
            if count := self._refused_log.count():
                logger.warning(
                    "broker %d takes no markers, they are sent again: %s (%d times since the last message)",
                    broker,
                    error,
                    count,
                )
            return markers.keys()
        results = _results(response)
        again = []
        for key, queued in markers.items():
            code = results.get((queued.marker.producer_id, key[1]), ErrorCode.UNKNOWN_SERVER_ERROR)
            if code in _DONE:
                self._tell_coordinator(queued)
                continue
            again.append(key)
            if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED and self._is_coordinator(key[0]):
                # An administrator, say, has written a marker of a later coordinator. There is none.
                unfenced = queued.marker._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
                self._channels.add(broker, key, _Queued(unfenced, queued.written))
            if count := self._refused_log.count():
                logger.warning(
                    "%s on broker %d: the marker of producer %d is sent again: error %d (%d times since the "
                    "last message)",
                    key[1],
                    broker,
                    queued.marker.producer_id,
                    code,
                    count,
                )
        return again

    def _is_coordinator(self, end: End) -> bool:
        return self._coordination.coordinates(end.transactional_id, TRANSACTION_STATE_TOPIC)

    def _tell_coordinator(self, queued: _Queued) -> None:
        try:
            queued.written()
        except EmbedlogError as error:  # the log is being closed; the next start sends it again
            logger.info("the coordinator cannot go on with a transaction: %s", error)


def _request(markers: Mapping[_Key, _Queued]) -> WriteTxnMarkersRequest:
    by_marker: dict[Marker, dict[str, list[int]]] = {}
    for (_, name), queued in markers.items():
        by_marker.setdefault(queued.marker, {}).setdefault(name.topic, []).append(name.partition)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                    for topic, numbers in topics.items()
                ],
            )
            for marker, topics in by_marker.items()
        ]
    )


def _results(response: WriteTxnMarkersResponse) -> dict[_Result, int]:
    return {
        (marker.producer_id, TopicPartition(topic.name, partition.partition_index)): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
