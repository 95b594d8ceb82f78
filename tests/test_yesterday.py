"""Log directories of earlier versions: read, verified, recovered, appended to, reopened.

They lie in tests/golden/, one archive for each version whose files differ from those before it, made by the
script beside them with that version's code. They are never regenerated: a version that cannot open one of
them cannot open its users' logs.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import FaultyFileSystem, UnsyncedFileSystem, crash, in_child, open_log
from kafka_files import fingerprint

import embedlog
from embedlog import Log, Mirror, Record, TopicPartition
from embedlog.backends.tool_requests import append_staged
from embedlog.cli import main
from embedlog.codec import encode_batch
from embedlog.store.verify import verify_log

GOLDEN = Path(__file__).parent / "golden"
LAYOUTS = ("classic", "kafka")
KINDS = {
    "16cf1d8": (
        "closed",
        "killed",
        "compacted",
        "killed_compacting",
        "killed_publishing",
        "groups",
        "killed_groups",
        "transactions",
        "killed_transactions",
        "mirror_source",
        "mirror",
    ),
    "3a09fd6": ("timed", "killed_timed", "committed", "killed_committed"),
}
CASES = [(version, kind) for version, kinds in KINDS.items() for kind in kinds]

Contents = dict[str, Any]


class Golden(NamedTuple):
    """A copy of a golden directory, and what the version that wrote it found in it."""

    kind: str
    path: Path
    expected: Contents

    def again(self) -> Path:
        """Another copy."""
        copy = self.path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(self.path, copy)


@pytest.fixture(scope="module", params=LAYOUTS)
def archives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of each version in a layout."""
    paths = {version: tmp_path_factory.mktemp(version) for version in KINDS}
    for version, path in paths.items():
        with tarfile.open(GOLDEN / f"{version}.tar.gz") as archive:
            archive.extractall(path, filter="data")
    return {version: path / request.param for version, path in paths.items()}


@pytest.fixture
def unpacked(archives: dict[str, Path]) -> Path:
    """The directories of the first version."""
    return archives["16cf1d8"]


@pytest.fixture(params=CASES, ids="-".join)
def golden(request: pytest.FixtureRequest, archives: dict[str, Path], tmp_path: Path) -> Golden:
    version, kind = request.param
    return copied(archives[version], kind, tmp_path)


def copied(unpacked: Path, kind: str, destination: Path) -> Golden:
    path = shutil.copytree(unpacked / kind, destination / "log")
    return Golden(kind, path, json.loads((unpacked / f"{kind}.json").read_text()))


def opened(path: Path) -> Log:
    """Open for writing, without compaction in the background: it would remove expected records."""
    return embedlog.open(path, min_compaction_lag_ms=1 << 60)


