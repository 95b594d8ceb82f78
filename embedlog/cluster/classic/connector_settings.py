"""A ConsumerConnector's settings: the names of Kafka's high-level consumer in Python's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...config import MAX_INT32, MIB, Settings
from ...synonyms import CONNECTOR, Synonyms


@dataclass(frozen=True)
class ConnectorSettings(Settings):
    """How a consumer of a group reads, commits and rebalances. Times in milliseconds, sizes in bytes."""

    rules: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "auto_commit_interval_ms": {"low": 1, "high": MAX_INT32},
        "auto_offset_reset": {"allowed": ("smallest", "largest", "error")},
        "consumer_timeout_ms": {"low": -1, "high": MAX_INT32},
        "fetch_message_max_bytes": {"low": 1, "high": 64 * MIB},
        "fetch_min_bytes": {"low": 0, "high": MAX_INT32},
        "fetch_wait_max_ms": {"low": 0, "high": MAX_INT32},
        "offsets_channel_backoff_ms": {"low": 0, "high": MAX_INT32},
        "offsets_commit_max_retries": {"low": 0, "high": MAX_INT32},
        "offsets_storage": {"allowed": ("zookeeper", "kafka")},
        "queued_max_message_chunks": {"low": 1, "high": MAX_INT32},
        "rebalance_backoff_ms": {"low": 1, "high": MAX_INT32},
        "rebalance_handover_ms": {"low": 0, "high": MAX_INT32},
        "rebalance_max_retries": {"low": 0, "high": MAX_INT32},
        "refresh_leader_backoff_ms": {"low": 1, "high": MAX_INT32},
        "socket_timeout_ms": {"low": 1, "high": MAX_INT32},
        "zookeeper_connection_timeout_ms": {"low": 1, "high": MAX_INT32},
        "zookeeper_sasl_mechanism": {"allowed": ("", "DIGEST-MD5")},
        "zookeeper_ssl_endpoint_identification_algorithm": {"allowed": ("https", "")},
        "zookeeper_session_timeout_ms": {"low": 1, "high": MAX_INT32},
    }

    synonyms: ClassVar[Synonyms] = CONNECTOR

    auto_commit_enable: bool = True
    auto_commit_interval_ms: int = 60_000
    auto_offset_reset: str = "largest"
    client_config: str = ""
    client_id: str = "embedlog"
    consumer_id: str = ""
    consumer_timeout_ms: int = -1
    dual_commit_enabled: bool = False
    exclude_internal_topics: bool = True
    fetch_message_max_bytes: int = MIB
    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 100
    offsets_channel_backoff_ms: int = 1_000
    offsets_commit_max_retries: int = 5
    offsets_storage: str = "zookeeper"
    queued_max_message_chunks: int = 2
    rebalance_backoff_ms: int = 2_000
    rebalance_handover_ms: int = 2_000
    rebalance_max_retries: int = 4
    refresh_leader_backoff_ms: int = 200
    socket_timeout_ms: int = 30_000
    zookeeper_connection_timeout_ms: int = 6_000
    zookeeper_sasl_mechanism: str = ""
    zookeeper_session_timeout_ms: int = 6_000
    zookeeper_ssl_client_enable: bool = False
    zookeeper_ssl_endpoint_identification_algorithm: str = "https"
    zookeeper_ssl_keystore_location: str = ""
    zookeeper_ssl_truststore_location: str = ""
