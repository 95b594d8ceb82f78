"""Invalid input of every kind: a clear error, bounded cost, nothing lost or changed."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from old_formats import encode_messages_07
from rounds import first_is_quick

import embedlog
from embedlog import CommittedOffset, Log, TopicPartition
from embedlog.codec import crc32c, encode_batch
from embedlog.codec.message_set import encode_message_set
from embedlog.errors import (
    CorruptCheckpoint,
    CorruptRecord,
    DecompressedTooLarge,
    DirectoryError,
    DirectoryLocked,
    EmbedlogError,
    InvalidArgument,
    InvalidSetting,
    InvalidTopicName,
    InvalidType,
    NotALog,
    PartitionFailed,
    PartitionNotFound,
    RecordTooLarge,
    StorageError,
    TopicNotFound,
    UnknownSetting,
    UnsupportedFormat,
)
from embedlog.store.repair import repair_partition
from embedlog.store.verify import UNREADABLE, verify_log

MIB = 1 << 20


def tree(path: Path) -> dict[str, bytes | None]:
    """Everything under a path: name -> contents (None for a directory)."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))
    }


def sealed(body: dict[str, Any]) -> str:
    """A small file with the checksum that it should have."""
    rest = {key: value for key, value in body.items() if key != "crc32"}
    return json.dumps({"crc32": zlib.crc32((json.dumps(rest, indent=1) + "\n").encode()), **rest})


def settled(path: Path) -> dict[str, bytes | None]:
    """The same of a directory that a writer has open, without what its threads write when they like."""
    changing = ("recovery-point-offset-checkpoint", ".tmp")
    names = [str(p.relative_to(path)) for p in sorted(path.rglob("*")) if not p.name.endswith(changing)]
    return {name: (path / name).read_bytes() if (path / name).is_file() else None for name in names}


def records_of(path: Path) -> dict[str, bytes | None]:
    """The files that hold records, and those beside them."""
    return {name: content for name, content in settled(path).items() if "/" in name}


