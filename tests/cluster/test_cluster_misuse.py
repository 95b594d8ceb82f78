"""Misused cluster commands: a readable line, an exit code, no lost record and no bound directory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cli_commands import Run, runner
from wire import Wire
from zookeepers import Znodes

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.broker import dispatch
from embedlog.cluster.coordination.single import SingleBroker
from embedlog.cluster.zookeeper import client as zookeeper_client
from embedlog.cluster.zookeeper import contents, paths, running
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeepers
from embedlog.errors import BrokerIdInUse, BrokerUnavailable, InvalidArgument, ZooKeeperUnavailable
from embedlog.runtime.log_throttle import LogThrottle
from embedlog.wire.apis.metadata import MetadataRequest


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in a directory of its own."""
    return runner(capsys, tmp_path, monkeypatch)


# -- embedlog zookeeper ----------------------------------------------------------------------------------


def test_a_directory_belongs_to_one_zookeeper(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers that write the same files would destroy them; three, two of them empty, outvote the one."""
    monkeypatch.setattr(running, "_LOCK_S", 0)
    with ZooKeepers(tmp_path / "zk") as first, ZooKeeper(first.connect_string) as client:
        client.create("/kept", b"x")
        ran = run("zookeeper", "zk", "--port", "0")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("zk is in use by the ZooKeeper of process ")
        assert len(ran.err.splitlines()) == 1
        assert client.get("/kept") is not None
    ran = run("zookeeper", "zk", "--port", "0", "--servers", "3")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        "zk has the data of 1 server, not of 3: start that many, or name a new directory"
    )
    with ZooKeepers(tmp_path / "zk") as again, ZooKeeper(again.connect_string) as client:
        assert client.get("/kept") is not None


def test_a_foreign_directory_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    embedlog.open(tmp_path / "log").close()
    for name, said in (("file", "file is a file"), ("log", "log is a log")):
        ran = run("zookeeper", name, "--port", "0")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(said)
        assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "log" / "1").exists()
    ran = run("zookeeper", "file/below", "--port", "0")
    assert (ran.code, ran.out, ran.err) == (1, "", "the system refused: file/below: Not a directory\n")
    for arguments in (["--servers", "0"], ["--servers", "-1"], ["--port", "99999"]):
        ran = run("zookeeper", "zk", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith("embedlog zookeeper --help explains\n")


# -- embedlog serve --------------------------------------------------------------------------------------


def test_waiting_for_zookeeper_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(zookeeper_client, "_LOG_AFTER_S", 0.01)
    with (
        caplog.at_level("WARNING"),
        pytest.raises(ZooKeeperUnavailable, match="no ZooKeeper server responds"),
    ):
        ZooKeeper("127.0.0.1:1", connect_timeout_s=0.05)
    assert [each.getMessage() for each in caplog.records] == [
        "waiting for a ZooKeeper server at 127.0.0.1:1, 0.05 s at most"
    ]
    monkeypatch.setattr(
        zookeeper_client.ZooKeeper.__init__,
        "__kwdefaults__",
        {**(zookeeper_client.ZooKeeper.__init__.__kwdefaults__ or {}), "connect_timeout_s": 0.05},
    )
    ran = run("serve", "data", "--port", "0", "--zookeeper", "127.0.0.1:1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-2:] == [
        "no ZooKeeper server responds at 127.0.0.1:1 within 0.05 s",
        "is one running there? embedlog zookeeper DIR   starts one",
    ]


def test_a_taken_id_binds_no_directory(zookeeper: Znodes, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "new") as log:
        log.create_topic("mine")
    with Broker(tmp_path / "first", zookeeper=zookeeper.connect, broker_id=1):
        with pytest.raises(BrokerIdInUse, match="broker id 1 is taken by the broker at"):
            Broker(tmp_path / "new", zookeeper=zookeeper.connect, broker_id=1)
        with zookeeper.client() as client:
            assert client.get(paths.topic("mine")) is None
        with Broker(tmp_path / "new", zookeeper=zookeeper.connect, broker_id=2) as second:
            assert "mine" in second.log.topics()


def test_a_clusters_directory_is_not_opened_for_writing(zookeeper: Znodes, run: Run, tmp_path: Path) -> None:
    """A topic that is made so would be deleted when the broker is back."""
    Broker(tmp_path / "data", zookeeper=zookeeper.connect).close()
    embedlog.open(tmp_path / "other").close()
    for command in (
        ["topics", "create", "data", "t"],
        ["append", "data", "t", "/dev/null", "--create"],
        ["groups", "reset", "data", "g", "--topic", "t", "--to", "latest"],
        ["mirror", "--from", "other", "--to", "data", "--once"],
    ):
        ran = run(*command)
        assert (ran.code, ran.out) == (2, ""), command
    ran = run("topics", "create", "data", "t")
    assert ran.err == (
        f"{tmp_path / 'data'} is the directory of one broker of a cluster\n"
        "give --bootstrap-server HOST:PORT in place of data\n"
    )
    assert run("topics", "list", "data").code == 0


def test_rejected_clients_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker() as broker, caplog.at_level(logging.WARNING):
        monkeypatch.setattr(SingleBroker, "is_current", False)
        for _ in range(5):
            with Wire(broker) as wire, pytest.raises((OSError, EOFError, AssertionError)):
                wire.ask(MetadataRequest(topics=None), 9)
        with pytest.raises(BrokerUnavailable):
            embedlog.open(f"kafka://{broker.bootstrap_servers}", default_api_timeout_ms=100)
    said = [each.getMessage() for each in caplog.records if each.name == dispatch.__name__]
    assert said == ["this broker has no ZooKeeper session: connections are closed (1 since the last message)"]
    assert not [each for each in caplog.records if "connection closed" in each.getMessage()]


def test_frequent_messages_are_throttled() -> None:
    now = 0.0
    throttle = LogThrottle(10, clock=lambda: now)
    assert [throttle.count() for _ in range(3)] == [1, 0, 0]
    now = 9.9
    assert throttle.count() == 0
    now = 10.0
    assert [throttle.count(), throttle.count()] == [4, 0]


def test_a_rack_is_registered_and_sent_to_clients(zookeeper: Znodes, tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "data", zookeeper=zookeeper.connect, **{"broker.rack": "cellar"}) as broker,
        zookeeper.client() as client,
        Wire(broker) as wire,
    ):
        node = client.get(paths.broker(0))
        assert node is not None
        assert contents.Broker.decode(node.data).rack == "cellar"
        assert [each.rack for each in wire.ask(MetadataRequest(topics=[]), 9).brokers] == ["cellar"]


# -- embedlog cluster ------------------------------------------------------------------------------------


def test_a_cluster_is_described_by_its_brokers_alone(run: Run, tmp_path: Path) -> None:
    embedlog.open(tmp_path / "data").close()
    assert run("cluster", "describe") == (
        2,
        "",
        "name a broker of the cluster: --bootstrap-server HOST:PORT\n",
    )
    ran = run("cluster", "describe", "data")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "data is a directory: name a broker of the cluster, --bootstrap-server HOST:PORT\n"


def test_an_impossible_number_of_servers(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="servers must be at most 9"):
        ZooKeepers(tmp_path / "zk", servers=10)
    assert not (tmp_path / "zk").exists()