def as_json(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def record_as_json(record: Record) -> list[Any]:
    headers = [[name, as_json(value)] for name, value in record.headers]
    return [
        record.offset,
        record.timestamp_ms,
        record.timestamp_type,
        as_json(record.key),
        as_json(record.value),
        headers,
    ]


def topics_of(log: Log) -> Contents:
    return {name: topic_of(log, name) for name in log.topics()}


def topic_of(log: Log, name: str) -> Contents:
    described = log.describe_topic(name)
    return {
        "topic_id": described.topic_id,
        "settings": described.settings,
        "partitions": [
            {
                "edges": list(log.offsets(name)[number][:2]),
                "records": [
                    record_as_json(record)
                    for record in log.read(name, number, isolation_level="read_uncommitted")
                ],
                "committed": [r.offset for r in log.read(name, number, isolation_level="read_committed")],
            }
            for number in range(described.partitions)
        ],
    }


def groups_of(log: Log) -> Contents:
    coordinator = log.backend.coordinator
    assert coordinator is not None
    return {
        group: {
            "generation": coordinator.describe_group(group).generation,
            "offsets": [[*name, *each[:3]] for name, each in coordinator.committed_offsets(group).items()],
        }
        for group in coordinator.list_groups()
    }


def damage_in(path: Path) -> list[str]:
    """The findings of `verify`."""
    return [str(finding) for finding in verify_log(path, deep=True).findings]


def check(log: Log, golden: Golden) -> None:
    """A log open for writing has exactly what it should, and nothing is damaged."""
    assert log.recovery.damage == []
    assert topics_of(log) == golden.expected["topics"]
    assert groups_of(log) == golden.expected["groups"]


def partitions_of(log: Log) -> Iterator[tuple[str, int]]:
    for topic in log.topics():
        for number in range(log.describe_topic(topic).partitions):
            yield topic, number


def test_a_read_only_open_finds_everything_and_changes_nothing(golden: Golden) -> None:
    before = fingerprint(golden.path)
    with embedlog.open(golden.path, mode="r") as log:
        found = topics_of(log)
    if golden.kind == "killed_publishing":  # only the next writer completes it
        assert [each.pop("edges") for each in found["t"]["partitions"]] == [[0, 5], [0, 2]]
    else:
        assert found == golden.expected["topics"]
    assert fingerprint(golden.path) == before


def test_groups_are_listed_without_a_lock(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", "list", str(golden.path), "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    generations = {name: group["generation"] for name, group in golden.expected["groups"].items()}
    assert {each["group"]: each["generation"] for each in listed} == generations


def test_verification_finds_no_damage_and_changes_nothing(golden: Golden) -> None:
    before = fingerprint(golden.path)
    report = verify_log(golden.path, deep=True)
    assert report.findings == ()
    assert fingerprint(golden.path) == before


def test_a_writer_opens_appends_and_opens_again(golden: Golden) -> None:
    with opened(golden.path) as log:
        assert log.recovery.clean == golden.expected["clean"]
        check(log, golden)
        for topic, number in partitions_of(log):
            partition = golden.expected["topics"][topic]["partitions"][number]
            end = partition["edges"][1]
            appended = log.append(topic, b"today", key=b"new", partition=number, timestamp_ms=5)
            assert appended.offset == end
            added = log.read_at(topic, number, end)
            assert added is not None and added.value == b"today"
            partition["edges"][1] += 1
            partition["records"].append(record_as_json(added))
            if golden.kind not in ("transactions", "killed_transactions"):  # an open one holds it back
                partition["committed"].append(end)
        check(log, golden)
    assert damage_in(golden.path) == []
    with opened(golden.path) as log:
        assert log.recovery.clean
        check(log, golden)
        for topic, number in partitions_of(log):
            log.delete_records(topic, number, log.offsets(topic)[number].log_end_offset)
            assert list(log.read(topic, number)) == []


@pytest.mark.slow
@pytest.mark.soak
def test_a_writer_killed_at_any_call_of_its_first_opening(golden: Golden) -> None:
    for step in itertools.count():
        path = golden.again()

        def work(path: Path = path, step: int = step) -> None:
            fs = FaultyFileSystem(path)
            fs.exit_before = step
            crash(open_log(path, fs))

        status = in_child(work)
        assert status in (0, 77), step
        with open_log(path, UnsyncedFileSystem()) as log:
            check(log, golden)
        with open_log(path, UnsyncedFileSystem()) as log:
            assert log.recovery.clean
            check(log, golden)
        assert damage_in(path) == [], step
        if status == 0:
            break
    assert step > 2


def test_idempotent_producers_are_remembered(unpacked: Path, tmp_path: Path) -> None:
    golden = copied(unpacked, "closed", tmp_path)
    last = encode_batch(
        [(b"k", value, (), 1_700_000_000_018) for value in (b"a" * 40, b"b" * 40)],
        producer_id=8,
        producer_epoch=0,
        base_sequence=18,
    )
    with opened(golden.path) as log:
        assert log.backend.append("idempotent", 0, last).base_offset == 38
        check(log, golden)


def test_atomic_appends_are_remembered(unpacked: Path, tmp_path: Path) -> None:
    golden = copied(unpacked, "killed_publishing", tmp_path)
    assert not append_staged(golden.path, "done", 3, {TopicPartition("t", 0): "done"})
    assert not append_staged(golden.path, "query", 5, {TopicPartition("t", 0): "job.0"})
    with opened(golden.path) as log:
        check(log, golden)


def test_a_mirror_resumes_at_its_position(unpacked: Path, tmp_path: Path) -> None:
    golden = copied(unpacked, "mirror", tmp_path)
    source = copied(unpacked, "mirror_source", tmp_path / "source")
    with Mirror(source.path, golden.path) as mirror:
        assert sum(topic.records for topic in mirror.run(until_caught_up=True).topics) == 4
    with embedlog.open(golden.path, mode="r") as target, embedlog.open(source.path, mode="r") as original:
        for number in range(2):
            wanted = [record[1:] for record in map(record_as_json, original.read("clicks", number))]
            assert [record[1:] for record in map(record_as_json, target.read("clicks", number))] == wanted


@pytest.mark.parametrize("kind", ["timed", "killed_timed"])
def test_ranges_of_times_are_exact(archives: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """By the times of the segment manifest (version 2), and of the segments that it has none of."""
    golden = copied(archives["3a09fd6"], kind, tmp_path)
    manifests = list(golden.path.rglob("segment-manifest"))
    assert {each.read_text().partition("\n")[0] for each in manifests} == {"2"}
    partitions = {
        (topic, number): [(row[0], row[1]) for row in partition["records"]]
        for topic, described in golden.expected["topics"].items()
        for number, partition in enumerate(described["partitions"])
    }
    bounds = sorted({time_ms for rows in partitions.values() for _, time_ms in rows})[::7]
    with embedlog.open(golden.path, mode="r") as log:
        for (topic, number), rows in partitions.items():
            for first_ms, end_ms in itertools.pairwise([*bounds, bounds[-1] + 1]):
                start, end = (
                    datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=each)
                    for each in (first_ms, end_ms)
                )
                read = [each.offset for each in log.read(topic, number, start=start, end=end)]
                assert read == [offset for offset, time_ms in rows if first_ms <= time_ms < end_ms]


def test_every_directory_of_an_archive_is_opened(archives: dict[str, Path]) -> None:
    assert sorted(KINDS) == sorted(each.name.removesuffix(".tar.gz") for each in GOLDEN.glob("*.tar.gz"))
    for version, path in archives.items():
        assert sorted(each.name for each in path.iterdir() if each.is_dir()) == sorted(KINDS[version])
