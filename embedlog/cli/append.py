"""`embedlog append`: lines from standard input or a file become records.

Available input is appended at once, at most `--batch` records together: line by line from a slow pipe, in
large batches from a fast one. `ACK <partition> <offset>` is written after the append of that record has
returned; with --flush that is after its fsync.
"""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..config import COMPRESSION_TYPES
from ..errors import InvalidArgument, PartialAppend, RecordTooLarge
from ..log import Log
from ..model import Record
from ..units import counted, duration, size
from .arguments import (
    JSON_NOTE,
    LOCKS,
    LOG,
    TOPIC,
    Command,
    arg,
    count,
    either,
    is_over_wire,
    positive,
)
from .opening import writer
from .text import record_from_json
from .ui import UI, Progress

_READ_BYTES: Final = 1 << 20
_LINGER_S: Final = 0.005
_LOOK_UP_S: Final = 1.0
_JSON_GROWTH: Final = 8  # a byte takes at most six characters in JSON, and names come on top
_DESCRIPTION: Final = f"""\
Append lines from standard input or FILE as records, as they arrive.

A line, without its newline, is a value; with --key-separator, a key and a value; with --json, an object as
`embedlog cat --json` writes it, with value, key, headers, timestamp_ms (or timestamp, which may be an ISO
time) and partition: {JSON_NOTE}. A value or
key of another JSON type is stored as its JSON text.

An invalid line, for example one with an unknown field, ends the command: the lines before it are appended,
and the error gives the line's number and how many records were appended."""

_RecordInput = bytes | tuple[bytes, bytes] | Record


