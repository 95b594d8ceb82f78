"""Mirrors from and to brokers, in this process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clients import EACH, Client, Sent
from zookeepers import eventually

import embedlog
from embedlog import Log, Mirror, MirrorStatus, Record, TopicPartition
from embedlog.cli import main
from embedlog.cluster import Broker


def address(broker: Broker) -> str:
    return f"kafka://{broker.bootstrap_servers}"


def mirrored(*sources: Any, to: Any, **options: Any) -> int:
    """Run a mirror until it has caught up; how many records came."""
    with Mirror(sources, to, **options) as mirror:
        return mirror.run(until_caught_up=True).records


def contents(log: Log, topic: str = "t") -> Sequence[Record]:
    return [record._replace(offset=0) for record in log.read(topic)]


@pytest.fixture
def filled(log: Log) -> Log:
    log.create_topic("t", partitions=3)
    for i in range(300):
        log.append("t", b"%d" % i, key=b"k%d" % i, headers=[("h", b"%d" % i)], timestamp_ms=1_000 + i)
    return log


def test_directory_to_brokers_and_back(filled: Log, broker: Broker, tmp_path: Path) -> None:
    assert mirrored(filled, to=address(broker)) == 300
    assert mirrored(address(broker), to=tmp_path / "back") == 300
    with embedlog.open(tmp_path / "back") as back:
        assert contents(back) == contents(filled)
        assert back.describe_topic("t").partitions == 3


@pytest.mark.parametrize("client", EACH)
def test_records_of_clients_are_mirrored(client: Client, broker: Broker, tmp_path: Path) -> None:
    records = [Sent(b"k%d" % i, b"v%d" % i) for i in range(20)]
    broker.log.create_topic("t")
    client.produce(broker.bootstrap_servers, "t", records, "gzip")
    assert mirrored(address(broker), to=tmp_path / "copy") == 20
    with embedlog.open(tmp_path / "copy") as copy:
        assert [(record.key, record.value) for record in copy.read("t")] == [each[:2] for each in records]


def test_the_mirrors_position_is_kept_in_a_group(filled: Log, broker: Broker) -> None:
    mirrored(filled, to=address(broker))
    filled.append("t", b"more", partition=0)
    assert mirrored(filled, to=address(broker)) == 1
    group = f"mirror-{filled.backend.log_id}"
    committed = broker.log.backend.coordinator.committed_offsets(group)  # type: ignore[union-attr]
    ends = {TopicPartition("t", n): each.log_end_offset for n, each in filled.offsets("t").items()}
    assert {name: each.offset for name, each in committed.items()} == ends


def test_the_groups_name_may_be_chosen(filled: Log, broker: Broker) -> None:
    assert mirrored(filled, to=address(broker), group="one") == 300
    assert mirrored(filled, to=address(broker), group="two") == 300
    groups = broker.log.backend.coordinator.list_groups()  # type: ignore[union-attr]
    assert groups == [f"{name}-{filled.backend.log_id}" for name in ("one", "two")]


def test_a_recreated_topic_is_copied_from_its_start(filled: Log, broker: Broker) -> None:
    mirrored(filled, to=address(broker))
    filled.delete_topic("t")
    filled.create_topic("t", partitions=3)
    filled.append("t", b"new")
    assert mirrored(filled, to=address(broker)) == 1


def test_append_times_become_create_times_at_brokers(log: Log, broker: Broker) -> None:
    log.create_topic("t", message_timestamp_type="LogAppendTime")
    log.append_many("t", [b"a", b"b"], compression="lz4")
    mirrored(log, to=address(broker))
    found, given = list(broker.log.read("t")), list(log.read("t"))
    assert [each.timestamp_ms for each in found] == [each.timestamp_ms for each in given]
    assert {each.timestamp_type for each in found} == {0}


def test_compacted_topics_are_mirrored_to_brokers(log: Log, broker: Broker) -> None:
    log.create_topic("t", cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0.0)
    for i in range(300):
        log.append_many("t", [(b"k%d" % (i % 7), b"v%d" % i), (b"other%d" % i, b"w")])
    log.compact("t")
    mirrored(log, to=address(broker))
    assert contents(broker.log) == contents(log)


def test_the_command_line(
    filled: Log, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker() as broker:
        assert main(["mirror", "--from", str(path), "--to", address(broker), "--once"]) == 0
        assert "300 records" in capsys.readouterr().out
        sources = f"{address(broker)},named={address(broker)}"
        target = str(tmp_path / "copy")
        command = ["mirror", "--from", sources, "--to", target, "--once", "--json"]
        assert main(command) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["records"], told["behind"], told["caught_up"]) == (600, 0, True)
    assert [each["target_topic"] for each in told["topics"]] == ["t", "named.t"]
    with embedlog.open(target, mode="r") as copy:
        assert contents(copy) == contents(filled)
    assert main(["mirror", "--from", "kafka://127.0.0.1:1", "--to", target, "--once"]) == 1
    assert main(["mirror", "--from", str(tmp_path / "nowhere"), "--to", target]) == 2


def test_a_signal_stops_it_cleanly(filled: Log, path: Path, tmp_path: Path) -> None:
    command = ["mirror", "--from", str(path), "--to", str(tmp_path / "copy"), "--interval", "1", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "embedlog", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["records"] < 300:
            pass
        process.send_signal(signal.SIGTERM)
        told, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert json.loads(told.splitlines()[-1])["behind"] == 0


@pytest.mark.slow
def test_it_stops_while_its_target_is_silent(filled: Log) -> None:
    copied = threading.Event()
    with Broker() as broker:
        mirror = Mirror(filled, address(broker), refresh_ms=20)
        running = threading.Thread(
            target=mirror.run, kwargs={"on_status": lambda status: status.records == 300 and copied.set()}
        )
        running.start()
        assert copied.wait(60)
    filled.append("t", b"more")
    mirror.stop()
    running.join(60)
    assert not running.is_alive()
    mirror.close()


@pytest.mark.slow
def test_an_unreachable_target_is_reported(
    filled: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.mirroring.mirror._UNANSWERED_S", 0.05)
    told = threading.Event()
    with Broker(tmp_path / "target") as target:
        place, port = address(target), target.port
        with Mirror(filled, place, topics="t") as mirror:

            def look(status: MirrorStatus) -> None:
                if status.trouble == f"{place} takes no records just now: waiting for it":
                    told.set()

            running = threading.Thread(target=mirror.run, kwargs={"on_status": look})
            running.start()
            try:
                group, backend = f"mirror-{filled.backend.log_id}", target.log.backend
                committed = backend.coordinator.committed_offsets  # type: ignore[union-attr]
                # Where a commit fails that is what is told: here there is none to be made any more.
                eventually(lambda: sum(each.offset for each in committed(group).values()) == 300)
                target.close()
                filled.append("t", b"later", partition=1)
                assert told.wait(60)
                with Broker(tmp_path / "target", port=port) as again:
                    eventually(lambda: len(list(again.log.read("t"))) == 301)
            finally:
                mirror.stop()
                running.join()
