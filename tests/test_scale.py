"""A thousand partitions under a limit of 1,024 descriptors, and no descriptor that is not given back."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program

import embedlog

_A_THOUSAND = """
import resource, sys, threading, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

def opened():
    import os
    return len(os.listdir("/dev/fd"))

COUNT = 1000
with embedlog.open(sys.argv[1], segment_bytes=1024) as log:
    log.create_topic("t", partitions=COUNT)
    for turn in range(3):  # with a roll in each partition
        for number in range(COUNT):
            log.append("t", b"%d.%d" % (turn, number) + bytes(500), partition=number)
    assert opened() < 900, opened()
    log.flush()
    assert all(e.flushed_offset == 3 for e in log.offsets("t").values())
    assert sum(1 for _ in log.read("t")) == 3 * COUNT
    assert opened() < 900, opened()

    def append_to_all():
        for number in range(COUNT):
            log.append("t", b"x", partition=number, flush=number % 100 == 0)

    threads = [threading.Thread(target=append_to_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with embedlog.open(sys.argv[1], mode="r") as reader:
        assert sum(1 for _ in reader.read("t")) == 7 * COUNT
        with reader.consumer("t", stop_at_end=True) as consumer:
            assert sum(1 for _ in consumer) == 7 * COUNT
    assert log.health().partitions == COUNT
    assert opened() < 950, opened()
    print(opened(), flush=True)
with embedlog.open(sys.argv[1]) as log:
    assert log.recovery.clean
    for number in range(COUNT):
        records = list(log.read("t", number))
        assert [r.offset for r in records] == list(range(7))
        assert records[1].value == b"1.%d" % number + bytes(500)
        assert log.append("t", b"again", partition=number).offset == 7
assert opened() < 30, opened()
"""


def test_a_thousand_partitions_under_an_ordinary_limit(program: Callable[..., Program], path: Path) -> None:
    program(_A_THOUSAND, path).end()


def test_a_thousand_partitions_after_a_crash(program: Callable[..., Program], path: Path) -> None:
    writer = program(
        """
import sys, embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("t", partitions=1000)
for number in range(1000):
    log.append("t", b"%d" % number, partition=number)
print("done", flush=True)
sys.stdin.readline()
""",
        path,
    )
    assert writer.line() == "done"
    writer.kill()
    program(
        """
import resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with embedlog.open(sys.argv[1]) as log:
    assert len(log.recovery.partitions) == 1000
    assert not log.recovery.damage
    assert [r.value for r in log.read("t")] == [b"%d" % n for n in range(1000)]
    log.append_many("t", [b"%d" % n for n in range(5000)])
""",
        path,
    ).end()


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_no_descriptor_is_left_behind(path: Path, mode: str) -> None:
    """After any use, and after opens that fail."""
    with embedlog.open(path, segment_bytes=1024) as log:
        log.create_topic("t", partitions=5)
        for i in range(50):
            log.append("t", bytes(300), partition=i % 5)
    (path.parent / "other").mkdir()
    (path.parent / "other" / "file").touch()
    gc.collect()
    before = _descriptors()
    for _ in range(5):
        with embedlog.open(path, mode) as log:
            assert len(list(log.read("t"))) >= 50
            reading = log.read("t", follow=True)
            next(reading)
            with log.consumer("t") as consumer:
                consumer.poll(10)
                consumer.poll(1)
            assert log.offset_for_time("t", 0, 0) is not None
            if mode == "rw":
                log.create_topic("u", cleanup_policy="compact")
                for i in range(20):
                    log.append("u", bytes(300), key=b"%d" % (i % 3))
                log.compact("u")
                log.delete_topic("u")
                with log.producer() as producer:
                    producer.send("t", b"x")
                with pytest.raises(embedlog.DirectoryLocked):
                    embedlog.open(path)
        with pytest.raises(embedlog.NotALog):
            embedlog.open(path.parent / "other", mode)
        with pytest.raises(embedlog.InvalidArgument):
            embedlog.open(path, mode, "kafka")
        with pytest.raises(embedlog.Closed):
            list(reading)
    gc.collect()
    left = {name: where for name, where in _descriptors().items() if before.get(name) != where}
    assert [where for where in left.values() if str(path) in where] == []
    assert len(_descriptors()) <= len(before)


def test_no_descriptor_is_left_behind_by_threads_that_read_while_it_closes(path: Path) -> None:
    with embedlog.open(path, segment_bytes=1024) as log:
        log.create_topic("t", partitions=4)
        for i in range(80):
            log.append("t", bytes(300), partition=i % 4)
    for mode in ("rw", "r"):
        for _ in range(5):
            log = embedlog.open(path, mode)
            begun = threading.Barrier(4)

            def read(log: embedlog.Log = log, begun: threading.Barrier = begun) -> None:
                begun.wait()
                try:
                    while True:
                        for _ in log.read("t", max_bytes=100):
                            pass
                except embedlog.Closed:
                    pass

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait()
            log.close()
            for thread in threads:
                thread.join()
    gc.collect()
    assert [where for where in _descriptors().values() if str(path) in where] == []
