"""A move from a directory to brokers: what stands in its way, its steps, and what it proves.

tests/java/test_move_kafka.py has the same with Apache Kafka.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import DirectoryError, DirectoryLocked, InvalidArgument, Log, LogMoved
from embedlog.cli import main
from embedlog.cluster import Broker
from embedlog.mirroring.move import Move, Obstacle
from embedlog.store.fence import moved, unfence

T = 1_700_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with records of each kind, in an order of times that goes up and down."""
    path = tmp_path / "source"
    with embedlog.open(path) as log:
        log.create_topic("events", partitions=3)
        for number in range(60):
            log.append(
                "events",
                None if number % 7 == 0 else b"v%d" % number,
                key=None if number % 5 == 0 else b"k%d" % (number % 4),
                headers=[("h", b"%d" % number), ("empty", None)],
                timestamp_ms=T + (number * 37) % 1000,
                partition=number % 2,  # the third partition stays empty
            )
        log.create_topic("state", cleanup_policy="compact")
        log.append_many("state", [(b"k%d" % (number % 3), b"%d" % number) for number in range(9)])
        log.append("state", None, key=b"k1")
    return path


@pytest.fixture
def target(broker: Broker) -> str:
    return f"kafka://{broker.bootstrap_servers}"


def moves(source: Path, target: str) -> None:
    """All steps; the logs are the same in the end."""
    with Move(source, target) as move:
        if not move.is_fenced:
            assert not [obstacle for obstacle in move.check() if obstacle.blocks]
            move.copy()
            move.fence()
        move.copy()
        compared = move.compare()
    assert not [topic for topic in compared if topic.differing or topic.more]


def contents(log: Log, topic: str) -> list[tuple[Any, ...]]:
    return [
        (record.partition, record.timestamp_ms, record.key, record.value, record.headers)
        for record in log.read(topic)
    ]


def test_all_records_are_there(source: Path, target: str) -> None:
    moves(source, target)
    with embedlog.open(source, mode="r") as ours, embedlog.open(target) as theirs:
        for topic in ("events", "state"):
            assert contents(theirs, topic) == contents(ours, topic)
    with pytest.raises(LogMoved, match=target):
        embedlog.open(source)


@pytest.mark.parametrize("step", ["copied", "fenced", "copied the rest"])
def test_a_move_that_was_stopped_goes_on(source: Path, target: str, step: str) -> None:
    with Move(source, target) as move:
        move.copy()
        if step != "copied":
            move.fence()
        if step == "copied the rest":
            move.copy()
    if step == "copied":
        with embedlog.open(source) as log:
            log.append("events", b"late", partition=0)
    moves(source, target)


def test_the_application_goes_on_until_it_is_fenced_off(source: Path, target: str) -> None:
    with embedlog.open(source, shared=True) as log, Move(source, target) as move:
        move.copy()
        log.append("events", b"meanwhile", partition=0)
        with pytest.raises(DirectoryLocked):
            move.fence()
        log.append("events", b"still", partition=0)
    moves(source, target)
    with embedlog.open(target) as theirs:
        assert [record.value for record in theirs.read("events", 0)][-2:] == [b"meanwhile", b"still"]


def test_it_moves_to_one_place(source: Path, target: str) -> None:
    moves(source, target)
    with pytest.raises(LogMoved, match=f"has moved to {target} already"):
        Move(source, "kafka://127.0.0.1:1")


@pytest.mark.parametrize(
    ("source", "target"), [("kafka://a:1", "kafka://b:1"), ("here", "there"), ("here", Path("there"))]
)
def test_only_from_a_directory_to_brokers(tmp_path: Path, source: str, target: Any) -> None:
    with pytest.raises(InvalidArgument, match="from a directory to brokers"):
        Move(source, target)


# -- what stands in the way --------------------------------------------------------------------------------


@pytest.fixture
def there(target: str) -> Iterator[Log]:
    with embedlog.open(target) as log:
        yield log


def blocking(source: Path, target: str) -> list[Obstacle]:
    with Move(source, target) as move:
        obstacles = [obstacle for obstacle in move.check() if obstacle.blocks]
    assert moved(source) is None
    return obstacles


