"""Group commit: durable appends that arrive during a sync are written and synced together."""

from __future__ import annotations

import contextlib
import errno
import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from ctrl_c import interrupt as interrupt_at
from ctrl_c import strike
from faults import (
    BlockingSync,
    Clock,
    FaultyFileSystem,
    PowerCutFileSystem,
    UnsyncedFileSystem,
    open_log,
    partition_of,
    values,
)

import embedlog
from embedlog.codec import encode_batch, encode_one
from embedlog.log import Log
from embedlog.model import Appended, RecordMetadata
from embedlog.runtime.wakeups import Wakeup
from embedlog.storage.group_commit import GroupCommit, Waiter, append_all

SEGMENT = "t_0/00000000000.kafka"


def gathered(log: Log, count: int) -> None:
    """Return when so many wait for the leader."""
    while len(partition_of(log).appender.group_commit._waiting) < count:
        threading.Event().wait(0.001)


class Crowd:
    """Threads, each doing one thing; what came of it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.outcomes: dict[str, object] = {}

    def start(self, name: str, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                self.outcomes[name] = work()
            except embedlog.EmbedlogError as error:
                self.outcomes[name] = error

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self) -> dict[str, object]:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), f"somebody waits for ever; done: {self.outcomes}"
        return self.outcomes


def test_each_append_gets_its_own_outcome(tmp_path: Path) -> None:
    """One round with a wrong expectation, a write without room, a flush, and appends that nothing ails."""
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        fs.blocking = True
        crowd = Crowd()
        crowd.start("leads", lambda: log.append("t", b"leads", flush=True))
        fs.entered.acquire()
        fs.fail("write", errno.ENOSPC, path=SEGMENT, skip=1)
        waits: list[tuple[str, Callable[[], object]]] = [
            ("first", lambda: log.append("t", b"first", flush=True)),
            ("no room", lambda: log.append("t", b"no room", flush=True)),
            ("wrong", lambda: log.append("t", b"wrong", expected_offset=7, flush=True)),
            ("right", lambda: log.append("t", b"right", expected_offset=2, flush=True)),
            ("many", lambda: log.append_many("t", [b"many 1", b"many 2"], flush=True)),
            ("flush", log.flush),
        ]
        for number, (name, work) in enumerate(waits, 1):
            crowd.start(name, work)
            gathered(log, number)
        fs.blocking = False
        fs.go.release()
        outcomes = crowd.join()
        assert isinstance(outcomes["no room"], embedlog.DiskFull)
        assert isinstance(outcomes["wrong"], embedlog.UnexpectedOffset)
        assert outcomes["flush"] is None
        appended = [outcomes[name] for name in ("leads", "first", "right")]
        assert [(m.offset, m.durable) for m in appended] == [(0, True), (1, True), (2, True)]  # type: ignore[attr-defined]
        assert [(m.offset, m.durable) for m in outcomes["many"]] == [(3, True), (4, True)]  # type: ignore[attr-defined]
        assert [value for _, value in values(log)] == [b"leads", b"first", b"right", b"many 1", b"many 2"]
        assert fs.count("sync", SEGMENT) == 2, "the one that was stopped, and one for all the others"


def test_refused_appends_sync_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append("t", b"x")
        with pytest.raises(embedlog.UnexpectedOffset):
            log.append("t", b"y", expected_offset=0, flush=True)
        assert fs.count("sync", SEGMENT) == 0


def test_durable_records_wait_for_no_sync(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append("t", b"durable", flush=True)
        fs.blocking = True
        crowd, waiting = Crowd(), Crowd()
        waiting.start("leads", lambda: log.append("t", b"leads", flush=True))
        fs.entered.acquire()
        crowd.start("flush", lambda: partition_of(log).flush(1))
        crowd.join()
        fs.blocking = False
        fs.go.release()
        waiting.join()


def test_a_durable_append_wakes_waiting_readers(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("t")
        ends = []
        partition_of(log).log.add_listener(lambda: ends.append(log.offsets("t")[0].log_end_offset))
        log.append("t", b"x", flush=True)
        assert ends == [1]


def test_a_refused_append_keeps_its_error_if_the_sync_fails(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        fs.blocking = True
        crowd = Crowd()
        crowd.start("first", lambda: log.append("t", b"x", flush=True))
        fs.entered.acquire()
        for number, expected in enumerate((7, None, 7), 1):  # the leader of the round, and two others
            crowd.start(
                str(number), lambda at=expected: log.append("t", b"x", flush=True, expected_offset=at)
            )
            gathered(log, number)
        fs.blocking = False
        fs.fail("sync", path=SEGMENT, skip=1)
        fs.go.release()
        outcomes = crowd.join()
        kinds = [type(outcomes[str(number)]).__name__ for number in (1, 2, 3)]
        assert kinds == ["UnexpectedOffset", "FlushFailed", "UnexpectedOffset"]


class Round:
    """Appends that arrive during the first one's sync: one group, led by one of them."""

    def __init__(self, log: Log, fs: BlockingSync) -> None:
        self._log, self._fs = log, fs
        self._crowd = Crowd()
        fs.blocking = True
        self._crowd.start("leads", lambda: log.append("t", b"leads", flush=True))
        fs.entered.acquire()

    def bring(self, name: str, work: Callable[[], object]) -> None:
        self._crowd.start(name, work)
        gathered(self._log, len(self._crowd.threads) - 1)

    def run(self) -> dict[str, object]:
        self._fs.blocking = False
        self._fs.calls.clear()
        self._fs.go.release()
        return self._crowd.join()


