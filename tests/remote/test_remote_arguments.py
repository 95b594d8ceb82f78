"""Every public method over the wire with invalid arguments: the same table as for a directory.

What that is, and which values are welcome where, stands in test_bad_arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_bad_arguments as table

import embedlog
from embedlog import FileOffsetStore
from embedlog.cluster import Broker

NOT_HERE = ("reopen", "reopen topic", "compact", "backup")
ROWS = [*table.APPENDING, *table.READING, *table.CONSUMING, *table.KEEPING, *table.OPTIONS]


@pytest.fixture(scope="module")
def handles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[table.Handles]:
    """A log over the wire of one topic with two partitions and a record in each, and its clients."""
    path = tmp_path_factory.mktemp("arguments")
    with (
        Broker(offsets_topic_num_partitions=1) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}", retry_backoff_ms=1) as log,
    ):
        log.create_topic("t", partitions=2)
        for number in range(2):
            log.append("t", b"there", partition=number)
        consumer = log.consumer("t", "g")
        consumer.poll(0)
        yield table.Handles(log, consumer, log.producer(linger_ms=0), FileOffsetStore(path / "offsets"))


@pytest.mark.parametrize(
    ("call", "welcome"),
    [pytest.param(*row[1:], id=row[0]) for row in ROWS if not row[0].startswith(("open", *NOT_HERE))],
)
def test_each_value_in_each_place(
    handles: table.Handles,
    call: Callable[[table.Handles, Any], object],
    welcome: table.Welcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate(table.values()):
        said_no = table.refused(lambda value=value: call(handles, value))  # type: ignore[misc]
        assert said_no or welcome(value), f"number {number}, {type(value).__name__}, was let through"
    assert [record.value for record in handles.log.read("t", end=1, partition=1)] == [b"there"]
    assert handles.log.describe_topic("t").settings == {}
