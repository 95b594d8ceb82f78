"""A table's manifest and commit, without Spark: a load is committed whole or not at all, wherever it is
killed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from faults import FaultyFileSystem, PowerCutFileSystem, in_child
from hypothesis import given
from hypothesis import strategies as st

import embedlog
from embedlog.spark.manifest import (
    LastLoad,
    Loaded,
    Lost,
    Manifest,
    Span,
    TableFile,
    file_name,
    from_bytes,
    to_bytes,
)
from embedlog.spark.table import Table

EMPTY = Manifest("t", "an-id")
KILLED = 77


def loaded(load: int, *, into: Manifest = EMPTY, keeping: int = 0) -> tuple[Manifest, dict[str, bytes]]:
    """A load of two files in two dates and a bad one; earlier files stay if `keeping`."""
    contents: dict[str, bytes] = {}

    def file(directory: str, number: int, date: str | None = None) -> TableFile:
        path = f"{directory}/{file_name(load, number)}"
        contents[path] = f"{path} of {load}".encode() * 50
        return TableFile(path, 3, len(contents[path]), {0: Span(load * 10, load * 10 + 2, 3)}, date)

    dates = [f"2013-01-{load + day:02d}" for day in range(2)]
    files = tuple(file(f"event_date={date}", number, date) for number, date in enumerate(dates))
    manifest = into._replace(
        load=load,
        loaded={0: Loaded(load * 10 + 3, 0)},
        files=(*into.files[:keeping], *files),
        bad=(*into.bad, file("_bad", 0)),
    )
    return manifest, contents


def write(table: Table, load: int, contents: Mapping[str, bytes]) -> dict[str, str]:
    """As Spark does: in the load's own directory, and nothing is fsynced."""
    directory = table.loading_directory(load)
    written = {}
    for number, (path, data) in enumerate(contents.items()):
        os.makedirs(os.path.join(directory, str(number)))
        written[path] = os.path.join(directory, str(number), "part-by-spark.parquet")
        with open(written[path], "wb") as file:
            file.write(data)
    return written


def make(path: Path, fs: Any = None) -> tuple[Table, Manifest, dict[str, bytes]]:
    """A table after one load."""
    table = Table(path, fs)
    manifest, contents = loaded(1)
    with table.locked():
        table.create(EMPTY)
        table.commit(manifest, write(table, 1, contents))
    return table, manifest, contents


