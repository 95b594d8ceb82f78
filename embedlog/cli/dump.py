"""`embedlog dump`: shows one file of a log, without opening the log.

    *.kafka, *.log     record batches: position, offsets, records, codec, producer; with --records, records
                       (also *.cut, *.deleted, *.swap; message sets of Kafka 0.8 to 0.10 and files of 0.7)
    *.index            offset -> byte, each checked against the segment beside it
    *.timeindex        timestamp -> offset
    *.txnindex         aborted transactions
    *.snapshot         producer state

The file is mapped, not loaded; batches are printed as they are read. Damage does not end the dump: it shows
what can be read after the damage, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any, Final

from ..codec import BatchHeader, codec_name, control_type, decode, find_batch, scan
from ..codec.message_07 import iter_messages_07
from ..codec.message_set import iter_messages, message_records
from ..codec.sniff import EMPTY, KAFKA_07, MESSAGE_SET_V0, MESSAGE_SET_V1, UNKNOWN, ZEROS, identify
from ..errors import CorruptRecord, EmbedlogError, InvalidArgument
from ..files.names import INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX
from ..model import Record
from ..units import counted, iso
from .arguments import JSON_NOTE, Command, arg, here_only
from .dump_index import dump_aborted, dump_offsets, dump_snapshot, dump_times
from .text import bytes_as_json, in_a_line, record_as_json
from .ui import UI, Progress

_NOT_OVER_WIRE: Final = (
    "it shows the bytes of a file, which brokers do not serve: run it on the file's machine; `embedlog cat "
    "--json` shows records over the wire"
)
_STEP: Final = 4 << 20
_SNIFFED: Final = 1 << 16
_SHOWN: Final = 60
_ROW: Final = "{:>12}  {:>23}  {:>8}  {:>11}  {:<7}  {:<24}  {:>5}  {}"


def commands() -> Iterator[Command]:
    lock = "Takes no lock and changes nothing: works on a file that an application has open."
    yield Command("dump", "show the batches of a segment, or the entries of an index", lock, run).takes(
        here_only(
            "file",
            _NOT_OVER_WIRE,
            metavar="FILE",
            help="a segment (.kafka, .log), .index, .timeindex, .txnindex or .snapshot",
        ),
        arg("--records", "decode each batch and show its records"),
        arg("--json", f"print a JSON object per batch (with --records, per record) or entry; {JSON_NOTE}"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    path = args.file
    name = os.path.basename(path)
    for suffix, dump in (
        (INDEX, dump_offsets),
        (TIME_INDEX, dump_times),
        (TXN_INDEX, dump_aborted),
        (SNAPSHOT, dump_snapshot),
    ):
        if name.endswith(suffix):
            with _failing(path), open(path, "rb") as file:
                data = file.read()
            return dump(path, data, args, ui)
    with _mapped(path) as data:
        form = identify(data[:_SNIFFED])
        if form == EMPTY:
            ui.note(f"{path} is empty")
            return 0
        if form == ZEROS:
            ui.note(f"{path} begins with zeros: preallocated, and nothing written")
            return 0
        if form in (MESSAGE_SET_V0, MESSAGE_SET_V1):
            return _dump_messages(data, args, ui)
        if form == KAFKA_07:
            return _dump_07(data, args, ui)
        if form == UNKNOWN and find_batch(data, 0, min(len(data), _STEP), 0) is None:
            raise InvalidArgument(f"{path} is no file of a log: its bytes are of no format that is known")
        with ui.progress(shown=not ui.out.isatty()) as bars:
            return _dump_batches(data, args, ui, bars)


@contextlib.contextmanager
def _failing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[Any]:
    """The file's bytes, as they are now."""
    with contextlib.ExitStack() as stack:
        with _failing(path):
            file = stack.enter_context(open(path, "rb"))
            empty = os.fstat(file.fileno()).st_size == 0
            mapped = (
                b"" if empty else stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            )
        yield mapped


# -- record batches ------------------------------------------------------------------------------------


def _dump_batches(data: Any, args: argparse.Namespace, ui: UI, bars: Progress) -> int:
    if not args.json:
        ui.line(
            _ROW.format("byte", "offsets", "records", "size", "codec", "newest record", "epoch", "").rstrip()
        )
    pos = batches = damages = next_offset = 0
    while pos < len(data):
        scanned = scan(data, pos, min(pos + _STEP, len(data)))
        if not scanned.headers and scanned.error is None:
            scanned = scan(data, pos, len(data))  # one batch larger than a step
        for header in scanned.headers:
            damages += _dump_batch(data, header, args, ui)
            next_offset = header.next_offset
        batches += len(scanned.headers)
        bars.update("reading", scanned.end, len(data))
        if scanned.error is None and scanned.headers:
            pos = scanned.end
            continue
        reason = scanned.error.reason if scanned.error else "a batch is cut short"
        if not any(data[scanned.end : scanned.end + _STEP]):
            _tell(args, ui, scanned.end, len(data), "zeros to the end: preallocated, or a torn tail")
            break
        damages += 1
        following = find_batch(data, scanned.end + 1, len(data), next_offset)
        pos = following.pos if following else len(data)
        _tell(args, ui, scanned.end, pos, f"DAMAGED: {reason}")
    if not args.json:
        last = f" · next offset {next_offset:,}" if batches else ""
        ui.line(
            f"{counted(batches, 'batch')} · {counted(len(data), 'byte')}{last}"
            + (f" · {damages:,} damaged" if damages else "")
        )
    return 1 if damages else 0