def test_a_compacted_topic_takes_no_records_without_keys(source: Path, target: str, there: Log) -> None:
    there.create_topic("events", 3, cleanup_policy="compact")
    with embedlog.open(source) as log:
        log.alter_topic("events", cleanup_policy="compact")
    obstacles = blocking(source, target)
    assert [(o.topic, o.partition) for o in obstacles] == [("events", 0), ("events", 1)]
    assert "6 records without a key" in obstacles[0].problem


def test_a_topic_that_keeps_less(source: Path, target: str, there: Log) -> None:
    there.create_topic("events", 3, retention_ms=1_000)
    (obstacle,) = blocking(source, target)
    assert obstacle.topic == "events"
    assert "embedlog topics alter" in obstacle.problem


def test_a_topic_with_records_of_its_own(source: Path, target: str, there: Log) -> None:
    there.create_topic("events", 3)
    there.append("events", b"other")
    (obstacle,) = blocking(source, target)
    assert "holds 1 record there, and no position of a copy from here" in obstacle.problem


def test_a_topic_with_more_partitions(source: Path, target: str, there: Log) -> None:
    there.create_topic("events", 4)
    (obstacle,) = blocking(source, target)
    assert "has 4 partitions there and 3 here" in obstacle.problem


def test_records_that_are_too_large_or_too_late(source: Path, target: str, there: Log) -> None:
    there.create_topic("events", 3, max_message_bytes=80, message_timestamp_before_max_ms=1_000)
    problems = [obstacle.problem for obstacle in blocking(source, target) if obstacle.partition == 0]
    assert len(problems) == 2
    assert "larger than its max.message.bytes there, 80" in problems[0]
    assert "30 records with times that its message.timestamp.*.max.ms refuse" in problems[1]


def test_names_that_kafka_takes_for_one(tmp_path: Path, target: str) -> None:
    with embedlog.open(tmp_path / "source") as log:
        log.create_topic("a.b")
        log.create_topic("a_b")
    obstacles = blocking(tmp_path / "source", target)
    assert ("a_b", "differs from a.b only in . and _") in [
        (obstacle.topic, obstacle.problem.partition(":")[0]) for obstacle in obstacles
    ]


def test_an_open_transaction(source: Path, target: str) -> None:
    with embedlog.open(source, shared=True) as log:
        producer = log.producer(transactional_id="open")
        producer.begin_transaction()
        producer.send("events", b"v", partition=2)
        producer.flush()
        with Move(source, target) as move:
            problems = [obstacle.problem for obstacle in move.check() if obstacle.partition == 2]
        producer.abort_transaction()
    assert problems
    assert "a transaction is open at offset 0" in problems[0]


def test_queues_are_named(source: Path, target: str) -> None:
    with embedlog.open(source) as log, log.queue("jobs") as queue:
        queue.send(b"job")
        queue.take(10_000).accept()
    with Move(source, target) as move:
        (obstacle,) = move.check()
    assert (obstacle.topic, obstacle.blocks) == ("jobs", False)
    assert "that queue group 'default' has finished would come again" in obstacle.problem


def test_groups_go_on_where_they_were(source: Path, target: str) -> None:
    with embedlog.open(source) as log, log.consumer("events", group="billing") as consumer:
        read = [record.value for record in consumer.poll(10_000, max_records=25)]
        consumer.commit()
    moves(source, target)
    with embedlog.open(target) as log, log.consumer("events", group="billing", stop_at_end=True) as consumer:
        read += [record.value for record in consumer]
    with embedlog.open(source, mode="r") as ours:
        assert sorted(map(repr, read)) == sorted(repr(record.value) for record in ours.read("events"))


# -- what is compared --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["first", "between", "last"])
def test_records_of_others_in_the_target_are_seen(source: Path, target: str, there: Log, where: str) -> None:
    with Move(source, target) as move:
        move.copy()
        if where == "between":
            there.append("events", b"other", partition=0)
        with embedlog.open(source) as log:
            log.append("events", b"v", partition=0)
            if where == "first":
                log.delete_records("events", 0, 1)  # as retention does
        move.fence()
        move.copy()
        if where == "last":
            there.append("events", b"other", partition=0)
        events, state = move.compare()
    assert (events.topic, events.more) == ("events", 1)
    assert events.differing == ((0,) if where == "between" else ())
    assert (state.topic, state.differing) == ("state", ())


