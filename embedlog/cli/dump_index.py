"""The entries of the files beside a segment: for `embedlog dump`.

Offset entries are checked against the segment, where it stands beside them: an entry must point to the
first byte of a batch that holds its offset or one before. Entries that do not are shown, and the exit code
is 1; the engine itself would rebuild such an index.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re

from ..codec import HEADER_SIZE, read_header
from ..errors import EmbedlogError
from ..files.names import INDEX, LAYOUTS
from ..index import OFFSET_ENTRY, TIME_ENTRY
from ..storage.producer_state import ProducerState, decode_aborted
from ..units import counted, iso
from .ui import UI, Column, number_columns


def _base_offset(path: str) -> int:
    """The offset in a file's name; 0 if there is none."""
    digits = re.match(r"\d+", os.path.basename(path))
    return int(digits[0]) if digits else 0


def dump_offsets(path: str, data: bytes, args: argparse.Namespace, ui: UI) -> int:
    """An .index file: 8 bytes an entry."""
    base = _base_offset(path)
    problems = 0
    rows = []
    with contextlib.ExitStack() as stack:
        segment = None
        for layout in LAYOUTS.values():
            with contextlib.suppress(OSError):
                segment = stack.enter_context(open(path.removesuffix(INDEX) + layout.records, "rb"))
        for delta, pos in OFFSET_ENTRY.iter_unpack(data[: len(data) - len(data) % OFFSET_ENTRY.size]):
            if not delta and not pos:
                continue  # preallocated
            problem = _problem(segment.fileno(), base + delta, pos) if segment else ""
            problems += bool(problem)
            if args.json:
                ui.json({"offset": base + delta, "pos": pos, "problem": problem or None})
            else:
                rows.append((base + delta, pos, problem))
    if not args.json:
        ui.table((Column("offset", right=True), Column("byte", right=True), Column("", folds=True)), rows)
        beside = "" if segment else " · no segment beside it to check them against"
        ui.line(f"{counted(len(rows), 'entry')}{f' · {problems} wrong' if problems else ''}{beside}")
    return 1 if problems else 0


def _problem(fd: int, offset: int, pos: int) -> str:
    """What is wrong with an entry; empty if it is valid."""
    try:
        header = read_header(os.pread(fd, HEADER_SIZE, pos))
    except (EmbedlogError, OSError) as error:
        return f"no batch begins there ({getattr(error, 'reason', error)})"
    if header.base_offset > offset:
        return f"the batch there begins at offset {header.base_offset:,}"
    return ""


def dump_times(path: str, data: bytes, args: argparse.Namespace, ui: UI) -> int:
    """A .timeindex file: 12 bytes an entry."""
    base = _base_offset(path)
    rows = []
    for timestamp_ms, delta in TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % TIME_ENTRY.size]):
        if not timestamp_ms and not delta:
            continue
        if args.json:
            ui.json({"timestamp_ms": timestamp_ms, "offset": base + delta})
        else:
            rows.append((iso(timestamp_ms), base + delta))
    if not args.json:
        ui.table((Column("largest timestamp so far"), Column("offset", right=True)), rows)
        ui.line(counted(len(rows), "entry"))
    return 0


def dump_aborted(path: str, data: bytes, args: argparse.Namespace, ui: UI) -> int:
    """A .txnindex file: aborted transactions."""
    transactions = decode_aborted(data, path)
    for transaction in transactions:
        if args.json:
            ui.json(transaction._asdict())
    if not args.json:
        names = ("producer", "first offset", "last offset", "last stable offset")
        ui.table(number_columns(*names), transactions)
        ui.line(counted(len(transactions), "aborted transaction"))
    return 0


def dump_snapshot(path: str, data: bytes, args: argparse.Namespace, ui: UI) -> int:
    """A .snapshot file: the producers that are known."""
    rows = []
    for producer_id, producer in ProducerState.decode(data, path).producers.items():
        last = producer.batches[-1] if producer.batches else None
        row = {
            "producer_id": producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": last.last_sequence if last else -1,
            "last_offset": last.last_offset if last else -1,
            "transaction_start": producer.transaction_start,
        }
        if args.json:
            ui.json(row)
        rows.append(tuple(row.values()))
    if not args.json:
        names = ("producer", "epoch", "last sequence", "last offset", "transaction since")
        ui.table(number_columns(*names), rows)
        ui.line(counted(len(rows), "producer"))
    return 0
