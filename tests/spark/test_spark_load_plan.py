"""The offsets of each load, and the conditions that stop it, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from faults import partition_of
from loads import moment, records
from programs import crash
from transactions import Transactions, coordinated

import embedlog
import embedlog.spark
from embedlog import Log
from embedlog.spark.load_plan import PartitionLoad, check_topic, loaded_up_to, plan_load, status
from embedlog.spark.manifest import Loaded, Lost, Manifest
from embedlog.spark.table import Table


def manifest(log: Log, offsets: Mapping[int, int], topic: str = "t") -> Manifest:
    """A table into which these partitions were loaded so far."""
    loaded = {p: loaded_up_to(log, topic, p, 0, end) for p, end in offsets.items()}
    return Manifest(topic, log.describe_topic(topic).topic_id, load=1, loaded=loaded)


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """Two partitions with 10 and 20 records, one every 6 hours in all."""
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=2)
        log.append_many("t", records(10), partition=0)
        log.append_many("t", records(20, first=10), partition=1)
        log.flush()
        yield log


def test_the_first_load_takes_everything_later_ones_new_records(log: Log) -> None:
    new = Manifest("t", "")
    assert plan_load(log, "t", new).partitions == {0: PartitionLoad(0, 10), 1: PartitionLoad(0, 20)}
    known = manifest(log, {0: 10, 1: 15})
    plan = plan_load(log, "t", known)
    assert plan.partitions == {0: PartitionLoad(10, 10), 1: PartitionLoad(15, 20)}
    assert (plan.offsets, plan.cuts, plan.lost) == (5, {}, ())
    log.create_partitions("t", 3)
    log.append_many("t", records(4), partition=2, flush=True)
    assert plan_load(log, "t", known).partitions[2] == PartitionLoad(0, 4)


def test_loads_end_at_the_durable_end(path: Path) -> None:
    with embedlog.open(path, flush_ms=3_600_000) as log:
        log.create_topic("t")
        log.append_many("t", records(7), flush=True)
        log.append_many("t", records(3))
        assert log.offsets("t")[0].log_end_offset == 10
        with embedlog.open(path, mode="r") as reader:
            assert plan_load(reader, "t", Manifest("t", "")).partitions == {0: PartitionLoad(0, 7)}


def test_not_past_the_beginning_of_an_open_transaction(log: Log) -> None:
    log.create_topic("x")
    transactions = Transactions(lambda batch: coordinated(partition_of(log, "x"), batch).base_offset)
    transactions.plain(b"0")
    transactions.send(1, b"1", b"2")
    log.flush()
    new = Manifest("x", "")
    assert plan_load(log, "x", new).partitions == {0: PartitionLoad(0, 1)}
    assert plan_load(log, "x", new, read_committed=False).partitions == {0: PartitionLoad(0, 3)}
    transactions.end(1, commit=True)
    log.flush()
    assert plan_load(log, "x", new).partitions == {0: PartitionLoad(0, 4)}
    assert plan_load(log, "x", manifest(log, {0: 1}, "x")).partitions == {0: PartitionLoad(1, 4)}


def test_from_a_time(log: Log) -> None:
    known = manifest(log, {0: 10, 1: 15})
    # Record n is at n * 6 hours: partition 0 has 0 to 9, partition 1 has 10 to 29.
    assert plan_load(log, "t", known, from_time=moment(6 * 4)).partitions == {
        0: PartitionLoad(4, 10, cut=4),
        1: PartitionLoad(0, 20, cut=0),
    }
    assert plan_load(log, "t", known, from_time=moment(6 * 12 - 1)).partitions == {
        0: PartitionLoad(10, 10),
        1: PartitionLoad(2, 20, cut=2),
    }
    # What is not loaded yet is loaded as ever.
    assert plan_load(log, "t", known, from_time=moment(6 * 28)).partitions[1] == PartitionLoad(15, 20)
    assert plan_load(log, "t", known, from_time=moment(6 * 1000)).partitions[1] == PartitionLoad(15, 20)


def test_a_first_load_from_a_time_begins_there(log: Log) -> None:
    new = Manifest("t", "")
    assert plan_load(log, "t", new, from_time=moment(6 * 12)).partitions == {
        0: PartitionLoad(10, 10),
        1: PartitionLoad(2, 20),
    }


def test_retention_deleted_unread_records(log: Log) -> None:
    known = manifest(log, {0: 4, 1: 15})
    log.delete_records("t", 0, 6)
    with pytest.raises(
        embedlog.RecordsLost, match=r"t 0: the offsets 4 to 5 were deleted .* allow_data_loss"
    ):
        plan_load(log, "t", known)
    plan = plan_load(log, "t", known, allow_data_loss=True)
    assert plan.partitions[0] == PartitionLoad(6, 10)
    assert plan.lost == (Lost(0, 4, 6, 2),)
    # What was loaded may go.
    log.delete_records("t", 1, 15)
    assert plan_load(log, "t", known, allow_data_loss=True).partitions[1] == PartitionLoad(15, 20)


def test_a_log_that_lost_its_tail(log: Log, path: Path, tmp_path: Path) -> None:
    copy = crash(path, tmp_path / "copy")
    log.append_many("t", records(5), partition=0, flush=True)
    known = manifest(log, {0: 13, 1: 20})
    log.close()
    with embedlog.open(copy) as older:  # 10 records, and an epoch of its own for what comes now
        with pytest.raises(embedlog.RecordsLost, match=r"up to 12, of which .* lost those from 10 on"):
            plan_load(older, "t", known)
        older.append_many("t", records(5), partition=0, flush=True)
        with pytest.raises(embedlog.RecordsLost, match="from 10 on"):
            plan_load(older, "t", known)
        plan = plan_load(older, "t", known, allow_data_loss=True)
        assert plan.partitions == {0: PartitionLoad(10, 15, cut=10), 1: PartitionLoad(20, 20)}
        # A time before that cuts more, and what was lost is replaced with it.
        plan = plan_load(older, "t", known, from_time=moment(6 * 8), allow_data_loss=True)
        assert plan.partitions[0] == PartitionLoad(8, 15, cut=8)


def test_another_topic_and_the_same_name(log: Log) -> None:
    known = manifest(log, {0: 10, 1: 20})
    check_topic(known, log.describe_topic("t"))
    log.create_topic("u")
    with pytest.raises(embedlog.TableError, match="loaded from the topic 't', not from 'u'"):
        check_topic(known, log.describe_topic("u"))
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    with pytest.raises(embedlog.TableError, match=r"deleted and recreated.*new table"):
        check_topic(known, log.describe_topic("t"))


def test_the_epoch_of_the_last_loaded_record_is_remembered(path: Path, tmp_path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append_many("t", records(5), flush=True)
        crash(path, tmp_path / "copy")
    with embedlog.open(tmp_path / "copy") as log:
        log.append_many("t", records(5), flush=True)
        assert loaded_up_to(log, "t", 0, 0, 5) == Loaded(5, 0)
        assert loaded_up_to(log, "t", 0, 0, 10) == Loaded(10, 1)


def test_status_before_and_after_loads(log: Log, tmp_path: Path) -> None:
    to = tmp_path / "table"
    with pytest.raises(embedlog.InvalidArgument, match="not a table yet: name the topic"):
        status(log, to=to)
    found = status(log, to=to, topic="t")
    assert (found.manifest, found.lag, found.problem) == (None, 30, None)
    table = Table(to)
    with table.locked():
        table.create(manifest(log, {0: 4, 1: 20}))
    assert [tuple(each) for each in status(log, to=to).partitions] == [(0, 4, 10), (1, 20, 20)]
    assert status(log, to=to).lag == 6
    log.delete_records("t", 0, 5)
    found = status(log, to=to)
    assert found.problem is not None and "4 to 4 were deleted" in found.problem
    shutil.rmtree(to)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"to": 5}, embedlog.InvalidType),
        ({"to": ""}, embedlog.InvalidArgument),
        ({"topic": 5}, embedlog.InvalidType),
        ({"topic": "none"}, embedlog.TopicNotFound),
        ({"topic": None}, embedlog.InvalidArgument),
        ({"schema": 5}, embedlog.InvalidType),
        ({"date_column": b"x"}, embedlog.InvalidType),
        ({"from_time": "2024-05-01"}, embedlog.InvalidType),
        ({"allow_data_loss": 1}, embedlog.InvalidType),
        ({"isolation_level": "none"}, embedlog.InvalidArgument),
    ],
)
def test_bad_arguments(
    log: Log, tmp_path: Path, arguments: dict[str, object], error: type[Exception]
) -> None:
    given = {"to": tmp_path / "table", "topic": "t", **arguments}
    with pytest.raises(error):
        embedlog.spark.load(log, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "table").exists()
