"""Each way to read gives what was committed, and says which open transaction ends it before the log does."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.aio
from embedlog import Log
from embedlog.clients.open_transactions import Standstills

HELD_BACK = (
    r"t 0: committed records end before offset 5, where an open transaction begins: that of 'loader-1' "
    r"\(producer id \d+, epoch \d+\), open since 20\d\d-\d\d-\d\dT[\d:.]+Z"
)


class Failed(Exception):
    pass


def write(log: Log) -> None:
    """Offsets: 0 plain, 1 aborted, 2 its marker, 3 committed, 4 its marker."""
    log.create_topic("t")
    log.append("t", b"plain")
    with pytest.raises(Failed), log.transaction("tx-1") as tx:
        tx.append("t", b"aborted")
        raise Failed
    with log.transaction("tx-2") as tx:
        tx.append("t", b"committed")


@pytest.fixture(params=["owner", "reader", "client"])
def doors(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[Log, Log]]:
    """The log's owner, and the log that is read: the same one, a reader's, a client's."""
    with embedlog.open(path, shared=True) as owner:
        write(owner)
        if request.param == "owner":
            yield owner, owner
        else:
            options = {"mode": "r"} if request.param == "reader" else {"shared": True}
            with embedlog.open(path, **options) as log:
                yield owner, log


READS: dict[str, Callable[..., list[Any]]] = {
    "read": lambda log, **level: [record.value for record in log.read("t", **level)],
    "read typed": lambda log, **level: [record.value for record in log.topic("t", bytes).read(**level)],
    "read_values": lambda log, **level: list(log.read_values("t", **level)),
    "read_arrow": lambda log, **level: [
        value for batch in log.read_arrow("t", **level) for value in batch.column("value").to_pylist()
    ],
    "sql": lambda log, **level: [
        value for (value,) in log.sql('SELECT value FROM t ORDER BY "offset"', **level).fetchall()
    ],
}


@pytest.mark.parametrize("door", READS)
def test_what_was_committed(doors: tuple[Log, Log], door: str, caplog: pytest.LogCaptureFixture) -> None:
    owner, log = doors
    read = READS[door]
    assert read(log) == [b"plain", b"committed"]
    assert read(log, isolation_level="read_uncommitted") == [b"plain", b"aborted", b"committed"]
    assert caplog.records == []
    with owner.transaction("loader-1") as tx:
        tx.append("t", b"open")
        owner.append("t", b"after it")
        assert read(log) == [b"plain", b"committed"]
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert re.fullmatch(HELD_BACK + '; isolation_level="read_uncommitted" reads on', record.getMessage())
        caplog.clear()
        everything = [b"plain", b"aborted", b"committed", b"open", b"after it"]
        assert read(log, isolation_level="read_uncommitted") == everything
    assert read(log) == [b"plain", b"committed", b"open", b"after it"]
    assert caplog.records == []


def test_an_end_before_the_open_transaction_is_none_of_its_business(
    doors: tuple[Log, Log], caplog: pytest.LogCaptureFixture
) -> None:
    owner, log = doors
    with owner.transaction("loader-1") as tx:
        tx.append("t", b"open")
        assert [record.offset for record in log.read("t", 0, end=5)] == [0, 3]
        assert caplog.records == []


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_one_record(doors: tuple[Log, Log], compression: str, caplog: pytest.LogCaptureFixture) -> None:
    owner, log = doors
    owner.alter_topic("t", compression_type=compression)

    def at(offset: int, **level: str) -> bytes | None:
        found = {
            None if record is None else record.value
            for record in (log.read_at("t", 0, offset, **level), log.topic("t").read_at(0, offset, **level))
            for _ in range(3)  # from the third on, neighbours are kept
        }
        (value,) = found
        return value

    asked = {"isolation_level": "read_uncommitted"}
    assert [at(offset) for offset in range(5)] == [b"plain", None, None, b"committed", None]
    assert at(1, **asked) == b"aborted"
    with owner.transaction("loader-1") as tx:
        tx.append("t", b"open")
        plain = owner.append("t", b"after it").offset
        assert caplog.records == []
        assert at(5) is None
        assert re.match(HELD_BACK, caplog.records[0].getMessage())
        caplog.clear()
        assert at(5, **asked) == b"open"
        assert at(plain) == b"after it", "it is of no transaction"
        assert caplog.records == []
    assert at(5) == b"open"
    with pytest.raises(embedlog.InvalidArgument):
        at(5, isolation_level="dirty")


