"""Settings of Kafka's brokers that brokers here do not have.

None of them keeps a broker from starting, unless it asks for something that would not be done:

    _ONLY      accepted with the values that describe what embedlog does, refused with others
    _UNUSED    accepted with any value: what they tune is not here, or is done in another way

The settings of topics that have one value here (topic_configs.py) are accepted likewise, as the broker's
defaults. Values that mean "no limit" or "choose one" in Kafka alone are translated.

Source: the configuration of a broker of Kafka 4.3, in `AbstractKafkaConfig`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...config import MAX_INT64, dotted, format_value
from ...errors import InvalidSetting
from ...synonyms import plain
from .topic_configs import FIXED, broker_name

logger = logging.getLogger(__name__)


class _Only(NamedTuple):
    """The values that are accepted, in lower case; the first is shown."""

    values: tuple[str, ...]
    why: str


_NO_REPLICAS: Final = "each partition has one replica"
_NO_PLUGINS: Final = "brokers here load no classes"
_NO_CONTROLLERS: Final = "brokers form a cluster through ZooKeeper, without controllers"
_PEM_FILES: Final = "give PEM files: ssl_keystore_location, ssl_truststore_location"
_JAVA: Final = "org.apache.kafka."

_ONLY: Final[dict[str, _Only]] = {
    "alter.config.policy.class.name": _Only(("",), _NO_PLUGINS),
    "client.quota.callback.class": _Only(("",), _NO_PLUGINS),
    "config.providers": _Only(("",), "a configuration file has the values themselves"),
    "cordoned.log.dirs": _Only(("",), "a broker has one directory"),
    "create.topic.policy.class.name": _Only(("",), _NO_PLUGINS),
    "default.replication.factor": _Only(("1", "-1"), _NO_REPLICAS),
    "group.consumer.assignors": _Only(("uniform,range", "uniform"), "members may choose range, too"),
    "group.share.assignors": _Only(("simple",), "there is no other"),
    "group.share.persister.class.name": _Only(
        (f"{_JAVA}server.share.persister.defaultstatepersister",), _NO_PLUGINS
    ),
    "log.cleaner.enable": _Only(("true",), "topics with cleanup_policy=compact are compacted"),
    "max.connections.per.ip.overrides": _Only(("",), "max_connections_per_ip is for all addresses"),
    "offsets.topic.replication.factor": _Only(("1", "-1"), _NO_REPLICAS),
    "principal.builder.class": _Only(
        (f"{_JAVA}common.security.authenticator.defaultkafkaprincipalbuilder", ""), _NO_PLUGINS
    ),
    "process.roles": _Only(("broker", "broker,controller", "controller,broker"), _NO_CONTROLLERS),
    "remote.log.storage.system.enable": _Only(("false",), "there is no tiered storage"),
    "sasl.oauthbearer.jwt.validator.class": _Only(
        (f"{_JAVA}common.security.oauthbearer.defaultjwtvalidator", ""), _NO_PLUGINS
    ),
    "sasl.server.callback.handler.class": _Only(("",), f"{_NO_PLUGINS}: users are those of `embedlog users`"),
    "security.inter.broker.protocol": _Only(
        ("plaintext",), "inter_broker_listener_name names the listener that other brokers use"
    ),
    "share.coordinator.state.topic.min.isr": _Only(("1",), _NO_REPLICAS),
    "share.coordinator.state.topic.replication.factor": _Only(("1", "-1"), _NO_REPLICAS),
    "ssl.engine.factory.class": _Only(("",), _NO_PLUGINS),
    "ssl.keystore.certificate.chain": _Only(("",), _PEM_FILES),
    "ssl.keystore.key": _Only(("",), _PEM_FILES),
    "ssl.truststore.certificates": _Only(("",), _PEM_FILES),
    "transaction.state.log.min.isr": _Only(("1",), _NO_REPLICAS),
    "transaction.state.log.replication.factor": _Only(("1", "-1"), _NO_REPLICAS),
    "transaction.two.phase.commit.enable": _Only(("false",), "a transaction ends in one phase"),
}

_UNUSED: Final[dict[str, str]] = {
    name: why
    for why, names in {
        _NO_REPLICAS: """
            alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
            auto.leader.rebalance.enable controlled.shutdown.enable follower.fetch.last.tiered.offset.enable
            leader.imbalance.check.interval.seconds num.replica.alter.log.dirs.threads num.replica.fetchers
            replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
            replica.fetch.response.max.bytes replica.fetch.wait.max.ms
            replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
            replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
            replication.quota.window.size.seconds unclean.leader.election.interval.ms""",
        _NO_CONTROLLERS: """
            broker.heartbeat.interval.ms broker.session.timeout.ms controller.listener.names
            controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
            controller.quorum.append.linger.ms controller.quorum.auto.join.enable
            controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
            controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
            controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
            controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
            controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms
            early.start.listeners initial.broker.registration.timeout.ms internal.metadata.delete.delay.millis
            internal.metadata.log.segment.bytes internal.metadata.max.batch.size.in.bytes metadata.log.dir
            metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
            metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
            metadata.max.retention.bytes metadata.max.retention.ms sasl.mechanism.controller.protocol
            server.max.startup.time.ms unstable.api.versions.enable unstable.feature.versions.enable""",
        "there is no tiered storage": """
            remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
            remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
            remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
            remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
            remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
            remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
            remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
            remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
            remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
            remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
            remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
            remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
            remote.log.reader.threads remote.log.storage.manager.class.name
            remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix""",
        "groups get their assignments at once": """
            group.consumer.assignment.interval.ms group.consumer.max.assignment.interval.ms
            group.consumer.min.assignment.interval.ms group.consumer.regex.refresh.interval.ms
            group.coordinator.append.linger.ms group.coordinator.background.threads
            group.coordinator.cached.buffer.max.bytes group.coordinator.rebalance.protocols
            group.coordinator.threads group.share.assignment.interval.ms
            group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
            group.share.min.assignment.interval.ms""",
        "there are no streams groups: Streams uses the classic protocol": """
            group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
            group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
            group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms
            group.streams.max.size group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
            group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
            group.streams.num.standby.replicas group.streams.session.timeout.ms""",
        "threads, buffers and intervals are others": """
            add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
            background.threads delete.records.purgatory.purge.interval.requests
            fetch.purgatory.purge.interval.requests log.cleaner.io.buffer.load.factor
            log.cleaner.io.buffer.size log.cleaner.threads log.dir.failure.timeout.ms
            log.flush.offset.checkpoint.interval.ms log.flush.scheduler.interval.ms
            log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms
            log.roll.jitter.hours max.request.partition.size.limit num.recovery.threads.per.data.dir
            offsets.load.buffer.size producer.id.expiration.check.interval.ms
            producer.purgatory.purge.interval.requests queued.max.requests request.timeout.ms
            share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
            share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
            share.coordinator.snapshot.update.records.per.snapshot share.coordinator.threads
            share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
            socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
            socket.listen.backlog.size socket.receive.buffer.bytes socket.send.buffer.bytes
            transaction.abort.timed.out.transaction.cleanup.interval.ms
            transaction.remove.expired.transaction.cleanup.interval.ms
            transaction.state.log.load.buffer.size""",
        "internal topics have their own settings": """
            offsets.topic.compression.codec share.coordinator.state.topic.compression.codec
            share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
            share.coordinator.state.topic.segment.bytes transaction.state.log.segment.bytes""",
        "writes in transactions are always verified": "transaction.partition.verification.enable",
        "metrics are Prometheus's": """
            kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters metrics.num.samples
            metrics.recording.level metrics.sample.window.ms telemetry.max.bytes""",
        "there are no delegation tokens": """
            delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
            delegation.token.max.lifetime.ms delegation.token.secret.key""",
        "there is no Kerberos": """
            sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
            sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
            sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor""",
        "inter_broker_client_config has what a broker needs as a client": """
            sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
            sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
            sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
            sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
            sasl.mechanism.inter.broker.protocol sasl.oauthbearer.assertion.algorithm
            sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
            sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
            sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
            sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
            sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
            sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
            sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url
            ssl.endpoint.identification.algorithm""",
        "tokens and their keys are looked at in another way": """
            sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
            sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.scope.claim.name""",
        "passwords of users are in the log: `embedlog users`": "sasl.jaas.config",
        "OpenSSL does TLS, with PEM files": """
            security.providers ssl.allow.dn.changes ssl.allow.san.changes ssl.keymanager.algorithm
            ssl.keystore.password ssl.protocol ssl.provider ssl.secure.random.implementation
            ssl.trustmanager.algorithm ssl.truststore.password""",
    }.items()
    for name in names.split()
}

_LOG_DIRS: Final = frozenset({"log.dir", "log.dirs"})
_LARGEST_MEMORY: Final = 1 << 50


def _limited(value: str) -> int | None:
    number = float(value)
    return None if number >= MAX_INT64 else int(number)


# What means something else here: the value, or None for the default. ValueError: it is no such value.
_TRANSLATED: Final[dict[str, Callable[[str], Any]]] = {
    "broker.id": lambda value: None if int(value) == -1 else value,
    "node.id": lambda value: value,
    "log.cleaner.io.max.bytes.per.second": _limited,
    "queued.max.request.bytes": lambda value: _LARGEST_MEMORY if int(value) == -1 else value,
}
_OWN_NAMES: Final = {"node.id": "broker_id"}
_FIXED: Final = {**FIXED, **{broker_name(name): fixed for name, fixed in FIXED.items()}}
KNOWN: Final = frozenset({*_ONLY, *_UNUSED, *_LOG_DIRS, *_FIXED})
"""The names that are accepted and have no effect."""
_BY_PLAIN_NAME: Final = {plain(name): name for name in (*KNOWN, *_TRANSLATED)}


def why_unused(name: str) -> str | None:
    """Why a setting of Kafka's, by its dotted name, has no effect here; None if that is not so."""
    if name in _LOG_DIRS:
        return "a broker has the directory that it was started with"
    if name in _ONLY:
        return _ONLY[name].why
    return _UNUSED.get(name)


