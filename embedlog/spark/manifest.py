"""A warehouse table's manifest: how far the log is loaded, and the files of the table. One JSON file.

    <table>/_embedlog/manifest.json
        {"version": 1, "crc32": ...,                of everything else
         "topic": "flights", "topic_id": "...",     "" if the brokers have none
         "schema": "carrier STRING, ..." or null,   the columns that values are parsed into
         "date_column": "time_hour" or null,        null: the date of the record's timestamp
         "load": 7,                                 the last load's number
         "loaded": {"0": {"offset": 41870, "leader_epoch": 0}, ...},
         "files": [{"path": "event_date=2013-01-01/part-00000007-00000.parquet", "rows": 842, "bytes": 20144,
                    "date": "2013-01-01", "offsets": {"0": [first, last, rows], ...}}, ...],
         "bad": [...],                              the same for the side table, without dates
         "lost": [{"partition": 0, "start": 0, "end": 120, "load": 3}, ...],
         "last": {"at_ms": ..., "seconds": ..., "records": ..., "bad": ..., "replaced": ...} or null}

`loaded` and `files` are replaced together, by one rename: this makes loads exactly once. A file that is not
listed does not belong to the table.

Invariants: values only, no I/O; a file is decoded completely or raises CorruptCheckpoint; a path names a file
within the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from ..errors import CorruptCheckpoint, UnsupportedFormat, shown
from ..model import NO_EPOCH

VERSION: Final = 1
DATE_NAME: Final = "event_date"
BAD_DIRECTORY: Final = "_bad"
# Hive's name for null.
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"

_FILE: Final = re.compile(r"part-\d{8,18}-\d{5,9}\.parquet\Z")
_DIRECTORY: Final = re.compile(rf"{DATE_NAME}=(?:[+-]?\d{{4,9}}-\d\d-\d\d|{NO_DATE})\Z")


class Span(NamedTuple):
    """The records of a partition in a file: first and last offset, and their number."""

    first: int
    last: int
    rows: int


class TableFile(NamedTuple):
    """A file of the table; `path` is relative to it. date: None if the records have none."""

    path: str
    rows: int
    bytes: int
    offsets: Mapping[int, Span]
    date: str | None = None

    def lies_before(self, cuts: Mapping[int, int]) -> bool:
        """Whether all its records lie at offsets below the cuts (partition -> offset)."""
        return all(span.last < cuts[p] for p, span in self.offsets.items() if p in cuts)

    def lies_after(self, cuts: Mapping[int, int]) -> bool:
        """Whether all its records lie at or after the cuts."""
        return all(p in cuts and span.first >= cuts[p] for p, span in self.offsets.items())


class Loaded(NamedTuple):
    """How far a partition is loaded: the next offset, and the leader epoch of the record before it."""

    offset: int
    leader_epoch: int = NO_EPOCH


class Lost(NamedTuple):
    """Offsets that the log lost before they were loaded, and the load that skipped them."""

    partition: int
    start: int
    end: int
    load: int


class LastLoad(NamedTuple):
    """The last load's result."""

    at_ms: int
    seconds: float
    records: int
    bad: int
    replaced: int


class Manifest(NamedTuple):
    """A table's state."""

    topic: str
    topic_id: str
    schema: str | None = None
    date_column: str | None = None
    load: int = 0
    loaded: Mapping[int, Loaded] = {}
    files: tuple[TableFile, ...] = ()
    bad: tuple[TableFile, ...] = ()
    lost: tuple[Lost, ...] = ()
    last: LastLoad | None = None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bad_rows(self) -> int:
        return sum(file.rows for file in self.bad)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files + self.bad)

    @property
    def dates(self) -> tuple[str, str] | None:
        """The first and last event date; None if there is none."""
        dates = [file.date for file in self.files if file.date is not None]
        return (min(dates), max(dates)) if dates else None

    def paths(self) -> set[str]:
        return {file.path for file in self.files + self.bad}


def file_name(load: int, number: int) -> str:
    """The name of a load's file."""
    return f"part-{load:08d}-{number:05d}.parquet"


def is_file_name(name: str) -> bool:
    """Whether it is the name of a load's file. No other file is ever removed."""
    return _FILE.match(name) is not None


def is_date_directory(name: str) -> bool:
    return _DIRECTORY.match(name) is not None


