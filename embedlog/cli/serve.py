"""`embedlog serve`: runs a broker on a log directory, for any Kafka client, until it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from .. import __version__
from ..cluster import Broker
from ..cluster.network.listeners import Listener, is_own
from ..cluster.secured import Secured
from ..cluster.settings.broker_settings import BrokerSettings
from ..cluster.settings.kafka_settings import is_without_effect
from ..config import UNLIMITED, LogSettings, TopicSettings
from ..errors import InvalidArgument, StorageError
from ..files.names import INTERNAL_TOPICS
from ..security.protocol import SecurityProtocol
from ..synonyms import BROKER_ARGUMENTS, plain
from ..units import counted, duration, size
from .arguments import Command, arg, count, defaults, directory, own_settings, settings
from .long_running import FORMATS, LAST_PORT, LEVELS, Stop, Stopped, log_messages, log_options, port
from .opening import report
from .ui import UI

_DESCRIPTION = """\
Serve a log directory, created if missing, to Kafka clients (confluent-kafka, aiokafka, kafka-python, kcat,
Java). The broker is the directory's writer; other processes on this machine can read the files meanwhile.
SIGTERM or Ctrl-C stops it: it takes no new connections, answers the requests in progress, makes everything
durable and exits with 0. SIGHUP has it read its certificates again, unless it runs in a terminal.

