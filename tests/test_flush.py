"""When records become durable: flush policies, group commit, the recovery point, and a failed fsync."""

from __future__ import annotations

import errno
import signal
import threading
import time
from pathlib import Path

import pytest
from faults import (
    FOREVER,
    BlockingSync,
    Clock,
    FaultyFileSystem,
    crash,
    open_log,
    partition_of,
    store_of,
    values,
)
from housekeeping import housekeep

from embedlog.errors import FlushFailed, PartitionFailed
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import RECOVERY_POINT_FILE
from embedlog.model import PartitionState, TopicPartition
from embedlog.storage.checkpoints import read_offsets
from embedlog.storage.group_commit import Waiter

pytestmark = pytest.mark.plain

NAME = TopicPartition("t", 0)
SEGMENT = "00000000000.kafka"


def recovery_point(path: Path) -> int | None:
    return read_offsets(FileSystem(), str(path / RECOVERY_POINT_FILE)).get(NAME)


# -- policies ------------------------------------------------------------------------------------------


def test_flush_messages_1_syncs_each_append_before_it_returns(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs, flush_messages=1) as log:
        log.create_topic("t")
        for number in range(5):
            fs.forget()
            metadata = log.append("t", b"x")
            assert metadata.durable
            assert [c.operation for c in fs.calls if c.path.endswith(".kafka")] == ["write", "sync"]
            assert log.offsets("t")[0].flushed_offset == number + 1


def test_the_append_that_completes_m_waits_for_the_flush(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs, flush_messages=3) as log:
        log.create_topic("t")
        assert [log.append("t", b"x").durable for _ in range(7)] == [False, False, True] * 2 + [False]
        assert fs.count("sync", SEGMENT) == 2
        assert log.append_many("t", [b"x"] * 10)[0].durable


def test_flush_ms_is_enforced_in_the_background(tmp_path: Path) -> None:
    fs, clock = FaultyFileSystem(tmp_path), Clock()
    with open_log(tmp_path, fs, clock=clock, flush_ms=500) as log:
        log.create_topic("t")
        log.append("t", b"x")
        flush_cycle = store_of(log).flusher.run_cycle
        clock.now_ms += 499
        assert flush_cycle() == 1, "it is due in one millisecond"
        assert fs.count("sync", SEGMENT) == 0
        clock.now_ms += 1
        assert flush_cycle() is None
        assert fs.count("sync", SEGMENT) == 1
        assert log.offsets("t")[0].flushed_offset == 1
        clock.now_ms += 10_000
        flush_cycle()
        assert fs.count("sync", SEGMENT) == 1, "nothing new, nothing to flush"


def test_flush_true_syncs_after_its_write(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        assert not log.append("t", b"x").durable
        assert log.append("t", b"x", flush=True).durable
        assert [c.operation for c in fs.calls if c.path.endswith(SEGMENT)][-3:] == ["write", "write", "sync"]
        log.flush()
        assert fs.count("sync", SEGMENT) == 1


# -- group commit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("always", [False, True], ids=["flush=True", "flush_messages=1"])
def test_waiters_share_fsyncs(tmp_path: Path, always: bool) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs, **({"flush_messages": 1} if always else {})) as log:
        log.create_topic("t")
        fs.blocking = True
        durable = []

        def append() -> None:
            durable.append(log.append("t", b"x", flush=not always).durable)

        threads = [threading.Thread(target=append) for _ in range(8)]
        threads[0].start()
        fs.entered.acquire()
        for thread in threads[1:]:
            thread.start()
        while len(partition_of(log).appender.group_commit._waiting) < 7:
            threading.Event().wait(0.001)
        fs.go.release()  # the first one's
        fs.entered.acquire()  # one for all the others
        fs.go.release()
        for thread in threads:
            thread.join()
        fs.blocking = False
        assert durable == [True] * 8
        assert fs.syncs == 2
        rounds = [call.operation for call in fs.calls if call.path.endswith(SEGMENT)]
        assert rounds[-4:] == ["write", "sync", "write", "sync"], "one write for the seven, too"


def test_an_interrupted_waiter_does_not_block_later_ones(tmp_path: Path) -> None:
    """Ctrl-C while a thread waits for another one's fsync: a thread that left must not become the leader."""
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        fs.blocking = True
        leader = threading.Thread(target=lambda: log.append("t", b"leads", flush=True))
        leader.start()
        fs.entered.acquire()

        def interrupt() -> None:
            group_commit = partition_of(log).appender.group_commit
            while not group_commit._waiting:
                time.sleep(0.001)
            while group_commit._waiting:  # a signal just before the main thread sleeps does not wake it
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(1)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            log.append("t", b"waits", flush=True)
        fs.go.release()
        leader.join()
        fs.blocking = False
        late = threading.Thread(target=lambda: log.append("t", b"late", flush=True), daemon=True)
        late.start()
        late.join(20)
        assert not late.is_alive(), "nobody leads the next flush"
        assert values(log) == [(0, b"leads"), (1, b"late")], "what was still to be appended is not"


