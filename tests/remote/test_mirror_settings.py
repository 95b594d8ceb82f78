"""The settings of copied topics: a copy keeps what its source keeps, whatever the defaults of the two are.

tests/java/test_mirror_settings_kafka.py has the same with Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mirrored_settings import AT_BROKERS, CASES, DAY_MS
from zookeepers import eventually

import embedlog
from embedlog import InvalidArgument, InvalidSetting, Log, Mirror, MirrorStatus, Record
from embedlog.cli import main
from embedlog.cluster import Broker
from embedlog.config import MAX_INT64, TopicSettings
from embedlog.security.acls import Binding, Operation, Permission, Resource, ResourceType, Rule

FORGETFUL: dict[str, Any] = {
    "cleanup_policy": "compact,delete",
    "message_timestamp_type": "LogAppendTime",
    "message_timestamp_before_max_ms": DAY_MS,
    "retention_ms": 1_000,
    "retention_bytes": 1,
    "segment_bytes": 1024,
    "log_retention_check_interval_ms": 20,
    "log_cleaner_backoff_ms": 20,
}
"""Defaults of a log that would lose almost every record."""


def address(broker: Broker) -> str:
    return f"kafka://{broker.bootstrap_servers}"


def mirrored(*sources: Any, to: Any, **options: Any) -> int:
    with Mirror(sources, to, **options) as mirror:
        return mirror.run(until_caught_up=True).records


def effective(log: Log, topic: str) -> dict[str, Any]:
    return log.backend.topic_settings(topic).as_dict()


@pytest.fixture
def of_all(log: Log) -> Log:
    """A log with a topic for each setting."""
    for name, value in CASES.items():
        log.create_topic(name, **{name: value})
        log.append(name, b"value", key=b"key")
    return log


def old(days: int, count: int = 20) -> list[Record]:
    at = time.time_ns() // 1_000_000 - days * DAY_MS
    return [Record(key=b"k%d" % n, value=b"v" * 200, timestamp_ms=at + n) for n in range(count)]


# -- every setting in every direction ----------------------------------------------------------------------


def test_each_setting_of_a_directory_at_a_broker_and_back(
    of_all: Log, broker: Broker, tmp_path: Path
) -> None:
    defaults = TopicSettings().as_dict()
    assert all(value != defaults[name] for name, value in CASES.items())
    assert CASES.keys() == defaults.keys()
    assert mirrored(of_all, to=address(broker)) == len(CASES)
    assert mirrored(address(broker), to=tmp_path / "back") == len(CASES)
    with embedlog.open(tmp_path / "back") as back:
        for name in CASES:
            wanted = {**effective(of_all, name), **AT_BROKERS}
            assert effective(broker.log, name) == wanted
            assert effective(back, name) == wanted


def test_each_setting_of_a_directory_in_another_one(of_all: Log, tmp_path: Path) -> None:
    mirrored(of_all, to=tmp_path / "copy")
    with embedlog.open(tmp_path / "copy") as copy:
        for name in CASES:
            assert copy.describe_topic(name).settings == {name: CASES[name]}


@pytest.mark.parametrize("name", CASES)
def test_each_default_that_differs_is_stated(log: Log, tmp_path: Path, name: str) -> None:
    """But for flushes, which are not postponed."""
    log.create_topic("t")
    log.append("t", b"value", key=b"key")
    settings, wanted = {name: CASES[name]}, effective(log, "t")
    if name == "flush_messages":
        wanted |= settings
    with embedlog.open(tmp_path / "copy", **settings) as copy:
        mirrored(log, to=copy)
        assert effective(copy, "t") == wanted
    with Broker(tmp_path / "served", **settings) as broker:
        mirrored(log, to=address(broker))
        assert effective(broker.log, "t") == wanted


def test_a_flush_that_is_only_the_brokers_default_is_not_postponed(log: Log, tmp_path: Path) -> None:
    with Broker(tmp_path / "served", flush_ms=MAX_INT64, flush_messages=5) as broker:
        broker.log.create_topic("default")
        broker.log.create_topic("own", flush_ms=60_000)
        mirrored(address(broker), to=log)
    assert effective(log, "default") | {"flush_ms": 1_000, "flush_messages": 5} == effective(log, "default")
    assert effective(log, "own")["flush_ms"] == 60_000


# -- old records arrive and stay ---------------------------------------------------------------------------


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "forgetful", **FORGETFUL) as broker:
        yield broker


@pytest.mark.parametrize("served", [False, True])
def test_old_records_stay_in_a_log_that_would_delete_them(
    log: Log, tmp_path: Path, forgetful: Broker, served: bool
) -> None:
    """Also those that their own topic would not accept any more."""
    log.create_topic("old")
    log.create_topic("limited")
    for topic in ("old", "limited"):
        log.append_many(topic, [*old(10), *old(10)])
    log.alter_topic("limited", message_timestamp_before_max_ms=DAY_MS)
    with embedlog.open(tmp_path / "copy", **FORGETFUL) as copy:
        target = forgetful.log if served else copy
        limits: dict[str, Any] = {"message_timestamp_before_max_ms": MAX_INT64}
        target.create_topic("control", message_timestamp_type="CreateTime", **limits)
        mirrored(log, to=address(forgetful) if served else copy)
        for number in (100, 200):  # the second time, the topics after it have had their turn
            target.append_many("control", old(10, 100))
            eventually(lambda end=number: target.offsets("control")[0].log_start_offset == end)
        for topic in ("old", "limited"):
            assert target.offsets(topic)[0].log_start_offset == 0
            copied = [(each.key, each.timestamp_ms) for each in target.read(topic)]
            assert copied == [(each.key, each.timestamp_ms) for each in log.read(topic)]


def test_delete_policies_that_a_broker_does_not_have_delete_nothing_there(
    log: Log, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t", delete_policy="embedlog.retention:by_bytes", retention_ms=5, retention_bytes=5)
    mirrored(log, to=address(broker))
    settings = effective(broker.log, "t")
    assert (settings["retention_ms"], settings["retention_bytes"]) == (-1, -1)
    assert (
        "'t' is made without delete.policy: what embedlog.retention:by_bytes would delete is kept"
        in caplog.text
    )


def test_what_brokers_do_otherwise_is_told(
    log: Log, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t", message_timestamp_type="LogAppendTime")
    log.create_topic("u", message_timestamp_before_max_ms=DAY_MS)
    mirrored(log, to=address(broker))
    assert "'t' is made without message.timestamp.type: the copies keep the times" in caplog.text
    assert "'u' is made without message.timestamp.before.max.ms: records get older" in caplog.text


# -- topics that exist already -----------------------------------------------------------------------------

LESS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "time": ({}, {"retention_ms": 5}, "retention.ms is 5"),
    "shorter time": ({"retention_ms": 6}, {"retention_ms": 5}, "retention.ms is 5"),
    "size": ({"retention_bytes": 6}, {"retention_bytes": 5}, "retention.bytes is 5"),
    "compaction": ({}, {"cleanup_policy": "compact"}, "cleanup.policy is compact"),
    "more than compaction": (
        {"cleanup_policy": "compact"},
        {"cleanup_policy": "compact,delete", "retention_ms": 5},
        "retention.ms is 5",
    ),
    "compaction at once": (
        {"cleanup_policy": "compact", "min_compaction_lag_ms": 6},
        {"cleanup_policy": "compact", "min_compaction_lag_ms": 5},
        "min.compaction.lag.ms is 5",
    ),
    "the times of files": (
        {"delete_policy": "modification_time", "retention_ms": 6},
        {"delete_policy": "record_timestamp", "retention_ms": 6},
        "retention.ms is 6",
    ),
    "unfinished jobs": (
        {"delete_policy": "finished,record_timestamp", "retention_ms": 5},
        {"retention_ms": 5},
        "retention.ms is 5",
    ),
}
AS_MUCH: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"retention_ms": 5}, {"retention_ms": 6}),
    ({"retention_ms": 5}, {"retention_ms": 5, "cleanup_policy": ""}),
    ({"cleanup_policy": "compact", "retention_ms": 6}, {"cleanup_policy": "delete"}),
    ({"cleanup_policy": "compact,delete", "retention_ms": 5}, {"cleanup_policy": "compact"}),
    ({"delete_policy": "modification_time", "retention_ms": 6},) * 2,
    ({"delete_policy": "bytes", "retention_ms": 6}, {"delete_policy": "bytes", "retention_ms": 5}),
    ({"delete_policy": "finished", "retention_ms": 6}, {"delete_policy": "finished", "retention_ms": 5}),
    ({"retention_ms": 6}, {"delete_policy": "modification_time", "retention_ms": 6}),
]


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("case", LESS)
def test_a_topic_that_keeps_less_is_refused_until_it_is_settled(
    log: Log, tmp_path: Path, case: str, served: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    own, settings, told = LESS[case]
    for topic in ("other", "t"):
        log.create_topic(topic, **own)
        log.append(topic, b"value", key=b"key")
    with Broker(tmp_path / "copy") as broker:
        broker.log.create_topic("t", **settings)
        if served:
            _refused_and_settled(log, address(broker), told, capsys)
            return
    _refused_and_settled(log, str(tmp_path / "copy"), told, capsys)


def _refused_and_settled(log: Log, there: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidSetting) as refused:
        mirrored(log, to=there)
    assert f"'t' keeps less than that of {log.path} ({told})" in str(refused.value)
    where = {} if there.startswith("kafka") else {"mode": "r"}
    with embedlog.open(there, **where) as copy:  # type: ignore[arg-type]
        assert [list(copy.read(topic)) for topic in copy.topics()] == [[]] * len(copy.topics())
    command = str(refused.value).split("`")[1].split()
    assert main(command[1:]) == 0
    capsys.readouterr()
    assert mirrored(log, to=there) == 2


@pytest.mark.parametrize(("own", "settings"), AS_MUCH)
def test_a_topic_that_keeps_as_much_is_taken(
    log: Log, tmp_path: Path, own: dict[str, Any], settings: dict[str, Any]
) -> None:
    log.create_topic("t", **own)
    log.append("t", b"value", key=b"key")
    with embedlog.open(tmp_path / "copy") as copy:
        copy.create_topic("t", **settings)
        assert mirrored(log, to=copy) == 1


def test_a_broker_that_would_overwrite_times_is_refused(log: Log, broker: Broker, tmp_path: Path) -> None:
    log.create_topic("t")
    with embedlog.open(tmp_path / "copy") as copy:
        for target in (broker.log, copy):
            target.create_topic("t", message_timestamp_type="LogAppendTime")
        with pytest.raises(InvalidSetting, match=r"message\.timestamp\.type is LogAppendTime"):
            mirrored(log, to=address(broker))
        assert mirrored(log, to=copy) == 0  # a directory takes copies with their times


@pytest.mark.parametrize("served", [False, True])
def test_a_copy_may_be_told_to_keep_less_later(
    log: Log, tmp_path: Path, served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t")
    log.append("t", b"value")
    with Broker(tmp_path / "copy") as broker:
        target: Any = address(broker) if served else tmp_path / "other"
        mirrored(log, to=target)
        with broker.log if served else embedlog.open(target) as copy:
            copy.alter_topic("t", retention_ms=5 * DAY_MS)
            log.append("t", b"more")
            assert mirrored(log, to=target if served else copy) == 1
            assert "(retention.ms is 432000000), as it was told to" in caplog.text
            copy.delete_topic("t")
            copy.create_topic("t", retention_ms=5 * DAY_MS)
            with pytest.raises(InvalidSetting, match="keeps less"):
                mirrored(log, to=target if served else copy)


def test_a_refused_topic_does_not_stop_the_others_of_a_mirror_that_runs(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t")
    steps = iter(("refused", "settled", "copied"))
    step = next(steps)
    deadline = time.monotonic() + 60
    with embedlog.open(tmp_path / "copy") as copy, Mirror(log, copy, refresh_ms=20) as mirror:

        def look(status: MirrorStatus) -> None:
            nonlocal step
            if not log.backend.topics().count("late"):
                copy.create_topic("late", retention_ms=5)
                log.create_topic("late")
                log.append("late", b"late")
            elif step == "refused" and status.trouble:
                assert "topic 'late' keeps less" in status.trouble
                log.append("t", b"value")
                step = next(steps)
            elif step == "settled" and status.records == 1:
                copy.alter_topic("late", retention_ms=None)
                step = next(steps)
            elif step == "copied" and status.records == 2:
                assert status.trouble is None
                mirror.stop()
            if time.monotonic() > deadline:
                mirror.stop()

        assert mirror.run(on_status=look).records == 2
    assert caplog.text.count("topic 'late' keeps less") == 1


# -- settings that may not be seen -------------------------------------------------------------------------


@pytest.fixture
def secretive(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose clients may do all that mirrors do, and see no settings."""
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    rights = [(topic, each) for each in (Operation.READ, Operation.WRITE, Operation.CREATE)]
    with Broker(tmp_path / "secretive", authorizer_class_name="AclAuthorizer", retention_ms=5) as broker:
        assert broker.context.access is not None
        broker.context.access.authorizer.add(
            Binding(Resource(kind, "*"), Rule("User:ANONYMOUS", "*", right, Permission.ALLOW))
            for kind, right in (*rights, (group, Operation.READ))
        )
        yield broker