@contextmanager
def at_most(bytes_allocated: int) -> Iterator[None]:
    """Fails if the block's peak of memory is higher."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bytes_allocated, f"{peak:,} bytes"


# -- arguments --------------------------------------------------------------------------------------------


class Anything:
    def __repr__(self) -> str:
        return "Anything()"


# What is called, with which argument in the place of the bad one, and which error says so.
CALLS: list[tuple[str, Callable[[Log, Any], object], list[object], type[EmbedlogError]]] = [
    ("a topic", lambda log, x: log.append(x, b"v"), [None, 5, b"t", ["t"], Anything()], InvalidType),
    ("a topic to make", lambda log, x: log.create_topic(x), [None, 5, b"t", ["t"]], InvalidType),
    ("a topic to read", lambda log, x: log.read(x), [None, 5, b"t", ["t"]], InvalidType),
    ("a topic to delete", lambda log, x: log.delete_topic(x), [None, 5, b"t", ["t"]], InvalidType),
    ("a topic to describe", lambda log, x: log.describe_topic(x), [None, 5, b"t", ["t"]], InvalidType),
    ("a topic's offsets", lambda log, x: log.offsets(x), [None, 5, b"t", ["t"]], InvalidType),
    ("partitions", lambda log, x: log.create_topic("u", x), ["3", 2.0, None, True], InvalidType),
    ("no partitions", lambda log, x: log.create_topic("u", x), [0, -1, 100_001, 10**30], InvalidArgument),
    ("more partitions", lambda log, x: log.create_partitions("t", x), ["3", None, 2.5], InvalidType),
    ("less partitions", lambda log, x: log.create_partitions("t", x), [0, 1, -5, 10**9], InvalidArgument),
    ("a value", lambda log, x: log.append("t", x), ["text", 5, ["x"], Anything()], InvalidType),
    ("a key", lambda log, x: log.append("t", b"", key=x), ["text", 5, ("k",)], InvalidType),
    ("headers", lambda log, x: log.append("t", b"", headers=x), [5, ["h"], [(1, b"")]], InvalidType),
    ("a header", lambda log, x: log.append("t", b"", headers=[("h", x)]), ["text", 5], InvalidType),
    ("a timestamp", lambda log, x: log.append("t", b"", timestamp_ms=x), ["now", 1.5, True], InvalidType),
    ("a time", lambda log, x: log.append("t", b"", timestamp_ms=x), [-2, 2**63, 10**30], InvalidArgument),
    ("a partition", lambda log, x: log.append("t", b"", partition=x), ["0", 0.0, True, b"0"], InvalidType),
    ("no partition", lambda log, x: log.append("t", b"", partition=x), [2, -1, 10**30], PartitionNotFound),
    ("records", lambda log, x: log.append_many("t", x), [5, None, b"bytes", "text"], InvalidType),
    ("one record", lambda log, x: log.append_many("t", [b"v", x]), [5, "text", (1, 2, 3)], InvalidType),
    ("one pair", lambda log, x: log.append_many("t", [(b"k", b"v"), x]), [("k", b"v")], InvalidType),
    ("compression", lambda log, x: log.append_many("t", [b""], compression=x), ["rar", 9, -1], EmbedlogError),
    ("a start", lambda log, x: log.read("t", 0, start=x), [None, 1.5, b"0", True], InvalidType),
    ("no start", lambda log, x: log.read("t", 0, start=x), ["begin", -1], InvalidArgument),
    ("an end", lambda log, x: log.read("t", 0, end=x), [1.5, b"0"], InvalidType),
    ("max_bytes", lambda log, x: log.read("t", max_bytes=x), ["1", None, 0.5], InvalidType),
    ("no bytes", lambda log, x: log.read("t", max_bytes=x), [0, -1], InvalidArgument),
    ("isolation", lambda log, x: log.read("t", isolation_level=x), ["dirty", None, 5], InvalidArgument),
    ("a read partition", lambda log, x: log.read("t", x), ["0", 0.0, True], InvalidType),
    ("time_ms", lambda log, x: log.offset_for_time("t", 0, x), ["0", None, 0.5], InvalidType),
    ("time_ms before", lambda log, x: log.offsets_before("t", 0, x, 1), ["0", None, 0.5], InvalidType),
    ("max_offsets", lambda log, x: log.offsets_before("t", 0, -1, x), ["0", None, 0.5], InvalidType),
    ("no offsets", lambda log, x: log.offsets_before("t", 0, -1, x), [-1], InvalidArgument),
    ("its partition", lambda log, x: log.offset_for_time("t", x, 0), [7, -1], PartitionNotFound),
    ("an offset", lambda log, x: log.delete_records("t", 0, x), ["0", None, 0.5, True], InvalidType),
    ("no offset", lambda log, x: log.delete_records("t", 0, x), [-1], InvalidArgument),
    ("beyond", lambda log, x: log.delete_records("t", 0, x), [2, 10**30], embedlog.OffsetOutOfRange),
    ("reopened", lambda log, x: log.reopen("t", x), [7, -1], PartitionNotFound),
    ("consumed", lambda log, x: log.consumer(x), [5, [5], b"t", [b"t"]], InvalidType),
    ("a group", lambda log, x: log.consumer("t", group=x), ["", 5, b"g"], embedlog.InvalidGroup),
    ("a polled time", lambda log, x: log.consumer("t").poll(x), ["1", None], InvalidType),
]  # fmt: skip


@pytest.mark.parametrize(("what", "call", "bad", "error"), CALLS, ids=[call[0] for call in CALLS])
def test_wrong_arguments(
    log: Log, path: Path, what: str, call: Callable[[Log, Any], object], bad: list[object], error: type
) -> None:
    log.create_topic("t", partitions=2)
    log.append("t", b"there", partition=0)
    log.flush()
    before = records_of(path)
    for argument in bad:
        with pytest.raises(error) as caught:
            call(log, argument)
        assert len(str(caught.value)) < 500
    assert records_of(path) == before
    assert log.topics(internal=True) == ["t"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../up", "/etc/passwd", "a\\b", "a b", "a\n", "a\0b", "ä", "x" * 250, "a:b", "*"],
)
def test_names_that_could_leave_the_directory(log: Log, path: Path, name: str) -> None:
    before = settled(path.parent)
    for call in (log.create_topic, log.read, log.delete_topic, log.describe_topic, log.consumer):
        with pytest.raises(InvalidTopicName, match=r"a-z A-Z 0-9 \. _ -"):
            call(name)
    with pytest.raises(EmbedlogError):
        log.append(name, b"x")
    assert settled(path.parent) == before


def test_unknown_topics_and_settings_are_hinted_at(log: Log, path: Path) -> None:
    log.create_topic("clicks")
    with pytest.raises(TopicNotFound, match=r"no topic 'cliks' .*clicks.*create_topic"):
        log.append("cliks", b"x")
    with embedlog.open(path, mode="r") as reader, pytest.raises(TopicNotFound, match="cliks"):
        reader.read("cliks")
    with pytest.raises(UnknownSetting, match="did you mean 'retention_ms'"):
        log.create_topic("t", **{"retention.mss": 5})
    with pytest.raises(UnknownSetting, match="did you mean 'max_bytes'"):
        embedlog.open(path.parent / "other", maxbytes=5)
    with pytest.raises(UnknownSetting, match="did you mean 'segment_bytes'"):
        embedlog.open(path.parent / "other", mode="r", **{"segment.byte": 5})
    for setting, value in (
        ("segment_bytes", 5),
        ("segment_bytes", 2**40),
        ("cleanup_policy", "shred"),
        ("compression_type", "rar"),
        ("min_cleanable_dirty_ratio", float("nan")),
        ("delete_policy", "nobody knows"),
    ):
        with pytest.raises(InvalidSetting):
            log.create_topic("t", **{setting: value})
        with pytest.raises(InvalidSetting):
            embedlog.open(path.parent / "other", **{setting: value})
    for setting, wrong in (("segment_bytes", "big"), ("preallocate", 7), ("retention_ms", None)):
        with pytest.raises(InvalidType, match=setting):
            log.create_topic("t", **{setting: wrong})
    assert log.topics() == ["clicks"]
    assert not (path.parent / "other").exists()


@pytest.mark.parametrize("bad", [None, 5, b"bytes", ["list"]])
def test_an_invalid_path(bad: object) -> None:
    with pytest.raises(InvalidType, match="path"):
        embedlog.open(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "path"),
        ("a\0b", "path"),
        ("http://broker:9092", "address"),
        ("kafka:/broker:9092", "kafka://host:9092"),
        ("kafka:broker", "kafka://host:9092"),
        ("x" * 300, "x"),
    ],
)
def test_impossible_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    for mode in ("rw", "r"):
        with pytest.raises(EmbedlogError, match=says):
            embedlog.open(name, mode)
    assert tree(tmp_path) == {}


def test_unknown_modes_and_layouts(path: Path) -> None:
    for mode in ("w", "", None, 5, ["r"]):
        with pytest.raises(InvalidArgument, match="mode"):
            embedlog.open(path, mode)  # type: ignore[arg-type]
    for layout in ("", "modern", 5, ["kafka"]):
        for mode in ("rw", "r"):
            with pytest.raises(InvalidArgument, match="layout"):
                embedlog.open(path, mode, layout)  # type: ignore[arg-type]
    assert not path.exists()
    embedlog.open(path, layout="kafka").close()
    for mode in ("rw", "r"):
        with pytest.raises(InvalidArgument, match="has the layout 'kafka'"):
            embedlog.open(path, mode, "classic")


# -- sizes ------------------------------------------------------------------------------------------------


def test_too_large_records_are_refused_before_anything_is_written(log: Log, path: Path) -> None:
    log.create_topic("t", max_message_bytes=1000)
    log.append("t", b"x" * 900, flush=True)
    before = records_of(path)
    for act in (
        lambda: log.append("t", bytes(1000)),
        lambda: log.append("t", None, key=bytes(1000)),
        lambda: log.append("t", b"", headers=[("h", bytes(1000))]),
        lambda: log.append_many("t", [b"small", bytes(1000)]),
        lambda: log.append_many("t", [(bytes(1000), b"v")]),
    ):
        with pytest.raises(RecordTooLarge, match=r"1,000|max_message_bytes"):
            act()
    producer = log.producer()
    with pytest.raises(RecordTooLarge):
        producer.send("t", bytes(1000))
    assert records_of(path) == before
    assert len(log.append_many("t", [bytes(300)] * 9)) == 9  # it is a batch that is bounded, not the list
    assert log.offsets("t")[0].log_end_offset == 10


def test_a_huge_record_costs_at_most_its_own_size(log: Log) -> None:
    log.create_topic("t")
    huge = bytes(40 * MIB)
    with at_most(MIB), pytest.raises(RecordTooLarge):
        log.append("t", huge)


def test_a_huge_number_of_partitions_costs_nothing(log: Log, path: Path) -> None:
    before = settled(path)
    with at_most(MIB), pytest.raises(InvalidArgument, match="100,000"):
        log.create_topic("t", partitions=10**12)
    assert settled(path) == before


# -- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("below", ["", "/below", "/below/it"])
def test_a_path_that_is_a_file(tmp_path: Path, mode: str, below: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(DirectoryError, match="is a file"):
        embedlog.open(f"{tmp_path}/file{below}", mode)
    assert tree(tmp_path) == {"file": b"mine"}


def test_a_reader_makes_no_directory(path: Path) -> None:
    with pytest.raises(DirectoryError, match="does not exist"):
        embedlog.open(path, mode="r")
    assert not path.exists()


def test_a_reader_calls_an_empty_directory_empty(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="is empty: it holds no log yet"):
        embedlog.open(tmp_path, mode="r")
    assert tree(tmp_path) == {}
    embedlog.open(tmp_path).close()


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_foreign_directory(tmp_path: Path, mode: str) -> None:
    (tmp_path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(NotALog, match=r"notes|embedlog\.json.*embedlog import"):
        embedlog.open(tmp_path, mode)
    assert tree(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_directory_of_07_files(tmp_path: Path, mode: str) -> None:
    """0.7's files bear the names that the classic layout has: recovery would cut them to nothing."""
    messages = encode_messages_07([b"one", b"two"])
    partition = tmp_path / "clicks_0"
    partition.mkdir()
    (partition / "00000000000.kafka").write_bytes(messages)
    before = tree(tmp_path)
    with pytest.raises(NotALog, match="embedlog import"):
        embedlog.open(tmp_path, mode)
    assert tree(tmp_path) == before