def commands() -> Iterator[Command]:
    yield Command("append", "append lines as records", LOCKS, run, _DESCRIPTION).takes(
        LOG,
        TOPIC,
        arg("FILE", "default: standard input", nargs="?", default="-"),
        either(
            arg("--key-separator TEXT", "the text between key and value"),
            arg("--json", "each line is a record as a JSON object", dest="from_json"),
        ),
        arg("--partition N", "default: by key; without keys, one partition per batch", type=count),
        arg(
            "--compression CODEC",
            "none, gzip, snappy, lz4 or zstd; default: the topic's compression_type",
            choices=[name for name in COMPRESSION_TYPES if name != "producer"],
        ),
        arg("--batch N", "at most N records at once (10,000)", type=positive, default=10_000),
        arg("--flush", "make each append durable (fsync) before the next"),
        arg(
            "--ack",
            "print ACK <partition> <offset> for each record once it is appended (with --flush, durable)",
        ),
        arg("--create", "create the directory and the topic if missing"),
        arg("-q, --quiet", "no summary"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    if args.key_separator == "":
        raise InvalidArgument("--key-separator must not be empty")
    if args.flush and is_over_wire(args.directory):
        raise InvalidArgument(
            "--flush: a request cannot ask brokers to fsync\n"
            f"embedlog topics alter {args.directory} {args.topic} --config flush_messages=1   has them do it"
        )
    with _input(args.file) as fd, writer(args, ui, create=args.create) as log:
        if args.create and args.topic not in log.topics(internal=True):
            log.create_topic(args.topic)
        appending = _Appending(args, ui, log)
        is_terminal = os.isatty(fd)
        try:
            with ui.progress(shown=not (args.ack or args.quiet or is_terminal)) as bars:
                appending.all(fd, bars)
        finally:
            if not args.ack and not args.quiet and appending.records:
                ui.line(appending.summary())
    return 0


@contextmanager
def _input(path: str) -> Iterator[int]:
    if path == "-":
        yield sys.stdin.fileno()
        return
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)


def _size(fd: int) -> int | None:
    """The input's size in bytes; None unless it is a regular file."""
    status = os.fstat(fd)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class _Appending:
    """One run: its work and its result."""

    def __init__(self, args: argparse.Namespace, ui: UI, log: Log) -> None:
        self._args = args
        self._ui = ui
        self._log = log
        self._parse = _parser(args)
        self._partitions: set[int] = set()
        self._bytes = 0
        self._started = time.perf_counter()
        self._line = 0
        self.records = 0

    def all(self, fd: int, progress: Progress) -> None:
        """Append records until the end of input. Raises InvalidArgument for an invalid line."""
        total = _size(fd)
        bytes_read = 0
        limit = self._log.backend.topic_settings(self._args.topic).max_message_bytes
        longest = limit * (_JSON_GROWTH if self._args.from_json else 1) + 1
        rest = bytearray()
        while data := self._read(fd):
            bytes_read += len(data)
            lines = data.split(b"\n")
            if len(lines) > 1:
                lines[0] = bytes(rest) + lines[0]
                rest = bytearray(lines.pop())
                self._append(lines)
            else:
                rest += data
            if len(rest) > longest:
                raise RecordTooLarge(
                    f"line {self._line + 1:,} is longer than max_message_bytes of topic "
                    f"{self._args.topic!r} allows ({limit:,}); {self._landed()}"
                )
            progress.update(self._args.topic, bytes_read, total)
        if rest:
            self._append([bytes(rest)])

    def summary(self) -> str:
        took = time.perf_counter() - self._started
        rate = f" · {self.records / took:,.0f}/s" if self.records >= 1000 else ""
        durable = " and flushed" if self._args.flush else ""
        return (
            f"{self._args.topic}: {counted(self.records, 'record')} appended{durable} to "
            f"{counted(len(self._partitions), 'partition')} · {size(self._bytes)} in {duration(took)}{rate}"
        )

    def _read(self, fd: int) -> bytes:
        """The available input; without --ack, waits a moment for more, up to a batch's worth."""
        try:
            # A signal that arrives just before a blocking read would wait for its end.
            while not select.select([fd], [], [], _LOOK_UP_S)[0]:
                pass
            data = os.read(fd, _READ_BYTES)
            if self._args.ack or not data:
                return data
            parts = [data]
            while (room := _READ_BYTES - sum(map(len, parts))) > 0:
                if not select.select([fd], [], [], _LINGER_S)[0] or not (data := os.read(fd, room)):
                    break
                parts.append(data)
            return b"".join(parts)
        except OSError as error:
            raise InvalidArgument(f"{self._args.file} cannot be read: {error.strerror}") from None

    def _append(self, lines: list[bytes]) -> None:
        for start in range(0, len(lines), self._args.batch):
            part = lines[start : start + self._args.batch]
            records: list[_RecordInput] = []
            problem: InvalidArgument | None = None
            for line in part:
                self._line += 1
                try:
                    records.append(self._parse(line))
                except InvalidArgument as error:
                    problem = error
                    break
            self._append_records(records)
            if problem is not None:
                raise InvalidArgument(f"line {self._line:,}: {problem}; {self._landed()}")
            self._bytes += sum(map(len, part))

    def _append_records(self, records: list[_RecordInput]) -> None:
        for partition, group in _by_partition(records, self._args.partition):
            try:
                appended = self._log.append_many(
                    self._args.topic,
                    group,
                    partition=partition,
                    compression=self._args.compression,
                    flush=self._args.flush,
                )
            except PartialAppend as error:
                self._acknowledge(list(error.landed))
                self.records += len(error.landed)
                raise
            self.records += len(group)
            self._partitions.update(appended.by_partition)
            if self._args.ack:
                self._acknowledge(appended)

    def _acknowledge(self, appended: Any) -> None:
        if self._args.ack:
            lines = [f"ACK {metadata.partition} {metadata.offset}\n" for metadata in appended]
            self._ui.out.write("".join(lines))
            self._ui.flush()

    def _landed(self) -> str:
        return (
            f"{counted(self.records, 'record')} before it {'was' if self.records == 1 else 'were'} appended"
        )


def _parser(args: argparse.Namespace) -> Callable[[bytes], _RecordInput]:
    """A function that turns a line into an item for append_many."""
    if args.from_json:
        return record_from_json
    if args.key_separator is None:
        return bytes
    separator = args.key_separator.encode(errors="surrogateescape")

    def parse(line: bytes) -> tuple[bytes, bytes]:
        key, separated, value = line.partition(separator)
        if not separated:
            raise InvalidArgument(f"there is no {args.key_separator!r} between key and value")
        return key, value

    return parse


def _by_partition(
    records: list[_RecordInput], partition: int | None
) -> Iterator[tuple[int | None, list[_RecordInput]]]:
    """Groups of records for one append each: by the partition that a record names, and all others."""
    if partition is not None or not any(
        isinstance(record, Record) and record.partition >= 0 for record in records
    ):
        if records:
            yield partition, records
        return
    groups: dict[int | None, list[_RecordInput]] = {}
    for record in records:
        own_partition = record.partition if isinstance(record, Record) and record.partition >= 0 else None
        groups.setdefault(own_partition, []).append(record)
    yield from groups.items()