Only this machine can connect, unless --allow-remote is given. Then clients must authenticate, for which
--secure sets everything up; or --insecure says that nobody has to."""
_LOCK = (
    "Holds the writer's lock while it runs: a second broker on the directory, and commands that write to it, "
    "are refused (exit 2)."
)
_NOT_OVER_WIRE: Final = "it is the broker itself: give the directory to serve, and --port"
_PORT: Final = 9092
_PROTOCOLS: Final = {
    SecurityProtocol.PLAINTEXT: "plaintext",
    SecurityProtocol.SSL: "TLS",
    SecurityProtocol.SASL_PLAINTEXT: "plaintext, with passwords",
    SecurityProtocol.SASL_SSL: "TLS, with passwords",
}
_SECTIONS: Final = ("broker", "log", "topics", "serve")

# What a configuration file may hold besides settings: the flags with a value, and their types.
_OF_FILE: Final[Mapping[str, type]] = {
    "host": str,
    "port": int,
    "allow_remote": bool,
    "insecure": bool,
    "advertised_host": str,
    "advertised_port": int,
    "metrics_port": int,
    "metrics_host": str,
    "zookeeper": str,
    "zookeeper_auth": str,
    "log_format": str,
    "log_level": str,
}
_ZOOKEEPER: Final = "127.0.0.1:2181"
_ZOOKEEPER_AUTH: Final = "EMBEDLOG_ZOOKEEPER_AUTH"


def commands() -> Iterator[Command]:
    summary = "be a broker that Kafka clients can talk to"
    yield Command("serve", summary, _LOCK, run, _DESCRIPTION).takes(
        directory(_NOT_OVER_WIRE),
        arg("--port N", f"the port to listen on; 0: a free one ({_PORT})", type=port),
        arg("--host HOST", "the address to listen on (127.0.0.1)"),
        arg(
            "--allow-remote",
            "allow a --host that other machines can reach, where clients authenticate",
            default=None,
        ),
        arg(
            "--secure",
            "TLS and passwords: make a certificate authority, a certificate and an administrator in "
            "DIR-security, unless they are there (needs the extra 'security')",
        ),
        arg(
            "--insecure",
            "allow it although nobody authenticates: whoever reaches the port reads and writes everything",
            default=None,
        ),
        arg("--advertised-host HOST", "the host that clients connect to, if it differs"),
        arg("--advertised-port N", "the port that clients connect to, if it differs", type=port),
        arg(
            "--metrics-port N",
            "serve GET /metrics (Prometheus) and GET /health here (needs the extra 'cluster')",
            type=port,
        ),
        arg("--metrics-host HOST", "the address for --metrics-port, if it differs"),
        arg("--broker-id N", "the broker's id, unique in a cluster (0)", type=count),
        arg(
            "--zookeeper HOST:PORT[,...][/CHROOT]",
            "join the cluster of this ZooKeeper (needs the extra 'cluster')",
        ),
        arg(
            "--with-zookeeper",
            "also run that ZooKeeper, in DIR-zookeeper, as long as the broker runs: to try out a cluster "
            f"({_ZOOKEEPER} unless --zookeeper is given; needs the extra 'cluster-dev')",
        ),
        arg("--config FILE", "settings in TOML; flags override them"),
        own_settings(
            "a setting of the broker, of the log, or a default for topics, by Kafka's name, with dots or "
            "underscores; repeatable"
        ),
        *log_options("warning", default=None),
        arg("--json", "print a JSON object when it listens, another when it has stopped"),
        defaults(refused="One broker serves a directory: stop that process first."),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    options = _options(args)
    log_messages(options.pop("log_format", "text"), options.pop("log_level", "warning"))
    raise_open_files()
    # In a terminal, SIGHUP says that it was closed, which ends the broker.
    in_terminal = any(
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    )
    with Stop(reloads=not in_terminal) as stop, contextlib.ExitStack() as ends:
        try:
            if args.with_zookeeper:
                options.setdefault("zookeeper", _ZOOKEEPER)
                ends.enter_context(_zookeeper(args.directory, options["zookeeper"]))
            secured = _secure(args.directory, options) if args.secure else None
            broker = Broker(args.directory, **options)
            stop.is_awaited = True
        except Stopped:
            return 0
        with broker:
            _announce(args, ui, broker, secured)
            if stop.wait(broker.reload_certificates) == signal.SIGINT and ui.out.isatty():
                ui.line()  # the terminal has written ^C
    served = broker.server.accepted
    stopped = f"stopped     {counted(served, 'connection')} served"
    ui.result({"stopped": True, "connections": served}, stopped)
    return 0


def raise_open_files() -> None:
    """Raise the process's soft limit of open files to the hard one, as the JVM does for Kafka.

    Connections and segments share it. Only for a process of our own: a library leaves its program's limits
    alone (docs/decisions/0030-descriptors.md).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS: the hard one may be more than is possible
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Broker's arguments: those of the configuration file, overridden by flags. Raises what _from_file
    raises.
    """
    options: dict[str, Any] = {}
    if args.config:
        options.update(_from_file(args.config))
    flags = {name: getattr(args, name, None) for name in _OF_FILE}
    options.update({name: value for name, value in flags.items() if value is not None})
    if args.broker_id is not None:
        options["broker_id"] = args.broker_id
    if _ZOOKEEPER_AUTH in os.environ:
        options.setdefault("zookeeper_auth", os.environ[_ZOOKEEPER_AUTH])
    own_settings: dict[str, Any] = {}
    for spelling, text in settings(args.own, "--set").items():
        name, value = _meant(spelling, text)
        if name in _OF_FILE:
            raise InvalidArgument(f"--set {spelling}: that is a flag of its own, --{name.replace('_', '-')}")
        if name in own_settings:
            raise InvalidArgument(f"--set gives {name} twice, once as {spelling}")
        own_settings[name] = value
    options |= own_settings
    if "listeners" not in options:
        options.setdefault("port", _PORT)
    return options


def _secure(directory: str, options: dict[str, Any]) -> Secured:
    """Make what --secure needs, and set it. Raises InvalidArgument, StorageError."""
    for name in ("listeners", "zookeeper", "insecure"):
        if options.get(name):
            raise InvalidArgument(f"--secure makes one listener with a password for all: leave out {name}")
    host, port = options.pop("host", "127.0.0.1"), options.pop("port")
    advertised = options.pop("advertised_host", None), options.pop("advertised_port", None)
    secured = Secured(directory, [host, *filter(None, advertised[:1])])
    options.update(secured.settings(host, port, *advertised))
    return secured


def _zookeeper(directory: str, connect: str) -> contextlib.AbstractContextManager[object]:
    """The broker's own ZooKeeper. Raises InvalidArgument, ZooKeeperError, JavaNotFound."""
    from ..cluster.zookeeper.client import split_connect
    from ..cluster.zookeeper.running import ZooKeepers

    hosts, _ = split_connect(connect)
    host, _, port = hosts.rpartition(":")
    if "," in hosts or not host:
        raise InvalidArgument(f"--with-zookeeper starts one server: {connect!r} is not one host:port")
    return ZooKeepers(f"{os.path.abspath(directory)}-zookeeper", port=int(port), hosts=(host,))