def test_a_writer_killed_while_creating_a_log_blocks_no_other(path: Path) -> None:
    path.mkdir()
    (path / "embedlog.json.4711.tmp").write_bytes(b'{"form')
    (path / "embedlog.json.4712.tmp.tmp").write_bytes(b"")
    with embedlog.open(path) as log:
        log.create_topic("t")


def as_nobody(act: Callable[[], object]) -> str:
    """Return what `act` returns or raises in a child process without privileges."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            try:
                answer = repr(act())
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    return answer


def read_all(path: Path, mode: str) -> list[bytes | None]:
    with embedlog.open(path, mode) as log:
        return [record.value for record in log.read("t")]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A log that all may read and none may write; restored at the end."""
    above = tmp_path
    while above.parent != Path(tempfile.gettempdir()) and above.parent != above:
        above.chmod(0o755)
        above = above.parent
    above.chmod(0o755)
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=1024)
        log.append_many("t", [b"1", b"2"])
    everything = [path, *path.rglob("*")]
    for p in everything:
        p.chmod(0o555 if p.is_dir() else 0o444)
    yield path
    for p in everything:
        p.chmod(0o755 if p.is_dir() else 0o644)


def test_a_directory_that_cannot_be_written(shared: Path) -> None:
    before = tree(shared)
    assert as_nobody(lambda: read_all(shared, "rw")).startswith("ReadOnly: ")
    (shared / "embedlog.json").chmod(0o666)  # the lock may be had, and nothing else be written
    said = as_nobody(lambda: read_all(shared, "rw"))
    assert said.startswith("ReadOnly: ")
    assert 'mode="r" reads it' in said
    assert as_nobody(lambda: read_all(shared, "r")) == "[b'1', b'2']"
    assert as_nobody(lambda: read_all(shared / "new", "rw")).startswith("ReadOnly: ")
    assert tree(shared) == before


