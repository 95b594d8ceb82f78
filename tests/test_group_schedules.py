"""Random schedules of a consumer group: members that join, leave, die, stall and commit, in simulated time.

Every member is a little Kafka client: it joins, assigns if it leads (with the real assignors, through the
real bytes), syncs, heartbeats, reads ahead from the committed offset and commits. Answers reach it late.
Nothing here sleeps; the clock is a number.
"""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from embedlog.clients.assignors import ASSIGNORS
from embedlog.errors import (
    FencedInstance,
    GroupError,
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from embedlog.groups.machines.classic import ClassicGroup
from embedlog.groups.machines.events import (
    Effect,
    GroupState,
    JoinCompleted,
    JoinFailed,
    MetadataChanged,
    RebalanceStarted,
    SyncCompleted,
    SyncFailed,
)
from embedlog.groups.machines.member import Offer
from embedlog.model import GroupMetadata, JoinResult, TopicPartition
from embedlog.wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    same_topics,
)

PARTITIONS = {"clicks": 5, "views": 3}
ALL = frozenset(TopicPartition(topic, i) for topic, count in PARTITIONS.items() for i in range(count))
SESSION_MS, REBALANCE_MS = 1_000, 3_000
SCHEDULES, STEPS = 250, 300


@dataclass(eq=False)
class Client:
    """One consumer: what it believes, which may be out of date."""

    name: str
    instance: str | None
    member_id: str = ""
    generation: int = -1
    waiting: int | None = None  # the request it waits for
    joined: JoinResult | None = None
    must_join: bool = True
    owned: tuple[TopicPartition, ...] = ()
    owned_generation: int = -1
    position: dict[TopicPartition, int] = field(default_factory=dict)

    def lose(self) -> None:
        """Told that it is a member no more."""
        self.member_id, self.generation, self.must_join, self.joined = "", -1, True, None
        self.owned, self.owned_generation, self.position = (), -1, {}