def test_a_source_whose_settings_may_not_be_seen_is_kept_whole(
    secretive: Broker, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secretive.log.create_topic("t", cleanup_policy="compact")
    with embedlog.open(tmp_path / "copy", retention_ms=5, cleanup_policy="compact") as copy:
        for target in (copy, address(broker)):
            mirrored(address(secretive), to=target)
        for settings in (effective(copy, "t"), effective(broker.log, "t")):
            assert (settings["retention_ms"], settings["cleanup_policy"]) == (-1, "delete")
    assert "the settings of topic 't' may not be seen: what is copied is kept without limit" in caplog.text


def test_a_target_whose_settings_may_not_be_seen(
    log: Log, secretive: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t", compression_type="lz4")
    log.append("t", b"value")
    assert mirrored(log, to=address(secretive)) == 1
    wanted = {**effective(log, "t"), **AT_BROKERS}
    assert effective(secretive.log, "t") == wanted
    assert "is made without" not in caplog.text
    log.append("t", b"more")
    assert mirrored(log, to=address(secretive)) == 1
    assert "the settings of topic 't' may not be seen: make sure that it keeps" in caplog.text


# -- the number of replicas --------------------------------------------------------------------------------


def test_embedlog_keeps_one_copy(log: Log, broker: Broker, tmp_path: Path) -> None:
    log.create_topic("t")
    with pytest.raises(InvalidArgument, match="embedlog keeps one copy"):
        Mirror(log, tmp_path / "copy", replication_factor=2)
    with pytest.raises(InvalidArgument, match=r"INVALID_REPLICATION_FACTOR.*embedlog keeps one copy"):
        mirrored(log, to=address(broker), replication_factor=2)
    with pytest.raises(InvalidArgument, match="at least 1"):
        Mirror(log, tmp_path / "copy", replication_factor=0)
    command = ["mirror", "--from", log.path, "--to", address(broker), "--once", "--replication-factor"]
    log.close()
    assert main([*command, "2"]) == 2
    assert main([*command, "1"]) == 0
    assert broker.log.topics() == ["t"]