@pytest.mark.parametrize("hidden", ["", "embedlog.json", "topics.json", "t_0", "t_0/00000000000.kafka"])
def test_an_unreadable_directory_is_not_an_empty_log(shared: Path, hidden: str) -> None:
    (shared / hidden).chmod(0)
    for mode in ("r", "rw"):
        said = as_nobody(lambda mode=mode: read_all(shared, mode))  # type: ignore[misc]
        assert said.startswith(("StorageError: ", "ReadOnly: ", "DirectoryError: ")), said
        assert str(shared) in said


# -- files at the root ------------------------------------------------------------------------------------


@pytest.fixture
def closed(path: Path) -> Path:
    """A log with three records, closed in order."""
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=2)
        log.append_many("t", [b"1", b"2", b"3"], partition=0)
    return path


def refused(path: Path, error: type[EmbedlogError], says: str) -> None:
    """Neither reader nor writer opens it, and both leave it as it is (but for the note of the writer)."""
    before = tree(path)
    for mode in ("r", "rw"):
        with pytest.raises(error, match=says), embedlog.open(path, mode) as log:
            list(log.read("t"))
    after = tree(path)
    before.pop("writer.json", None)
    after.pop("writer.json", None)
    assert after == before


@pytest.mark.parametrize("version", [0, 2, 99, "1", None, [1], {}, 1.5, 10**40])
def test_an_unknown_format_version(closed: Path, version: object) -> None:
    format_file = closed / "embedlog.json"
    format_file.write_text(json.dumps({**json.loads(format_file.read_text()), "format": version}))
    refused(closed, UnsupportedFormat, "nothing was changed")