def test_one_that_follows_waits_for_the_end_of_the_transaction(doors: tuple[Log, Log]) -> None:
    owner, log = doors
    records = log.read("t", follow=True)
    assert [next(records).value for _ in range(2)] == [b"plain", b"committed"]
    got: list[bytes | None] = []
    with owner.transaction("loader-1") as tx:
        tx.append("t", b"open")
        owner.append("t", b"after it")
        thread = threading.Thread(target=lambda: got.extend(next(records).value for _ in range(2)))
        thread.start()
        assert [record.value for record in log.read("t")][2:] == []
        assert got == []
    thread.join()
    assert got == [b"open", b"after it"]


class Warned(logging.Handler):
    """Keeps the warnings of followers, and sets an event at the first."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.came.set()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warned]:
    monkeypatch.setattr("embedlog.clients.follower.BETWEEN_WAITS_MS", 5)
    handler, logger = Warned(), logging.getLogger("embedlog.clients.follower")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("reached", ["before", "after"])
def test_one_that_follows_says_what_it_waits_for(
    doors: tuple[Log, Log], warned: Warned, reached: str
) -> None:
    """Once, whether the transaction was there when it came to the end or has begun since."""
    owner, log = doors
    records = log.read("t", follow=True)
    got: list[bytes | None] = []
    thread = threading.Thread(target=lambda: got.extend(next(records).value for _ in range(4)))
    if reached == "before":
        got += [next(records).value for _ in range(2)]
        thread = threading.Thread(target=lambda: got.extend(next(records).value for _ in range(2)))
        thread.start()
    with owner.transaction("loader-1") as tx:
        tx.append("t", b"open")
        if reached == "after":
            thread.start()
        assert warned.came.wait(60)
        owner.append("t", b"after it")
    thread.join()
    assert got == [b"plain", b"committed", b"open", b"after it"]
    (text,) = warned.texts
    assert re.fullmatch(HELD_BACK + "; read waits for its end", text)


def test_a_task_that_follows_says_what_it_waits_for(path: Path, warned: Warned) -> None:
    async def main() -> None:
        async with embedlog.aio.open(path) as log:
            follower = log.read("t", follow=True)
            async with log.transaction("loader-1") as tx:
                await tx.append("t", b"open")
                assert [(await anext(follower)).value for _ in range(2)] == [b"plain", b"committed"]
                waiting = asyncio.ensure_future(anext(follower))
                assert await asyncio.to_thread(warned.came.wait, 60)
            assert (await waiting).value == b"open"
            await follower.aclose()

    with embedlog.open(path) as log:
        write(log)
    asyncio.run(main())
    assert re.fullmatch(HELD_BACK + "; read waits for its end", warned.texts[0])


def test_a_standstill_is_told_of_once(path: Path) -> None:
    with embedlog.open(path) as log:
        write(log)
        standstills = Standstills(log.backend, 0)
        with log.transaction("loader-1") as tx:
            tx.append("t", b"open")
            tp = embedlog.TopicPartition("t", 0)
            assert standstills.look({tp: 5}) == [], "it may move on"
            assert len(standstills.look({tp: 5})) == 1
            assert standstills.look({tp: 5}) == [], "once"
            assert standstills.look({tp: 6}) == []
            assert [standstills.look({tp: 6}) for _ in range(2)] == [[], []], "the end of the log"
        assert [standstills.look({tp: 5}) for _ in range(2)] == [[], []]


def test_tasks(path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(path) as log:
            assert [record.value async for record in log.read("t")] == [b"plain", b"committed"]
            assert [value async for value in log.read_values("t")] == [b"plain", b"committed"]
            assert [record.value async for record in log.topic("t").read()] == [b"plain", b"committed"]
            assert await log.read_at("t", 0, 1) is None
            assert await log.topic("t").read_at(0, 1) is None
            everything = log.read("t", isolation_level="read_uncommitted")
            assert len([record async for record in everything]) == 3
            follower = log.read("t", follow=True)
            assert [(await anext(follower)).value for _ in range(2)] == [b"plain", b"committed"]
            async with log.transaction("loader-1") as tx:
                await tx.append("t", b"open")
                waiting = asyncio.ensure_future(anext(follower))
                assert len([record async for record in log.read("t")]) == 2
                assert not waiting.done()
            assert (await waiting).value == b"open"

    with embedlog.open(path) as log:
        write(log)
    asyncio.run(main())