def with_effect(settings: Mapping[str, Any], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """A broker's settings without those that have no effect here, which are logged.

    path: the broker's directory. Raises InvalidSetting for a value that asks for something that would not be
    done.
    """
    effective: dict[str, Any] = {}
    unused = []
    for typed, value in settings.items():
        name = _BY_PLAIN_NAME.get(plain(typed))
        if name in _TRANSLATED:
            translated = _translated(name, value)
            if translated is not None:
                effective[_OWN_NAMES.get(name, typed)] = translated
        elif name is None:
            effective[typed] = value
        else:
            _check(name, _text(value), path)
            unused.append(name)
    if unused:
        logger.warning("settings of Kafka's brokers without effect here: %s", ", ".join(sorted(unused)))
    return effective


def is_without_effect(typed: str) -> bool:
    """Whether a setting of Kafka's brokers has no effect here, however its name is spelled."""
    return _BY_PLAIN_NAME.get(plain(typed)) in KNOWN


def _text(value: Any) -> str:
    """A value as a file of properties has it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else format_value(value).strip()


def _translated(name: str, value: Any) -> Any:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return value
    try:
        return _TRANSLATED[name](str(value))
    except (ValueError, OverflowError):
        return value  # it is refused as any wrong value


def _check(name: str, value: str, path: str | os.PathLike[str] | None) -> None:
    """Raises InvalidSetting."""
    accepted = "".join(value.lower().split())
    if name in _LOG_DIRS:
        if path is None or os.path.realpath(value) != os.path.realpath(path):
            raise InvalidSetting(f"{name}: a broker has the directory that it is started with: leave it out")
    elif name in _FIXED:
        if not _FIXED[name].accepts(value):
            raise InvalidSetting(f"{name} is {_FIXED[name].value} here: {_FIXED[name].why}")
    elif name in _ONLY and accepted not in _ONLY[name].values:
        limit = _ONLY[name]
        raise InvalidSetting(f"{dotted(name)} is {limit.values[0] or 'empty'} here: {limit.why}")