GARBAGE = [
    b"",
    b"\0" * 100,
    b"\xff\xfe\x00",
    b"{",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    os.urandom(1000),
    b"9" * 10_000,
    b'{"version": 1, "format": 1, "topics": ' + b'{"a":' * 800 + b"1" + b"}" * 801,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_for_the_format_and_the_topics(closed: Path, garbage: bytes) -> None:
    for name in ("embedlog.json", "topics.json"):
        kept = (closed / name).read_bytes()
        (closed / name).write_bytes(garbage)
        refused(closed, CorruptCheckpoint, name)
        (closed / name).write_bytes(kept)
    with embedlog.open(closed) as log:
        assert len(list(log.read("t"))) == 3
        assert log.recovery.clean


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 10**12},
        {"partitions": 0},
        {"partitions": "2"},
        {"partitions": 1e400},
        {"partitions": None},
        {"settings": []},
        {"settings": {"retention_ms": "soon"}},
        {"settings": {"colour": "red"}},
        {"settings": {"segment_bytes": -5}},
        {"gaps": "no"},
        {"id": 5},
        {"extra": 1},
    ],
)
def test_invalid_topics(closed: Path, change: dict[str, object]) -> None:
    topics = json.loads((closed / "topics.json").read_text())
    topics["topics"]["t"].update(change)
    (closed / "topics.json").write_text(sealed(topics))
    with at_most(16 * MIB):
        refused(closed, CorruptCheckpoint, "topics.json.*not a list of topics")


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 250])
def test_a_topic_file_cannot_lead_out_of_the_directory(closed: Path, name: str) -> None:
    topics = json.loads((closed / "topics.json").read_text())
    topics["topics"][name] = topics["topics"]["t"]
    (closed / "topics.json").write_text(sealed(topics))
    before = tree(closed.parent)
    refused(closed, CorruptCheckpoint, "cannot name a topic")
    assert tree(closed.parent).keys() == before.keys()


def test_a_topic_file_of_a_later_version(closed: Path) -> None:
    topics = json.loads((closed / "topics.json").read_text())
    (closed / "topics.json").write_text(json.dumps({**topics, "version": 4}))
    refused(closed, UnsupportedFormat, "version")


def test_an_edited_topic_file_says_how_to_continue(closed: Path) -> None:
    """Whoever means what he wrote puts the checksum there that the error tells him."""
    file = closed / "topics.json"
    topics = json.loads(file.read_text())
    topics["topics"]["t"]["settings"]["retention_ms"] = 691_200_000
    for unsealed in (topics, {key: value for key, value in topics.items() if key != "crc32"}):
        file.write_text(json.dumps(unsealed))
        refused(closed, CorruptCheckpoint, f'its crc32 is {unsealed.get("crc32")}, .*put "crc32": [0-9]+ ')
    with pytest.raises(CorruptCheckpoint) as caught:
        embedlog.open(closed)
    right = re.search(r'"crc32": ([0-9]+)', str(caught.value))
    assert right is not None
    file.write_text(json.dumps({**topics, "crc32": int(right[1])}))
    with embedlog.open(closed) as log:
        assert log.describe_topic("t").settings == {"retention_ms": 691_200_000}
        assert len(list(log.read("t"))) == 3


def test_every_flip_of_the_topic_file_is_detected(closed: Path) -> None:
    file = closed / "topics.json"
    data = file.read_bytes()
    with embedlog.open(closed, "r") as log:
        known = log.describe_topic("t")
    refusals = 0
    for pos in range(len(data)):
        flipped = bytearray(data)
        flipped[pos] ^= 1 << pos % 8
        file.write_bytes(flipped)
        try:
            with embedlog.open(closed, "r") as log:
                assert log.describe_topic("t") == known
        except EmbedlogError:
            refusals += 1
    assert refusals > len(data) // 2  # the others are in what is between the words


@pytest.mark.parametrize(
    "topics", [{}, {"other": {"id": "x", "partitions": 1, "settings": {}, "gaps": False}}]
)
def test_a_topic_file_without_a_partition_on_disk_is_refused(closed: Path, topics: dict[str, Any]) -> None:
    file = closed / "topics.json"
    file.write_text(sealed({"version": 1, "topics": topics}))
    refused(closed, CorruptCheckpoint, "t_0 holds records, and no topic claims them")


def test_a_topic_file_with_too_few_partitions_is_refused(closed: Path) -> None:
    with embedlog.open(closed) as log:
        log.append("t", b"4", partition=1)
    file = closed / "topics.json"
    topics = json.loads(file.read_text())
    topics["topics"]["t"]["partitions"] = 1
    file.write_text(sealed(topics))
    refused(closed, CorruptCheckpoint, "t_1 holds records")