def test_a_group_is_written_at_once_and_each_gets_its_share(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs, clock=Clock(), message_timestamp_type="LogAppendTime") as log:
        log.create_topic("t")
        together = Round(log, fs)
        together.bring("one", lambda: log.append("t", b"one", flush=True))
        many = [b"%d" % number * 5_000 for number in range(9)]
        together.bring("many", lambda: log.append_many("t", many, flush=True))
        together.bring("headers", lambda: log.append("t", b"h", key=b"k", headers={"a": b"b"}, flush=True))
        together.bring("zstd", lambda: log.append_many("t", [b"z"] * 3, compression="zstd", flush=True))
        outcomes = together.run()
        assert [call.operation for call in fs.calls if call.path == SEGMENT] == ["sync", "write", "sync"]
        told: list[RecordMetadata] = []
        for outcome in (outcomes[name] for name in ("leads", "one", "many", "headers", "zstd")):
            told += [outcome] if isinstance(outcome, RecordMetadata) else outcome  # type: ignore[arg-type, operator]
        found = list(log.read("t"))
        assert [record.value for record in found] == [b"leads", b"one", *many, b"h", *[b"z"] * 3]
        assert [(m.offset, m.timestamp_ms, m.durable) for m in told] == [
            (record.offset, record.timestamp_ms, True) for record in found
        ]