# -- output ---------------------------------------------------------------------------------------------


class _Stored(NamedTuple):
    """What a directory has: topics and partitions that are not internal, and the bytes of all."""

    topics: int
    partitions: int
    bytes: int


def _announce(args: argparse.Namespace, ui: UI, broker: Broker, secured: Secured | None) -> None:
    """Print that the broker listens, and how it is set up."""
    store = broker.context.store
    report(store.recovery, ui)
    topics = [name for name in store.topics() if name not in INTERNAL_TOPICS]
    stored = _Stored(
        len(topics),
        sum(len(store.partitions_of(name)) for name in topics),
        sum(segment.size for partition in store.partitions() for segment in partition.segments()),
    )
    if args.json:
        ui.json(_as_facts(broker, secured, stored))
    else:
        for line in _as_lines(args.directory, broker, secured, stored):
            ui.line(line)
    ui.flush()


def _as_facts(broker: Broker, secured: Secured | None, stored: _Stored) -> dict[str, Any]:
    store = broker.context.store
    return {
        "listening": broker.bootstrap_servers,
        "host": broker.host,
        "port": broker.port,
        "listeners": [
            f"{listener.name}://{_address(listener.host, listener.port)}" for listener in broker.listeners
        ],
        "metrics_port": broker.metrics_port,
        "broker_id": broker.address.node_id,
        "cluster_id": broker.context.coordination.cluster_id,
        "zookeeper": broker.zookeeper,
        "client_properties": None if secured is None else secured.client_file,
        "directory": broker.log.path,
        "version": __version__,
        "topics": stored.topics,
        "partitions": stored.partitions,
        "bytes": stored.bytes,
        "clean": bool(store.recovery.clean),
        "started_in_ms": round(broker.started_in_ms, 3),
        "retention_ms": store.defaults.retention_ms,
        "retention_bytes": store.defaults.retention_bytes,
        "flush_ms": store.defaults.flush_ms,
    }


def _as_lines(directory: str, broker: Broker, secured: Secured | None, stored: _Stored) -> Iterator[str]:
    store, coordination = broker.context.store, broker.context.coordination
    yield f"embedlog    {__version__} · broker {broker.address.node_id} · cluster {coordination.cluster_id}"
    how = "" if store.recovery.clean else "recovered after a crash, "
    yield (
        f"log         {directory} · {counted(stored.topics, 'topic')}, "
        f"{counted(stored.partitions, 'partition')}, {size(stored.bytes)} · {how}"
        f"ready in {duration(broker.started_in_ms / 1000)}"
    )
    if broker.zookeeper is not None:
        brokers = counted(len(coordination.brokers()), "broker")
        yield f"zookeeper   {broker.zookeeper} · {brokers} in the cluster"
    yield f"retention   {_retention(store.defaults)}"
    yield f"durability  {_durability(store.defaults)}"
    if broker.metrics_port is not None and broker.metrics_host is not None:
        scheme = "https" if broker.settings.metrics_ssl else "http"
        address = _address(broker.metrics_host, broker.metrics_port)
        yield f"metrics     {scheme}://{address}/metrics and /health"
    if broker.bootstrap_servers != _address(broker.host, broker.port):
        yield f"advertised  {broker.bootstrap_servers}, which is where clients connect to"
    if secured is not None:
        when = "made now; " if secured.is_new else ""
        yield f"security    {secured.path}: {when}client.properties has the administrator's password"
    for listener in broker.listeners:
        name = f"{listener.name} · " if len(broker.listeners) > 1 else ""
        where = f"{name}{_address(listener.host, listener.port)}"
        yield f"listening   {where} ({_PROTOCOLS[listener.protocol]}, {_who(broker, listener)})"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _who(broker: Broker, listener: Listener) -> str:
    if is_own(listener.host):
        return "this machine only"
    authenticates = listener.protocol.has_sasl or broker.asks_for_certificates(listener)
    return "open to other machines" + ("" if authenticates else ", without authentication")