CHECKPOINTS = [
    "clean-shutdown",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "writer.json",
    "writer-state",
    "t_0/leader-epoch-checkpoint",
    "t_0/00000000000.index",
    "t_0/00000000000.timeindex",
]
BAD_CHECKPOINTS = [
    *GARBAGE,
    b"0\n1\nt 0 99999999999999999999999\n",
    b"0\n99999999\nt 0 1\n",
    b'{"version": 1, "partitions": {"t 0": [1e400, 0, 0, 0]}}',
    b'{"version": 1, "partitions": {"t 0": []}}',
    b"\x7f" * 960,
]


@pytest.mark.parametrize("name", first_is_quick(CHECKPOINTS, 2))
def test_garbage_in_files_that_can_be_rebuilt(closed: Path, tmp_path: Path, name: str) -> None:
    for number, garbage in enumerate(BAD_CHECKPOINTS):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(closed, copy)
        (copy / name).write_bytes(garbage)
        with at_most(32 * MIB):
            with embedlog.open(copy, mode="r") as reader:
                assert [r.value for r in reader.read("t")] == [b"1", b"2", b"3"]
            with embedlog.open(copy) as log:
                assert [r.value for r in log.read("t")] == [b"1", b"2", b"3"]
                assert log.append("t", b"4", partition=0).offset == 3
            with embedlog.open(copy) as log:
                assert [r.value for r in log.read("t")] == [b"1", b"2", b"3", b"4"]


def test_a_changed_digit_in_clean_shutdown_is_detected(closed: Path) -> None:
    """It would have the next record appended at another offset."""
    note = (closed / "clean-shutdown").read_text()
    changed = note.replace("\n   3,", "\n   8,")
    assert changed != note
    (closed / "clean-shutdown").write_text(changed)
    with embedlog.open(closed) as log:
        assert not log.recovery.clean
        assert log.append("t", b"4", partition=0).offset == 3


# -- segments ---------------------------------------------------------------------------------------------


def foreign_segments() -> dict[str, bytes]:
    messages = encode_messages_07([b"one", b"two"])
    return {
        "0.7": messages,
        "v0": encode_message_set([(None, b"one", (), -1)], magic=0),
        "v1": encode_message_set([(None, b"one", (), 5)], magic=1),
    }


@pytest.mark.parametrize("kind", ["0.7", "v0", "v1"])
def test_a_foreign_segment_is_left_as_it_is(closed: Path, kind: str) -> None:
    (closed / "t_1" / "00000000000.kafka").write_bytes(foreign_segments()[kind])
    before = records_of(closed)
    with pytest.raises(NotALog, match="embedlog import"):
        embedlog.open(closed)
    assert records_of(closed) == before
    with embedlog.open(closed, mode="r") as reader:
        assert len(list(reader.read("t", 0))) == 3
    assert records_of(closed) == before


def unclean(path: Path) -> None:
    """As if the writer had been killed, and its last records flushed."""
    (path / "clean-shutdown").unlink()


@pytest.mark.parametrize("recovery_point", ["as it was", "none"])
@pytest.mark.parametrize("damage", ["truncated", "zeroed", "garbage", "a tail of garbage", "a tail of zeros"])
def test_damaged_segments(closed: Path, damage: str, recovery_point: str) -> None:
    unclean(closed)
    if recovery_point == "none":
        (closed / "recovery-point-offset-checkpoint").unlink()
        (closed / "writer-state").unlink()
    segment = closed / "t_0" / "00000000000.kafka"
    good = segment.read_bytes()
    bad = {
        "truncated": good[:-1],
        "zeroed": bytes(len(good)),
        "garbage": random.Random(1).randbytes(len(good)),  # of any bytes, some look like another format
        "a tail of garbage": good + os.urandom(500),
        "a tail of zeros": good + bytes(500),
    }[damage]
    segment.write_bytes(bad)
    for name in ("index", "timeindex"):
        segment.with_suffix(f".{name}").unlink()
    with at_most(48 * MIB), embedlog.open(closed) as log:
        if damage.startswith("a tail"):  # what a crash leaves: cut, and (but for zeros) kept aside
            assert [r.value for r in log.read("t")] == [b"1", b"2", b"3"]
            assert log.recovery.bytes_cut == 500
            assert bool(list(closed.glob("t_0/*.cut"))) == (damage == "a tail of garbage")
            log.append("t", b"4", partition=0)
        elif recovery_point == "as it was":  # bit rot: reported, nothing deleted, no appends
            assert log.health().status == "degraded"
            assert "t_0" in log.health().damage[0]
            assert segment.read_bytes() == bad
            with pytest.raises(EmbedlogError):
                list(log.read("t", 0))
            with pytest.raises(PartitionFailed, match="embedlog repair"):
                log.append("t", b"x", partition=0)
            log.append("t", b"the other partition is well", partition=1)
        else:  # nothing says that it was durable: cut, and kept
            assert log.offsets("t")[0].log_end_offset == 0
            assert log.recovery.bytes_cut == len(bad)
            kept = [p.read_bytes() for p in closed.glob("t_0/*.cut")]
            assert kept == ([] if damage == "zeroed" else [bad])
            assert log.append("t", b"x", partition=0).offset == 0


