"""The history of a cluster's registry during a test, as watches show it, and its invariants."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter, defaultdict
from typing import Any

from brokers import Brokers
from kazoo.exceptions import NoNodeError

from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.errors import ZooKeeperError

_ELECTED = re.compile(r"broker (\d+) is the controller now, epoch (\d+)")


class ClusterHistory:
    """Watches controllers, and the states of a topic's partitions."""

    def __init__(self, connect: str, topic: str) -> None:
        self._zookeeper = ZooKeeper(connect)
        self._topic = topic
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False
        self.reigns: dict[int, set[tuple[int, int]]] = defaultdict(set)  # epoch -> broker, session
        self.states: dict[int, dict[int, contents.LeaderAndIsr]] = defaultdict(dict)  # by version
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def check(self, brokers: Brokers) -> None:
        """One controller for each epoch, in the registry and by what the brokers say themselves; who leads
        was never decided by a former one, and each decision has an epoch of its own."""
        said = [found for broker in brokers.all for found in _ELECTED.findall(broker.said())]
        of_epochs = Counter(int(epoch) for _, epoch in said)
        assert of_epochs and set(of_epochs.values()) == {1}, said
        with self._lock:
            assert self.reigns
            for epoch, reigns in self.reigns.items():
                assert len(reigns) == 1, (epoch, reigns)
            for states in self.states.values():
                in_order = [states[version] for version in sorted(states)]
                for before, after in itertools.pairwise(in_order):
                    assert after.leader_epoch > before.leader_epoch, in_order
                    assert after.controller_epoch >= before.controller_epoch, in_order

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join()
        self._zookeeper.close()

    def _watch(self) -> None:
        while not self._closed:
            self._changed.clear()
            try:
                self._look_at_controller()
                for child in self._zookeeper.children(paths.partitions(self._topic), self._wake) or []:
                    self._look_at_state(int(child))
            except ZooKeeperError:  # servers are killed: what is to be seen is there afterwards
                pass
            self._changed.wait(0.2)

    def _wake(self, event: object) -> None:
        self._changed.set()

    def _read(self, path: str) -> tuple[bytes, Any] | None:
        self._zookeeper.get(path, self._wake)
        (found,) = self._zookeeper.pipeline([lambda kazoo: kazoo.get_async(path)])
        return None if isinstance(found, NoNodeError) else found

    def _look_at_controller(self) -> None:
        controller, epoch = self._read(paths.CONTROLLER), self._read(paths.CONTROLLER_EPOCH)
        # Made in one transaction; where they are not, one of them has changed between the two looks.
        if controller is not None and epoch is not None and controller[1].czxid == epoch[1].mzxid:
            with self._lock:
                broker = contents.Controller.decode(controller[0]).broker
                self.reigns[contents.decode_number(epoch[0])].add((broker, controller[1].ephemeralOwner))

    def _look_at_state(self, partition: int) -> None:
        found = self._read(paths.partition_state(self._topic, partition))
        if found is not None:
            with self._lock:
                self.states[partition][found[1].version] = contents.LeaderAndIsr.decode(found[0])
