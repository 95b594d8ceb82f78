"""Mirrors from directories to a directory: records, topics and settings, copied once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from encoding import encode_values
from faults import partition_of
from programs import crash
from transactions import Transactions, coordinated

import embedlog
from embedlog import InvalidArgument, InvalidType, Log, Mirror, MirrorStatus, Record, TopicPartition
from embedlog.codec import read_header
from embedlog.mirroring.source import Source, parse_sources
from embedlog.mirroring.target import MirrorPosition, target_of
from embedlog.mirroring.worker import PartitionCopy
from embedlog.storage.producer_state import FIRST_MIRROR_ID

TIMEOUT_S = 60


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The path of the target."""
    return tmp_path / "mirror"


def mirrored(*sources: Any, to: Any, **options: Any) -> MirrorStatus:
    """Run a mirror until it has caught up."""
    with Mirror(sources, to, **options) as mirror:
        return mirror.run(until_caught_up=True)


def contents(log: Log | Path, topic: str = "t", **options: Any) -> list[Record]:
    """Records but for their offsets and their topics' names."""
    if isinstance(log, Path):
        with embedlog.open(log, mode="r") as opened:
            return contents(opened, topic, **options)
    return [record._replace(offset=0, topic="") for record in log.read(topic, **options)]


class Running:
    """A mirror at work in a thread; what it reports can be waited for."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.mirror:
                self.mirror.run()
        except BaseException as error:
            self.error = error

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            assert self.error is None, self.error
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self.mirror.stop()
        self._thread.join()
        assert self.error is None, self.error


@pytest.fixture
def running() -> Iterator[Callable[[Mirror], Running]]:
    started: list[Running] = []

    def start(mirror: Mirror) -> Running:
        started.append(Running(mirror))
        return started[-1]

    yield start
    for each in started:
        each.stop()


# -- what goes over ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_copied_unchanged(log: Log, there: Path, codec: str) -> None:
    log.create_topic("t", partitions=2, compression_type=codec)
    records = [
        Record(key=b"k%d" % i, value=b"v" * i, headers=(("h", b"%d" % i), ("n", None)), timestamp_ms=1000 + i)
        for i in range(50)
    ]
    log.append_many("t", [*records, Record(key=b"k", value=None)])
    status = mirrored(log, to=there)
    assert (status.records, status.behind, status.caught_up) == (51, 0, True)
    assert contents(there) == contents(log)


def test_batches_are_copied_byte_for_byte(log: Log, there: Path) -> None:
    log.create_topic("t")
    log.append_many("t", [b"x" * 100] * 50, compression="zstd")
    mirrored(log, to=there)
    with embedlog.open(there) as copy:
        ours, theirs = (bytes(each.backend.fetch("t", 0, 0, 1 << 20).data) for each in (log, copy))
    assert ours[61:] == theirs[61:]
    assert read_header(theirs).producer_id >= FIRST_MIRROR_ID


def test_topics_are_made_with_partitions_and_settings(log: Log, there: Path) -> None:
    log.create_topic("t", partitions=3, retention_ms=86_400_000, cleanup_policy="compact,delete")
    mirrored(log, to=there)
    with embedlog.open(there) as copy:
        made = copy.describe_topic("t")
    assert (made.partitions, made.settings) == (3, log.describe_topic("t").settings)


def test_a_filter_is_for_whole_names(log: Log, there: Path) -> None:
    for name in ("clicks", "clicks-old", "orders", "views"):
        log.create_topic(name)
    mirrored(log, to=there, topics="clicks|o.*|v.*", exclude="views")
    with embedlog.open(there) as copy:
        assert copy.topics() == ["clicks", "orders"]


def test_committed_transactions_are_copied_as_plain_records(log: Log, there: Path) -> None:
    log.create_topic("t")
    account = Transactions(lambda batch: coordinated(partition_of(log), batch).base_offset)
    chosen = random.Random(7)
    for number in range(300):
        account.step(chosen, number)
    mirrored(log, to=there)
    wanted = [value for _, value in account.expected()]
    assert [record.value for record in contents(there)] == wanted
    for producer in list(account.open):
        account.end(producer, commit=True)
    mirrored(log, to=there)
    assert sorted(record.value or b"" for record in contents(there)) == sorted(account.committed.values())
    with embedlog.open(there) as copy:
        assert [each.offset for each in copy.read("t")] == list(range(len(account.committed)))


def test_compacted_topics_are_copied_without_gaps(log: Log, there: Path) -> None:
    log.create_topic("t", cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0.0)
    for i in range(300):
        log.append_many("t", [(b"k%d" % (i % 7), b"v%d" % i), (b"other%d" % i, b"w")])
    log.compact("t")
    assert len(contents(log)) < 600
    mirrored(log, to=there)
    assert contents(there) == contents(log)
    with embedlog.open(there) as copy:
        assert [each.offset for each in copy.read("t")] == list(range(len(contents(log))))
    log.append("t", b"more", key=b"k0")
    assert mirrored(log, to=there).records == 1


def test_append_times_are_kept(log: Log, there: Path) -> None:
    log.create_topic("t", message_timestamp_type="LogAppendTime")
    log.append_many("t", [Record(value=b"a", timestamp_ms=5), Record(value=b"b", timestamp_ms=6)])
    mirrored(log, to=there)
    assert contents(there) == contents(log)
    assert contents(there)[0].timestamp_type == 1


# -- once, whatever happens --------------------------------------------------------------------------------


def test_it_resumes_at_its_position(log: Log, there: Path) -> None:
    log.create_topic("t", partitions=2)
    for i in range(5):
        log.append_many("t", [b"%d %d" % (i, j) for j in range(10)], partition=i % 2)
        assert mirrored(log, to=there).records == 10
        assert mirrored(log, to=there).records == 0
    assert contents(there) == contents(log)


def test_the_position_is_part_of_the_append(log: Log, there: Path, tmp_path: Path) -> None:
    """After a kill at any time it resumes exactly there."""
    log.create_topic("t")
    for i in range(20):
        log.append_many("t", [b"%d %d" % (i, j) for j in range(5)])
    with embedlog.open(there) as copy:
        copy.create_topic("t")
        append, left = copy.backend.store.partition("t", 0).appender.append_copied, []  # type: ignore[attr-defined]

        def leaving(batches: bytearray) -> Any:
            appended = append(batches)
            left.append(crash(there, tmp_path / f"left-{len(left)}"))
            return appended

        copy.backend.store.partition("t", 0).appender.append_copied = leaving  # type: ignore[attr-defined]
        with Mirror(log, copy) as mirror:
            mirror.run(until_caught_up=True)
    assert left
    for each in left:
        log.append("t", b"more")
        mirrored(log, to=each)
        assert contents(each) == contents(log)


def test_foreign_records_in_the_target_do_no_harm(log: Log, there: Path) -> None:
    log.create_topic("t")
    log.append_many("t", [b"a", b"b"])
    mirrored(log, to=there)
    with embedlog.open(there) as copy:
        copy.append("t", b"mine")
    log.append("t", b"c")
    mirrored(log, to=there)
    assert [record.value for record in contents(there)] == [b"a", b"b", b"mine", b"c"]


def test_the_position_survives_retention(log: Log, there: Path) -> None:
    log.create_topic("t", segment_bytes=1024)
    for i in range(50):
        log.append_many("t", [b"%d" % i * 20])
    mirrored(log, to=there)
    with embedlog.open(there) as copy:
        copy.delete_records("t", 0, copy.offsets("t")[0].log_end_offset)
    log.append("t", b"new")
    assert mirrored(log, to=there).records == 1


def test_the_position_survives_compaction(log: Log, there: Path) -> None:
    """Also where the log is all that is left of it."""
    log.create_topic("t", segment_bytes=1024)
    for i in range(50):
        log.append_many("t", [(b"k", b"%d" % i * 20)])
    mirrored(log, to=there)
    with embedlog.open(there) as copy:
        copy.append_many("t", [(b"k", b"mine")] * 40)
        copy.alter_topic("t", cleanup_policy="compact")
        copy.compact("t")  # or the copy's own thread, which alter_topic has woken
        assert len(list(copy.read("t"))) < 50
    for snapshot in there.glob("*/*.snapshot"):
        snapshot.write_bytes(b"damaged")
    log.append("t", b"new", key=b"k")
    assert mirrored(log, to=there).records == 1


def test_offsets_beyond_the_range_of_a_sequence(log: Log, there: Path) -> None:
    """Sequence numbers have 31 bits; the producer epoch has those above."""
    log.create_topic("t")
    store = log.backend.store  # type: ignore[attr-defined]
    store.mark_gaps("t")
    at = (1 << 31) * 3 - 5
    for base in (at, at + 3, at + 8, at + 11):  # the second spans the border
        count = 5 if base == at + 3 else 3
        store.partition("t", 0).append_as_is(
            encode_values([b"%d" % (base + i) for i in range(count)], 1_000, base_offset=base)
        )
        assert mirrored(log, to=there).records == count
        assert mirrored(log, to=there).records == 0
    assert contents(there) == contents(log)


def test_the_position_is_found_under_another_address(
    log: Log, path: Path, there: Path, tmp_path: Path
) -> None:
    log.create_topic("t")
    log.append("t", b"a")
    mirrored(path, to=there)
    log.append("t", b"b")
    log.close()
    moved = path.rename(tmp_path / "moved")
    assert mirrored(moved, to=there).records == 1


# -- several sources ---------------------------------------------------------------------------------------


def test_several_sources_become_one_topic_each_in_its_order(log: Log, there: Path, tmp_path: Path) -> None:
    log.create_topic("t", partitions=2)
    with embedlog.open(tmp_path / "second") as second:
        second.create_topic("t", partitions=3)
        for i in range(30):
            log.append("t", b"a %d" % i, partition=i % 2)
            second.append("t", b"b %d" % i, partition=i % 3)
            if i % 10 == 0:
                mirrored(log, second, to=there)
        mirrored(log, second, to=there)
        with embedlog.open(there) as copy:
            assert copy.describe_topic("t").partitions == 3
            for partition in range(3):
                found = [record.value or b"" for record in copy.read("t", partition)]
                for source, name in ((log, b"a"), (second, b"b")):
                    if partition < source.describe_topic("t").partitions:
                        wanted = [record.value for record in source.read("t", partition)]
                        assert [value for value in found if value.startswith(name)] == wanted


def test_a_source_with_a_name_has_topics_of_its_own(log: Log, path: Path, there: Path) -> None:
    log.create_topic("t")
    log.append("t", b"a")
    mirrored(f"east={path}", f"west={path}", to=there)
    with embedlog.open(there) as copy:
        assert copy.topics() == ["east.t", "west.t"]
    assert contents(there, "east.t") == contents(there, "west.t") == contents(log)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("./data", [("", "./data")]),
        ("kafka://a:1,b:2", [("", "kafka://a:1,b:2")]),
        ("kafka://a:1,kafka://b:2", [("", "kafka://a:1"), ("", "kafka://b:2")]),
        ("kafka://a,c,east=kafka://b", [("", "kafka://a,c"), ("east", "kafka://b")]),
        (["east=./x", "./y=z"], [("east", "./x"), ("", "./y=z")]),
    ],
)
def test_spellings_of_sources(given: Any, found: list[tuple[str, str]]) -> None:
    assert parse_sources(given) == found


# -- a source that changes ---------------------------------------------------------------------------------


def test_it_follows_new_topics_and_partitions(
    log: Log, there: Path, running: Callable[[Mirror], Running]
) -> None:
    log.create_topic("t")
    with embedlog.open(there) as copy:
        mirror = running(Mirror(log, copy, refresh_ms=20))
        log.append("t", b"0")
        mirror.until(lambda: "t" in copy.topics() and len(contents(copy)) == 1)
        log.create_partitions("t", 3)
        log.append("t", b"2", partition=2)
        mirror.until(lambda: len(contents(copy)) == 2)
        log.create_topic("u")
        log.append("u", b"u")
        mirror.until(lambda: "u" in copy.topics() and len(contents(copy, "u")) == 1)
        mirror.stop()
        assert contents(copy) == contents(log)


def test_a_recreated_topic_is_appended_to_its_copy(
    log: Log, there: Path, running: Callable[[Mirror], Running]
) -> None:
    log.create_topic("t")
    log.append_many("t", [b"old %d" % i for i in range(5)])
    with embedlog.open(there) as copy:
        mirror = running(Mirror(log, copy, refresh_ms=20))
        mirror.until(lambda: "t" in copy.topics() and len(contents(copy)) == 5)
        log.delete_topic("t")
        log.create_topic("t")
        log.append_many("t", [b"new %d" % i for i in range(10)])
        mirror.until(lambda: len(contents(copy)) == 15)
        mirror.stop()
        wanted = [b"old %d" % i for i in range(5)] + [b"new %d" % i for i in range(10)]
        assert [record.value for record in contents(copy)] == wanted


@pytest.mark.parametrize("deleted", [0, 3])
def test_a_topic_made_again_between_fetch_and_append(log: Log, there: Path, deleted: int) -> None:
    """No record of the new topic is taken for one of the old."""
    log.create_topic("t")
    log.append_many("t", [b"old %d" % i for i in range(5)])
    with embedlog.open(there) as mirror:
        mirror.create_topic("t")
        appender = mirror.backend.store.partition("t", 0).appender  # type: ignore[attr-defined]
        append_copied = appender.append_copied

        def made_again_before(batches: bytearray) -> Any:
            log.delete_topic("t")
            log.create_topic("t")
            log.append_many("t", [b"new %d" % i for i in range(10)])
            return append_copied(batches)

        topic, target = log.describe_topic("t"), target_of(mirror, "mirror")
        copy = PartitionCopy(Source(log), topic, 0, target, MirrorPosition(0), goal=5)
        if deleted:
            log.delete_records("t", 0, deleted)
            assert copy.step()  # goes on at the log start
        appender.append_copied = made_again_before
        assert copy.step()
        appender.append_copied = append_copied
        assert not copy.step() and copy.gone
        old = [b"old %d" % i for i in range(deleted, 5)]
        assert [record.value for record in contents(mirror)] == old
        mirrored(log, to=mirror)
        assert [record.value for record in contents(mirror)] == old + [b"new %d" % i for i in range(10)]


def test_a_deleted_topic_stays_in_the_mirror(log: Log, there: Path) -> None:
    log.create_topic("t")
    log.append("t", b"a")
    mirrored(log, to=there)
    log.delete_topic("t")
    assert mirrored(log, to=there).topics == ()
    assert [record.value for record in contents(there)] == [b"a"]


def test_a_topic_deleted_in_the_target_is_copied_again(
    log: Log, there: Path, running: Callable[[Mirror], Running]
) -> None:
    log.create_topic("t")
    log.append("t", b"a")
    with embedlog.open(there) as copy:
        mirror = running(Mirror(log, copy, refresh_ms=20))
        mirror.until(lambda: "t" in copy.topics() and len(contents(copy)) == 1)
        copy.delete_topic("t")
        log.append("t", b"b")
        mirror.until(lambda: "t" in copy.topics() and len(contents(copy)) == 2)


def test_resuming_a_topic_copies_nothing_twice(
    log: Log, there: Path, running: Callable[[Mirror], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition is to be let go of while another one is being appended to."""
    log.create_topic("t", partitions=2)
    log.append("t", b"1", partition=1)
    appending, go_on = threading.Event(), threading.Event()
    with embedlog.open(there) as copy:
        copy.create_topic("t", partitions=2)
        partition = copy.backend.store.partition("t", 1)  # type: ignore[attr-defined]
        append = partition.appender.append_copied

        def held(batches: bytearray) -> Any:
            appending.set()
            assert go_on.wait(TIMEOUT_S)
            return append(batches)

        monkeypatch.setattr(partition.appender, "append_copied", held)
        mirror = running(Mirror(log, copy, refresh_ms=1))
        assert appending.wait(TIMEOUT_S)
        (topic,) = mirror.mirror._topics.values()
        topic.copies[0].gone = True
        mirror.until(lambda: all(copy.gone for copy in topic.copies))
        go_on.set()
        mirror.until(lambda: topic not in mirror.mirror._topics.values() and bool(mirror.mirror._topics))
        log.append("t", b"2", partition=1)
        mirror.until(lambda: contents(copy)[-1:] == contents(log)[-1:])
        mirror.stop()
        assert contents(copy) == contents(log)