@pytest.mark.parametrize("damage", ["truncated", "zeroed", "garbage"])
def test_damage_is_an_error_and_never_end_of_log(closed: Path, damage: str) -> None:
    """The clean note vouches for the tail: what is damaged afterwards has to be found by reading."""
    segment = closed / "t_0" / "00000000000.kafka"
    good = segment.read_bytes()
    bad = {"truncated": good[:-9], "zeroed": bytes(len(good)), "garbage": os.urandom(len(good))}[damage]
    with embedlog.open(closed) as log, embedlog.open(closed, mode="r") as reader:
        segment.write_bytes(bad)
        for handle in (log, reader):
            with pytest.raises(CorruptRecord) as caught:
                list(handle.read("t", 0))
            assert "t_0" in str(caught.value)


def bomb(declared: int) -> bytearray:
    """A batch of a million records that decompress to gigabytes, or says so; its CRC is right."""
    batch = encode_batch([(None, b"x", (), 1)])
    body = gzip.compress(bytes(200 * MIB), 1)
    header = bytearray(batch[:61])
    struct.pack_into(">i", header, 8, 61 - 12 + len(body))
    struct.pack_into(">h", header, 21, 1)
    struct.pack_into(">i", header, 23, declared - 1)
    struct.pack_into(">i", header, 57, declared)
    whole = header + body
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return whole


def test_a_decompression_bomb_in_the_log(log: Log, path: Path) -> None:
    log.create_topic("t")
    log.append("t", b"before")
    log.backend.append("t", 0, bomb(1))
    log.append("t", b"after")
    with embedlog.open(path, mode="r") as reader:
        for handle in (log, reader):
            with at_most(300 * MIB), pytest.raises(DecompressedTooLarge) as caught:
                list(handle.read("t"))
            assert "offset 1" in str(caught.value)
            first = handle.read("t")
            assert next(first).value == b"before"
            assert [r.value for r in handle.read("t", start=2, partition=0)] == [b"after"]


@pytest.mark.parametrize("declared", [2, 10**6, 2**31 - 1])
def test_a_batch_with_fewer_records_than_declared(log: Log, declared: int) -> None:
    log.create_topic("t")
    batch = encode_batch([(None, b"x", (), 1)])
    struct.pack_into(">i", batch, 23, declared - 1)
    struct.pack_into(">i", batch, 57, declared)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    log.backend.append("t", 0, batch)
    with at_most(8 * MIB), pytest.raises(CorruptRecord, match=r"t_0.*records"):
        list(log.read("t"))


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_a_batch_with_a_wrong_length(closed: Path, length: int) -> None:
    segment = closed / "t_0" / "00000000000.kafka"
    with embedlog.open(closed) as log:
        changed = bytearray(segment.read_bytes())
        struct.pack_into(">i", changed, 8, length)
        segment.write_bytes(changed)
        with at_most(8 * MIB), pytest.raises(CorruptRecord, match=r"00000000000\.kafka"):
            list(log.read("t", 0))


def test_the_backend_takes_whole_batches_only(log: Log, path: Path) -> None:
    log.create_topic("t")
    log.append("t", b"1", flush=True)
    good = encode_batch([(None, b"x", (), 1)])
    before = records_of(path)
    for bad in (bytearray(), good[:-1], good + b"\0", good[:30], bytearray(100), good + good[:60]):
        with pytest.raises(EmbedlogError):
            log.backend.append("t", 0, bytearray(bad))
    assert records_of(path) == before
    assert log.append("t", b"2").offset == 1


# -- handles ----------------------------------------------------------------------------------------------


