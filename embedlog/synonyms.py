"""Synonyms of settings: the names in the design documents, in Kafka's brokers and in its old clients.

    log.flush.interval.messages -> flush_messages        a broker's default for a topic's flush.messages
    log.retention.hours         -> retention_ms          likewise, in another unit
    queue.time                  -> queue_time_ms         Kafka 0.7's name
    zookeeper.connect           -> zk_connect            Kafka 0.8's name

Every setting may be written with dots (as in Kafka), underscores or dashes: `plain` returns the name with
underscores. The tables hold only names that differ otherwise. `Settings.resolved` in config.py and `renamed`
in validation.py read them; no other code translates names.

Source: Kafka 0.7 design, "Producer APIs"; Kafka 0.10 implementation, "Producer APIs", "Consumer Offset
Tracking"; the configuration pages of Kafka 0.7, 0.8 and 3.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias


class Meaning(NamedTuple):
    """The setting that a synonym names, and the factor from the synonym's unit to the setting's."""

    name: str
    unit: int = 1


Synonyms: TypeAlias = Mapping[str, Meaning]

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000


def plain(typed: str) -> str:
    """The name with underscores instead of dots and dashes."""
    return typed.replace(".", "_").replace("-", "_")


def _table(names: Mapping[str, str | tuple[str, int]]) -> dict[str, Meaning]:
    return {
        plain(typed): Meaning(meant) if isinstance(meant, str) else Meaning(*meant)
        for typed, meant in names.items()
    }


# Topic settings whose broker-wide default has another name in Kafka: topic's name -> broker's.
BROKER_NAMES: Final = {
    "cleanup_policy": "log_cleanup_policy",
    "delete_retention_ms": "log_cleaner_delete_retention_ms",
    "file_delete_delay_ms": "log_segment_delete_delay_ms",
    "flush_messages": "log_flush_interval_messages",
    "flush_ms": "log_flush_interval_ms",
    "index_interval_bytes": "log_index_interval_bytes",
    "max_compaction_lag_ms": "log_cleaner_max_compaction_lag_ms",
    "max_message_bytes": "message_max_bytes",
    "message_timestamp_after_max_ms": "log_message_timestamp_after_max_ms",
    "message_timestamp_before_max_ms": "log_message_timestamp_before_max_ms",
    "message_timestamp_type": "log_message_timestamp_type",
    "min_cleanable_dirty_ratio": "log_cleaner_min_cleanable_ratio",
    "min_compaction_lag_ms": "log_cleaner_min_compaction_lag_ms",
    "preallocate": "log_preallocate",
    "retention_bytes": "log_retention_bytes",
    "retention_ms": "log_retention_ms",
    "segment_bytes": "log_segment_bytes",
    "segment_ms": "log_roll_ms",
}

TOPIC: Final = {
    **{theirs: Meaning(own) for own, theirs in BROKER_NAMES.items()},
    **_table(
        {
            "log.retention.hours": ("retention_ms", _HOUR_MS),
            "log.retention.minutes": ("retention_ms", _MINUTE_MS),
            "log.roll.hours": ("segment_ms", _HOUR_MS),
            # Kafka 0.7
            "log.default.flush.interval.ms": "flush_ms",
            "log.file.size": "segment_bytes",
            "log.flush.interval": "flush_messages",
            "log.retention.size": "retention_bytes",
            "max.message.size": "max_message_bytes",
        }
    ),
}

LOG: Final = _table({"log.cleanup.interval.mins": ("log_retention_check_interval_ms", _MINUTE_MS)})

BROKER: Final = _table(
    {
        "brokerid": "broker_id",
        "max.socket.request.bytes": "socket_request_max_bytes",
        "zk.sessiontimeout.ms": "zookeeper_session_timeout_ms",
    }
)

# Arguments of Broker that are not settings.
BROKER_ARGUMENTS: Final = _table(
    {
        "advertised.host.name": "advertised_host",
        "host.name": "host",
        "hostname": "host",
        "zk.connect": "zookeeper",
        "zookeeper.connect": "zookeeper",
    }
)

CONNECTOR: Final = _table(
    {
        "autocommit.enable": "auto_commit_enable",
        "autocommit.interval.ms": "auto_commit_interval_ms",
        "autooffset.reset": "auto_offset_reset",
        "consumerid": "consumer_id",
        "fetch.size": "fetch_message_max_bytes",
        "queuedchunks.max": "queued_max_message_chunks",
        "rebalance.retries.max": "rebalance_max_retries",
        "zk.connectiontimeout.ms": "zookeeper_connection_timeout_ms",
        "zk.sessiontimeout.ms": "zookeeper_session_timeout_ms",
    }
)

CONNECTOR_ARGUMENTS: Final = _table(
    {
        "groupid": "group_id",
        "zk.connect": "zookeeper_connect",
    }
)

SIMPLE_CONSUMER_ARGUMENTS: Final = _table(
    {
        "fetch.message.max.bytes": "buffer_size",
        "fetch.size": "buffer_size",
        "socket.timeout.ms": "so_timeout_ms",
    }
)

PRODUCER_ARGUMENTS: Final = _table(
    {
        "batch.num.messages": "batch_size",
        "message.send.max.retries": "num_retries",
        "metadata.broker.list": "broker_list",
        "partitioner.class": "partitioner",
        "queue.buffering.max.messages": "queue_size",
        "queue.buffering.max.ms": "queue_time_ms",
        "queue.enqueueTimeout.ms": "queue_enqueue_timeout_ms",
        "queue.time": "queue_time_ms",
        "request.required.acks": "acks",
        "serializer.class": "encoder",
        "zk.sessiontimeout.ms": "zk_session_timeout_ms",
        "zookeeper.connect": "zk_connect",
        "zookeeper.session.timeout.ms": "zk_session_timeout_ms",
    }
)

# Of a client over the wire: the names of Java's clients and of librdkafka. The own ones are kafka-python's;
# wire_client/security_names.py has those that differ in more than their name.
CLIENT: Final = _table(
    {
        "oauth.cb": "sasl_oauth_token_provider",
        "sasl.mechanisms": "sasl_mechanism",
        "sasl.oauthbearer.client.credentials.client.id": "sasl_oauthbearer_client_id",
        "sasl.oauthbearer.client.credentials.client.secret": "sasl_oauthbearer_client_secret",
        "sasl.password": "sasl_plain_password",
        "sasl.username": "sasl_plain_username",
        "ssl.ca.location": "ssl_cafile",
        "ssl.certificate.location": "ssl_certfile",
        "ssl.cipher.suites": "ssl_ciphers",
        "ssl.key.location": "ssl_keyfile",
        "ssl.key.password": "ssl_password",
        "ssl.keystore.location": "ssl_certfile",
        "ssl.truststore.location": "ssl_cafile",
    }
)

# Options of embedlog's own clients: the names in Kafka's current producer and consumer.
PRODUCER_OPTIONS: Final = _table(
    {
        "batch.size": "batch_bytes",
        "buffer.memory": "buffer_bytes",
        "compression.type": "compression",
        "key.serializer": "key_encoder",
        "partitioner.class": "partitioner",
        "queue.time": "linger_ms",
        "value.serializer": "encoder",
    }
)

CONSUMER_OPTIONS: Final = _table(
    {
        "auto.commit.enable": "auto_commit",
        "enable.auto.commit": "auto_commit",
        "metadata.max.age.ms": "metadata_refresh_ms",
        "partition.assignment.strategy": "assignors",
    }
)