def test_records_lost_to_retention_are_reported(
    log: Log, there: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t")
    log.append_many("t", [b"%d" % i for i in range(5)])
    mirrored(log, to=there)
    log.append_many("t", [b"%d" % i for i in range(5, 10)])
    log.delete_records("t", 0, 8)
    mirrored(log, to=there)
    assert [record.value for record in contents(there)] == [b"%d" % i for i in (0, 1, 2, 3, 4, 8, 9)]
    assert "offsets 5 to 7 were deleted there before they were mirrored" in caplog.text


def test_a_position_within_a_batch(log: Log, there: Path) -> None:
    log.create_topic("t")
    log.append_many("t", [b"%d" % i for i in range(10)], compression="zstd")
    log.delete_records("t", 0, 4)
    assert mirrored(log, to=there).records == 6
    assert mirrored(log, to=there).records == 0
    assert contents(there) == contents(log)


@pytest.mark.parametrize("more", [0, 1, 2, 7])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_source_that_lost_its_tail(
    log: Log, there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, batch: int, more: int
) -> None:
    """And has fewer, as many or more others in its place; whether the mirror looked in between or not."""
    log.create_topic("t", segment_bytes=1024)
    kept, lost = [b"kept %d" % i * 40 for i in range(8)], [b"lost %d" % i * 40 for i in range(4)]
    log.append_many("t", kept)
    log.backup(tmp_path / "before")
    for at in range(0, 4, batch):
        log.append_many("t", lost[at : at + batch])
    mirrored(log, to=there)
    with embedlog.open(tmp_path / "before") as restored:  # the same topic, by its id
        if more == 1:
            mirrored(restored, to=there)
        new = [b"new %d" % i for i in range(more)]
        restored.append_many("t", new)
        mirrored(restored, to=there)
        assert mirrored(restored, to=there).records == 0
    assert [record.value for record in contents(there)] == kept + lost + new
    assert "offsets 8 to 11, which were mirrored, have been lost or replaced" in caplog.text


def test_start_latest_skips_only_existing_records(log: Log, there: Path) -> None:
    log.create_topic("t")
    log.append("t", b"before")
    assert mirrored(log, to=there, start="latest").records == 0
    log.append("t", b"after")


# -- arguments ---------------------------------------------------------------------------------------------


def test_a_log_is_not_copied_into_itself(log: Log, path: Path) -> None:
    for source in (path, f"named={path}"):
        with pytest.raises(InvalidArgument, match="copied into itself"):
            Mirror(source, log)


def test_a_log_is_not_copied_twice(log: Log, path: Path, there: Path) -> None:
    with pytest.raises(InvalidArgument, match="name it once"):
        Mirror([log, path], there)


def test_wrong_arguments(log: Log, there: Path) -> None:
    for wrong, error in (
        ({"topics": "("}, InvalidArgument),
        ({"exclude": b"x"}, InvalidType),
        ({"start": "middle"}, InvalidArgument),
        ({"refresh_ms": 0}, InvalidArgument),
        ({"group": ""}, InvalidArgument),
    ):
        with pytest.raises((error, embedlog.InvalidGroup)):
            Mirror(log, there, **wrong)  # type: ignore[arg-type]
    for sources in (None, 5, [], [b"x"]):
        with pytest.raises((InvalidArgument, InvalidType)):
            Mirror(sources, there)  # type: ignore[arg-type]
    with embedlog.open(log.path, mode="r") as reader, pytest.raises(InvalidArgument, match="writer"):
        Mirror(log, reader)
    with Mirror(log, there) as mirror:
        mirror.run(until_caught_up=True)
        with pytest.raises(embedlog.Closed):
            mirror.run()


def test_producers_never_get_the_id_of_a_mirror(log: Log, there: Path) -> None:
    log.create_topic("t")
    log.append("t", b"a")
    mirrored(log, to=there)
    with embedlog.open(there) as copy:
        store = copy.backend.store  # type: ignore[attr-defined]
        assert store.partition("t", 0).log.largest_producer_id == -1
        assert all(
            number >= FIRST_MIRROR_ID
            for number in store.partition(*TopicPartition("t", 0)).log.known_producers()
        )