def test_a_second_writer_changes_nothing(log: Log, path: Path) -> None:
    log.create_topic("t")
    log.append("t", b"1", flush=True)
    before = settled(path)
    with pytest.raises(DirectoryLocked, match="embedlog serve"):
        embedlog.open(path)
    assert settled(path) == before


def test_impossible_commits(log: Log, path: Path) -> None:
    log.create_topic("t")
    coordinator = log.backend.coordinator
    assert coordinator is not None
    good = CommittedOffset(1)
    tp = TopicPartition("t", 0)
    for bad in (
        {tp: 5},
        {tp: CommittedOffset(-1)},
        {tp: CommittedOffset(2**63)},
        {tp: CommittedOffset("1")},  # type: ignore[arg-type]
        {tp: CommittedOffset(True)},
        {tp: good._replace(metadata=None)},  # type: ignore[arg-type]
        {tp: good._replace(metadata="\ud800")},
        {tp: good._replace(metadata="x" * 40_000)},
        {tp: good._replace(leader_epoch=2**40)},
        {tp: good, TopicPartition("../t", 0): good},
        {TopicPartition("t", -1): good},
        {TopicPartition("t", 2**40): good},
        {TopicPartition(None, 0): good},  # type: ignore[arg-type]
        {"t": good},
    ):
        with pytest.raises(EmbedlogError):
            coordinator.commit_offsets("g", bad)  # type: ignore[arg-type]
        assert coordinator.committed_offsets("g") == {}
    for group in ("", None, 5, "x" * 40_000, "\ud800"):
        with pytest.raises(embedlog.InvalidGroup):
            coordinator.commit_offsets(group, {tp: good})  # type: ignore[arg-type]
    consumer = log.consumer("t", group="g")
    consumer.poll(0)
    with pytest.raises(EmbedlogError):
        consumer.commit({tp: -1})
    assert coordinator.committed_offsets("g") == {}


def test_foreign_records_in_the_offsets_topic_are_skipped(path: Path) -> None:
    with embedlog.open(path, offsets_topic_num_partitions=1) as log:
        log.create_topic("t")
        log.append("t", b"1")
        with log.consumer("t", group="g", stop_at_end=True) as consumer:
            assert len(list(consumer)) == 1
        for key in (None, b"", b"\0", b"\0\x09garbage", zlib.compress(b"?"), b"\0\1\0\1g\0\1t", b"\xff" * 40):
            log.append("__consumer_offsets", b"\0\3garbage", key=key)
            log.append("__consumer_offsets", b"", key=key)
    with embedlog.open(path) as log, log.consumer("t", group="g", stop_at_end=True) as consumer:
        assert list(consumer) == []


# -- what is no file ---------------------------------------------------------------------------------------

NO_FILES = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize(
    "name",
    [
        *("embedlog.json", "topics.json", "writer.json", "writer-state", "clean-shutdown", "publish-intent"),
        *("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "t_0", "u_0"),
        *("t_0/00000000000.kafka", "t_0/00000000000.index", "t_0/00000000000.timeindex"),
        *("t_0/00000000000.txnindex", "t_0/00000000003.snapshot", "t_0/leader-epoch-checkpoint"),
    ],
)
def test_a_directory_or_pipe_instead_of_a_file(closed: Path, name: str, kind: str) -> None:
    """It is worked around, or an error names it; no call waits for the other end of a pipe."""
    path = closed / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    NO_FILES[kind](path)
    for mode in ("r", "rw"):
        try:
            assert read_all(closed, mode) == [b"1", b"2", b"3"]
        except EmbedlogError as error:
            told = str(error)
            assert name.split("/")[0] in told or "t 0" in told
    try:
        report = verify_log(closed)
    except StorageError as error:
        assert name in str(error)
    else:
        assert all(name in finding.path for finding in report.findings)
    for dry_run in (True, False):
        try:
            repair_partition(closed, "t", 0, dry_run=dry_run)
        except EmbedlogError as error:
            assert name in str(error)


@pytest.mark.parametrize(
    ("name", "lost"),
    [("recovery-point-offset-checkpoint", 0), ("t_0/00000000000.index", 0), ("t_0/00000000000.kafka", 3)],
)
def test_verify_continues_after_unreadable_bytes(closed: Path, name: str, lost: int) -> None:
    (closed / name).unlink()
    (closed / name).mkdir()
    report = verify_log(closed)
    found = {(finding.kind, finding.path, finding.reason) for finding in report.findings}
    assert found == {(UNREADABLE, str(closed / name), "Is a directory")}
    assert report.records_lost == lost
    assert not report.ok
    assert report.segments == (1 if lost else 2)