def date_of(directory: str) -> str | None:
    """The date in a directory's name; None for the directory of rows without a date."""
    text = directory.removeprefix(f"{DATE_NAME}=")
    return None if text == NO_DATE else text


# -- bytes ---------------------------------------------------------------------------------------------


def to_bytes(manifest: Manifest) -> bytes:
    """The file's bytes."""
    body = {
        "topic": manifest.topic,
        "topic_id": manifest.topic_id,
        "schema": manifest.schema,
        "date_column": manifest.date_column,
        "load": manifest.load,
        "loaded": {str(p): position._asdict() for p, position in sorted(manifest.loaded.items())},
        "files": [{**_described(file), "date": file.date} for file in manifest.files],
        "bad": [_described(file) for file in manifest.bad],
        "lost": [range_._asdict() for range_ in manifest.lost],
        "last": None if manifest.last is None else manifest.last._asdict(),
    }
    return _json({"version": VERSION, "crc32": crc32(_json(body)), **body})


def from_bytes(data: bytes, path: str) -> Manifest:
    """The manifest in these bytes; `path` is for the errors. Raises CorruptCheckpoint, UnsupportedFormat."""
    try:
        body = json.loads(data)
        version, stated = body.pop("version"), body.pop("crc32")
        computed = crc32(_json(body))
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
        raise _damaged(f"not a manifest ({error})", path) from error
    if version != VERSION:
        raise UnsupportedFormat(
            f"{path}: version {shown(version)} is not one this version of embedlog knows "
            f"(it knows {VERSION}); nothing was changed",
            path=path,
        )
    if stated != computed:
        raise _damaged(f"its crc32 is {shown(stated)}, that of what stands there is {shown(computed)}", path)
    try:
        manifest = _manifest(**body)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _damaged(f"not a manifest ({error})", path) from error
    return manifest


def _damaged(reason: str, path: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{reason}: restore it from a backup, or load into another table; the log has all that was not "
        "deleted from it",
        path=path,
    )


def _manifest(
    *,
    topic: str,
    topic_id: str,
    schema: str | None,
    date_column: str | None,
    load: int,
    loaded: dict[str, dict[str, int]],
    files: list[dict[str, Any]],
    bad: list[dict[str, Any]],
    lost: list[dict[str, int]],
    last: dict[str, Any] | None,
) -> Manifest:
    for text in (topic, topic_id, schema or "", date_column or ""):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a text")
    return Manifest(
        topic,
        topic_id,
        schema,
        date_column,
        _count(load),
        {
            _count(int(p)): Loaded(_count(position["offset"]), int(position["leader_epoch"]))
            for p, position in loaded.items()
        },
        tuple(_file(**{**file, "date": date_of(_checked(file["path"], _DIRECTORY))}) for file in files),
        tuple(_file(**{**file, "path": _in_bad(file["path"])}) for file in bad),
        tuple(Lost(**{name: _count(value) for name, value in range_.items()}) for range_ in lost),
        None if last is None else LastLoad(**last),
    )


def _loaded(*, offset: int, leader_epoch: int) -> Loaded:
    return Loaded(_count(offset), _count(leader_epoch) if leader_epoch != NO_EPOCH else NO_EPOCH)


def _file(
    *, path: str, rows: int, bytes: int, offsets: dict[str, list[int]], date: str | None = None
) -> TableFile:
    spans = {_count(int(p)): Span(*map(_count, span)) for p, span in offsets.items()}
    if sum(span.rows for span in spans.values()) != _count(rows):
        raise ValueError(f"the rows of {path}")
    return TableFile(path, rows, _count(bytes), spans, date)


def _checked(path: str, directory: re.Pattern[str]) -> str:
    """The directory of a file's path. Raises ValueError unless it is one of this table's."""
    parts = path.split("/")
    if len(parts) != 2 or directory.match(parts[0]) is None or not is_file_name(parts[1]):
        raise ValueError(f"{path!r} is no file of a table")
    return parts[0]


def _in_bad(path: str) -> str:
    _checked(path, re.compile(rf"{BAD_DIRECTORY}\Z"))
    return path


def _count(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is not a number from 0 on")
    return number


def _described(file: TableFile) -> dict[str, object]:
    spans = {str(p): list(span) for p, span in sorted(file.offsets.items())}
    return {"path": file.path, "rows": file.rows, "bytes": file.bytes, "offsets": spans}


def _json(value: object) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()
