"""Compares a segment's index files with its batches, for verify.

    offset entry   points to the start of a batch, which begins at or before its offset
    time entry     has the largest timestamp up to its offset

Most batches are compared as runs, while their bytes are in memory (`inspect`); the result counts when the
run is taken (`agree`). If an entry is wrong, the batches are compared one by one to tell which and why.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeAlias

from ..codec import BatchHeader, read_header
from ..codec.loops import compare_run
from ..codec.rules import Compared, IndexEntries
from ..errors import CorruptIndex
from ..files.filesystem import FileSystem
from ..index import decode_offsets, decode_times, empty_offsets, empty_times
from ..scan.batch_scan import Run

Agreed: TypeAlias = tuple[Compared, Compared]  # before and after a run


class IndexCheck:
    """Compares a segment's index entries with its batches as they go by."""

    def __init__(self, base_offset: int, offset_path: str, time_path: str) -> None:
        self._base = base_offset
        self._offset_path = offset_path
        self._time_path = time_path
        self._entries = IndexEntries(*empty_offsets(), *empty_times())
        self._compared = Compared()
        self._wrong: dict[str, tuple[int, str]] = {}

    def load(self, fs: FileSystem, size: int, span: int) -> None:
        """Raises FileNotFoundError, CorruptIndex with its path."""
        try:
            path = self._offset_path
            offsets, positions = decode_offsets(fs.read_file(path), size, span)
            self._entries = IndexEntries(positions, offsets, *empty_times())
            path = self._time_path
            self._entries = IndexEntries(positions, offsets, *decode_times(fs.read_file(path), span))
        except CorruptIndex as error:
            raise error.at(path=path) from None

    def inspect(self, buffer: bytearray, at: int, run: Run) -> Agreed | None:
        """Compare with a run in a buffer; change nothing.

        Returns the argument of `agree`, None if an entry is wrong.
        """
        entries, rules = self._entries, run.start.rules
        before = Compared(
            bisect_left(entries.positions, run.pos),
            bisect_left(entries.timestamp_offsets, rules.next_offset - self._base),
            run.start.index_state.largest_timestamp_ms,
            self._compared.whole,
        )
        stop = at + run.end - run.pos
        pos, after = compare_run(buffer, at, stop, self._base, entries, before, run.pos - at)
        return (before, after) if pos == stop else None

    def agree(self, agreed: Agreed | None) -> bool:
        """Adopt a result of `inspect` if it continues from here."""
        if agreed is None or agreed[0] != self._compared:
            return False
        self._compared = agreed[1]
        return True

    def compare(self, data: bytearray, pos: int) -> None:
        """Compare with valid batches from `pos` of the file on."""
        at = 0
        while True:
            at, self._compared = compare_run(
                data, at, len(data), self._base, self._entries, self._compared, pos
            )
            if at == len(data):
                break
            header = read_header(data, at)
            self._batch(header, pos + at)
            at += header.size

    def _batch(self, header: BatchHeader, pos: int) -> None:
        """Handle a batch at `pos` that disagrees with an entry."""
        entry, _, largest, whole = self._compared
        positions = self._entries.positions
        while entry < len(positions) and positions[entry] <= pos:
            at, offset = positions[entry], self._entries.offsets[entry] + self._base
            if at < pos:
                self._fault(self._offset_path, f"entry {entry} points to byte {at:,}, inside a batch")
            elif header.base_offset > offset:
                reason = f"entry {entry} says offset {offset:,} is at byte {at:,} or after it"
                self._fault(self._offset_path, f"{reason}; there is {header.base_offset:,}")
            entry += 1
        self._time_entries(header.base_offset, largest, whole)
        largest = max(largest, header.max_timestamp_ms)
        self._time_entries(header.next_offset, largest, whole)
        self._compared = self._compared._replace(next_entry=entry, largest_timestamp_ms=largest)

    def _time_entries(self, before: int, largest: int, whole: bool) -> None:
        """All batches before an offset were compared."""
        time, offsets = self._compared.next_time, self._entries.timestamp_offsets
        while time < len(offsets) and offsets[time] + self._base < before:
            timestamp = self._entries.timestamps[time]
            if timestamp < largest or (whole and timestamp > largest):
                reason = f"entry {time} says {timestamp} is the largest timestamp up to offset"
                self._fault(self._time_path, f"{reason} {offsets[time] + self._base:,}; it is {largest}")
            time += 1
        self._compared = self._compared._replace(next_time=time)

    def passed_over(self, pos: int, end: int) -> None:
        """Bytes pos..end hold no valid batch: skip their entries."""
        entry, positions = self._compared.next_entry, self._entries.positions
        while entry < len(positions) and positions[entry] < end:
            entry += 1
        self._compared = self._compared._replace(next_entry=entry, whole=False)

    def faults(self) -> Iterator[tuple[str, str]]:
        """(path, what is wrong) of each file with a wrong entry."""
        for path, (count, first) in self._wrong.items():
            yield path, first if count == 1 else f"{first} ({count:,} entries are wrong)"

    def _fault(self, path: str, reason: str) -> None:
        count, first = self._wrong.get(path, (0, reason))
        self._wrong[path] = (count + 1, first)
