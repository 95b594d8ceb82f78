"""Clients of both group protocols in one group of a real coordinator, in simulated time.

Each does what Kafka's clients do, one request at a step. What a client owns is what it would be reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from faults import Clock, FaultyFileSystem, crash, open_log, store_of

from embedlog.clients.assignors import StickyAssignor
from embedlog.errors import (
    EmbedlogError,
    FencedInstance,
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    StorageError,
    UnknownMember,
)
from embedlog.groups.coordinator import GroupCoordinator
from embedlog.groups.machines.events import GroupDescription, GroupType
from embedlog.groups.machines.migration import Migration
from embedlog.groups.machines.modern_member import (
    JOIN,
    LEAVE,
    FencedMemberEpoch,
    HeartbeatResult,
    MemberHeartbeat,
    UnreleasedInstance,
)
from embedlog.model import JoinResult, TopicPartition
from embedlog.wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

G = "g"
TOPICS = {"t": 4, "u": 3}
ALL = frozenset(TopicPartition(topic, number) for topic, count in TOPICS.items() for number in range(count))
SESSION_MS, REBALANCE_MS = 10_000, 20_000


class Group:
    """A log, its coordinator and the clients of one group."""

    def __init__(self, path: Path, migration: Migration | None = None) -> None:
        self.path = path
        self.fs = FaultyFileSystem(path)
        self.clock = Clock()
        self.migration = migration or Migration()
        self.clients: list[Client] = []
        self.numbers = itertools.count(1)
        self.open()
        for topic, count in TOPICS.items():
            self.log.create_topic(topic, partitions=count)
        while self.topic_id("t") > self.topic_id("u"):  # assignors go by the order of ids, which are random
            self.log.delete_topic("u")
            self.log.create_topic("u", partitions=TOPICS["u"])

    def open(self) -> None:
        self.log = open_log(self.path, self.fs, clock=self.clock, offsets_topic_num_partitions=1)
        assert self.log.backend.coordinator is not None
        self.coordinator: GroupCoordinator = self.log.backend.coordinator
        # Ids in order: a schedule that fails is to fail again.
        self.coordinator._groups.make_member_id = lambda prefix: f"{prefix}-{next(self.numbers):03}"
        self.coordinator.load(clients=True, session_timeout_ms=SESSION_MS, migration=self.migration)

    def restart(self) -> None:
        """The coordinator's process is killed, and the next one reads what it stored."""
        crash(self.log)
        self.open()
        for client in self.clients:
            client.disconnected()

    def topic_id(self, name: str) -> bytes:
        return store_of(self.log).topic(name).uuid

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.coordinator._tick()  # what the timer calls

    def described(self) -> GroupDescription:
        return self.coordinator.describe_group(G)

    def add(self, client: Client) -> Client:
        self.clients.append(client)
        return client

    def classic(self, *, cooperative: bool = False, instance: str | None = None, **options: Any) -> Classic:
        client = Classic(self, cooperative=cooperative, instance=instance, **options)
        self.add(client)
        return client

    def consumer(self, *, instance: str | None = None) -> Consumer:
        client = Consumer(self, instance=instance)
        self.add(client)
        return client

    def settle(self, rounds: int = 12, ms: int = 0) -> None:
        """Every client takes its turn, several times."""
        for _ in range(rounds):
            if ms:
                self.pass_time(ms)
            for client in list(self.clients):
                client.step()

    def live(self) -> list[Client]:
        """The clients that are members."""
        try:
            members = {member.member_id for member in self.described().members}
        except GroupNotFound:
            members = set()
        return [client for client in self.clients if client.member_id in members]

    def check_owners(self) -> None:
        """No partition is read by two members."""
        owned = [each for client in self.live() for each in client.owned]
        assert len(set(owned)) == len(owned), [(client, client.owned) for client in self.live()]

    def check_all_read(self) -> None:
        """Each partition is read by one member, if there are any."""
        live = self.live()
        owned = sorted(each for client in live for each in client.owned)
        assert owned == (sorted(ALL) if live else [])


class Client:
    """One client. `owned` is what it reads."""

    def __init__(self, group: Group, instance: str | None) -> None:
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.epoch = -1  # or generation
        self.owned: frozenset[TopicPartition] = frozenset()
        self.errors: list[type[EmbedlogError]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.member_id!r}, {self.epoch})"

    def step(self) -> None:
        """Send the next request, and act on its answer."""
        raise NotImplementedError

    def disconnected(self) -> None:
        """What it waits for does not come."""

    def leave(self) -> None:
        """Leave the group for ever."""
        self.die()
        try:
            self._leave()
        except (UnknownMember, FencedInstance, GroupNotFound):
            pass

    def die(self) -> None:
        """End without a word."""
        self.group.clients.remove(self)

    def _leave(self) -> None:
        raise NotImplementedError


