"""Lag after deletions: what is left to read, whatever tells it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import runner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

import embedlog
from embedlog import CommittedOffset, Log, PartitionOffsets, TopicPartition
from embedlog.clients.queue_admin import describe_queues
from embedlog.cluster import Broker
from embedlog.groups.share_coordinator import ShareGroupCoordinator
from embedlog.metrics import LogCollector
from embedlog.model import Acknowledgement, AcknowledgeType, ShareGroupOptions
from embedlog.ui import application

ALL_DELETED, SOME_DELETED, NO_COMMIT = (TopicPartition("clicks", number) for number in range(3))
PAST_THE_END, BEHIND = (TopicPartition("orders", number) for number in range(2))
_ACCEPT, _LATER = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
LAGS = {ALL_DELETED: 0, SOME_DELETED: 60, NO_COMMIT: None, PAST_THE_END: 0, BEHIND: 7}


def filled(log: Log) -> Log:
    """Group billing has committed offset 10 of the first two of clicks' partitions. Of the first all 100
    records are deleted, of the second 40, of the third, without a commit, 30. It also reads orders."""
    for topic, partitions, count in (("clicks", 3, 100), ("orders", 2, 20)):
        log.create_topic(topic, partitions)
        for partition in range(partitions):
            log.append_many(topic, [b"x"] * count, partition=partition)
    with log.consumer(group="billing", auto_commit=False) as consumer:
        consumer.assign([tp for tp, lag in LAGS.items() if lag is not None])
        consumer.commit({ALL_DELETED: 10, SOME_DELETED: 10, PAST_THE_END: CommittedOffset(99), BEHIND: 13})
    for tp, offset in ((ALL_DELETED, 100), (SOME_DELETED, 40), (NO_COMMIT, 30)):
        log.delete_records(*tp, offset)
    return log


@pytest.fixture(params=["directory", "shared", "reader", "wire"])
def log(request: pytest.FixtureRequest, path: Path) -> Iterator[Log]:
    if request.param == "wire":
        with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
            yield filled(log)
    elif request.param == "shared":
        with embedlog.open(path, shared=True), embedlog.open(path, shared=True) as log:
            yield filled(log)
    elif request.param == "reader":
        with embedlog.open(path) as writer, embedlog.open(path, mode="r") as log:
            filled(writer)
            yield log
    else:
        with embedlog.open(path) as log:
            yield filled(log)


def test_groups(log: Log) -> None:
    (found,) = log.describe_groups()
    assert found == log.group("billing").describe()
    assert {tp: each.lag for tp, each in found.partitions.items()} == LAGS
    assert found.lag == 67
    assert ["clicks", "0", "10", "100", "0"] in _cells(found._repr_html_())
    assert ["clicks", "1", "10", "100", "60"] in _cells(found._repr_html_())


def test_consumers(log: Log) -> None:
    """A consumer that has not read yet continues at the group's offsets."""
    partitions = [ALL_DELETED, SOME_DELETED, BEHIND]
    with log.consumer(auto_commit=False) as consumer:
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, 13 if tp == BEHIND else 10)
        assert consumer.lag() == consumer.estimated_lag() == {tp: LAGS[tp] for tp in partitions}
        assert ["clicks", "0", "10", "100", "0"] in _cells(consumer._repr_html_())
        assert ["clicks", "1", "10", "100", "60"] in _cells(consumer._repr_html_())
        left = 0
        while sum(consumer.lag().values()):
            left += len(consumer.poll(timeout_ms=1_000))
        assert left == 67


def test_metrics(log: Log) -> None:
    registry = CollectorRegistry(auto_describe=True)
    with log.consumer(auto_commit=False) as consumer:
        consumer.assign([ALL_DELETED])
        consumer.seek(ALL_DELETED, 10)
        registry.register(LogCollector(log, groups=True))
        found = {
            (
                sample.name,
                sample.labels["group"],
                sample.labels["topic"],
                sample.labels["partition"],
            ): sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name in ("embedlog_group_lag", "embedlog_consumer_lag")
        }
    assert found.pop(("embedlog_consumer_lag", "", "clicks", "0")) == 0
    assert found == {
        ("embedlog_group_lag", "billing", tp.topic, str(tp.partition)): lag
        for tp, lag in LAGS.items()
        if lag is not None
    }


def test_the_page(log: Log) -> None:
    with TestClient(application(log)) as visitor:
        assert "<b>67</b><span>records behind" in visitor.get("/group?name=billing").text
        assert ["billing", "60"] in _cells(visitor.get("/topics/clicks").text)
        assert ["billing", "7"] in _cells(visitor.get("/topics/orders").text)


@pytest.mark.parametrize("served", [False, True])
def test_the_command_line(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    run = runner(capsys, path.parent, monkeypatch)
    with Broker(path) as broker:
        filled(broker.log)
        where = f"kafka://{broker.bootstrap_servers}" if served else str(path)
        lines = run("groups", "describe", where, "billing", "--json").objects
        assert {TopicPartition(each["topic"], each["partition"]): each["lag"] for each in lines} == LAGS
        (told,) = run("groups", "list", where, "--json").objects
        assert told["lag"] == 67
        (group,) = json.loads(run("top", where, "--once", "--json").out)["groups"]
        assert group["lag"] == 67


def test_jobs(path: Path) -> None:
    """Also those that were locked, delayed or done when they were deleted."""
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.append_many("jobs", [b"x"] * 20)
        shares = log.backend.share_coordinator
        options = ShareGroupOptions(lock_ms=3_600_000, max_deliveries=5)
        taken = shares.acquire("mailers", "jobs", "m", max_records=10, max_wait_ms=0, options=options).result(
            10
        )
        for number, kind in (
            (0, _ACCEPT),
            (5, _ACCEPT),
            (6, _ACCEPT),
            (8, _ACCEPT),
            (1, _LATER),
            (9, _LATER),
        ):
            delay_ms = 3_600_000 if kind is _LATER else 0
            said = Acknowledgement(0, number, taken[number].delivery_id, kind, delay_ms)
            assert shares.acknowledge("mailers", "jobs", [said]) == [None]
        assert isinstance(shares, ShareGroupCoordinator)
        for deleted, *expected in ((0, 1, 4, 2, 10), (6, 7, 1, 1, 10), (15, 15, 0, 0, 5), (20, 20, 0, 0, 0)):
            log.delete_records("jobs", 0, deleted)
            for reader in (shares, log.backend.share_reader()):
                (found,) = describe_queues(log.backend, reader=reader)
                start = found.group.partitions[0].start_offset
                assert [start, found.locked, found.delayed, found.waiting] == expected
            offsets = shares.clients.offsets("mailers", "jobs")[0]
            assert [offsets.start_offset, offsets.lag] == [expected[0], sum(expected[1:])]


@given(*[st.integers(0, 50)] * 3)
def test_lag_is_what_a_scan_counts(start: int, records: int, committed: int) -> None:
    edges = PartitionOffsets(start, start + records, start + records)
    assert edges.lag_at(committed) == sum(offset >= committed for offset in range(start, start + records))


def _cells(html: str) -> list[list[str]]:
    """Of each row of tables, those before the first empty one."""
    rows = re.findall(r"<tr.*?</tr>", html, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    plain = [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row] for row in cells]
    return [row[: row.index("")] if "" in row else row for row in plain]