# -- the recovery point --------------------------------------------------------------------------------


def test_recovery_point_is_written_after_a_flush_cycle_and_a_roll_and_never_per_append(
    tmp_path: Path,
) -> None:
    fs, clock = FaultyFileSystem(tmp_path), Clock()
    with open_log(tmp_path, fs, clock=clock, segment_bytes=1024) as log:
        log.create_topic("t")
        log.append("t", b"x" * 300)
        housekeep(store_of(log))
        assert recovery_point(tmp_path) == 1
        fs.forget()
        log.append("t", b"x" * 300, flush=True)
        log.append("t", b"x" * 300, flush=True)
        assert fs.count("rename", RECOVERY_POINT_FILE) == 0, "an append writes no checkpoint"
        assert recovery_point(tmp_path) == 1
        log.append("t", b"x" * 900)  # rolls
        store_of(log).flusher.run_cycle()
        assert recovery_point(tmp_path) == 3, "the roll's; what came behind is not due yet"
        assert fs.count("rename", RECOVERY_POINT_FILE) == 1
        log.create_topic("u", partitions=3)
        for partition in range(3):
            log.append("u", b"x", partition=partition)
        fs.forget()
        housekeep(store_of(log))
        assert fs.count("rename", RECOVERY_POINT_FILE) == 1, "one for the whole directory"


def test_recovery_point_is_never_ahead_of_the_data(tmp_path: Path) -> None:
    """Whatever fails: each checkpoint that is written names only what had been synced before."""

    class Watching(FaultyFileSystem):
        synced = 0
        worst = 0

        def rename(self, source: str, destination: str) -> None:
            if destination.endswith(RECOVERY_POINT_FILE):
                at = read_offsets(FileSystem(), source).get(NAME, 0)
                self.worst = max(self.worst, at - self.synced)
            super().rename(source, destination)

        def sync(self, fd: int) -> None:
            super().sync(fd)
            if self._paths[fd].endswith(".kafka"):
                Watching.synced = log.offsets("t")[0].log_end_offset

    fs = Watching(tmp_path)
    log = open_log(tmp_path, fs, segment_bytes=1024)
    log.create_topic("t")
    for number in range(20):
        log.append("t", b"x" * 100, flush=number % 3 == 0)
        housekeep(store_of(log))
    fs.fail("sync", path=".kafka")
    with pytest.raises(FlushFailed):
        log.append("t", b"lost?", flush=True)
    housekeep(store_of(log))
    log.close()
    assert fs.worst == 0


# -- a failed fsync ------------------------------------------------------------------------------------