class Classic(Client):
    """A client of the classic protocol, whose rebalances are eager or cooperative.

    version: of its subscription; 0 cannot say what it owns.
    """

    def __init__(
        self,
        group: Group,
        *,
        cooperative: bool,
        instance: str | None,
        version: int = 1,
        host: str = "/127.0.0.1",
        protocols: Sequence[str] = ("sticky",),
    ) -> None:
        super().__init__(group, instance)
        self.cooperative = cooperative
        self.version, self.host, self.protocols = version, host, protocols
        self.joining: Future[JoinResult] | None = None
        self.syncing: Future[bytes] | None = None
        self.stable = False
        self.woken = 0

    def subscription(self) -> bytes:
        owned = tuple(sorted(self.owned))
        return encode_subscription(
            Subscription(tuple(TOPICS), owned_partitions=owned, generation=self.epoch), version=self.version
        )

    def step(self) -> None:
        try:
            self._step()
        except RebalanceInProgress:
            self._join_again()
        except (UnknownMember, GroupNotFound, IllegalGeneration) as error:
            self.errors.append(type(error))
            self.stable, self.owned, self.epoch = False, frozenset(), -1
            if not isinstance(error, IllegalGeneration):
                self.member_id = ""
        except MemberIdRequired as required:
            self.member_id = required.member_id
        except FencedInstance:
            self.errors.append(FencedInstance)
            self.die()
        except StorageError:
            pass

    def _join_again(self) -> None:
        self.stable = False
        if not self.cooperative:
            self.owned = frozenset()

    def _step(self) -> None:
        coordinator = self.group.coordinator
        if self.joining is not None:
            if self.joining.done():
                joining, self.joining = self.joining, None
                self._joined(joining.result())
        elif self.syncing is not None:
            if self.syncing.done():
                syncing, self.syncing = self.syncing, None
                before = self.owned
                self.owned = frozenset(decode_assignment(syncing.result()).partitions)
                self.stable = not (
                    self.cooperative and before - self.owned
                )  # it joins again after it revoked
        elif self.stable:
            coordinator.heartbeat(G, self.member_id, self.epoch, group_instance_id=self.instance)
        else:
            self.joining = coordinator.join_group(
                G,
                self.member_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocols=[(name, self.subscription()) for name in self.protocols],
                client_id="classic",
                client_host=self.host,
                group_instance_id=self.instance,
                on_rebalance=self._wake,
            )

    def disconnected(self) -> None:
        self.joining = self.syncing = None

    def _wake(self) -> None:
        self.woken += 1

    def _joined(self, joined: JoinResult) -> None:
        self.member_id, self.epoch = joined.member_id, joined.generation
        shares: Mapping[str, Sequence[TopicPartition]] = {}
        if joined.leader_id == self.member_id and not joined.skip_assignment:
            said = {each.member_id: decode_subscription(each.metadata) for each in joined.members}
            shares = StickyAssignor().assign(TOPICS, said)
            # What another still owns it has to revoke first.
            owners = {each: owner for owner in said for each in said[owner].owned_partitions}
            shares = {
                member_id: [each for each in share if owners.get(each, member_id) == member_id]
                for member_id, share in shares.items()
            }
        self.syncing = self.group.coordinator.sync_group(
            G,
            self.member_id,
            self.epoch,
            {member_id: encode_assignment(Assignment(tuple(share))) for member_id, share in shares.items()},
            group_instance_id=self.instance,
        )

    def _leave(self) -> None:
        if self.member_id:
            self.group.coordinator.leave_group(G, self.member_id, group_instance_id=self.instance)


class Consumer(Client):
    """A client of the consumer protocol."""

    def __init__(self, group: Group, instance: str | None) -> None:
        super().__init__(group, instance)
        self.member_id = f"consumer-{next(group.numbers):03}"
        self.epoch = JOIN
        self.refused = 0

    def step(self) -> None:
        ids = {self.group.topic_id(name): name for name in TOPICS}
        try:
            answer = self.beat()
        except (UnknownMember, FencedMemberEpoch) as error:
            self.errors.append(type(error))
            self.epoch, self.owned = JOIN, frozenset()
        except FencedInstance:
            self.errors.append(FencedInstance)
            self.die()
        except (UnreleasedInstance, InconsistentProtocol):
            self.refused += 1
        except StorageError:
            pass
        else:
            self.epoch = answer.member_epoch
            if answer.assigned is not None:
                self.owned = frozenset(
                    TopicPartition(ids[topic_id], number) for topic_id, number in answer.assigned
                )

    def beat(self, **changes: Any) -> HeartbeatResult:
        beat = MemberHeartbeat(
            self.member_id,
            self.epoch,
            group_instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS,
            topics=tuple(TOPICS),
            owned=frozenset((self.group.topic_id(each.topic), each.partition) for each in self.owned),
            client_host="/127.0.0.1",
        )
        return self.group.coordinator.member_heartbeat(
            GroupType.CONSUMER, G, beat._replace(**changes), session_timeout_ms=SESSION_MS
        )

    def _leave(self) -> None:
        if self.epoch > 0:
            self.beat(member_epoch=LEAVE)
