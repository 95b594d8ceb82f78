"""What a log directory says about itself: its format, its topics, who writes it, how it was closed.

    embedlog.json      {"format": 1, "layout": "classic", "log_id": "..."}   written once; the writer's lock
    topics.json        {"version": 1, "crc32", "topics": {name: {"id", "partitions", "settings", "gaps"}},
                        "deleting": the same, of topics whose directories are not out of the way yet}
                       version 2 while a writer of many topics continues it in a journal (topics_journal.py)
    writer.json        {"pid", "program", "since_ms", "broker"} for people; the lock is flock on embedlog.json
                       "passing": true where the holder goes again in a moment (backends/handover.py)
                       "max_bytes" if it bounds the log
                       "segment_manifests": true if it keeps the lists of segments
                       (storage/segment_manifest.py)
    clean-shutdown     {"version": 1, "crc32", "partitions": {"clicks 0": [...]}}      (recovery.CleanEnd)

A topic exists when topics.json says so: its directories are made before, and removed after
(topic_lifecycle.py). So every directory with records belongs to a topic that stands there; a log where one
does not is refused, as its list of topics is lost or an old one. crc32 is that of all the rest of the file.
embedlog.json is never replaced, so that its lock cannot be held twice; a directory without it is not ours,
and is refused unchanged unless it is empty.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from ..config import UNLIMITED
from ..errors import (
    CorruptCheckpoint,
    DirectoryError,
    DirectoryLocked,
    InvalidArgument,
    NotALog,
    ReadOnly,
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
    WRITER_FILE,
    Layout,
)
from ..model import TopicPartition
from ..recovery import CleanEnd
from ..validation import check_choice
from .topic import Topic, entry_of, new_id, topics_of
from .topics_journal import TopicsJournal, apply_changes, change_between, is_journal

FORMAT_VERSION: Final = 1
_MANIFESTS: Final = "segment_manifests"
_PASSING_S: Final = 30.0  # for so long who comes waits for a writer that is about to go
_LOOK_AGAIN_S: Final = 0.01
_WITH_JOURNAL: Final = 2  # topics.json's version while a journal continues it
JOURNAL_FROM: Final = 64 << 10
"""A list of topics of this many bytes is not rewritten for each change."""

_UNWRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Catalog:
    """The small files at a directory's root."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self.layout: Layout = CLASSIC
        self.log_id = ""
        self.deleting: dict[str, Topic] = {}
        self._writer: dict[str, Any] = {}
        self.changes = 0  # of the topics, in this opening
        self._texts: dict[str, tuple[Topic, str]] = {}
        self.journal_name: str | None = None  # of the journal that topics.json names
        self._journal: TopicsJournal | None = None  # the same, if this writer began it
        self._topics_bytes = 0  # of topics.json as this writer wrote it last

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    # -- the directory ---------------------------------------------------------------------------------

    def create(self, layout: str | None) -> None:
        """Make the directory a log, unless it is one. Raises DirectoryError, NotALog, ReadOnly."""
        if layout is not None:
            check_choice("layout", layout, LAYOUTS)
        try:
            os.makedirs(self.path, exist_ok=True)
            if self._fs.exists(self.file(FORMAT_FILE)):
                return
            if not all(_is_attempt(entry.name) for entry in self._fs.list(self.path)):
                raise self._not_a_log()
            text = {"format": FORMAT_VERSION, "layout": layout or CLASSIC.name, "log_id": new_id()}
            temporary = self.file(f"{FORMAT_FILE}.{os.getpid()}.tmp")
            self._fs.write_file(temporary, _json(text))
            try:
                # Not a rename: of two processes that create the log at once one must find the other's.
                with contextlib.suppress(FileExistsError):
                    self._fs.link(temporary, self.file(FORMAT_FILE))
            finally:
                self._fs.unlink(temporary)
            self._fs.sync_dir(self.path)
        except (FileExistsError, NotADirectoryError):
            raise self._no_directory() from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._fs.exists(self.file(FORMAT_FILE)):
                return  # somebody else has made it meanwhile, and cleared away what we had begun
            if error.errno in _UNWRITABLE:
                raise self._read_only(error) from error
            raise DirectoryError(
                f"{self.path} cannot be made a log directory: {error.strerror}", path=self.path
            ) from error

    def load(self, layout: str | None) -> None:
        """Read embedlog.json. Raises NotALog, UnsupportedFormat, CorruptCheckpoint, InvalidArgument."""
        path = self.file(FORMAT_FILE)
        try:
            found = self.read_json(FORMAT_FILE)
        except FileNotFoundError:
            if not os.path.isdir(self.path):
                raise self._no_directory() from None
            raise self._not_a_log() from None
        except NotADirectoryError:
            raise DirectoryError(f"{self.path} is a file: a log is a directory", path=self.path) from None
        version = found.get("format")
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"{path}: format {shown(version)} is not one this version of embedlog knows "
                f"(it knows {FORMAT_VERSION}); nothing was changed",
                path=self.path,
            )
        if found.get("layout") not in LAYOUTS or not isinstance(found.get("log_id"), str):
            raise CorruptCheckpoint("layout or log id is missing", path=path)
        self.layout = LAYOUTS[found["layout"]]
        self.log_id = found["log_id"]
        if layout is not None and layout != self.layout.name:
            raise InvalidArgument(
                f"{self.path} has the layout {self.layout.name!r}, not {layout!r}: leave the layout out, or "
                f"make another directory with `embedlog export --layout {layout}`"
            )

    def lock(self) -> int:
        """Become the one writer: the lock's descriptor. One who only passes through is waited for.

        Raises DirectoryLocked, ReadOnly.
        """
        looked, deadline = False, time.monotonic() + _PASSING_S
        while True:
            try:
                fd = self._fs.try_lock(self.file(FORMAT_FILE))
            except OSError as error:
                raise self._read_only(error) from error
            if fd is not None:
                return fd
            # Who has just got the lock may not have said yet who it is: its second look counts.
            if looked and (not self._is_passing() or time.monotonic() > deadline):
                raise self._locked()
            looked = True
            time.sleep(_LOOK_AGAIN_S)

    def note_writer(self, now_ms: int, *, passing: bool = False, max_bytes: int = UNLIMITED) -> None:
        """Say who holds the lock, whether it will release it in a moment, and the log's max_bytes."""
        program = os.path.basename(sys.argv[0] or sys.executable) if sys.argv else "python"
        self._writer = {"pid": os.getpid(), "program": program, "since_ms": now_ms, "broker": None}
        if passing:
            self._writer["passing"] = True
        if max_bytes != UNLIMITED:
            self._writer["max_bytes"] = max_bytes
        if self.manifests_trusted():
            self._writer[_MANIFESTS] = True
        try:
            self._write_writer()
        except OSError as error:
            if error.errno in _UNWRITABLE:
                raise self._read_only(error) from error
            raise

    def manifests_trusted(self) -> bool:
        """Did the last writer keep the lists of segments? An older version does not update them."""
        try:
            return self.read_json(WRITER_FILE).get(_MANIFESTS) is True
        except FileNotFoundError:
            return True  # a copy
        except (OSError, StorageError, CorruptCheckpoint):
            return False

    @property
    def keeps_manifests(self) -> bool:
        """For the writer: are the lists of segments up to date?"""
        return _MANIFESTS in self._writer

    def keep_manifests(self) -> None:
        """From now on the lists of segments can be trusted. Raises OSError."""
        if not self.keeps_manifests:
            self._writer[_MANIFESTS] = True
            self._write_writer()

    def note_broker(self, address: str | None) -> None:
        """Say at which host:port the writer serves the directory; None where it does no more."""
        self._writer["broker"] = address
        with contextlib.suppress(OSError):  # a broker without it is none the worse
            self._write_writer()

    def _write_writer(self) -> None:
        # It is of no use to anybody after a crash of the machine.
        self._fs.write_file(self.file(WRITER_FILE), _json(self._writer), durable=False)

    def _is_passing(self) -> bool:
        with contextlib.suppress(OSError, StorageError, CorruptCheckpoint):
            return self.read_json(WRITER_FILE).get("passing") is True
        return False

    def _locked(self) -> DirectoryLocked:
        holder: dict[str, Any] = {}
        with contextlib.suppress(OSError, CorruptCheckpoint):
            holder = self.read_json(WRITER_FILE)
        pid, program, since_ms = holder.get("pid"), holder.get("program"), holder.get("since_ms")
        broker = holder.get("broker")
        who = f"process {pid} ({program})" if pid != os.getpid() else "this process, by another handle"
        return DirectoryLocked(
            f"{self.path} is open for writing in {who if pid else 'another process'}. "
            'Open it with mode="r" to read. '
            + (
                f'It is a broker, to append through: embedlog.open("kafka://{broker}")'
                if broker
                else f"Several processes append through a broker: embedlog serve {self.path}"
            ),
            path=self.path,
            pid=pid,
            program=program,
            since_ms=since_ms,
            broker=broker,
        )

    def check_whole(self) -> None:
        """Refuse where other brokers lead some of the partitions. Raises DirectoryError."""
        if self._fs.exists(self.file(CLUSTER_FILE)):
            raise DirectoryError(
                f"{self.path} is the directory of one broker of a cluster, and others lead some of its "
                'partitions: go through the brokers (kafka.bootstrap.servers, "kafka://host:9092"). '
                'mode="r" reads what is here',
                path=self.path,
            )

    def _no_directory(self) -> DirectoryError:
        what = "is a file: a log is a directory"
        try:
            with contextlib.suppress(NotADirectoryError):  # it lies below one
                self._fs.stat(self.path)
        except FileNotFoundError:
            what = "does not exist"
        except OSError as error:  # it may well be a directory
            what = f"cannot be read: {error.strerror}"
        return DirectoryError(f"{self.path} {what}", path=self.path)

    def _not_a_log(self) -> NotALog:
        return NotALog(
            f"{self.path} is not an embedlog directory (it has files and no {FORMAT_FILE}); it is left as it "
            "is. Name a new directory; `embedlog import` copies Kafka's and 0.7's log files into one",
            path=self.path,
        )

    def _read_only(self, error: OSError) -> ReadOnly:
        return ReadOnly(f'{self.path} cannot be written ({error.strerror}); mode="r" reads it')

    # -- topics ----------------------------------------------------------------------------------------

    def load_topics(self) -> dict[str, Topic]:
        """The topics that exist; `deleting` are those that are on their way out.

        Raises CorruptCheckpoint, StorageError.
        """
        read = self._read_topics()
        while True:
            topics, self.deleting = self._parse_topics(*read)
            stray = self._unclaimed({**topics, **self.deleting})
            before, read = read, self._read_topics() if stray else read
            if before == read:  # else its topic was made just now
                break
        if stray:
            raise CorruptCheckpoint(
                f"{'missing' if read[0] is None else 'too old, or emptied'}: {stray} holds records, and no "
                "topic claims them; restore the file from a backup, or move that directory away and "
                "`embedlog import` its records",
                path=self.file(TOPICS_FILE),
            )
        return topics

    def _read_topics(self) -> tuple[dict[str, Any] | None, bytes]:
        """topics.json, and the bytes of its journal."""
        found = self._topics_json()
        while True:
            self.journal_name = None if found is None else found.get("journal")
            if found is None or not is_journal(self.journal_name):
                return found, b""
            try:
                return found, self._fs.read_file(self.file(found["journal"]))
            except FileNotFoundError:
                before, found = found, self._topics_json()
                if before == found:  # else another one has been begun
                    reason = "it is missing: restore it, with topics.json, from a backup"
                    raise CorruptCheckpoint(reason, path=self.file(before["journal"])) from None

    def _topics_json(self) -> dict[str, Any] | None:
        try:
            return self.read_json(TOPICS_FILE)
        except FileNotFoundError:
            return None

    def _parse_topics(
        self, found: dict[str, Any] | None, journal: bytes
    ) -> tuple[dict[str, Topic], dict[str, Topic]]:
        """The topics that exist, and those that are being deleted."""
        if found is None:
            return {}, {}
        path = self.file(TOPICS_FILE)
        if found.get("version") not in (1, _WITH_JOURNAL):
            raise UnsupportedFormat(f"{path}: unknown version {shown(found.get('version'))}", path=self.path)
        try:
            stated, computed = found.get("crc32"), _crc(found)
        except RecursionError:
            raise CorruptCheckpoint("not a list of topics", path=path) from None
        if stated != computed:
            raise CorruptCheckpoint(
                f"its crc32 is {stated!r}, that of what stands there is {computed}: it is damaged, or was "
                f'edited. Restore it from a backup; or, where it is right as it is, put "crc32": {computed} '
                'beside "version"',
                path=path,
            )
        try:
            topics, deleting = dict(found["topics"]), dict(found.get("deleting", {}))
            apply_changes(journal, computed, self.file(str(self.journal_name)), topics, deleting)
            return topics_of(topics), topics_of(deleting)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise CorruptCheckpoint(f"not a list of topics ({error})", path=path) from error

    def claimed(self, name: TopicPartition, topics: Mapping[str, Topic]) -> bool:
        """Is it a partition of one of these topics?"""
        topic = topics.get(name.topic)
        return topic is not None and name.partition < topic.partitions

    def holds_records(self, directory: str) -> bool:
        """Is there a directory of that name with segments that are not empty? Raises StorageError."""
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

    def _unclaimed(self, topics: Mapping[str, Topic]) -> str | None:
        """A directory with records of a partition that none of these topics has."""
        for directory in sorted(self._fs.names(self.path)):
            name = self.layout.parse_partition_directory(directory)
            if name is not None and not self.claimed(name, topics) and self.holds_records(directory):
                return directory
        return None

    def save_topics(self, topics: Mapping[str, Topic], deleting: Mapping[str, Topic] | None = None) -> None:
        """Write all of topics.json. Durable on return. Without `deleting` it stays as it was.

        Raises OSError.
        """
        self._write_topics(topics, self._going(topics, deleting), None)

    def fold_journal(self, topics: Mapping[str, Topic]) -> None:
        """Write all topics to topics.json and drop the journal. Raises OSError."""
        if self.journal_name is not None:
            self.save_topics(topics)

    def replace_topics(
        self,
        before: Mapping[str, Topic],
        topics: Mapping[str, Topic],
        deleting: Mapping[str, Topic] | None = None,
    ) -> None:
        """Save a change of the topics durably, or leave everything as before. A long list is not rewritten.

        Raises StorageError.
        """
        try:
            self._save_change(before, topics, self._going(topics, deleting))
        except OSError as error:
            with contextlib.suppress(OSError):  # the new file may be there, and not durable: back to the old
                self.save_topics(before)
            raise storage_error(f"the topics of {self.path} could not be saved", error, self.path) from error

    def _going(self, topics: Mapping[str, Topic], deleting: Mapping[str, Topic] | None) -> dict[str, Topic]:
        deleting = self.deleting if deleting is None else deleting
        return {name: topic for name, topic in deleting.items() if name not in topics}

    def _save_change(
        self, before: Mapping[str, Topic], topics: Mapping[str, Topic], going: dict[str, Topic]
    ) -> None:
        journal = self._journal
        if journal is not None and journal.size < self._topics_bytes:
            self._journal = None  # in case the write fails
            journal.append(
                {
                    "topics": change_between(before, topics, entry_of),
                    "deleting": change_between(self.deleting, going, entry_of),
                }
            )
            self._journal = journal
            self._saved(topics, going)
        else:
            many = self._topics_bytes >= JOURNAL_FROM
            self._write_topics(topics, going, TopicsJournal(self._fs, self.path) if many else None)

    def _write_topics(
        self, topics: Mapping[str, Topic], going: dict[str, Topic], journal: TopicsJournal | None
    ) -> None:
        parts = [f' "version": {1 if journal is None else _WITH_JOURNAL}']
        if journal is not None:
            parts.append(f' "journal": {json.dumps(journal.name)}')
        parts.append(f' "topics": {self._text(topics)}')
        if going:
            parts.append(f' "deleting": {self._text(going)}')
        crc = crc32(_braced(parts))
        parts.insert(1, f' "crc32": {crc}')
        text = _braced(parts)
        self._fs.write_file(self.file(TOPICS_FILE), text)
        former, self.journal_name = self.journal_name, None
        if former is not None:
            with contextlib.suppress(OSError):  # the next open does it
                self._fs.unlink(self.file(former))
        self._journal, self._topics_bytes = journal, len(text)
        if journal is not None:
            self.journal_name, journal.crc = journal.name, crc
        self._saved(topics, going)

    def _saved(self, topics: Mapping[str, Topic], going: dict[str, Topic]) -> None:
        for name in self._texts.keys() - topics.keys() - going.keys():
            del self._texts[name]
        self.deleting = going
        self.changes += 1

    def _text(self, topics: Mapping[str, Topic]) -> str:
        """Topics as `_json` would write them there. A topic's part is made once: where there are a thousand,
        the text would else take longer than all the rest of making another."""
        for name, topic in topics.items():
            if name not in self._texts or self._texts[name][0] is not topic:
                self._texts[name] = topic, _described(topic)
        entries = [f"  {self._texts[name][1]}" for name in sorted(topics)]
        return "{\n" + ",\n".join(entries) + "\n }" if entries else "{}"

    # -- clean shutdown --------------------------------------------------------------------------------

    def take_clean_shutdown(self) -> dict[TopicPartition, CleanEnd] | None:
        """How the last writer left; None after a crash. The note is gone, durably, when this returns."""
        try:
            found = self.read_json(CLEAN_SHUTDOWN_FILE)
        except FileNotFoundError:
            return None
        except CorruptCheckpoint:
            found = {}
        self._fs.unlink(self.file(CLEAN_SHUTDOWN_FILE))
        self._fs.sync_dir(self.path)
        ends: dict[TopicPartition, CleanEnd] = {}
        try:
            if found["crc32"] != _crc(found):
                return None
            for name, numbers in found["partitions"].items():
                topic, _, number = name.rpartition(" ")
                ends[TopicPartition(topic, int(number))] = CleanEnd(*map(int, numbers))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
            return None
        return ends

    def note_clean_shutdown(self, ends: Mapping[TopicPartition, CleanEnd]) -> None:
        body = {"version": 1, "partitions": {str(name): list(end) for name, end in ends.items()}}
        self._fs.write_file(self.file(CLEAN_SHUTDOWN_FILE), _sealed(body))

    def read_json(self, name: str) -> dict[str, Any]:
        """One of the files at the root. Raises FileNotFoundError, StorageError, CorruptCheckpoint."""
        path = self.file(name)
        try:
            found = json.loads(self._fs.read_file(path))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpoint(f"not JSON ({error})", path=path) from error
        if not isinstance(found, dict):
            raise CorruptCheckpoint("not a JSON object", path=path)
        return found


def _described(topic: Topic) -> str:
    """A topic's line and those below it, within two braces of topics.json."""
    entry = entry_of(topic)
    return f"{json.dumps(topic.name)}: {json.dumps(entry, indent=1)}".replace("\n", "\n  ")


def _is_attempt(name: str) -> bool:
    """Is this what somebody leaves, or has for a moment, who makes a directory a log?"""
    return name.startswith(f"{FORMAT_FILE}.") and name.endswith(TEMPORARY)


def _crc(found: Mapping[str, Any]) -> int:
    """The CRC-32 of all of a file but its `crc32`."""
    return crc32(_json({key: value for key, value in found.items() if key != "crc32"}))


def _sealed(body: Mapping[str, Any]) -> bytes:
    """A file with its CRC-32, which stands behind the version."""
    return _json({"version": body["version"], "crc32": _crc(body), **body})


def _braced(parts: Sequence[str]) -> bytes:
    """The members of an object, as `_json` writes it."""
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