def test_failed_fsync_fails_all_waiters_and_is_never_retried(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    log.append("t", b"durable", flush=True)
    fs.blocking = True
    outcomes: list[object] = []

    def append() -> None:
        try:
            outcomes.append(log.append("t", b"x", flush=True))
        except (FlushFailed, PartitionFailed) as error:
            outcomes.append(error)

    def flush() -> None:
        try:
            outcomes.append(log.flush())
        except FlushFailed as error:
            outcomes.append(error)

    log.append("t", b"not durable")
    threads = [threading.Thread(target=work) for work in (append, flush, flush, append, append)]
    threads[0].start()
    fs.entered.acquire()
    for thread in threads[1:]:
        thread.start()
    while len(partition_of(log).appender.group_commit._waiting) < 4:
        threading.Event().wait(0.001)
    fs.fail("sync", path=".kafka", times=FOREVER)
    fs.go.release()
    for thread in threads:
        thread.join()
    kinds = sorted(type(outcome).__name__ for outcome in outcomes)
    assert kinds == ["FlushFailed"] * 3 + ["PartitionFailed"] * 2, "whose append had to wait was not appended"
    failures = {str(outcome) for outcome in outcomes if isinstance(outcome, FlushFailed)}
    assert len(failures) == 1, "all of the one fsync, whatever happens to the partition after it"
    assert fs.syncs == 1, "a failed fsync is not tried again"
    for _ in range(2):
        with pytest.raises(PartitionFailed, match="reopen"):
            log.append("t", b"refused")
        with pytest.raises(FlushFailed):
            log.flush()
    housekeep(store_of(log))
    log.close()
    assert fs.syncs == 1
    assert recovery_point(tmp_path) == 1


def test_after_a_failed_fsync_readers_stop_at_the_flushed_offset(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append("t", b"durable", flush=True)
        log.append("t", b"volatile")
        consumer = log.consumer()
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        assert [r.value for r in consumer.poll(60_000)] == [b"durable", b"volatile"]
        fs.fail("sync", path=".kafka")
        with pytest.raises(FlushFailed, match=r"reopen\('t', 0\)"):
            log.flush()
        assert log.offsets("t")[0] == (0, 1, 1)
        assert values(log) == [(0, b"durable")]
        assert consumer.poll(0) == []
        assert consumer.position(TopicPartition("t", 0)) == 2, "it waits where it is"
        assert log.health().status == "degraded"
        report = log.reopen("t", 0)
        assert report is not None and report.log_end_offset == 2
        assert values(log) == [(0, b"durable"), (1, b"volatile")]
        assert consumer.poll(0) == []
        assert log.append("t", b"goes on", flush=True).offset == 2
        assert [r.value for r in consumer.poll(60_000)] == [b"goes on"]
        assert log.health().status == "ok"


def test_an_append_waiting_for_flush_gets_no_ack_when_the_roll_of_another_fails(tmp_path: Path) -> None:
    """The roll's fsync fails: all that waited for those records must hear of it."""
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs, segment_bytes=1024)
    log.create_topic("t")
    partition = partition_of(log)
    log.append("t", b"x" * 900)
    fs.fail("sync", path=".kafka")
    with pytest.raises(FlushFailed):
        log.append("t", b"x" * 900)
    assert partition.state is PartitionState.FAILED
    with pytest.raises(FlushFailed):
        partition.flush(1)
    with pytest.raises(FlushFailed):
        log.flush()
    housekeep(store_of(log))
    assert recovery_point(tmp_path) in (None, 0)
    log.close()
    with open_log(tmp_path) as again:
        assert [offset for offset, _ in values(again)] == [0]
        assert again.recovery.damage == []


def test_eio_and_enospc_of_fsync_are_both_final(tmp_path: Path) -> None:
    for number in (errno.EIO, errno.ENOSPC):
        fs = FaultyFileSystem(tmp_path / str(number))
        with open_log(tmp_path / str(number), fs) as log:
            log.create_topic("t")
            fs.fail("sync", number, path=".kafka")
            with pytest.raises(FlushFailed):
                log.append("t", b"x", flush=True)
            with pytest.raises(PartitionFailed):
                log.append("t", b"x")
            log.reopen("t", 0)
            assert log.append("t", b"x", flush=True).durable


def test_a_failed_partition_is_checked_at_the_next_open(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t", partitions=2)
    log.append("t", b"a", partition=0, flush=True)
    log.append("t", b"b", partition=0)
    log.append("t", b"c", partition=1)
    fs.fail("sync", path="t_0")
    with pytest.raises(FlushFailed):
        log.flush()
    log.close()
    with open_log(tmp_path) as again:
        assert [(r.partition, r.log_end_offset) for r in again.recovery.partitions] == [(0, 2)]
        assert again.recovery.partitions[0].bytes_rewritten > 0
        assert values(again) == [(0, b"a"), (1, b"b")]


def test_parking_and_closing_flush_first(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    log.append("t", b"x")
    assert partition_of(log).park()
    assert [c.operation for c in fs.calls if c.path.endswith(SEGMENT)][-2:] == ["write", "sync"]
    assert log.append("t", b"y").offset == 1, "the descriptor comes back"
    log.close()
    assert fs.calls[-1].operation == "sync_dir"
    assert [c.operation for c in fs.calls if c.path.endswith(SEGMENT)][-2:] == ["write", "sync"]
    with open_log(tmp_path) as again:
        assert again.recovery.clean
        crash(again)


def test_an_interrupted_leader_leaves_no_waiter(tmp_path: Path) -> None:
    """Interrupted between taking the lead and syncing: the next flush, of any thread, goes on."""
    log = open_log(tmp_path)
    log.create_topic("t")
    commit = partition_of(log).appender.group_commit
    lead, commit._lead = commit._lead, _interrupted
    log.append("t", b"1")
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    commit._lead = lead
    flusher = threading.Thread(target=log.flush)
    flusher.start()
    flusher.join()
    assert log.offsets("t")[0].flushed_offset == 1
    log.close()


def test_waiters_survive_a_second_ctrl_c(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    commit = partition_of(log).appender.group_commit
    lead, leave = commit._lead, commit._leave
    commit._lead = commit._leave = _interrupted
    log.append("t", b"1")
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    commit._lead, commit._leave = lead, leave
    flusher = threading.Thread(target=log.flush, daemon=True)
    flusher.start()
    while not commit._waiting:
        threading.Event().wait(0.001)
    log.append("t", b"2", flush=True)
    flusher.join(60)
    assert not flusher.is_alive()
    log.close()


def _interrupted(waiter: Waiter) -> None:
    raise KeyboardInterrupt
