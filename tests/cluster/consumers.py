"""Consumer processes of a group, for tests that kill them, and the history of the group."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from programs import Program
from registered_brokers import Cluster
from zookeepers import eventually

from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.errors import ZooKeeperError

CODE = """
import json, sys, threading
from embedlog.cluster.classic import ConsumerConnector

connect, group, where, given = sys.argv[1:]
given = json.loads(given)
filtered, streams, topic = given.pop("whitelist", None), given.pop("streams", 1), given.pop("topic", "t")
out = open(where, "a", buffering=1)

def work(stream):
    for record in stream:
        out.write(f"{record.topic} {record.partition} {record.offset} {record.value.decode()}\\n")

connector = ConsumerConnector(connect, group, **given)
if filtered is not None:
    made = connector.create_message_streams_by_filter(streams, whitelist=filtered)
else:
    made = connector.create_message_streams({topic: streams})[topic]
threads = [threading.Thread(target=work, args=(stream,)) for stream in made]
for thread in threads:
    thread.start()
print("ready", connector.consumer_id, flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        break
    print(connector.consumer_id, flush=True)
connector.shutdown()
for thread in threads:
    thread.join()
print("stopped", flush=True)
"""

SETTINGS = {
    "auto_offset_reset": "smallest",
    "auto_commit_interval_ms": 200,
    "zookeeper_session_timeout_ms": 2_000,
    "zookeeper_connection_timeout_ms": 60_000,
    "rebalance_backoff_ms": 500,
    "rebalance_max_retries": 100,
    "rebalance_handover_ms": 30_000,
}


class Delivered(NamedTuple):
    """A record delivered to a consumer."""

    topic: str
    partition: int
    offset: int
    value: str


class Consumer:
    """One process; it writes all records it gets to a file."""

    def __init__(self, connect: str, group: str, where: Path, **settings: Any) -> None:
        where.touch()
        self.where = where
        self.streams: int = settings.get("streams", 1)
        given = json.dumps({**SETTINGS, **settings})
        self.program = Program(CODE, connect, group, where, given, errors=where.with_suffix(".log"))
        self.id = ""
        self._rows: list[Delivered] = []
        self._read = 0

    def ready(self) -> Consumer:
        """Wait until it has joined and completed its first rebalance."""
        self.id = self.program.line().removeprefix("ready ")
        return self

    def ask_id(self) -> str:
        """Its current id in the registry."""
        self.program.say("id")
        self.id = self.program.line()
        return self.id

    def stop(self) -> None:
        """Shut it down, in an orderly way."""
        self.program.say("stop")
        assert self.program.end().strip() == "stopped"

    def kill(self) -> None:
        self.program.kill()

    def pause(self) -> None:
        os.kill(self.program.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.program.pid, signal.SIGCONT)

    def delivered(self) -> list[Delivered]:
        """Its records, in order. A last line truncated by a kill does not count."""
        with open(self.where, "rb") as file:
            file.seek(self._read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for line in new.decode().splitlines():
            topic, partition, offset, value = line.split(" ", 3)
            self._rows.append(Delivered(topic, int(partition), int(offset), value))
        return self._rows


class Group:
    """A group of processes and the history of its registry; ends them all."""

    def __init__(self, zookeeper: ZooKeeper, connect: str, directory: Path, group: str = "g") -> None:
        self.zookeeper = zookeeper
        self.connect = connect
        self.directory = directory
        self.group = group
        self.alive: list[Consumer] = []
        self.all: list[Consumer] = []
        self.history = History(connect, group)

    def start(self, count: int = 1, connects: Sequence[str] = (), **settings: Any) -> list[Consumer]:
        """So many more, all at about the same time; each with its own way to ZooKeeper, where they are
        given."""
        made = []
        for connect in connects or [self.connect] * count:
            where = self.directory / f"consumer-{len(self.all)}"
            made.append(Consumer(connect, self.group, where, **settings))
            self.all.append(made[-1])
        for each in made:
            self.alive.append(each.ready())
        return made

    def stop(self, consumer: Consumer) -> None:
        self.alive.remove(consumer)
        consumer.stop()

    def kill(self, consumer: Consumer) -> None:
        self.alive.remove(consumer)
        consumer.kill()

    def owners(self, topic: str = "t") -> dict[int, str]:
        """The owners according to the registry."""
        zookeeper = self.zookeeper
        found = {}
        for child in zookeeper.children(paths.owners(self.group, topic)) or []:
            node = zookeeper.get(paths.owner(self.group, topic, int(child)))
            if node is not None:
                found[int(child)] = contents.decode_owner(node.data)[0]
        return found

    def wait_until_owned(self, partitions: int, topic: str = "t") -> None:
        """Wait until the live consumers own the partitions evenly."""

        def look() -> bool:
            for each in self.alive:
                each.ask_id()  # it may have lost its session
            counts = Counter(self.owners(topic).values())
            least, more = divmod(partitions, sum(each.streams for each in self.alive))
            return sum(counts.values()) == partitions and all(
                least * each.streams <= counts.pop(each.id, 0) <= (least + bool(more)) * each.streams
                for each in self.alive
            )

        eventually(look, "every partition has an owner that is alive")

    def delivered(self) -> list[Delivered]:
        return [record for each in self.all for record in each.delivered()]

    def wait_until_delivered(self, expected: set[tuple[str, int, int]]) -> None:
        eventually(lambda: expected <= {record[:3] for record in self.delivered()}, "all is delivered")

    def check_order(self) -> None:
        """A consumer's records of a partition are in order; it goes back only after losing the partition."""
        for each in self.all:
            last: dict[tuple[str, int], int] = {}
            for topic, partition, offset, value in each.delivered():
                assert value == f"{partition}-{offset}"
                before = last.get((topic, partition))
                if before is not None and offset <= before:
                    assert self.history.changes(topic, partition) > 1, (each.id, topic, partition, offset)
                last[topic, partition] = offset

    def close(self) -> None:
        for each in self.all:
            if each.program.process.poll() is None:
                each.resume()
                each.kill()
        self.history.close()


class History:
    """Records the changes of a group's owners and offsets in ZooKeeper that watches show."""

    def __init__(self, connect: str, group: str) -> None:
        self._zookeeper = ZooKeeper(connect)
        self._group = group
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False
        self.failures: list[str] = []
        self.owners: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        self.offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def changes(self, topic: str, partition: int) -> int:
        """How often the partition got an owner."""
        with self._lock:
            return len(self.owners[topic, partition])

    def check(self) -> None:
        """No owner node was overwritten; no offset decreased."""
        with self._lock:
            assert self.failures == []
            for name, offsets in self.offsets.items():
                assert offsets == sorted(offsets), (name, offsets)
            assert self.owners

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join()
        self._zookeeper.close()

    def _watch(self) -> None:
        while not self._closed:
            self._changed.clear()
            with contextlib.suppress(ZooKeeperError):  # servers are killed: afterwards it is there to be seen
                self._look()
            self._changed.wait(0.5)

    def _look(self) -> None:
        for kind in ("owners", "offsets"):
            above = f"{paths.CONSUMERS}/{self._group}/{kind}"
            for topic in self._zookeeper.children(above, self._wake) or []:
                for child in self._zookeeper.children(f"{above}/{topic}", self._wake) or []:
                    node = self._zookeeper.get(f"{above}/{topic}/{child}", self._wake)
                    if node is not None:
                        self._note(kind, (topic, int(child)), node)

    def _wake(self, event: object) -> None:
        self._changed.set()

    def _note(self, kind: str, name: tuple[str, int], node: Any) -> None:
        with self._lock:
            if kind == "offsets":
                self.offsets[name].append(contents.decode_number(node.data))
                return
            if node.version != 0 or not node.owner:  # made once, ephemeral, never written over
                self.failures.append(f"{name} has {node}")
            seen = self.owners[name]
            if not seen or seen[-1][0] != node.created:
                seen.append((node.created, contents.decode_owner(node.data)[0]))


class Producing:
    """Appends numbered records to all partitions of a topic until stopped."""

    def __init__(self, cluster: Cluster, leaders: list[int], topic: str = "t") -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._topic = topic
        self._stopped = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.01):  # a stream of records, not a flood
            for partition, leader in enumerate(self._leaders):
                value = f"{partition}-{self.count}".encode()
                self._cluster.append(self._topic, partition, [value], leader=leader)
            self.count += 1

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until so many more are appended to each partition."""
        until = self.count + count
        eventually(lambda: self.count >= until)

    def stop(self) -> set[tuple[str, int, int]]:
        """Returns the names of all records."""
        self._stopped.set()
        self._thread.join()
        return {
            (self._topic, partition, offset)
            for partition in range(len(self._leaders))
            for offset in range(self.count)
        }
