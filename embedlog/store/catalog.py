"""The catalog of a log directory: its format, its topics, and how it was closed.

    embedlog.json      {"format": 1, "layout": "classic", "log_id": "..."}, written once
    topics.json        {"version": 1, "crc32", "topics": {name: {"id", "partitions", "settings", "gaps"}},
                        "deleting": likewise, the topics whose directories are not renamed yet}
                       version 2 while a writer of many topics continues it in a journal (topics_journal.py)
                       version 3 once the log has moved, with "moved": {"to", "since_ms"}: it is read, and no
                       longer written. Versions of embedlog that do not know it refuse the log
    clean-shutdown     {"version": 1, "crc32", "partitions": {"clicks 0": [...]}}      (recovery.CleanEnd)

A topic exists if topics.json lists it: its directories are created before, and removed after
(topic_lifecycle.py). So a topic that is listed claims each directory with records. If a directory is
unclaimed, topics.json is lost or outdated, and the log is refused. crc32 covers the rest of the file. A
directory without embedlog.json is not ours: it is refused unchanged, unless it is empty.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from ..errors import (
    CorruptCheckpoint,
    DirectoryError,
    InvalidArgument,
    LogMoved,
    NotALog,
    StorageError,
    UnsupportedFormat,
    shown,
)
from ..files.filesystem import TEMPORARY, FileSystem, storage_error
from ..files.names import (
    CLASSIC,
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_FILE,
    FORMAT_FILE,
    LAYOUTS,
    TOPICS_FILE,
    Layout,
)
from ..model import TopicPartition
from ..recovery import CleanEnd
from ..validation import check_choice
from .topic import StoredTopic, entry_of, new_id, topics_of
from .topics_journal import TopicsJournal, apply_changes, change_between, is_journal
from .writer_lock import UNWRITABLE, WriterLock, read_only, to_json

FORMAT_VERSION: Final = 1
_WITH_JOURNAL: Final = 2  # topics.json's version while a journal continues it
_MOVED: Final = 3  # once the log has moved
JOURNAL_FROM: Final = 64 << 10
"""A topics.json of at least this many bytes is not rewritten for each change."""


class Moved(NamedTuple):
    """Where a log has moved, and when."""

    to: str
    since_ms: int


class Catalog:
    """The small files at a directory's root. Its user takes turns: Store by its topics_lock."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self.layout: Layout = CLASSIC
        self.log_id = ""
        self.deleting: dict[str, StoredTopic] = {}
        self.moved: Moved | None = None  # as of the last load
        self.writer_lock = WriterLock(fs, path, self.read_json)
        self.changes = 0  # of the topics, since this object was created
        self._texts: dict[str, tuple[StoredTopic, str]] = {}  # each topic as topics.json has it
        self.journal_name: str | None = None  # of the journal that topics.json names
        self._journal: TopicsJournal | None = None  # the same, if this writer created it
        self._topics_bytes = 0  # of topics.json as this writer last wrote it

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    # -- the directory ---------------------------------------------------------------------------------

    def create(self, layout: str | None) -> None:
        """Create the log, unless the directory is one. Raises DirectoryError, NotALog, ReadOnly."""
        if layout is not None:
            check_choice("layout", layout, LAYOUTS)
        try:
            os.makedirs(self.path, exist_ok=True)
            if self._fs.exists(self.file(FORMAT_FILE)):
                return
            if not self._holds_nothing():
                raise self._not_a_log()
            text = {"format": FORMAT_VERSION, "layout": layout or CLASSIC.name, "log_id": new_id()}
            temporary = self.file(f"{FORMAT_FILE}.{os.getpid()}.tmp")
            self._fs.write_file(temporary, to_json(text))
            try:
                # Not a rename: of two processes that create the log at once, one must fail.
                with contextlib.suppress(FileExistsError):
                    self._fs.link(temporary, self.file(FORMAT_FILE))
            finally:
                self._fs.unlink(temporary)
            self._fs.sync_dir(self.path)
        except (FileExistsError, NotADirectoryError):
            raise self._no_directory() from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._fs.exists(self.file(FORMAT_FILE)):
                return  # another process created it meanwhile, and removed our temporary file
            if error.errno in UNWRITABLE:
                raise read_only(self.path, error) from error
            raise DirectoryError(
                f"{self.path} cannot become a log directory: {error.strerror}", path=self.path
            ) from error

    def load(self, layout: str | None) -> None:
        """Read embedlog.json. Raises NotALog, UnsupportedFormat, CorruptCheckpoint, InvalidArgument."""
        path = self.file(FORMAT_FILE)
        try:
            format_json = self.read_json(FORMAT_FILE)
        except FileNotFoundError:
            if not os.path.isdir(self.path):
                raise self._no_directory() from None
            raise self._not_a_log() from None
        except NotADirectoryError:
            raise DirectoryError(f"{self.path} is a file: a log is a directory", path=self.path) from None
        version = format_json.get("format")
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"{path}: format {shown(version)} is unknown to this version of embedlog "
                f"(it knows {FORMAT_VERSION}); nothing was changed",
                path=self.path,
            )
        if format_json.get("layout") not in LAYOUTS or not isinstance(format_json.get("log_id"), str):
            raise CorruptCheckpoint("layout or log id is missing", path=path)
        self.layout = LAYOUTS[format_json["layout"]]
        self.log_id = format_json["log_id"]
        if layout is not None and layout != self.layout.name:
            raise InvalidArgument(
                f"{self.path} has the layout {self.layout.name!r}, not {layout!r}: leave the layout out, or "
                f"make another directory with `embedlog export --layout {layout}`"
            )

    def check_whole(self) -> None:
        """Raise DirectoryError if the directory is one broker's, as other brokers lead some partitions."""
        if self._fs.exists(self.file(CLUSTER_FILE)):
            raise DirectoryError(
                f"{self.path} is the directory of one broker of a cluster, and others lead some of its "
                'partitions: connect to the brokers (kafka.bootstrap.servers, "kafka://host:9092"). '
                'mode="r" reads this directory',
                path=self.path,
            )

    def _no_directory(self) -> DirectoryError:
        reason = "is a file: a log is a directory"
        try:
            with contextlib.suppress(NotADirectoryError):  # a parent is a file
                self._fs.stat(self.path)
        except FileNotFoundError:
            reason = "does not exist"
        except OSError as error:  # it may be a directory
            reason = f"cannot be read: {error.strerror}"
        return DirectoryError(f"{self.path} {reason}", path=self.path)

    def _holds_nothing(self) -> bool:
        return all(_is_attempt(entry.name) for entry in self._fs.list(self.path))

    def _not_a_log(self) -> DirectoryError:
        with contextlib.suppress(OSError):  # it may not be listed
            if self._holds_nothing():
                return DirectoryError(f"{self.path} is empty: it holds no log yet", path=self.path)
        return NotALog(
            f"{self.path} is not an embedlog directory (it has files but no {FORMAT_FILE}); it is left as it "
            "is. Name a new directory; `embedlog import` copies log files of Kafka and of 0.7 into one",
            path=self.path,
        )

    # -- topics ----------------------------------------------------------------------------------------

    def load_topics(self) -> dict[str, StoredTopic]:
        """Read the topics; `deleting` are those whose deletion is unfinished.

        Raises CorruptCheckpoint, StorageError.
        """
        contents = self._read_topics()
        while True:
            topics, self.deleting = self._parse_topics(*contents)
            stray = self._unclaimed({**topics, **self.deleting})
            before, contents = contents, self._read_topics() if stray else contents
            if before == contents:  # else its topic has just been created
                break
        if stray:
            raise CorruptCheckpoint(
                f"{'missing' if contents[0] is None else 'outdated or emptied'}: {stray} holds records, and "
                "no topic claims them; restore the file from a backup, or move that directory away and "
                "`embedlog import` its records",
                path=self.file(TOPICS_FILE),
            )
        return topics

    def _read_topics(self) -> tuple[dict[str, Any] | None, bytes]:
        """topics.json, and the bytes of its journal."""
        topics_json = self._topics_json()
        while True:
            self.journal_name = None if topics_json is None else topics_json.get("journal")
            if topics_json is None or not is_journal(self.journal_name):
                return topics_json, b""
            try:
                return topics_json, self._fs.read_file(self.file(topics_json["journal"]))
            except FileNotFoundError:
                before, topics_json = topics_json, self._topics_json()
                if before == topics_json:  # else a new one was created
                    reason = "missing: restore it, with topics.json, from a backup"
                    raise CorruptCheckpoint(reason, path=self.file(before["journal"])) from None

    def _topics_json(self) -> dict[str, Any] | None:
        try:
            return self.read_json(TOPICS_FILE)
        except FileNotFoundError:
            return None

    def _parse_topics(
        self, topics_json: dict[str, Any] | None, journal: bytes
    ) -> tuple[dict[str, StoredTopic], dict[str, StoredTopic]]:
        """The topics that exist, and those that are being deleted."""
        if topics_json is None:
            return {}, {}
        path = self.file(TOPICS_FILE)
        if topics_json.get("version") not in (1, _WITH_JOURNAL, _MOVED):
            raise UnsupportedFormat(
                f"{path}: unknown version {shown(topics_json.get('version'))}", path=self.path
            )
        try:
            stated, computed = topics_json.get("crc32"), _crc(topics_json)
        except RecursionError:
            raise CorruptCheckpoint("not a list of topics", path=path) from None
        if stated != computed:
            raise CorruptCheckpoint(
                f"its crc32 is {stated!r}, but its contents have {computed}: it is damaged, or was edited. "
                f'Restore it from a backup; or, if the contents are right, put "crc32": {computed} next '
                'to "version"',
                path=path,
            )
        try:
            topics, deleting = dict(topics_json["topics"]), dict(topics_json.get("deleting", {}))
            apply_changes(journal, computed, self.file(str(self.journal_name)), topics, deleting)
            self.moved = None
            if topics_json["version"] == _MOVED:
                self.moved = Moved(str(topics_json["moved"]["to"]), int(topics_json["moved"]["since_ms"]))
            return topics_of(topics), topics_of(deleting)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise CorruptCheckpoint(f"not a list of topics ({error})", path=path) from error

    def check_not_moved(self) -> None:
        """For writers, once the topics are loaded. Raises LogMoved."""
        if self.moved is not None:
            raise LogMoved(
                f"{self.path} has moved to {self.moved.to}: open that. Here it can only be read "
                f'(mode="r"); `embedlog move --undo {self.path}` makes it writable again',
                path=self.path,
                to=self.moved.to,
                since_ms=self.moved.since_ms,
            )

    def mark_moved(self, topics: Mapping[str, StoredTopic], moved: Moved | None) -> None:
        """Mark the log as moved, durably, or as here again. For the holder of the lock. Raises OSError."""
        before, self.moved = self.moved, moved
        try:
            self.save_topics(topics)
        except BaseException:
            self.moved = before
            raise

    def claimed(self, name: TopicPartition, topics: Mapping[str, StoredTopic]) -> bool:
        """Whether it is a partition of one of these topics."""
        topic = topics.get(name.topic)
        return topic is not None and name.partition < topic.partitions

    def holds_records(self, directory: str) -> bool:
        """Whether this directory exists, with a segment that is not empty. Raises StorageError."""
        try:
            files = self._fs.list(self.file(directory))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(
                f"{self.file(directory)} cannot be read ({error.strerror}), and may hold records",
                path=self.path,
            ) from error
        return any(file.size and self.layout.parse_segment(file.name) is not None for file in files)

    def _unclaimed(self, topics: Mapping[str, StoredTopic]) -> str | None:
        """A directory with records of a partition that none of these topics claims."""
        for directory in sorted(self._fs.names(self.path)):
            name = self.layout.parse_partition_directory(directory)
            if name is not None and not self.claimed(name, topics) and self.holds_records(directory):
                return directory
        return None

    def save_topics(
        self, topics: Mapping[str, StoredTopic], deleting: Mapping[str, StoredTopic] | None = None
    ) -> None:
        """Write all of topics.json, durably. Without `deleting`, those stay as they were.

        Raises OSError.
        """
        self._write_topics(topics, self._deleting(topics, deleting), None)

    def fold_journal(self, topics: Mapping[str, StoredTopic]) -> None:
        """Write all topics to topics.json and drop the journal. Raises OSError."""
        if self.journal_name is not None:
            self.save_topics(topics)

    def replace_topics(
        self,
        before: Mapping[str, StoredTopic],
        topics: Mapping[str, StoredTopic],
        deleting: Mapping[str, StoredTopic] | None = None,
    ) -> None:
        """Save a change of the topics durably, or leave all as before. A long list is not rewritten.

        Raises StorageError.
        """
        try:
            self._save_change(before, topics, self._deleting(topics, deleting))
        except OSError as error:
            with contextlib.suppress(OSError):  # the new file may exist, not durable: restore the old one
                self.save_topics(before)
            raise storage_error(f"the topics of {self.path} could not be saved", error, self.path) from error

    def _deleting(
        self, topics: Mapping[str, StoredTopic], deleting: Mapping[str, StoredTopic] | None
    ) -> dict[str, StoredTopic]:
        deleting = self.deleting if deleting is None else deleting
        return {name: topic for name, topic in deleting.items() if name not in topics}

    def _save_change(
        self,
        before: Mapping[str, StoredTopic],
        topics: Mapping[str, StoredTopic],
        deleting: dict[str, StoredTopic],
    ) -> None:
        journal = self._journal
        if journal is not None and journal.size < self._topics_bytes:
            self._journal = None  # in case the write fails
            journal.append(
                {
                    "topics": change_between(before, topics, entry_of),
                    "deleting": change_between(self.deleting, deleting, entry_of),
                }
            )
            self._journal = journal
            self._saved(topics, deleting)
        else:
            is_large = self._topics_bytes >= JOURNAL_FROM
            self._write_topics(topics, deleting, TopicsJournal(self._fs, self.path) if is_large else None)

    def _write_topics(
        self,
        topics: Mapping[str, StoredTopic],
        deleting: dict[str, StoredTopic],
        journal: TopicsJournal | None,
    ) -> None:
        version = _MOVED if self.moved else 1 if journal is None else _WITH_JOURNAL
        parts = [f' "version": {version}']
        if self.moved:
            moved = json.dumps(self.moved._asdict(), indent=1).replace("\n", "\n ")  # as `to_json` nests it
            parts.append(f' "moved": {moved}')
        if journal is not None:
            parts.append(f' "journal": {json.dumps(journal.name)}')
        parts.append(f' "topics": {self._text(topics)}')
        if deleting:
            parts.append(f' "deleting": {self._text(deleting)}')
        crc = crc32(_braced(parts))
        parts.insert(1, f' "crc32": {crc}')
        text = _braced(parts)
        self._fs.write_file(self.file(TOPICS_FILE), text)
        old_journal, self.journal_name = self.journal_name, None
        if old_journal is not None:
            with contextlib.suppress(OSError):  # the next open does it
                self._fs.unlink(self.file(old_journal))
        self._journal, self._topics_bytes = journal, len(text)
        if journal is not None:
            self.journal_name, journal.crc = journal.name, crc
        self._saved(topics, deleting)

    def _saved(self, topics: Mapping[str, StoredTopic], deleting: dict[str, StoredTopic]) -> None:
        for name in self._texts.keys() - topics.keys() - deleting.keys():
            del self._texts[name]
        self.deleting = deleting
        self.changes += 1

    def _text(self, topics: Mapping[str, StoredTopic]) -> str:
        """Topics as `to_json` would write them. A topic's text is kept: with a thousand topics, encoding them
        all would take longer than the rest of creating one more."""
        for name, topic in topics.items():
            if name not in self._texts or self._texts[name][0] is not topic:
                self._texts[name] = topic, _described(topic)
        entries = [f"  {self._texts[name][1]}" for name in sorted(topics)]
        return "{\n" + ",\n".join(entries) + "\n }" if entries else "{}"

    # -- clean shutdown --------------------------------------------------------------------------------

    def take_clean_shutdown(self) -> dict[TopicPartition, CleanEnd] | None:
        """How the last writer closed the log; None after a crash. Removes the note, durably."""
        try:
            shutdown_json = self.read_json(CLEAN_SHUTDOWN_FILE)
        except FileNotFoundError:
            return None
        except CorruptCheckpoint:
            shutdown_json = {}
        self._fs.unlink(self.file(CLEAN_SHUTDOWN_FILE))
        self._fs.sync_dir(self.path)
        ends: dict[TopicPartition, CleanEnd] = {}
        try:
            if shutdown_json["crc32"] != _crc(shutdown_json):
                return None
            for name, numbers in shutdown_json["partitions"].items():
                topic, _, number = name.rpartition(" ")
                ends[TopicPartition(topic, int(number))] = CleanEnd(*map(int, numbers))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
            return None
        return ends

    def note_clean_shutdown(self, ends: Mapping[TopicPartition, CleanEnd]) -> None:
        """Note how each partition was closed. Raises OSError."""
        body = {"version": 1, "partitions": {str(name): list(end) for name, end in ends.items()}}
        self._fs.write_file(self.file(CLEAN_SHUTDOWN_FILE), _sealed(body))

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a file at the root. Raises FileNotFoundError, StorageError, CorruptCheckpoint."""
        path = self.file(name)
        try:
            document = json.loads(self._fs.read_file(path))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpoint(f"not JSON ({error})", path=path) from error
        if not isinstance(document, dict):
            raise CorruptCheckpoint("not a JSON object", path=path)
        return document


def _described(topic: StoredTopic) -> str:
    """A topic's lines in topics.json, two braces deep."""
    entry = entry_of(topic)
    return f"{json.dumps(topic.name)}: {json.dumps(entry, indent=1)}".replace("\n", "\n  ")


def _is_attempt(name: str) -> bool:
    """Whether this is the temporary file of a process that creates, or was killed while creating, the log."""
    return name.startswith(f"{FORMAT_FILE}.") and name.endswith(TEMPORARY)


def _crc(document: Mapping[str, Any]) -> int:
    """The CRC-32 of a file without its `crc32`."""
    return crc32(to_json({key: value for key, value in document.items() if key != "crc32"}))


def _sealed(body: Mapping[str, Any]) -> bytes:
    """A file with its CRC-32, which follows the version."""
    return to_json({"version": body["version"], "crc32": _crc(body), **body})


def _braced(parts: Sequence[str]) -> bytes:
    """The members of an object, as `to_json` writes it."""
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()