def _retention(defaults: TopicSettings) -> str:
    limits = []
    if defaults.retention_ms != UNLIMITED:
        limits.append(f"records of the last {duration(defaults.retention_ms / 1000)} (retention_ms)")
    if defaults.retention_bytes != UNLIMITED:
        limits.append(f"{size(defaults.retention_bytes)} a partition (retention_bytes)")
    if not limits:
        return "everything is kept, unless a topic says otherwise"
    return f"{' and at most '.join(limits)}, unless a topic says otherwise"


def _durability(defaults: TopicSettings) -> str:
    if defaults.flush_messages == 1:
        return "fsync before a record is acknowledged (flush_messages)"
    return f"acknowledged when appended, fsync within {duration(defaults.flush_ms / 1000)} (flush_ms)"


# -- the configuration file ----------------------------------------------------------------------------


def _from_file(path: str) -> dict[str, Any]:
    """A configuration file's contents, by underscored names. Raises InvalidArgument, StorageError."""
    try:
        with open(path, "rb") as file:
            contents = tomllib.load(file)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"{path} is not TOML: {error}\nA name that goes on where another one ends (max.connections, "
            "max.connections.per.ip) needs underscores or quotes"
        ) from None
    options: dict[str, Any] = {}
    for spelling, raw in _flat(contents, "").items():
        name, value = _meant(spelling, raw)
        if name in options:
            raise InvalidArgument(f"{path} gives {name} twice, once as {spelling}")
        kind = _OF_FILE.get(name)
        if kind is not None and type(value) is not kind:
            raise InvalidArgument(f"{path}: {name} must be {kind.__name__}, not {value!r}")
        options[name] = value
    for name in ("port", "advertised_port", "metrics_port"):
        if not 0 <= options.get(name, 0) <= LAST_PORT:
            raise InvalidArgument(f"{path}: {name} must be from 0 to {LAST_PORT:,}, not {options[name]:,}")
    for name, allowed in (("log_format", FORMATS), ("log_level", LEVELS)):
        if options.get(name, allowed[0]) not in allowed:
            raise InvalidArgument(f"{path}: {name} is one of {', '.join(allowed)}, not {options[name]!r}")
    return options


def _flat(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Tables within tables as dotted names: TOML reads `retention.ms = 1` as a table."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _meant(spelling: str, value: Any) -> tuple[str, Any]:
    """The setting or flag that is meant, and its value; a section's name may precede it."""
    section, _, rest = plain(spelling).partition("_")
    names = [spelling, rest] if section in _SECTIONS and rest else [spelling]
    for name in names:
        argument = plain(name)
        if argument in BROKER_ARGUMENTS:
            argument = BROKER_ARGUMENTS[argument].name
        if argument in _OF_FILE:
            return argument, value
        for kind in (BrokerSettings, LogSettings, TopicSettings):
            resolved = kind.resolved(name, value)
            if resolved is not None:
                return resolved
        if is_without_effect(name):
            return name, value
    return names[-1], value  # Broker says that it is unknown
