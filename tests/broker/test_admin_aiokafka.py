"""The admin APIs as aiokafka calls them: in older versions than the other clients."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from embedlog.cluster import Broker


@pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka")
def test_topics_settings_and_records(broker: Broker) -> None:
    log = broker.log

    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        try:
            made = await admin.create_topics([NewTopic("events", 2, 1, topic_configs={"flush.ms": "50"})])
            assert [error[1] for error in made.topic_errors] == [0]
            assert log.describe_topic("events").settings == {"flush_ms": 50}
            assert await admin.list_topics() == ["events"]

            await admin.create_partitions({"events": NewPartitions(3)})
            assert log.describe_topic("events").partitions == 3

            resource = ConfigResource(ConfigResourceType.TOPIC, "events", {"retention.ms": "1000"})
            await admin.alter_configs([resource])
            assert log.describe_topic("events").settings == {"retention_ms": 1000}
            (described,) = await admin.describe_configs([resource])
            (_, _, _, name, configs) = described.resources[0]
            assert (name, [config[:2] for config in configs]) == ("events", [("retention.ms", "1000")])

            log.append_many("events", [b"a", b"b", b"c"], partition=0)
            first = TopicPartition("events", 0)
            assert await admin.delete_records({first: RecordsToDelete(before_offset=2)}) == {first: 2}

            await admin.delete_topics(["events"])
            assert log.topics() == []
        finally:
            await admin.close()

    asyncio.run(administer())