def on_disk(path: Path) -> dict[str, bytes]:
    """The files that are in the table, and those that might be taken for it."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*.parquet")
        if "_loading" not in file.parts
    }


def test_a_load_is_committed(tmp_path: Path) -> None:
    table, manifest, contents = make(tmp_path / "t")
    assert table.read() == manifest
    assert on_disk(tmp_path / "t") == contents
    assert (manifest.rows, manifest.bad_rows) == (6, 3)
    assert manifest.bytes == sum(map(len, contents.values()))
    assert manifest.dates == ("2013-01-01", "2013-01-02")
    assert sorted(entry.name for entry in os.scandir(tmp_path / "t")) == [
        "_bad",
        "_embedlog",
        "event_date=2013-01-01",
        "event_date=2013-01-02",
    ]


@pytest.mark.parametrize("keeping", [0, 1, 2])
@pytest.mark.slow
def test_killed_at_each_system_call_it_is_all_or_nothing(tmp_path: Path, keeping: int) -> None:
    """A load that adds, and loads that replace some or all of what there was."""
    outcomes = []
    for number in range(200):
        path = tmp_path / str(number)
        table, before, old = make(path)
        after, new = loaded(2, into=before, keeping=keeping)
        there = {name: {**old, **new}[name] for name in after.paths()}

        def commit(path: Path = path, number: int = number, after: Any = after, new: Any = new) -> None:
            fs = FaultyFileSystem(path)
            table = Table(path, fs)
            with table.locked():
                written = write(table, 2, new)
                fs.exit_before = len(fs.calls) + number
                table.commit(after, written)

        code = in_child(commit)
        assert code in (0, KILLED)
        found = table.read()
        assert found in (before, after)
        # Nothing that counts is missing, whatever else is there.
        disk = on_disk(path)
        assert {name: disk[name] for name in found.paths()} == (old if found == before else there)
        outcomes.append(found == after)
        with table.locked():  # the next load, which finds no lock left, and nothing in its way
            table.tidy(found)
            assert on_disk(path) == (old if found == before else there)
            assert not (path / "_loading").exists()
            if found == before:
                table.commit(after, write(table, 2, new))
        assert table.read() == after
        assert on_disk(path) == there
        if code == 0:
            break
    else:
        pytest.fail("a commit never came to its end")
    assert outcomes == sorted(outcomes)
    assert not outcomes[0] and outcomes[-1]


def test_after_a_power_cut_the_manifest_lists_only_surviving_files(tmp_path: Path) -> None:
    class Snapshots(PowerCutFileSystem):
        """Looks before each call what a power cut would leave."""

        images: list[Any]

        def _note(self, operation: str, path: str) -> None:
            super()._note(operation, path)
            self.images.append(self.image())

    path = tmp_path / "t"
    path.mkdir()
    fs = Snapshots(path)
    fs.images = []
    table, first, _ = make(path, fs)
    second, contents = loaded(2, into=first, keeping=1)
    with table.locked():
        table.commit(second, write(table, 2, contents))
    fs.images.append(fs.image())
    seen = []
    for image in fs.images:
        data = image.files.get("_embedlog/manifest.json")
        manifest = from_bytes(data, "manifest.json") if data else EMPTY
        for file in manifest.files + manifest.bad:
            assert len(image.files[file.path]) == file.bytes
        seen.append(manifest.load)
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2}


def test_a_full_disk_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    for operation in ("sync", "rename", "sync_dir", "write", "make_dir"):
        path = tmp_path / operation
        table, before, old = make(path)
        after, new = loaded(2, into=before)
        fs = FaultyFileSystem(path)
        failing = Table(path, fs)
        with pytest.raises(OSError), failing.locked():
            written = write(failing, 2, new)
            fs.fail(operation, errno.ENOSPC)
            failing.commit(after, written)
        assert table.read() == before
        with table.locked():
            table.tidy(before)
        assert on_disk(path) == old


def test_unremovable_files_are_left_to_the_next_load(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, before, _ = make(path)
    after, new = loaded(2, into=before._replace(bad=()))
    fs = FaultyFileSystem(path)
    failing = Table(path, fs)
    with failing.locked():
        fs.fail("unlink", errno.EIO, path="event_date")
        failing.commit(after, write(failing, 2, new))
    assert fs.failed
    assert table.read() == after
    with table.locked():
        table.tidy(after)
    assert on_disk(path).keys() == after.paths()


def test_one_load_at_a_time(tmp_path: Path) -> None:
    table, _, _ = make(tmp_path / "t")
    with table.locked():
        with pytest.raises(embedlog.TableLocked, match="by this process: one load at a time") as caught:
            Table(tmp_path / "t").locked().__enter__()
        assert caught.value.pid == os.getpid()
        assert table.read() is not None  # readers need no lock
    with table.locked():
        pass


def test_a_killed_load_leaves_no_lock(tmp_path: Path) -> None:
    table, _, _ = make(tmp_path / "t")

    def die() -> None:
        Table(tmp_path / "t").locked().__enter__()
        os._exit(KILLED)

    assert in_child(die) == KILLED
    with table.locked():
        pass


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, _, _ = make(path)
    strangers = ["event_date=2013-01-01/notes.txt", "event_date=2013-01-01/other.parquet", "README", "a/b"]
    for name in strangers:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    gone, _ = loaded(2)
    with table.locked():
        table.commit(gone._replace(files=(), bad=()), {})
    assert sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()) == sorted(
        [*strangers, "_embedlog/lock", "_embedlog/manifest.json"]
    )


def test_a_directory_that_is_not_a_table_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for name, reason in (("file", "is a file"), ("full", "not empty and not a table")):
        with pytest.raises(embedlog.TableError, match=reason):
            Table(tmp_path / name).read()
    assert Table(tmp_path / "none").read() is None
    (tmp_path / "empty").mkdir()
    assert Table(tmp_path / "empty").read() is None


def test_a_table_without_its_manifest_is_not_taken_for_new(tmp_path: Path) -> None:
    table, _, contents = make(tmp_path / "t")
    (tmp_path / "t" / "_embedlog" / "manifest.json").unlink()
    with pytest.raises(embedlog.TableError, match=r"manifest\.json is missing"):
        table.read()
    assert on_disk(tmp_path / "t") == contents


def test_killed_before_its_first_manifest_it_is_not_a_table(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    with table.locked():
        pass
    assert table.read() is None


# -- bytes -------------------------------------------------------------------------------------------

counts = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def table_files(draw: st.DrawFn, *, bad: bool) -> TableFile:
    spans = draw(
        st.dictionaries(st.integers(0, 50), st.builds(Span, counts, counts, st.integers(0, 99)), max_size=3)
    )
    date = None if bad else draw(st.none() | st.dates().map(str))
    directory = "_bad" if bad else f"event_date={date or '__HIVE_DEFAULT_PARTITION__'}"
    name = file_name(draw(st.integers(0, 10**12)), draw(st.integers(0, 10**7)))
    return TableFile(f"{directory}/{name}", sum(s.rows for s in spans.values()), draw(counts), spans, date)


manifests = st.builds(
    Manifest,
    texts,
    texts,
    st.none() | texts,
    st.none() | texts,
    counts,
    st.dictionaries(st.integers(0, 50), st.builds(Loaded, counts, st.integers(-1, 2**31 - 1)), max_size=4),
    st.lists(table_files(bad=False), max_size=3).map(tuple),
    st.lists(table_files(bad=True), max_size=3).map(tuple),
    st.lists(st.builds(Lost, counts, counts, counts, counts), max_size=2).map(tuple),
    st.none() | st.builds(LastLoad, counts, st.floats(0, 1e9), counts, counts, counts),
)


@given(manifests)
def test_a_manifest_round_trips(manifest: Manifest) -> None:
    assert from_bytes(to_bytes(manifest), "m") == manifest


@given(manifests, st.data())
def test_a_damaged_manifest_is_an_error(manifest: Manifest, data: st.DataObject) -> None:
    raw = bytearray(to_bytes(manifest))
    where = data.draw(st.integers(0, len(raw) - 2))
    raw[where] ^= data.draw(st.integers(1, 255))
    try:
        found = from_bytes(bytes(raw), "m")
    except (embedlog.CorruptCheckpoint, embedlog.UnsupportedFormat) as error:
        assert "m" in str(error)
    else:
        assert found == manifest  # a blank more between two words, say


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b'{"version":1}', b"[" * 10_000, b"\xff", b'{"version":1,"crc32":0}']
)
def test_an_invalid_manifest_says_what_to_do(data: bytes) -> None:
    with pytest.raises(embedlog.CorruptCheckpoint, match="backup, or load into another table"):
        from_bytes(data, "m")


def test_a_later_version_is_refused() -> None:
    data = to_bytes(EMPTY).replace(b'"version":1', b'"version":2')
    with pytest.raises(embedlog.UnsupportedFormat, match="version 2"):
        from_bytes(data, "m")


@pytest.mark.parametrize(
    "path",
    [
        "../event_date=2013-01-01/part-00000001-00000.parquet",
        "/etc/passwd",
        "event_date=2013-01-01/x.parquet",
    ],
)
def test_a_path_cannot_leave_the_table(path: str) -> None:
    file = TableFile(path, 0, 0, {}, "2013-01-01")
    for manifest in (EMPTY._replace(files=(file,)), EMPTY._replace(bad=(file,))):
        with pytest.raises(embedlog.CorruptCheckpoint, match="no file of a table"):
            from_bytes(to_bytes(manifest), "m")


@given(
    st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1),
    st.dictionaries(st.integers(0, 3), st.integers(0, 25)),
)
def test_files_lie_before_or_after_the_replaced_range(
    bounds: dict[int, tuple[int, int]], cuts: dict[int, int]
) -> None:
    spans = {p: Span(min(pair), max(pair), 2) for p, pair in bounds.items()}
    file = TableFile("x", 2 * len(spans), 1, spans)
    records = [(p, offset) for p, span in spans.items() for offset in (span.first, span.last)]
    replaced = [p in cuts and offset >= cuts[p] for p, offset in records]
    assert file.lies_before(cuts) == (not any(replaced))
    assert file.lies_after(cuts) == all(replaced)