def test_records_that_came_twice_are_seen(source: Path, target: str, there: Log) -> None:
    with Move(source, target) as move:
        move.copy()
        with embedlog.open(source, mode="r") as ours:
            for record in list(ours.read("events", 0)):
                there.append("events", record.value, key=record.key, partition=0)
        move.fence()
        there.delete_records("events", 0, 30)  # what is left are copies with other times
        events, _ = move.compare()
    assert events.differing == (0,)


def test_a_source_that_is_made_writable_meanwhile(source: Path, target: str) -> None:
    with Move(source, target) as move:
        move.copy()
        move.fence()
        unfence(source)
        with pytest.raises(DirectoryError, match="was made writable again while it moved"):
            move.compare()


def test_a_group_that_is_in_use_there(
    source: Path, target: str, there: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    with embedlog.open(source) as log, log.consumer("events", group="billing") as consumer:
        consumer.poll(10_000)
        consumer.commit()
    there.create_topic("events", 3)
    with there.consumer("events", group="billing") as member:
        member.poll(1_000)
        assert main(["move", str(source), target, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["moved"]
    assert ["group 'billing' is not carried" in o["problem"] for o in report["obstacles"]] == [True]


def test_a_record_that_is_missing_is_seen(source: Path, target: str, there: Log) -> None:
    with Move(source, target) as move:
        move.copy()
        there.delete_records("events", 1, 3)
        move.fence()
        events, _ = move.compare()
    assert events.differing == (1,)


def test_a_compacted_topic_is_compared_by_its_last_records(source: Path, target: str) -> None:
    with Move(source, target) as move:
        move.copy()
        with embedlog.open(source, min_cleanable_dirty_ratio=0.0, segment_bytes=1024) as log:
            log.append("state", b"last", key=b"k2")
            log.compact("state")
        move.fence()
        move.copy()
        _, state = move.compare()
    assert state.differing == ()


# -- the command -------------------------------------------------------------------------------------------


def test_the_command(source: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["move", str(source), target, "--dry-run"]) == 0
    assert "nothing stands in the way" in capsys.readouterr().out
    assert moved(source) is None
    assert main(["move", str(source), target]) == 0
    out = capsys.readouterr().out
    assert out.count("the same") == 2
    assert f"{source} has moved: start the application with {target}" in out
    assert main(["topics", "create", str(source), "more"]) == 2
    assert "has moved to" in capsys.readouterr().err
    assert main(["move", str(source), target, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["moved"]
    assert [topic["records"] for topic in report["topics"]] == [60, 10]
    assert main(["move", str(source), "--undo"]) == 0
    assert "is writable again" in capsys.readouterr().out
    assert main(["move", str(source), "--undo"]) == 0
    assert "nothing to undo" in capsys.readouterr().out
    with embedlog.open(source) as log:
        log.append("events", b"v")


def test_the_command_says_who_writes(source: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with embedlog.open(source, shared=True):
        assert main(["move", str(source), target]) == 2
    problem = capsys.readouterr().err
    assert "is open for writing in process" in problem
    assert "Stop it, then run the same command again" in problem


def test_the_command_says_what_stands_in_the_way(
    source: Path, target: str, there: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    there.create_topic("events", 4)
    assert main(["move", str(source), target]) == 1
    out = capsys.readouterr().out
    assert "settle first" in out
    assert "1 obstacle: nothing was changed" in out
    assert main(["move", str(source), target, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["moved"], report["obstacles"][0]["topic"]) == (False, "events")


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", range(100, 1_600, 100))
def test_a_killed_move_goes_on(source: Path, target: str, delay_ms: int) -> None:
    command = [sys.executable, "-m", "embedlog", "move", str(source), target]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        process.wait(delay_ms / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with Move(source, target) as move:
        if not move.is_fenced:
            move.copy()
            move.fence()
        move.copy()
        with embedlog.open(source, mode="r") as ours, embedlog.open(target) as theirs:
            for topic in ("events", "state"):
                assert set(map(repr, contents(theirs, topic))) == set(map(repr, contents(ours, topic)))