def _tell(args: argparse.Namespace, ui: UI, start: int, stop: int, what: str) -> None:
    if args.json:
        ui.json({"pos": start, "size": stop - start, "problem": what})
    else:
        ui.line(f"{start:>12,}  {counted(stop - start, 'byte')}: {what}")


def _dump_batch(data: Any, header: BatchHeader, args: argparse.Namespace, ui: UI) -> int:
    """Print a batch; 1 if its records cannot be read."""
    if not (args.json and args.records):
        ui.json(_batch_as_json(header)) if args.json else ui.line(_batch_row(header))
    if not args.records:
        return 0
    try:
        for record in decode(data, header, "", -1):
            if header.is_control:
                kind = control_type(record.key or b"")
                _dump_record(record, args, ui, control=str(kind))
            else:
                _dump_record(record, args, ui)
    except CorruptRecord as error:
        _tell(args, ui, header.pos, header.pos + header.size, f"DAMAGED: {error.reason}")
        return 1
    return 0


def _batch_row(header: BatchHeader) -> str:
    facts = []
    if header.producer_id >= 0:
        facts.append(f"producer {header.producer_id}:{header.producer_epoch} sequence {header.base_sequence}")
    if header.is_transactional:
        facts.append("transactional")
    if header.is_control:
        facts.append("control")
    if header.timestamp_type:
        facts.append("append time")
    if header.has_delete_horizon:
        facts.append("delete horizon")
    return _ROW.format(
        f"{header.pos:,}",
        f"{header.base_offset:,}-{header.last_offset:,}",
        f"{header.record_count:,}",
        f"{header.size:,}",
        codec_name(header.compression),
        iso(header.max_timestamp_ms),
        header.leader_epoch,
        " · ".join(facts),
    ).rstrip()


def _batch_as_json(header: BatchHeader) -> dict[str, Any]:
    return {
        "pos": header.pos,
        "size": header.size,
        "magic": header.magic,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "codec": codec_name(header.compression),
        "leader_epoch": header.leader_epoch,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.has_delete_horizon,
        "crc": header.crc,
    }


def _dump_record(record: Record, args: argparse.Namespace, ui: UI, *, control: str = "") -> None:
    if args.json:
        fields = record_as_json(record)
        del fields["topic"], fields["partition"]
        ui.json({**fields, "control": control} if control else fields)
        return
    headers = "".join(f"  {name}={_short(value)}" for name, value in record.headers)
    what = f"control: {control}" if control else f"{_short(record.key)}  {_short(record.value)}{headers}"
    ui.line(f"{'':14}{record.offset:>15,}  {iso(record.timestamp_ms):<24}  {what}")


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = in_a_line(data[:_SHOWN])
    return text if len(data) <= _SHOWN else f"{text}… ({len(data):,} bytes)"


# -- older formats ---------------------------------------------------------------------------------------


def _dump_messages(data: Any, args: argparse.Namespace, ui: UI) -> int:
    """Message sets of magic 0 and 1."""
    if not args.json:
        ui.line("a message set, of before Kafka 0.11; `embedlog import` copies it into a log")
    pos = 0
    try:
        for message in iter_messages(data):
            pos = message.pos + message.size
            if args.records:
                for record in message_records(message):
                    _dump_record(record, args, ui)
            elif args.json:
                ui.json(
                    {
                        "pos": message.pos,
                        "size": message.size,
                        "magic": message.magic,
                        "offset": message.offset,
                        "codec": codec_name(message.compression),
                        "timestamp_ms": message.timestamp_ms,
                    }
                )
            else:
                codec = codec_name(message.compression)
                where = f"{message.pos:>12,}  {message.offset:>15,}"
                ui.line(f"{where}  magic {message.magic}  {message.size:>9,}  {codec}")
    except EmbedlogError as error:
        _tell(args, ui, pos, len(data), f"DAMAGED: {error}")
        return 1
    return 0


def _dump_07(data: Any, args: argparse.Namespace, ui: UI) -> int:
    """0.7's files, whose offsets are bytes."""
    if not args.json:
        ui.line("a file of Kafka 0.7; `embedlog import` copies it into a log")
    pos = 0
    try:
        for message in iter_messages_07(data):
            pos = message.next_offset
            if args.json:
                ui.json(
                    {
                        "offset": message.offset,
                        "next_offset": message.next_offset,
                        "size": len(message.payload),
                        "value": bytes_as_json(message.payload),
                    }
                )
            else:
                ui.line(f"{message.offset:>12,}  {len(message.payload):>9,}  {_short(message.payload)}")
    except EmbedlogError as error:
        _tell(args, ui, pos, len(data), f"DAMAGED: {error}")
        return 1
    return 0
