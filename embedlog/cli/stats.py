"""`embedlog stats`: sizes and times, from offsets and a few batch headers; `--build`: versions."""

from __future__ import annotations

import argparse
import contextlib
import platform
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any, Final

from ..errors import CorruptCheckpoint, InvalidArgument, StorageError
from ..files.names import WRITER_FILE
from ..model import NO_TIMESTAMP
from ..store.disk_usage import measure, measure_others
from ..store.read_only_store import ReadOnlyStore
from ..units import counted, day, size
from .arguments import READS, Command, arg, log_argument
from .opening import viewed
from .sizes import Contents, PartitionSize, contents, in_all, partition_sizes
from .ui import UI, Column

_LIBRARIES: Final = (
    "google-crc32c",
    "crcmod",
    "zstandard",
    "lz4",
    "python-snappy",
    "portalocker",
    "rich",
)
_DESCRIPTION: Final = """\
Sizes, segments, offsets and times of each partition, without reading all of it.
`offsets` is the distance from the log's start to its end: compaction leaves fewer records. The ratio (raw
size to size on disk) is sampled from a few batches; `embedlog verify` reads everything. A narrow terminal
leaves out columns: --json has all. Times that are `about` are those of some records: there may be earlier
ones. Brokers report offsets, the time of the first record (later ones may be older) and the newest time, but
not the oldest, nor what is on their disks."""


def commands() -> Iterator[Command]:
    yield Command("stats", "sizes, offsets, times of topics", READS, run, _DESCRIPTION).takes(
        log_argument(optional=True),
        arg("TOPIC", "default: all", dest="topics", nargs="*"),
        arg("--partitions", "print a line per partition, not per topic"),
        arg(
            "--build",
            "show whether the compiled loops run, the checksum in use, and versions of Python and libraries",
        ),
        arg("--json", "print a JSON object per partition, with exact values"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    if args.build:
        _build(args, ui)
        if args.directory is None:
            return 0
        if not args.json:
            ui.line()
    if args.directory is None:
        raise InvalidArgument("stats needs a DIR, --bootstrap-server or --build")
    with viewed(args) as engine:
        samples = [
            (partition, contents(engine, partition))
            for topic in args.topics or engine.topics()
            for partition in partition_sizes(engine, topic)
        ]
        if args.json:
            for partition, sample in samples:
                ui.json(_as_json(partition, sample))
        elif samples:
            _table(args, ui, samples, on_disk=isinstance(engine, ReadOnlyStore))
            if isinstance(engine, ReadOnlyStore):
                _state(ui, engine, samples)
        else:
            ui.line("no topics yet")
    return 0


def _as_json(partition: PartitionSize, sample: Contents) -> dict[str, Any]:
    return {
        **partition.as_json(),
        **({} if sample.first_ms is None else {"first_timestamp_ms": sample.first_ms}),
        "oldest_timestamp_ms": sample.oldest_ms,
        "newest_timestamp_ms": sample.newest_ms,
        "timestamps_are_exact": sample.is_exact,
        "codecs": sorted(sample.codecs),
        "sampled_bytes": sample.sampled_bytes,
        "sampled_raw_bytes": sample.sampled_raw_bytes,
    }


def _table(
    args: argparse.Namespace, ui: UI, samples: list[tuple[PartitionSize, Contents]], *, on_disk: bool
) -> None:
    groups: dict[tuple[str, int], list[tuple[PartitionSize, Contents]]] = {}
    for partition, sample in samples:
        number = partition.partition if args.partitions else -1
        groups.setdefault((partition.topic, number), []).append((partition, sample))

    def summed(members: list[tuple[PartitionSize, Contents]]) -> Iterator[object]:
        yield sum(partition.records for partition, _ in members)
        if on_disk:
            if args.partitions:
                yield in_all(partition.segments for partition, _ in members)
            yield size(in_all(partition.bytes for partition, _ in members) or 0)
            yield _ratio(members)
        about = "" if all(sample.is_exact for _, sample in members) else "about "
        firsts = (sample.oldest_ms if on_disk else sample.first_ms for _, sample in members)
        for time_ms in (
            min(_known(firsts), default=NO_TIMESTAMP),
            max(_known(sample.newest_ms for _, sample in members), default=NO_TIMESTAMP),
        ):
            yield day(time_ms) if time_ms == NO_TIMESTAMP else about + day(time_ms)

    rows = [
        (topic, str(number) if args.partitions else len(members), *summed(members))
        for (topic, number), members in groups.items()
    ]
    columns = (
        Column("topic", shortens=True),
        Column("partition" if args.partitions else "partitions", right=True),
        Column("offsets", right=True),
        *([Column("segments", right=True, spare=1)] if args.partitions and on_disk else []),
        *([Column("size", right=True), Column("ratio", right=True, spare=2)] if on_disk else []),
        Column("oldest" if on_disk else "first"),
        Column("newest"),
    )
    totals = ("total", "" if args.partitions else len(samples), *summed(samples)) if len(rows) > 1 else None
    ui.table(columns, rows, totals=totals)


def _known(times_ms: Iterable[int | None]) -> Iterator[int]:
    return (time_ms for time_ms in times_ms if time_ms is not None and time_ms != NO_TIMESTAMP)


def _ratio(members: list[tuple[PartitionSize, Contents]]) -> str | None:
    stored_bytes = sum(sample.sampled_bytes for _, sample in members)
    raw = sum(sample.sampled_raw_bytes for _, sample in members)
    codecs = {codec for _, sample in members for codec in sample.codecs} - {"none"}
    return f"{raw / stored_bytes:.1f}x" if codecs else None


def _state(ui: UI, engine: ReadOnlyStore, samples: list[tuple[PartitionSize, Contents]]) -> None:
    unflushed = in_all(partition.unflushed for partition, _ in samples)
    used_text = size(measure(engine.fs, engine.path) + measure_others(engine.fs, engine.path))
    bound = _bound(engine)
    used_text += f" on disk, of {size(bound)} (max_bytes)" if bound is not None else " on disk"
    free = engine.fs.free_bytes(engine.path)
    waiting = f" · {counted(unflushed, 'record')} appended and not yet durable" if unflushed else ""
    ui.line(f"\nlayout {engine.catalog.layout.name} · {used_text} · {size(free)} free{waiting}")
    for partition, _ in samples:
        if partition.state != "ok":
            ui.line(f"{partition.topic} {partition.partition} is {partition.state}: it refuses appends")


def _bound(engine: ReadOnlyStore) -> int | None:
    """The last writer's max_bytes; None if it had none."""
    with contextlib.suppress(OSError, CorruptCheckpoint, StorageError):
        bound = engine.catalog.read_json(WRITER_FILE).get("max_bytes")
        return bound if isinstance(bound, int) else None
    return None


def _build(args: argparse.Namespace, ui: UI) -> None:
    from .. import __version__
    from ..codec import LOOPS_IMPLEMENTATION, checksum_implementation

    facts = {
        "embedlog": __version__,
        "loops": LOOPS_IMPLEMENTATION,
        "checksum": checksum_implementation(),
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
