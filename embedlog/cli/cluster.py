"""`embedlog cluster describe`: what brokers know of each other, of topics and of groups."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ..backends.remote import RemoteBackend
from ..backends.remote.metadata import ClusterDescription
from ..clients.group_admin import ConsumerGroup
from ..errors import BrokerUnavailable, GroupNotFound, InvalidArgument
from ..open import open as open_log
from ..units import counted
from .arguments import Command, arg, is_over_wire, log_argument, wire_settings
from .ui import UI, Column, number_columns

_LOCK = "Takes no lock: brokers are asked."
_PATIENCE_MS: Final = 5_000  # timeout for brokers that are down


def commands() -> Iterator[Command]:
    yield Command("cluster", "describe a cluster: brokers, leaders, groups", _LOCK).with_actions(
        Command(
            "describe", "show brokers, controller, leaders, groups and their lag", _LOCK, _describe
        ).takes(
            log_argument(optional=True, metavar="kafka://HOST:PORT", explanation="the same, as an address"),
            arg("--json", "a JSON object"),
        )
    )


def _describe(args: argparse.Namespace, ui: UI) -> int:
    if args.directory is None:
        raise InvalidArgument("name a broker of the cluster: --bootstrap-server HOST:PORT")
    if not is_over_wire(args.directory):
        raise InvalidArgument(
            f"{args.directory} is a directory: name a broker of the cluster, --bootstrap-server HOST:PORT"
        )
    settings = wire_settings(args, args.directory)
    with open_log(args.directory, default_api_timeout_ms=_PATIENCE_MS, **settings) as log:
        backend = log.backend
        assert isinstance(backend, RemoteBackend)
        cluster = backend.describe_cluster()
        groups = []
        for name in log.groups():
            with contextlib.suppress(GroupNotFound):  # deleted meanwhile
                groups.append(_Group(backend, log.group(name)))
    leads = Counter(leader for leaders in cluster.leaders.values() for leader in leaders)
    coordinates = Counter(group.coordinator for group in groups)
    brokers = []
    for node, (host, port) in sorted(cluster.brokers.items()):
        address = f"{host}:{port}"
        brokers.append(_Broker(node, address, leads[node], coordinates[address]))
    if args.json:
        ui.json(_as_json(cluster, brokers, groups))
    else:
        _show(ui, cluster, brokers, groups)
    return 0


def _as_json(cluster: ClusterDescription, brokers: list[_Broker], groups: list[_Group]) -> dict[str, Any]:
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": [broker._asdict() for broker in brokers],
        "topics": {topic: list(leaders) for topic, leaders in cluster.leaders.items()},
        "groups": [
            {
                "group": group.name,
                "coordinator": group.coordinator,
                "members": group.members,
                "lag": group.lag,
            }
            for group in groups
        ],
    }


def _show(ui: UI, cluster: ClusterDescription, brokers: list[_Broker], groups: list[_Group]) -> None:
    controller = f"controller {cluster.controller}" if cluster.controller >= 0 else "no controller"
    ui.line(f"cluster {cluster.cluster_id} · {counted(len(brokers), 'broker')}, {controller}")
    numbers = number_columns("leads", "coordinates")
    ui.table((Column("broker", right=True), Column("address", shortens=True), *numbers), brokers)
    if cluster.leaders:
        ui.line()
        ui.table(
            (Column("topic", shortens=True), Column("partitions", right=True), Column("leaders", folds=True)),
            [(topic, len(leaders), _shares(leaders)) for topic, leaders in cluster.leaders.items()],
        )
    if groups:
        ids = {broker.address: broker.broker for broker in brokers}
        ui.line()
        ui.table(
            (Column("group", shortens=True), *number_columns("coordinator", "members", "lag")),
            [(group.name, ids.get(group.coordinator), group.members, group.lag) for group in groups],
        )


class _Broker(NamedTuple):
    """leads, coordinates: how many partitions and groups."""

    broker: int
    address: str
    leads: int
    coordinates: int


class _Group:
    """A group, its coordinator, and its lag (None if unknown)."""

    def __init__(self, backend: RemoteBackend, group: ConsumerGroup) -> None:
        self.name = group.name
        self.members = len(group.members())
        try:
            host, port = backend.coordinator.coordinator_of(group.name)
            self.coordinator = f"{host}:{port}"
        except BrokerUnavailable:
            self.coordinator = ""
        self.lag: int | None
        try:
            self.lag = group.describe().lag
        except BrokerUnavailable:
            self.lag = None


def _shares(leaders: Sequence[int]) -> str:
    """Which broker leads how many."""
    counts = sorted(Counter(leaders).items())
    return ", ".join(f"{'none' if leader < 0 else leader} {count}" for leader, count in counts)