class Simulation:
    """A group, its clients, the messages between them and the clock; and all that must always hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        ids = itertools.count()
        self.assignor = self.random.choice(list(ASSIGNORS.values()))
        self.known_ids_first = self.random.random() < 0.5
        self.group = ClassicGroup(
            "g",
            initial_rebalance_delay_ms=self.random.choice([0, 0, 500]),
            make_member_id=lambda prefix: f"{prefix}-{next(ids)}",
            same_metadata=same_topics,
        )
        self.now_ms = 0
        self.names = itertools.count()
        self.requests = itertools.count()
        self.clients: list[Client] = []
        self.stalled: list[Client] = []
        self.asked: dict[int, Client] = {}  # request -> who waits for it
        self.mail: list[Effect] = []
        self.stored: dict[int, GroupMetadata] = {}  # generation -> what was stored last
        self.committed: Counter[TopicPartition] = Counter()
        self.commits = 0
        self.errors: Counter[type] = Counter()

    # -- the coordinator's side

    def carry_out(self, effects: list[Effect], generation_before: int) -> None:
        assert generation_before <= self.group.generation <= generation_before + 1
        for effect in effects:
            match effect:
                case MetadataChanged(_, metadata):
                    self.check_stored(metadata)
                    self.stored[metadata.generation] = metadata
                case RebalanceStarted(_, member_ids):
                    assert set(member_ids) <= {m.member_id for m in self.group.describe().members}
                case JoinCompleted(request, _) | JoinFailed(request, _):
                    assert request in self.asked, "answered twice"
                    self.mail.append(effect)
                case SyncCompleted(request, _) | SyncFailed(request, _):
                    assert request in self.asked, "answered twice"
                    self.mail.append(effect)

    def check_stored(self, metadata: GroupMetadata) -> None:
        """In a generation each partition has one owner, and with members each has one at all."""
        assert metadata.generation == self.group.generation
        owners = Counter(p for m in metadata.members for p in decode_assignment(m.assignment).partitions)
        assert all(count == 1 for count in owners.values())
        assert set(owners) == (ALL if metadata.members else set())
        before = self.stored.get(metadata.generation)
        if before is not None:  # a static member took its place again: the assignments stand
            assert Counter(m.assignment for m in before.members) == Counter(
                m.assignment for m in metadata.members
            )

    def tick(self) -> None:
        due = self.group.next_deadline_ms()
        before = self.group.generation
        effects = self.group.tick(self.now_ms)
        if due is None or due > self.now_ms:
            assert effects == [], "next_deadline_ms missed something"
        self.carry_out(effects, before)
        again = self.group.next_deadline_ms()
        assert again is None or again > self.now_ms

    # -- the clients' side

    def ask(self, client: Client) -> int:
        client.waiting = next(self.requests)
        self.asked[client.waiting] = client
        return client.waiting

    def join(self, client: Client) -> None:
        subscription = Subscription(
            tuple(PARTITIONS), owned_partitions=client.owned, generation=client.generation
        )
        before = self.group.generation
        effects = self.group.join(
            client.member_id,
            Offer(
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer",
                protocols=((self.assignor.name, encode_subscription(subscription)),),
                client_id=client.name,
                client_host="here",
                group_instance_id=client.instance,
            ),
            request=self.ask(client),
            require_known_member=self.known_ids_first,
            now_ms=self.now_ms,
        )
        client.must_join = False
        self.carry_out(effects, before)

    def sync(self, client: Client, result: JoinResult) -> None:
        assignments: dict[str, bytes] = {}
        if result.leader_id == client.member_id and not result.skip_assignment:
            subscriptions = {
                member.member_id: decode_subscription(
                    member.metadata, group_instance_id=member.group_instance_id
                )
                for member in result.members
            }
            shared = self.assignor.assign(PARTITIONS, subscriptions)
            assignments = {
                member: encode_assignment(Assignment(tuple(partitions)))
                for member, partitions in shared.items()
            }
        before = self.group.generation
        effects = self.group.sync(
            client.member_id,
            client.generation,
            assignments,
            request=self.ask(client),
            now_ms=self.now_ms,
            group_instance_id=client.instance,
        )
        self.carry_out(effects, before)

    def deliver(self, effect: Effect) -> None:
        """An answer arrives; the client may have asked something newer, died or stalled since."""
        assert isinstance(effect, JoinCompleted | JoinFailed | SyncCompleted | SyncFailed)
        assert isinstance(effect.request, int)
        client = self.asked.pop(effect.request)
        if client not in self.clients or client.waiting != effect.request:
            return
        client.waiting = None
        match effect:
            case JoinCompleted(_, result):
                assert result.generation > client.generation or result.member_id == client.member_id
                client.member_id, client.generation = result.member_id, result.generation
                client.joined = result
            case SyncCompleted(_, assignment):
                self.check_assigned(client, assignment)
                client.joined = None
                client.owned = decode_assignment(assignment).partitions
                client.owned_generation = client.generation
                client.position = {partition: self.committed[partition] for partition in client.owned}
            case JoinFailed(_, error) | SyncFailed(_, error):
                assert isinstance(error, GroupError)
                self.told(client, error)

    def check_assigned(self, client: Client, assignment: bytes) -> None:
        stored = {m.member_id: m.assignment for m in self.stored[client.generation].members}
        if client.member_id in stored:  # else a newer incarnation of the static member has its place
            assert stored[client.member_id] == assignment
        else:
            assert client.instance is not None

    def told(self, client: Client, error: GroupError) -> None:
        """A client's reaction to an error."""
        self.errors[type(error)] += 1
        client.joined = None
        match error:
            case MemberIdRequired():
                client.member_id, client.must_join = error.member_id, True
            case RebalanceInProgress():
                client.must_join = True
            case FencedInstance():
                self.clients.remove(client)
            case UnknownMember() | IllegalGeneration():
                client.lose()
            case _:
                raise error

    def heartbeat(self, client: Client) -> None:
        try:
            self.group.heartbeat(
                client.member_id, client.generation, now_ms=self.now_ms, group_instance_id=client.instance
            )
        except GroupError as error:
            self.told(client, error)

    def commit(self, client: Client) -> None:
        """Reads on a little and commits what it believes it owns; if that is accepted, it must be so."""
        for partition in client.owned:
            client.position[partition] += self.random.randrange(3)
        try:
            self.group.check_commit(
                client.member_id,
                client.owned_generation,
                now_ms=self.now_ms,
                group_instance_id=client.instance,
            )
        except GroupError as error:
            if client.waiting is None and client in self.clients:
                self.told(client, error)
            else:
                self.errors[type(error)] += 1
            return
        assert client.owned_generation == self.group.generation
        stored = {m.member_id: m.assignment for m in self.stored[client.owned_generation].members}
        assert decode_assignment(stored[client.member_id]).partitions == client.owned
        for partition, position in client.position.items():
            assert position >= self.committed[partition]
            self.committed[partition] = position
        self.commits += 1

    def leave(self, client: Client) -> None:
        self.clients.remove(client)
        before = self.group.generation
        try:
            effects = self.group.leave(
                client.member_id, now_ms=self.now_ms, group_instance_id=client.instance
            )
        except GroupError:
            return
        self.carry_out(effects, before)

    def act(self, client: Client) -> None:
        """A client's next action."""
        if client.owned_generation >= 0 and self.random.random() < 0.2:
            self.commit(client)  # whatever else it is about, as a thread of its own would
        elif client.waiting is not None:
            return
        elif client.joined is not None:
            result, client.joined = client.joined, None
            self.sync(client, result)
        elif client.must_join:
            self.join(client)
        else:
            self.heartbeat(client)

    # -- schedules

    def disturb(self) -> None:
        what = self.random.random()
        if what < 0.35 and len(self.clients) < 6:
            static = self.random.random() < 0.3
            instance = f"i{self.random.randrange(3)}" if static else None
            self.clients.append(Client(f"c{next(self.names)}", instance))
        elif what < 0.5 and self.stalled:
            client = self.stalled.pop()
            if client.owned_generation >= 0:
                self.commit(client)
            self.clients.append(client)
        elif self.clients:
            client = self.random.choice(self.clients)
            if what < 0.6:
                self.leave(client)
            elif what < 0.7:
                self.clients.remove(client)  # dies without a word
            elif what < 0.85:
                self.clients.remove(client)  # stalls, and comes back believing what it believed
                # ... but what it was waiting for, or had not yet acted upon, is lost
                synced = client.waiting is None and client.joined is None
                client.must_join = client.must_join or not synced
                client.waiting = client.joined = None
                self.stalled.append(client)
            else:
                client.waiting = None  # gives up on its request and asks again
                client.must_join = True

    def step(self) -> None:
        self.now_ms += self.random.choice([0, 10, 50, 200])
        if self.random.random() < 0.1:
            self.disturb()
        self.random.shuffle(self.mail)
        for _ in range(self.random.randrange(len(self.mail) + 1)):
            self.deliver(self.mail.pop())
        for client in self.random.sample(self.clients, self.random.randrange(len(self.clients) + 1)):
            if client in self.clients:
                self.act(client)
        self.tick()

    def settle(self) -> None:
        """Nothing happens to the clients any more: soon all are members and own all there is."""
        if not self.clients:
            self.clients.append(Client("last", None))
        for _ in range(400):
            self.now_ms += 100
            while self.mail:
                self.deliver(self.mail.pop())
            for client in list(self.clients):
                if client in self.clients:
                    self.act(client)
            self.tick()


@pytest.mark.parametrize("seed", range(SCHEDULES))
@pytest.mark.slow
def test_random_schedule(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(STEPS):
        simulation.step()
    simulation.settle()
    group, clients = simulation.group, simulation.clients
    assert group.state is GroupState.STABLE
    assert {member.member_id for member in group.describe().members} == {c.member_id for c in clients}
    assert all(client.generation == group.generation for client in clients)
    assert Counter(partition for client in clients for partition in client.owned) == Counter(ALL)
    assert simulation.commits > 0
    assert not any(client.waiting is not None for client in clients)


def test_the_schedules_are_eventful() -> None:
    """Guards against simulations in which nothing happens."""
    told: Counter[type] = Counter()
    generations = commits = 0
    for seed in range(20):
        simulation = Simulation(seed)
        for _ in range(STEPS):
            simulation.step()
        told += simulation.errors
        generations += simulation.group.generation
        commits += simulation.commits
    assert generations > 20 * 5
    assert commits > 20 * 20
    expected = (FencedInstance, IllegalGeneration, MemberIdRequired, RebalanceInProgress, UnknownMember)
    assert all(told[error] >= 3 for error in expected), told
