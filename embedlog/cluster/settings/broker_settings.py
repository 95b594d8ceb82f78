"""A broker's settings: Kafka's names in Python's spelling, as in config.py.

A configuration file has these together with the log's (LogSettings) and the topics' defaults (TopicSettings);
`config.sorted_settings` separates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...config import DAY_MS, MAX_INT16, MAX_INT32, MIB, Settings
from ...fields import NO_SECRET, Secret
from ...synonyms import BROKER, Synonyms

AUTHORIZERS = (
    "",
    "AclAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""None, and three names of the same one."""


@dataclass(frozen=True)
class BrokerSettings(Settings):
    """A broker's settings. Times are in milliseconds, unless the name says seconds or minutes."""

    rules: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "authorizer_class_name": {"allowed": AUTHORIZERS},
        "authentication_timeout_ms": {"low": 1, "high": MAX_INT32},
        "broker_id": {"low": 0, "high": MAX_INT32},
        "connection_failed_authentication_delay_ms": {"low": 0, "high": MAX_INT32},
        "connections_max_idle_ms": {"low": 1, "high": MAX_INT32},
        "connections_max_reauth_ms": {"low": 0, "high": MAX_INT32},
        "fetch_max_bytes": {"low": 1024, "high": MAX_INT32},
        "group_consumer_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "group_consumer_max_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "group_consumer_max_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "group_consumer_max_size": {"low": 1, "high": MAX_INT32},
        "group_consumer_migration_policy": {"allowed": ("bidirectional", "upgrade", "downgrade", "disabled")},
        "group_consumer_min_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "group_consumer_min_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "group_consumer_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "group_max_size": {"low": 1, "high": MAX_INT32},
        "group_min_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "group_share_delivery_count_limit": {"low": 1, "high": MAX_INT16},
        "group_share_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "group_share_max_delivery_count_limit": {"low": 1, "high": MAX_INT16},
        "group_share_max_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "group_share_max_partition_max_record_locks": {"low": 1, "high": 1_000_000},
        "group_share_max_record_lock_duration_ms": {"low": 1, "high": MAX_INT32},
        "group_share_max_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "group_share_max_share_sessions": {"low": 1, "high": MAX_INT32},
        "group_share_max_size": {"low": 1, "high": MAX_INT32},
        "group_share_min_delivery_count_limit": {"low": 1, "high": MAX_INT16},
        "group_share_min_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "group_share_min_partition_max_record_locks": {"low": 1, "high": 1_000_000},
        "group_share_min_record_lock_duration_ms": {"low": 1, "high": MAX_INT32},
        "group_share_min_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "group_share_partition_max_record_locks": {"low": 1, "high": 1_000_000},
        "group_share_record_lock_duration_ms": {"low": 1, "high": MAX_INT32},
        "group_share_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "max_connection_creation_rate": {"low": 1, "high": MAX_INT32},
        "max_connections": {"low": 1, "high": MAX_INT32},
        "max_connections_per_ip": {"low": 1, "high": MAX_INT32},
        # At most what readers decompress (codec.DEFAULT_MAX_BYTES).
        "max_decompressed_message_bytes": {"low": 1024, "high": 128 * MIB},
        "max_groups": {"low": 1, "high": MAX_INT32},
        "max_incremental_fetch_session_cache_slots": {"low": 0, "high": MAX_INT32},
        "max_ssl_handshakes": {"low": 1, "high": MAX_INT32},
        "max_ssl_handshakes_per_ip": {"low": 1, "high": MAX_INT32},
        "max_partitions": {"low": 1, "high": MAX_INT32},
        "max_partitions_per_request": {"low": 1, "high": MAX_INT32},
        "max_unauthenticated_connections": {"low": 1, "high": MAX_INT32},
        "num_io_threads": {"low": 1, "high": 1024},
        "num_network_threads": {"low": 1, "high": 1024},
        "num_partitions": {"low": 1, "high": 100_000},
        "offset_metadata_max_bytes": {"low": 0, "high": MAX_INT32},
        "offsets_commit_timeout_ms": {"low": 1, "high": MAX_INT32},
        "offsets_retention_check_interval_ms": {"low": 1, "high": MAX_INT32},
        "offsets_retention_minutes": {"low": 1, "high": MAX_INT32},
        "queued_max_request_bytes": {"low": MIB, "high": 1 << 50},
        "queued_max_request_bytes_per_ip": {"low": MIB, "high": 1 << 50},
        "quota_window_num": {"low": 2, "high": 1_000},
        "quota_window_size_seconds": {"low": 1, "high": 3_600},
        "request_grace_ms": {"low": 1, "high": MAX_INT32},
        "request_min_bytes_per_second": {"low": 0, "high": MAX_INT32},
        "sasl_oauthbearer_clock_skew_seconds": {"low": 0, "high": MAX_INT32},
        "sasl_oauthbearer_jwks_endpoint_refresh_ms": {"low": 1, "high": MAX_INT32},
        "sasl_server_max_receive_size": {"low": 1024, "high": MAX_INT32},
        "socket_request_max_bytes": {"low": 1024, "high": MAX_INT32},
        "ssl_client_auth": {"allowed": ("none", "requested", "required")},
        "ssl_handshake_timeout_ms": {"low": 1, "high": MAX_INT32},
        "zookeeper_sasl_mechanism": {"allowed": ("", "DIGEST-MD5")},
        "zookeeper_ssl_endpoint_identification_algorithm": {"allowed": ("https", "")},
        "zookeeper_session_timeout_ms": {
            "low": 1_000,
            "high": 40_000,
        },  # the range that servers grant by default
    }

    synonyms: ClassVar[Synonyms] = BROKER

    advertised_listeners: str = ""
    allow_everyone_if_no_acl_found: bool = False
    authorizer_audit_topic: str = ""
    authorizer_class_name: str = ""
    auto_create_topics_enable: bool = True
    authentication_timeout_ms: int = 10_000
    broker_id: int = 0
    broker_rack: str = ""
    connection_failed_authentication_delay_ms: int = 100
    connections_max_idle_ms: int = 600_000
    connections_max_reauth_ms: int = 0
    delete_topic_enable: bool = True
    fetch_max_bytes: int = 55 * MIB
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = MAX_INT32
    group_consumer_max_session_timeout_ms: int = MAX_INT32
    group_consumer_max_size: int = 1_000
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_min_heartbeat_interval_ms: int = 1
    group_consumer_min_session_timeout_ms: int = 1
    group_consumer_session_timeout_ms: int = 45_000
    group_max_size: int = 1_000
    group_min_session_timeout_ms: int = 6_000
    group_share_delivery_count_limit: int = 5
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_max_delivery_count_limit: int = MAX_INT16
    group_share_max_heartbeat_interval_ms: int = MAX_INT32
    group_share_max_partition_max_record_locks: int = 1_000_000
    group_share_max_record_lock_duration_ms: int = MAX_INT32
    group_share_max_session_timeout_ms: int = MAX_INT32
    group_share_max_share_sessions: int = 2_000
    group_share_max_size: int = 200
    group_share_min_delivery_count_limit: int = 1
    group_share_min_heartbeat_interval_ms: int = 1
    group_share_min_partition_max_record_locks: int = 1
    group_share_min_record_lock_duration_ms: int = 1
    group_share_min_session_timeout_ms: int = 1
    group_share_partition_max_record_locks: int = 2_000
    group_share_record_lock_duration_ms: int = 30_000
    group_share_session_timeout_ms: int = 45_000
    inter_broker_client_config: str = ""
    inter_broker_listener_name: str = ""
    listener_security_protocol_map: str = ""
    listeners: str = ""
    max_connection_creation_rate: int = MAX_INT32
    max_connections: int = 4_000
    max_connections_per_ip: int = 2_000
    max_decompressed_message_bytes: int = 32 * MIB
    max_groups: int = 10_000
    max_incremental_fetch_session_cache_slots: int = 1_000
    max_partitions: int = 100_000
    max_partitions_per_request: int = 1_000
    max_ssl_handshakes: int = 1_000
    max_ssl_handshakes_per_ip: int = 250
    metrics_ssl: bool = False
    max_unauthenticated_connections: int = 1_000
    num_io_threads: int = 8
    num_network_threads: int = 1
    num_partitions: int = 1
    offset_metadata_max_bytes: int = 4_096
    offsets_commit_timeout_ms: int = 5_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 7 * DAY_MS // 60_000
    queued_max_request_bytes: int = 512 * MIB
    queued_max_request_bytes_per_ip: int = 128 * MIB
    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    request_grace_ms: int = 30_000
    request_min_bytes_per_second: int = 1_024
    sasl_enabled_mechanisms: str = "SCRAM-SHA-256,SCRAM-SHA-512"
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_server_max_receive_size: int = 512 << 10
    socket_request_max_bytes: int = 100 * MIB
    ssl_cipher_suites: str = ""
    ssl_client_auth: str = "none"
    ssl_enabled_protocols: str = "TLSv1.2,TLSv1.3"
    ssl_handshake_timeout_ms: int = 15_000
    ssl_key_password: Secret = NO_SECRET
    ssl_keystore_location: str = ""
    ssl_keystore_type: str = "PEM"
    ssl_principal_mapping_rules: str = "DEFAULT"
    ssl_truststore_location: str = ""
    ssl_truststore_type: str = "PEM"
    super_users: str = ""
    zookeeper_sasl_mechanism: str = ""
    zookeeper_session_timeout_ms: int = 6_000
    zookeeper_set_acl: bool = False
    zookeeper_ssl_client_enable: bool = False
    zookeeper_ssl_endpoint_identification_algorithm: str = "https"
    zookeeper_ssl_keystore_location: str = ""
    zookeeper_ssl_truststore_location: str = ""