def test_without_room_for_all_those_that_fit_are_appended(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        together = Round(log, fs)
        for name in ("first", "second", "third"):
            together.bring(name, lambda name=name: log.append("t", name.encode(), flush=True))  # type: ignore[misc]
        fs.fail("write", errno.ENOSPC, path=SEGMENT)
        fs.fail("write", errno.ENOSPC, path=SEGMENT, skip=1)
        outcomes = together.run()
        assert isinstance(outcomes["second"], embedlog.DiskFull)
        assert [value for _, value in values(log)] == [b"leads", b"first", b"third"]
        assert [outcomes[name].offset for name in ("first", "third")] == [1, 2]  # type: ignore[attr-defined]


def test_a_duplicate_batch_gets_its_offset_among_new_ones(tmp_path: Path) -> None:
    """Batches with sequence numbers are appended singly: each may be a duplicate."""
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        partition = partition_of(log)

        def send() -> Appended:
            batch = encode_batch([(None, b"once", (), 5)], producer_id=1, producer_epoch=0, base_sequence=0)
            return partition.append(batch, flush=True)

        together = Round(log, fs)
        together.bring("new", lambda: log.append("t", b"new", flush=True))
        together.bring("sent", send)
        together.bring("sent again", send)
        outcomes = together.run()
        assert outcomes["sent"] == outcomes["sent again"] == Appended(2, 2, 5, True)
        assert [value for _, value in values(log)] == [b"leads", b"new", b"once"]


def test_a_failed_sync_fails_the_whole_group(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        together = Round(log, fs)
        for name in ("first", "second", "third"):
            together.bring(name, lambda: log.append("t", b"x", flush=True))
        fs.fail("sync", path=SEGMENT, skip=1)
        outcomes = together.run()
        kinds = {type(outcomes.pop(name)).__name__ for name in ("first", "second", "third")}
        assert kinds == {"FlushFailed"}
        assert [type(outcome).__name__ for outcome in outcomes.values()] == ["RecordMetadata"]
        assert fs.count("sync", SEGMENT) == 2, "a failed fsync is not tried again"
        assert [offset for offset, _ in values(log)] == [0]


def test_a_failure_of_the_whole_group_is_tried_once(tmp_path: Path) -> None:
    """A bug or a lack of memory within a group commit: it is unknown what was appended."""
    appends: list[bytes] = []

    def append(batches: bytearray, expected_offset: int | None) -> tuple[Appended, bool]:
        appends.append(bytes(batches))
        raise MemoryError

    waiters = [Waiter(-1, encode_one(None, b"x", 5, 0, 0, 0)) for _ in range(3)]
    assert append_all(waiters, append) == 3
    assert len(appends) == 1
    assert all(isinstance(waiter.error, MemoryError) for waiter in waiters)


def test_a_roll_with_a_failed_fsync_appends_nothing_of_the_group(tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs, segment_bytes=1024) as log:
        log.create_topic("t")
        fs.blocking = True
        crowd = Crowd()
        crowd.start("leads", lambda: log.append("t", b"x" * 300, flush=True))
        fs.entered.acquire()
        for number, name in enumerate(("fits", "rolls", "late"), 1):
            crowd.start(name, lambda: log.append("t", b"x" * 500, flush=True))
            gathered(log, number)
        fs.blocking = False
        fs.fail("sync", path=SEGMENT, skip=1)  # that of the roll
        fs.go.release()
        outcomes = crowd.join()
        kinds = [type(outcomes[name]).__name__ for name in ("leads", "fits", "rolls", "late")]
        assert kinds == ["RecordMetadata", *["PartitionFailed"] * 3], "nothing of theirs was appended"
        assert fs.count("sync", SEGMENT) == 2, "a failed fsync is not tried again"
        assert [offset for offset, _ in values(log)] == [0]


def test_records_acknowledged_to_a_group_survive_a_power_cut(tmp_path: Path) -> None:
    fs = PowerCutFileSystem(tmp_path)
    with open_log(tmp_path, fs, segment_bytes=20_000) as log:
        log.create_topic("t")
        lost: list[bytes] = []

        def append(name: int) -> None:
            for number in range(15):
                value = b"%d-%d" % (name, number) * 20
                log.append("t", value, flush=True)
                if not any(value in data for data in fs.image().files.values()):
                    lost.append(value)

        threads = [threading.Thread(target=append, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        append(8)  # the main thread leads for itself alone
        for thread in threads:
            thread.join()
        assert lost == []
        found = values(log)
        assert [offset for offset, _ in found] == list(range(9 * 15))
        assert len({value for _, value in found}) == 9 * 15
        for name in range(9):
            own = [value for _, value in found if value and value.startswith(b"%d-" % name)]
            assert own == [b"%d-%d" % (name, number) * 20 for number in range(15)], "a thread's own order"


def test_another_thread_leads_for_the_main_thread(tmp_path: Path) -> None:
    """The main thread would lead for itself alone: one sync more."""
    fs = BlockingSync(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        fs.blocking = True
        crowd = Crowd()
        crowd.start("first", lambda: log.append("t", b"first", flush=True))
        fs.entered.acquire()

        def let_go() -> None:
            gathered(log, 1)
            crowd.start("another", lambda: log.append("t", b"another", flush=True))
            gathered(log, 2)
            fs.blocking = False
            fs.go.release()

        releasing = threading.Thread(target=let_go)
        releasing.start()
        assert log.append("t", b"main", flush=True).durable
        releasing.join()
        crowd.join()
        assert sorted(value for _, value in values(log)) == [b"another", b"first", b"main"]
        assert fs.count("sync", SEGMENT) == 2


# -- Ctrl-C --------------------------------------------------------------------------------------------


class AtLines:
    """Does something before the n-th line of storage/group_commit.py that this thread runs, for several n.

    Not at a `with`: it is traced when it ends, too, where the interpreter lets no signal in.
    """

    def __init__(self, actions: dict[int, Callable[[], None]]) -> None:
        self.actions = actions
        self.lines = 0

    def __enter__(self) -> None:
        sys.settrace(self.trace)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        if not path.endswith("embedlog/storage/group_commit.py"):
            return None
        if event == "line" and not linecache.getline(path, frame.f_lineno).lstrip().startswith("with "):
            self.lines += 1
            action = self.actions.get(self.lines)
            if action is not None:
                action()
        return self.trace


def interrupt() -> None:
    sys.settrace(None)
    raise KeyboardInterrupt


class StoppingSync(UnsyncedFileSystem):
    """The next sync stops until it is let go. Remembers what the main thread wrote."""

    def __init__(self) -> None:
        self.main_wrote: list[bytes] = []
        self.again()
        self.stops = False

    def again(self) -> None:
        """The next one stops, whatever has become of those before."""
        self.stops, self.stopped = True, False
        # Each is acquired until what it stands for. A Wakeup would take this for a signal handler.
        self.entered, self.go = threading.Lock(), threading.Lock()
        self.entered.acquire()
        self.go.acquire()

    def sync(self, fd: int) -> None:
        if self.stops:
            self.stops, self.stopped = False, True
            self.entered.release()
            self.go.acquire()
            self.stopped = False

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        if threading.current_thread() is threading.main_thread():
            self.main_wrote.append(bytes(data))
        super().pwrite_all(fd, data, pos)


def attempt(log: Log, fs: StoppingSync, behind: bool, rolls: bool, arrives: int, interrupts: int) -> bool:
    """The main thread appends durably; before its n-th line another one comes, before its m-th Ctrl-C.

    With rolls it flushes what it has appended before, and the other one makes that durable behind its back.
    Returns whether there was an m-th line.
    """
    commit = partition_of(log).appender.group_commit
    crowd = Crowd()
    values_of = {who: b"%s %d %d" % (who.encode(), arrives, interrupts) for who in ("first", "main", "comes")}
    main_is_done = threading.Event()

    def append(who: str) -> RecordMetadata:
        return log.append("t", values_of[who], flush=True)

    def let_go() -> None:
        while not (main_is_done.is_set() or any(w.thread == main for w in commit._waiting)):
            threading.Event().wait(0.0001)
        fs.go.release()

    def comes() -> None:
        if rolls:
            crowd.start("rolls", partition_of(log).roll)
            while not (fs.stopped or "rolls" in crowd.outcomes):
                threading.Event().wait(0.0001)
        crowd.start("comes", lambda: append("comes"))
        # It has its turn, sleeps, or finds the door shut as long as the main thread is in it.
        while not (commit._waiting or "comes" in crowd.outcomes or commit._mutex._is_owned()):
            threading.Event().wait(0.0001)

    main = threading.get_ident()
    if behind:
        fs.again()
        crowd.start("first", lambda: append("first"))
        fs.entered.acquire()
        crowd.start("releasing", let_go)
    interrupted = False
    if rolls:
        offset = log.append("t", values_of["main"]).offset
    try:
        with AtLines({arrives: comes, interrupts: interrupt}):
            if rolls:
                log.flush()
            else:
                offset = append("main").offset
    except KeyboardInterrupt:
        interrupted = True
    main_is_done.set()
    crowd.join()
    found = values(log, start=log.offsets("t")[0].log_end_offset - 10)
    for who in crowd.outcomes.keys() - {"releasing", "rolls"}:
        assert [at for at, value in found if value == values_of[who]] == [crowd.outcomes[who].offset]  # type: ignore[attr-defined]
    mine = [at for at, value in found if value == values_of["main"]]
    assert len(mine) <= 1 if interrupted and not rolls else mine == [offset]
    assert not any(
        value in data for who, value in values_of.items() if who != "main" for data in fs.main_wrote
    )
    fs.main_wrote.clear()
    assert commit._leader is None and not commit._waiting
    return interrupted


def test_a_leader_still_queued_is_served_once() -> None:
    """The thread that appointed it was interrupted afterwards; the leader is awake already."""
    rounds: list[list[Waiter]] = []

    def serve(waiters: Sequence[Waiter]) -> None:
        rounds.append(list(waiters))
        for waiter in waiters:
            waiter.target = 1

    commit = GroupCommit(serve, lambda: 1)
    crowd = Crowd()

    def lead() -> None:
        waiter = Waiter(-1, bytearray())
        waiter.wakeup = Wakeup()
        commit._leader = waiter
        commit._waiting = [waiter]
        commit._lead(waiter)

    crowd.start("leads", lead)
    crowd.join()
    assert [len(served) for served in rounds] == [1]
    assert commit._leader is None and not commit._waiting


def test_an_append_is_served_if_a_handler_leads_in_its_place() -> None:
    """It was made the leader, and a signal came before it led."""

    def handled_at(number: int) -> bool:
        served: list[bytes] = []
        crowd = Crowd()
        main_is_done = threading.Event()

        def serve(waiters: Sequence[Waiter]) -> None:
            while threading.current_thread() is crowd.threads[0] and not (
                commit._waiting or main_is_done.is_set()
            ):
                threading.Event().wait(0.0001)
            for waiter in waiters:
                if waiter.batches is not None:
                    value = bytes(waiter.batches)
                    served.append(value)
                    waiter.serve(Appended(served.index(value), served.index(value), 0, False))

        def append(value: bytes) -> int:
            return commit.append(bytearray(value), None).base_offset

        def handler() -> None:
            with contextlib.suppress(embedlog.ConcurrentUse):
                append(b"handler")

        commit = GroupCommit(serve, lambda: len(served))
        crowd.start("first", lambda: append(b"first"))
        while not commit.is_busy:
            threading.Event().wait(0.0001)
        offsets: list[int] = []
        was_point = interrupt_at(number, lambda: offsets.append(append(b"main")), handler)
        main_is_done.set()
        crowd.join()
        assert served[offsets[0]] == b"main"
        assert len(served) == len(set(served))
        assert commit._leader is None and not commit._waiting
        return was_point

    number = 0
    while handled_at(number):
        number += 1
    assert number > 20


def test_a_finalizer_in_a_thread_that_leads_for_others_is_refused() -> None:
    """It would append what they have brought, too, a second time."""
    refused: list[BaseException] = []

    def serve(waiters: Sequence[Waiter]) -> None:
        with pytest.raises(embedlog.ConcurrentUse) as caught:
            commit.append(bytearray(b"last"), None)
        refused.append(caught.value)
        for waiter in waiters:
            waiter.serve(Appended(0, 0, 0, False))

    commit = GroupCommit(serve, lambda: 1)
    crowd = Crowd()
    crowd.start("leads", lambda: commit.append(bytearray(b"first"), None))
    outcomes = crowd.join()
    assert outcomes["leads"] == Appended(0, 0, 0, True)
    assert len(refused) == 1
    assert commit._leader is None and not commit._waiting


@pytest.mark.parametrize("rolls", [False, True], ids=["", "among rolls"])
@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind another"])
@pytest.mark.slow
def test_ctrl_c_at_any_line_leaves_no_waiter_and_no_duplicate(
    tmp_path: Path, behind: bool, rolls: bool
) -> None:
    fs = StoppingSync()
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append_many("t", [b"before"] * 10)
        arrives = attempts = 0
        while True:
            arrives += 1
            interrupts = arrives
            while attempt(log, fs, behind, rolls, arrives, interrupts := interrupts + 1):
                attempts += 1
            if interrupts == arrives + 1:  # it has run all its lines
                break
        assert attempts > 200


def struck_at(log: Log, fs: StoppingSync, behind: bool, number: int, appends: bool) -> bool:
    """The main thread appends durably, Ctrl-C strikes at a point of that, and another one waits meanwhile.

    With appends it is another signal, whose handler appends durably, too. Returns whether there was such a
    point.
    """
    commit = partition_of(log).appender.group_commit
    crowd = Crowd()
    main_is_done, handler_is_done = threading.Event(), threading.Event()
    values_of = {who: b"%s %d" % (who.encode(), number) for who in ("first", "main", "comes", "handler")}

    def append(who: str) -> RecordMetadata:
        return log.append("t", values_of[who], flush=True)

    def handler() -> None:
        with contextlib.suppress(embedlog.ConcurrentUse):
            crowd.outcomes["handler"] = append("handler")
        handler_is_done.set()

    def let_go() -> None:
        if not behind:
            while not (fs.stopped or main_is_done.is_set()):
                threading.Event().wait(0.0001)
            crowd.start("comes", lambda: append("comes"))
        # A handler that has led leaves the next one to lead beside the main thread.
        while not (len(commit._waiting) > behind or main_is_done.is_set() or handler_is_done.is_set()):
            threading.Event().wait(0.0001)
        fs.go.release()

    fs.again()
    if behind:
        crowd.start("first", lambda: append("first"))
        fs.entered.acquire()
        crowd.start("comes", lambda: append("comes"))
        gathered(log, 1)
    crowd.start("letting go", let_go)
    if appends:
        struck = interrupt_at(number, lambda: append("main"), handler)
    else:
        struck = strike(number, lambda: append("main"))
    main_is_done.set()
    outcomes = crowd.join()
    found = [value for _, value in values(log, start=max(log.offsets("t")[0].log_end_offset - 6, 0))]
    assert all(found.count(values_of[who]) == 1 for who in outcomes.keys() - {"letting go"}), outcomes
    assert found.count(values_of["main"]) in ((0, 1) if struck and not appends else (1,))
    assert found.count(values_of["handler"]) <= 1
    assert commit._leader is None and not commit._waiting
    return struck


@pytest.mark.parametrize("appends", [False, True], ids=["", "a handler that appends"])
@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind another"])
def test_a_signal_at_each_point_of_a_durable_append_leaves_no_waiter(
    tmp_path: Path, behind: bool, appends: bool
) -> None:
    fs = StoppingSync()
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append("t", b"before", flush=True)
        number = 0
        while struck_at(log, fs, behind, number, appends):
            number += 1
        assert number > 20
