"""A mirror, next to the obvious loop: read records, append them to another log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import embedlog
from embedlog import Log
from embedlog.cluster import Broker

from .measure import Contender, Prepare, Row, Work, rate
from .stores import TOPIC, VALUES

_PARTITIONS = 4
_AT_A_TIME = 1000

Copy = Callable[[Log, Log], object]


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    thousands = max(int(400 * scale), _PARTITIONS)
    return [
        Row(
            f"mirror, {what}",
            "records/s",
            True,
            [
                Contender("embedlog.Mirror", _copied(_mirror, codec, thousands, over_wire=over_wire)),
                Contender("read + append_many", _copied(_loop, codec, thousands, over_wire=over_wire)),
                *([] if over_wire else [Contender("raw file copy", _raw(codec, thousands))]),
            ],
        )
        for what, codec, over_wire in (
            ("directories", "none", False),
            ("directories, zstd", "zstd", False),
            ("brokers, zstd", "zstd", True),
        )
    ]


def _mirror(source: Log, target: Log) -> None:
    with embedlog.Mirror(source, target) as mirror:
        mirror.run(until_caught_up=True)


def _loop(source: Log, target: Log) -> None:
    target.create_topic(TOPIC, partitions=_PARTITIONS, compression_type=_codec(source))
    for partition in range(_PARTITIONS):
        records = source.read(TOPIC, partition)
        while some := list(islice(records, _AT_A_TIME)):
            target.append_many(TOPIC, some, partition=partition)


def _codec(log: Log) -> object:
    return log.describe_topic(TOPIC).settings.get("compression_type", "producer")


def _fill(log: Log, codec: str, thousands: int) -> None:
    log.create_topic(TOPIC, partitions=_PARTITIONS, compression_type="producer" if codec == "none" else codec)
    for number in range(thousands):
        log.append_many(TOPIC, VALUES, partition=number % _PARTITIONS)


def _copied(copy: Copy, codec: str, thousands: int, *, over_wire: bool) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with ExitStack() as stack:
            logs = []
            for name in ("source", "target"):
                if over_wire:
                    broker = stack.enter_context(Broker(where / name))
                    address = f"kafka://{broker.bootstrap_servers}"
                    logs.append(stack.enter_context(embedlog.open(address)))
                else:
                    logs.append(stack.enter_context(embedlog.open(where / name)))
            source, target = logs
            _fill(source, codec, thousands)
            yield rate(thousands * len(VALUES), lambda: copy(source, target))

    return prepare


def _raw(codec: str, thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with embedlog.open(where / "source") as source:
            _fill(source, codec, thousands)
        yield rate(thousands * len(VALUES), lambda: shutil.copytree(where / "source", where / "target"))

    return prepare
