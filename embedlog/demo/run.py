"""The demo: the main job on real input, with a real kill -9 in the middle.

A child process loads the flights (loader.py), is killed with SIGKILL somewhere about half-way, and is
started again. Then two consumers of one group share the partitions; one leaves half-way, the other takes
over. Last, Spark reads the same directory (spark.py). What is shown is counted from the log, and compared
with the data set.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import embedlog

from ..errors import DirectoryError, EmbedlogError
from ..units import counted
from . import flights, spark
from .loader import PARTITIONS, TOPIC

_MARK: Final = ".embedlog-demo"
_GROUP: Final = "report"
_MAX_POLL: Final = 2_000


def run(directory: str, seed: int | None, *, with_spark: bool) -> bool:
    """Run the demo. Returns whether every flight is in the log and was consumed, each exactly once.

    Raises InvalidArgument where the data set is not installed, DirectoryError.
    """
    console = Console()
    flights.locate()
    path = _fresh(directory)
    loaded = _load_with_a_kill(path, random.Random(seed), console)
    with embedlog.open(path) as log:
        report = _consume(log, console)
        _show(log, loaded, report, directory, console)
        is_exact = report.flights.total() == flights.FLIGHTS == _records(log)
    of_spark = spark.show(path, console) if with_spark else None
    _show_next(directory, console)
    return is_exact and of_spark in (None, flights.FLIGHTS)


def _fresh(directory: str) -> str:
    path = Path(directory).absolute()
    if path.exists() and any(path.iterdir()):
        if not (path / _MARK).exists():
            raise DirectoryError(f"{directory} is not empty: name a new directory for the demo", path=path)
        shutil.rmtree(path)
    embedlog.open(path).close()
    (path / _MARK).touch()  # so that the next demo may begin again here, and nowhere else
    return str(path)


def _command() -> str:
    """How this command is called again from here."""
    if shutil.which("embedlog") or not sys.argv[0].endswith("embedlog"):
        return "embedlog"
    return os.path.relpath(sys.argv[0])


# -- loading, with a kill ------------------------------------------------------------------------------


@dataclass
class _Loaded:
    seconds: float = 0.0
    bytes: int = 0


def _load_with_a_kill(directory: str, dice: random.Random, console: Console) -> _Loaded:
    kill_at = dice.randint(flights.FLIGHTS * 2 // 5, flights.FLIGHTS * 3 // 5)
    loaded = _Loaded()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        TextColumn("{task.completed:>7,.0f} / {task.total:,.0f}"),
        TextColumn("{task.fields[note]}"),
        console=console,
    ) as progress:
        bar = progress.add_task("flights  ", total=flights.FLIGHTS, note="")
        with _loader(directory) as child:
            for facts in _reports(child):
                progress.update(bar, completed=facts["loaded"], note=_rate(facts))
                if facts["loaded"] >= kill_at:
                    break
            # Somewhere in the middle of an append, not where it has just said that one is done.
            time.sleep(dice.random() * 0.02)
            child.kill()
            for facts in _reports(child):
                progress.update(bar, completed=facts["loaded"])
        _add(loaded, facts)
        reported = facts["loaded"]
        progress.update(bar, note="killed (SIGKILL)")
        progress.stop_task(bar)
        again = progress.add_task("flights  ", total=flights.FLIGHTS, note="")
        with _loader(directory) as child:
            for facts in _reports(child):
                if "recovery" in facts:
                    _show_recovery(facts["recovery"], reported, progress.console)
                else:
                    progress.update(again, completed=facts["loaded"], note=_rate(facts))
        if child.returncode:
            raise EmbedlogError(f"the loader failed with exit code {child.returncode}")
        _add(loaded, facts)
    return loaded


def _loader(directory: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "embedlog.demo.loader", directory]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _reports(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith("\n"):
            yield json.loads(line)


def _add(loaded: _Loaded, facts: dict[str, Any]) -> None:
    loaded.seconds += facts["seconds"]
    loaded.bytes += facts["bytes"]


def _rate(facts: dict[str, Any]) -> str:
    return f"{facts['bytes'] / 1e6 / facts['seconds']:,.0f} MB/s appended" if facts["seconds"] else ""


def _show_recovery(partitions: list[dict[str, Any]], reported: int, console: Console) -> None:
    """What opening after the kill had to do."""
    read = [partition for partition in partitions if partition["topic"] == TOPIC]
    lines = [
        f"recovery  {counted(len(read), 'partition')}, checked from their recovery points: "
        f"{counted(sum(partition['batches_read'] for partition in read), 'batch')}, "
        f"{counted(sum(partition['bytes_read'] for partition in read), 'byte')}",
        f"          {sum(partition['log_end_offset'] for partition in read):,} flights are in; "
        f"{reported:,} had been reported",
    ]
    for partition in read:
        if partition["bytes_cut"]:
            kept = f", kept in {os.path.basename(partition['cut_path'])}" if partition["cut_path"] else ""
            lines.append(
                f"          {TOPIC} {partition['partition']}: {counted(partition['bytes_cut'], 'byte')} cut "
                f"after offset {partition['log_end_offset'] - 1:,} ({partition['cut_reason']}){kept}"
            )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


# -- two consumers of one group ------------------------------------------------------------------------


@dataclass
class _Report:
    flights: Counter[str] = field(default_factory=Counter)
    delays: Counter[str] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seconds: float = 0.0

    def add(self, records: list[embedlog.Record]) -> int:
        """Count some flights; returns how many are counted in all."""
        with self.lock:
            for record in records:
                flight = json.loads(record.value or b"{}")
                self.flights[flight["carrier"]] += 1
                if flight["arr_delay"] is not None:
                    self.delays[flight["carrier"]] += flight["arr_delay"]
                    self.arrived[flight["carrier"]] += 1
            return self.flights.total()


def _consume(log: embedlog.Log, console: Console) -> _Report:
    report = _Report()
    shared: dict[str, set[embedlog.TopicPartition]] = {}
    story: list[str] = []
    failures: list[BaseException] = []
    started = time.perf_counter()

    def work(name: str, leaves_at: int) -> None:
        def assigned(partitions: Iterable[embedlog.TopicPartition]) -> None:
            with report.lock:
                shared[name] = set(partitions)
                if sum(map(len, shared.values())) == PARTITIONS:
                    story.append(
                        " | ".join(f"{consumer}: {_numbers(shared[consumer])}" for consumer in sorted(shared))
                    )

        try:
            with log.consumer(
                TOPIC, group=_GROUP, client_id=name, max_poll_records=_MAX_POLL, on_assigned=assigned
            ) as consumer:
                total = 0
                while total < flights.FLIGHTS and not failures:
                    total = report.add(consumer.poll(100))
                    if total >= leaves_at:
                        with report.lock:
                            del shared[name]
                            story.append(f"{name} left after {total:,} flights")
                        break
                consumer.commit()  # closing alone commits only what another poll has confirmed
        except BaseException as failure:
            failures.append(failure)

    first = threading.Thread(target=work, args=("consumer 1", flights.FLIGHTS + 1))
    second = threading.Thread(target=work, args=("consumer 2", flights.FLIGHTS // 2))
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join()
    if failures:
        raise failures[0]
    report.seconds = time.perf_counter() - started
    for i, line in enumerate(story):
        console.print(f"{'group' if i == 0 else '':10}{line}", highlight=False)
    return report


def _numbers(partitions: Iterable[embedlog.TopicPartition]) -> str:
    return ", ".join(str(tp.partition) for tp in sorted(partitions))


# -- what came of it -----------------------------------------------------------------------------------


def _records(log: embedlog.Log) -> int:
    return sum(offsets.log_end_offset - offsets.log_start_offset for offsets in log.offsets(TOPIC).values())


def _show(log: embedlog.Log, loaded: _Loaded, report: _Report, directory: str, console: Console) -> None:
    table = Table(box=None, padding=(0, 2), show_footer=True)
    total = report.flights.total()
    table.add_column("carrier", footer="total")
    table.add_column("flights", justify="right", footer=f"{total:,}")
    table.add_column("mean arrival delay", justify="right")
    for carrier, count in report.flights.most_common():
        mean = report.delays[carrier] / max(report.arrived[carrier], 1)
        table.add_row(carrier, f"{count:,}", f"{mean:+.1f} min")
    console.print()
    console.print(table)
    console.print()
    lost, doubled = max(flights.FLIGHTS - total, 0), max(total - flights.FLIGHTS, 0)
    on_disk = sum(
        os.path.getsize(os.path.join(root, name))
        for root, _, names in os.walk(log.path)
        for name in names
        if f"{TOPIC}_" in root
    )
    size = sum(len(record.value or b"") for record in log.read(TOPIC))
    console.print(
        f"flights   {total:,} of {flights.FLIGHTS:,} · {lost:,} lost · {doubled:,} doubled\n"
        f"append    {loaded.bytes / 1e6 / loaded.seconds:,.0f} MB/s of JSON, "
        f"{loaded.bytes / (size / total) / loaded.seconds:,.0f} records/s\n"
        f"consume   {size / 1e6 / report.seconds:,.0f} MB/s of JSON, parsed, "
        f"{total / report.seconds:,.0f} records/s\n"
        f"on disk   {on_disk / 1e6:,.1f} MB for {size / 1e6:,.1f} MB of JSON (zstd, {size / on_disk:.1f}x) "
        f"in {directory}",
        highlight=False,
        soft_wrap=True,
    )


def _show_next(directory: str, console: Console) -> None:
    console.print(
        f"next      {_command()} tail -n 5 {directory} {TOPIC}\n"
        f"          {_command()} groups describe {directory} {_GROUP}\n"
        f"          {_command()} load {directory} --topic {TOPIC} --to warehouse/flights\n"
        f"          {_command()} verify {directory}",
        highlight=False,
        soft_wrap=True,
    )
