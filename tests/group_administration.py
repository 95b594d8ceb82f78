"""Consumer groups that embedlog and librdkafka (confluent-kafka) administer at the same brokers."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

import embedlog
from embedlog import OffsetReset, TopicPartition

START_MS = 1_700_000_000_000


class Theirs:
    """What librdkafka sees and does."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result()
        assert listed.errors == []
        return {each.group_id for each in listed.valid}

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        found = self._one(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {(each.topic, each.partition): each.offset for each in found.topic_partitions}

    def set_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        wanted = [confluent_kafka.TopicPartition(topic, partition, offset)]
        self._one(self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))

    def describe(self, group: str) -> Any:
        return self._one(self._admin.describe_consumer_groups([group]))

    def delete(self, group: str) -> None:
        self._one(self._admin.delete_consumer_groups([group]))

    def member(self, group: str, topic: str) -> confluent_kafka.Consumer:
        """A member that has got the topic's first records."""
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "client.id": "theirs",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        member = confluent_kafka.Consumer(settings)
        member.subscribe([topic])
        while (message := member.poll(1)) is None or message.error():
            pass
        return member

    @staticmethod
    def _one(futures: dict[str, Any]) -> Any:
        (future,) = futures.values()
        return future.result()


def administer(bootstrap: str) -> None:
    """Each sees what the other did, and neither changes a group that has members."""
    theirs = Theirs(bootstrap)
    topic, group, other = (f"{name}-{uuid.uuid4()}" for name in ("clicks", "billing", "shipping"))
    partitions = [TopicPartition(topic, number) for number in range(3)]
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic(topic, partitions=3)
        for partition in range(3):
            for number in range(10):
                log.append(topic, b"x", partition=partition, timestamp_ms=START_MS + 1000 * number)
        ours = log.group(group)
        with pytest.raises(embedlog.GroupNotFound):
            ours.describe()

        member = theirs.member(group, topic)
        member.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
        found = ours.describe()
        assert (found.group, found.state, found.protocol, found.topics) == (group, "Stable", "range", [topic])
        (seen,) = found.members
        assert (seen.client_id, set(seen.partitions)) == ("theirs", set(partitions))
        assert {each.member for each in found.partitions.values()} == {seen}
        assert [found.partitions[each].lag for each in partitions] == [6, None, None]
        assert ours.oldest_unread_ms() == START_MS + 4000
        for change in (lambda: ours.reset(to="latest"), ours.delete, lambda: ours.delete_offsets(topic)):
            with pytest.raises(embedlog.GroupNotEmpty):
                change()
        assert theirs.offsets(group) == {(topic, 0): 4}
        member.close()

        at = datetime.fromtimestamp(START_MS / 1000 + 6.5, UTC)
        assert ours.reset(topic, to=at) == {
            partitions[0]: OffsetReset(4, 7),
            partitions[1]: OffsetReset(None, 7),
            partitions[2]: OffsetReset(None, 7),
        }
        assert theirs.offsets(group) == {(topic, number): 7 for number in range(3)}
        assert ours.reset(to=2, partitions=1) == {partitions[1]: OffsetReset(7, 2)}
        theirs.set_offset(group, topic, 2, 9)
        assert {name: each.offset for name, each in ours.offsets().items()} == dict(
            zip(partitions, (7, 2, 9), strict=True)
        )
        assert ours.describe().lag == 3 + 8 + 1

        with log.consumer(topic, group=other, client_id="ours") as consumer:
            assert consumer.poll(30_000)
            described = theirs.describe(other)
            assert described.state.name == "STABLE"
            (seen,) = described.members
            assert seen.client_id == "ours"
            assert {(each.topic, each.partition) for each in seen.assignment.topic_partitions} == {
                (topic, number) for number in range(3)
            }
            with pytest.raises(KafkaException):
                theirs.delete(other)
            consumer.commit()
        assert {group, other} <= set(log.groups()) & theirs.groups()

        ours.delete_offsets(topic)
        assert theirs.offsets(group) == {}
        ours.reset(topic, to="earliest")
        ours.delete()
        theirs.delete(other)
        assert not {group, other} & (set(log.groups()) | theirs.groups())
        for gone in (group, other):
            with pytest.raises(embedlog.GroupNotFound):
                log.group(gone).describe()
            assert log.group(gone).offsets() == {} == theirs.offsets(gone)
