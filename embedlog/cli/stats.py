"""`embedlog stats`: how much is where, from the edges and a few headers; `--build`: what runs here."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final

from ..errors import InvalidArgument
from ..follower import Follower
from .arguments import READS, add_command, add_json
from .opening import follower
from .sizes import Contents, PartitionSize, contents, partition_sizes
from .ui import UI, Column
from .units import counted, day, size

_LIBRARIES: Final = (
    "google-crc32c",
    "crcmod",
    "zstandard",
    "lz4",
    "python-snappy",
    "portalocker",
    "inotify_simple",
    "rich",
)
_DESCRIPTION: Final = """\
Sizes, segments, offsets and times of each partition, without reading it through.
`offsets` counts from the log's start to its end: compaction leaves fewer records. The ratio (raw size to
size on disk) is measured on a few batches. `embedlog verify` reads everything. On a narrow terminal columns
are left out: --json has all."""


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers, "stats", "sizes, offsets, times of topics", lock=READS, description=_DESCRIPTION
    )
    parser.add_argument("directory", metavar="DIR", nargs="?", help="the log's directory")
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="default: all")
    parser.add_argument("--partitions", action="store_true", help="a line a partition, not a topic")
    parser.add_argument(
        "--build",
        action="store_true",
        help="say whether the compiled loops run, which checksum, and the versions of Python and libraries",
    )
    add_json(parser, "a JSON object a partition, with exact values")


def run(args: argparse.Namespace, ui: UI) -> int:
    if args.build:
        _build(args, ui)
        if args.directory is None:
            return 0
        if not args.json:
            ui.line()
    if args.directory is None:
        raise InvalidArgument("stats needs a DIR, or --build")
    with follower(args.directory) as engine:
        found = [
            (each, contents(engine.partition(topic, each.partition)))
            for topic in args.topics or engine.topics()
            for each in partition_sizes(engine, topic)
        ]
        if args.json:
            for each, inside in found:
                ui.json(_as_json(each, inside))
        elif found:
            _table(args, ui, found)
            _state(ui, engine, found)
        else:
            ui.line("no topics yet")
    return 0


def _as_json(each: PartitionSize, inside: Contents) -> dict[str, Any]:
    return {
        **each.as_json(),
        "oldest_timestamp_ms": inside.oldest_ms,
        "newest_timestamp_ms": inside.newest_ms,
        "codecs": sorted(inside.codecs),
        "sampled_bytes": inside.sampled_bytes,
        "sampled_raw_bytes": inside.sampled_raw_bytes,
    }


def _table(args: argparse.Namespace, ui: UI, found: list[tuple[PartitionSize, Contents]]) -> None:
    groups: dict[tuple[str, int], list[tuple[PartitionSize, Contents]]] = {}
    for each, inside in found:
        number = each.partition if args.partitions else -1
        groups.setdefault((each.topic, number), []).append((each, inside))
    rows = [
        (topic, str(number) if args.partitions else len(members), *_summed(members, args.partitions))
        for (topic, number), members in groups.items()
    ]
    columns = (
        Column("topic", shortens=True),
        Column("partition" if args.partitions else "partitions", right=True),
        Column("offsets", right=True),
        *([Column("segments", right=True, spare=1)] if args.partitions else []),
        Column("size", right=True),
        Column("ratio", right=True, spare=2),
        Column("oldest"),
        Column("newest"),
    )
    totals = (
        ("total", "" if args.partitions else len(found), *_summed(found, args.partitions))
        if len(rows) > 1
        else None
    )
    ui.table(columns, rows, totals=totals)


def _summed(members: Iterable[tuple[PartitionSize, Contents]], segments: bool) -> tuple[object, ...]:
    members = list(members)
    stored = sum(inside.sampled_bytes for _, inside in members)
    raw = sum(inside.sampled_raw_bytes for _, inside in members)
    codecs = {codec for _, inside in members for codec in inside.codecs} - {"none"}
    oldest = min((inside.oldest_ms for _, inside in members if inside.oldest_ms >= 0), default=-1)
    return (
        sum(each.records for each, _ in members),
        *([sum(each.segments for each, _ in members)] if segments else []),
        size(sum(each.bytes for each, _ in members)),
        f"{raw / stored:.1f}x" if codecs else None,
        day(oldest),
        day(max(inside.newest_ms for _, inside in members)),
    )


def _state(ui: UI, engine: Follower, found: list[tuple[PartitionSize, Contents]]) -> None:
    unflushed = sum(each.log_end_offset - each.flushed_offset for each, _ in found)
    free = engine.fs.free_bytes(engine.path)
    waiting = f" · {counted(unflushed, 'record')} appended and not yet durable" if unflushed else ""
    ui.line(f"\nlayout {engine.catalog.layout.name} · {size(free)} free{waiting}")
    for each, _ in found:
        if each.state != "ok":
            ui.line(f"{each.topic} {each.partition} is {each.state}: it refuses appends")


def _build(args: argparse.Namespace, ui: UI) -> None:
    from .. import __version__
    from ..codec import CHECKSUM_IMPLEMENTATION, LOOPS_IMPLEMENTATION

    facts = {
        "embedlog": __version__,
        "loops": LOOPS_IMPLEMENTATION,
        "checksum": CHECKSUM_IMPLEMENTATION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }
    for library in _LIBRARIES:
        try:
            facts[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            facts[library] = "not installed"
    if args.json:
        ui.json(facts)
        return
    for name, value in facts.items():
        ui.line(f"{name:<16}{value}")
