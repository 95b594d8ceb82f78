"""How many functions, files and changes of file lie on the common ways through the engine?

    python -m benchmarks.ways                     this checkout
    PYTHONPATH=OTHER python benchmarks/ways.py    another one

Each way runs a few times to warm up, and then once with a profile function. `changes` counts the calls that
lead from one file of the package to another; `functions` counts distinct ones. A way through the broker is
one turn of its event loop, from the socket that has a request to the next poll. Run it with
EMBEDLOG_LOOPS=plain: the compiled loops hide their calls.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import embedlog
from embedlog.cluster import Broker
from embedlog.codec import encode_batch
from embedlog.spark.source import EmbedlogSource
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.frames import encode_request

_PACKAGE = str(Path(embedlog.__file__).parent)
_WARM_UPS = 3


class Way(NamedTuple):
    """The functions called, as (file, name), in order, each with the file that called it."""

    calls: list[tuple[str, str, str]]

    def __str__(self) -> str:
        files = {file for file, _, _ in self.calls}
        functions = {(file, name) for file, name, _ in self.calls}
        changes = sum(file != caller for file, _, caller in self.calls)
        return f"{len(functions):4} functions {len(files):4} files {changes:4} changes"


def walk(act: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> Way:
    """The calls within the package that one call of `act` makes, in this thread."""
    for _ in range(_WARM_UPS):
        prepare()
        act()
    calls: list[tuple[str, str, str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE):
            calls.append((file, frame.f_code.co_qualname, _caller(frame) or file))

    prepare()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return Way(calls)


def _caller(frame: FrameType) -> str | None:
    """The file of the package from which a function was called; None from outside."""
    outer = frame.f_back
    while outer is not None:
        if outer.f_code.co_filename.startswith(_PACKAGE):
            return outer.f_code.co_filename
        outer = outer.f_back
    return None


def _spark_reader(directory: str) -> Any:
    """What Spark's workers are sent: they call its `read` for each task."""
    source = EmbedlogSource({"path": directory, "subscribe": "t", "endingOffsets": '{"t": {"0": 100}}'})
    return source.reader(source.schema())


class Turns:
    """A profile function for a broker's event loop: the calls of its last turn that served a request."""

    def __init__(self) -> None:
        self.served = threading.Semaphore(0)
        self.last = Way([])
        self._calls: list[tuple[str, str, str]] = []

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if not threading.current_thread().name.startswith("embedlog-processor"):
            return
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE):
            self._calls.append((file, frame.f_code.co_qualname, _caller(frame) or file))
        elif event == "c_call" and getattr(argument, "__name__", "") == "poll":
            calls, self._calls = self._calls, []
            if any(name.endswith("Dispatcher.handle") for _, name, _ in calls):
                self.last = Way(calls)
                self.served.release()


def walk_broker(log: embedlog.Log) -> dict[str, Way]:
    """The ways of a small Produce and a small Fetch that repeat, each on its own connection."""
    batch = bytes(encode_batch([(None, b"value", (), 1_700_000_000_000)]))
    data = [PartitionProduceData(index=0, records=batch)]
    produce = ProduceRequest(
        acks=1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )
    part = FetchPartition(fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[part])])
    requests = {"broker's Produce": (produce, 9), "broker's Fetch": (fetch, 11)}
    turns, ways = Turns(), {}
    threading.setprofile(turns.note)
    with Broker(log) as broker:
        threading.setprofile(None)  # type: ignore[arg-type]
        for title, (request, version) in requests.items():
            frame = b"".join(map(bytes, encode_request(request, version, 1, "ways")))  # type: ignore[arg-type]
            with socket.create_connection(("127.0.0.1", broker.port)) as connection:
                for _ in range(_WARM_UPS + 1):
                    connection.sendall(frame)
                    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                    connection.recv(size, socket.MSG_WAITALL)
                    turns.served.acquire()
            ways[title] = turns.last
    return ways


def main() -> None:
    """Walk the ways and print them; with --calls, each call too."""
    with tempfile.TemporaryDirectory() as directory, embedlog.open(directory) as log:
        log.create_topic("t")
        log.append_many("t", [b"value"] * 100)
        with log.consumer("t", group="g", enable_auto_commit=False) as consumer:
            next(consumer)
            spark = _spark_reader(directory)
            (piece,) = spark.partitions()
            ways = {
                "Log.append": walk(partial(log.append, "t", b"value")),
                "consumer's record": walk(partial(next, consumer)),
                "consumer's poll": walk(consumer.poll, partial(log.append, "t", b"value")),
                "group's commit": walk(consumer.commit, lambda: (log.append("t", b"value"), consumer.poll())),
                "Spark's columns": walk(lambda: list(spark.read(piece))),
            }
        ways |= walk_broker(log)
    for title, way in ways.items():
        print(f"{title:20}{way}")
        if "--calls" in sys.argv:
            for file, name, _ in way.calls:
                print(f"    {file.removeprefix(_PACKAGE)[1:]:40}{name}")


if __name__ == "__main__":
    main()
