"""The page of mirrors and loads."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import embedlog
from embedlog import Mirror
from embedlog.cluster import Broker
from embedlog.errors import CorruptCheckpoint
from embedlog.mirroring.notes import noted_mirrors
from embedlog.spark.manifest import LastLoad, Loaded, Manifest, Span, TableFile, to_bytes
from embedlog.store.read_only_store import ReadOnlyStore
from embedlog.ui import application

HOSTILE = "<script>alert(1)</script>"


def shown(path: Path | str, *tables: str) -> str:
    """The page as a visitor sees it."""
    over_wire = "://" in str(path)
    with (
        embedlog.open(str(path)) if over_wire else embedlog.open(path, mode="r") as log,
        TestClient(application(log, tables=tables)) as visitor,
    ):
        page = visitor.get("/activity")
    assert page.status_code == 200
    return page.text


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log to copy: two topics, one of two partitions."""
    with embedlog.open(tmp_path / "source") as log:
        log.create_topic("clicks", 2)
        log.append_many("clicks", [b"x"] * 70, partition=0)
        log.append_many("clicks", [b"x"] * 5, partition=1)
        log.create_topic("orders")
        log.append_many("orders", [b"x"] * 3)
    return tmp_path / "source"


def test_nothing(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
    page = shown(path)
    assert "No mirror has copied anything" in page
    assert "--table TABLE" in page


def test_a_mirror_that_has_ended(source: Path, path: Path) -> None:
    with Mirror(f"east={source}", path) as mirror:
        mirror.run(until_caught_up=True)
    page = shown(path)
    assert f"<h3>east={source} <small" in page
    assert "not running since" in page
    assert "/topics/east.clicks" in page
    assert "partition 0: offset 70" in page
    assert "partition 1: offset 5" in page
    assert "partition 0: offset 3" in page
    assert "of sources that are not known" not in page
    # The notes are for people: what the batches have is there without them, too.
    (path / "mirrors.json").unlink()
    page = shown(path)
    assert "of sources that are not known" in page
    assert "partition 0: offset 70" in page
    with Mirror(f"east={source}", path) as mirror:
        assert mirror.run(until_caught_up=True).records == 0


def test_a_mirror_that_runs(source: Path, path: Path) -> None:
    with Mirror([str(source)], path) as mirror:
        running = threading.Thread(target=mirror.run)
        running.start()
        while not (path / "mirrors.json").exists():
            time.sleep(0.01)
        while not notes_of(path):
            time.sleep(0.01)
        assert "running, process" in shown(path)
        mirror.stop()
        running.join()
    (noted,) = notes_of(path)
    assert not noted.is_running
    assert noted.behind == 0
    assert {each.topic for each in noted.topics} == {"clicks", "orders"}


def test_several_sources_are_noted(source: Path, tmp_path: Path, path: Path) -> None:
    with embedlog.open(tmp_path / "other") as log:
        log.create_topic("more")
    sources = [str(source), str(tmp_path / "other"), f"east={source}"]
    for each in sources:
        with Mirror(each, path) as mirror:
            mirror.run(until_caught_up=True)
    assert [each.source for each in notes_of(path)] == sources[::-1]
    with Mirror(sources[0], path) as mirror:
        mirror.run(until_caught_up=True)
    assert [each.source for each in notes_of(path)] == [sources[0], sources[2], sources[1]]


def notes_of(path: Path) -> list[embedlog.mirroring.notes.NotedMirror]:
    store = ReadOnlyStore(str(path))
    try:
        return noted_mirrors(store.catalog)
    finally:
        store.close()


def test_a_mirror_that_was_killed(source: Path, path: Path) -> None:
    with Mirror([str(source)], path) as mirror:
        mirror.run(until_caught_up=True)
    notes = json.loads((path / "mirrors.json").read_text())
    entry = notes["mirrors"].pop(str(source)) | {"running": True, "at_ms": 1, "trouble": HOSTILE}
    entry["topics"][0] |= {"topic": HOSTILE, "target_topic": HOSTILE}
    notes["mirrors"][HOSTILE] = entry
    (path / "mirrors.json").write_text(json.dumps(notes))
    page = shown(path)
    assert "not running since 1970" in page
    assert HOSTILE not in page


@pytest.mark.parametrize(
    "content",
    [
        "x",
        "[]",
        "{}",
        '{"mirrors": 1}',
        '{"mirrors": {"a": {}}}',
        '{"mirrors": {"a": {"pid": 1, "at_ms": 1e999, "running": 1, "trouble": 1, "topics": 1}}}',
        '{"mirrors": {"a": {"pid": 1, "at_ms": 1, "running": true, "trouble": null, "topics": [{"x": 1}]}}}',
    ],
)
def test_notes_that_are_damaged(source: Path, path: Path, content: str) -> None:
    with Mirror([str(source)], path) as mirror:
        mirror.run(until_caught_up=True)
    (path / "mirrors.json").write_text(content)
    with pytest.raises(CorruptCheckpoint):
        notes_of(path)
    page = shown(path)
    assert 'role="alert"' in page
    assert "partition 0: offset 70" in page
    with Mirror([str(source)], path) as mirror:  # it writes them anew
        mirror.run(until_caught_up=True)
    assert len(notes_of(path)) == 1


def test_a_mirror_into_brokers(source: Path, path: Path) -> None:
    with Broker(path, port=0) as broker:
        address = f"kafka://{broker.bootstrap_servers}"
        with Mirror([f"east={source}"], address) as mirror:
            mirror.run(until_caught_up=True)
        broker.log.group("others").reset("east.clicks", to="latest")
        for page in (shown(address), shown(path)):
            assert "mirror-east" in page
            assert "partition 0: offset 70" in page
            assert "others" not in page
            assert "not running since" not in page


def test_tables(path: Path, tmp_path: Path) -> None:
    with embedlog.open(path) as log:
        topic_id = log.create_topic("t", 2).topic_id
        log.append_many("t", [b"x"] * 10, partition=0)
        log.append_many("t", [b"x"] * 4, partition=1)
        log.flush()
    file = TableFile(
        "event_date=2026-01-01/part-00000001-00000.parquet", 7, 100, {0: Span(0, 6, 7)}, "2026-01-01"
    )
    manifest = Manifest(
        "t", topic_id, load=1, loaded={0: Loaded(7)}, files=(file,), last=LastLoad(1_000, 2.5, 7, 0, 0)
    )
    table = tmp_path / HOSTILE.replace("/", "")
    (table / "_embedlog").mkdir(parents=True)
    (table / "_embedlog" / "manifest.json").write_bytes(to_bytes(manifest))
    page = shown(path, str(table), str(tmp_path / "none"))
    assert "partition 0: offset 7 of 10" in page
    assert "partition 1: offset 0 of 4" in page
    assert '<td class="number">7</td>\n<td>1970-01-01' in page
    assert "<script>alert" not in page
    assert "is not a table yet" in page
