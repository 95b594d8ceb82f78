"""The results as text for people and as JSON for machines."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import embedlog
from embedlog.codec import LOOPS_IMPLEMENTATION, checksum_implementation

from .measure import Result, Row

MARKDOWN_HEAD = ("| | median | min to max | CPU us | embedlog / other |", "|---|---:|---:|---:|---:|")
_WIDTHS = (34, 15, 25, 10, 16)


def heading() -> str:
    """The machine, and the names of the columns."""
    return "\n".join([*heading_lines(), "", _line(("", "median", "min..max", "CPU us", "embedlog / other"))])


def heading_lines() -> list[str]:
    """The machine and the versions."""
    about = machine()
    return [
        f"embedlog {about['embedlog']}, Python {about['python']}, {about['system']}, "
        f"{about['cpus']} CPUs {about['processor']}".rstrip(),
        f"loops {about['loops']}, checksum {about['checksum']}",
        f"sqlite {about['sqlite']}, lmdb {about['lmdb']}, "
        f"rocksdict {about['rocksdict']}, persist-queue {about['persist-queue']}",
    ]


def block(row: Row, results: Sequence[Result]) -> str:
    """The lines of one row."""
    better = "more is better" if row.more_is_better else "less is better"
    lines = [f"{row.title}: {row.unit}, {better}"]
    for result in results:
        spread = f"{_number(min(result.samples))}..{_number(max(result.samples))}"
        ratio = _ratio(results[0], result)
        lines.append(_line((f"  {result.name}", _number(result.median), spread, _cpu(result), ratio)))
    return "\n".join(lines)


def markdown_rows(measured: Sequence[tuple[Row, Sequence[Result]]]) -> str:
    """A table with a line for each contender: median, range, CPU time per item, embedlog's ratio."""
    lines = [line for row, results in measured for line in markdown_row(row, results)]
    return "\n".join([*MARKDOWN_HEAD, *lines]) + "\n"


def markdown_row(row: Row, results: Sequence[Result]) -> list[str]:
    """The lines of one row: its title, and its contenders."""
    better = "" if row.more_is_better else ", less is better"
    lines = [f"| **{row.title}** ({row.unit}{better}) | | | | |"]
    for result in results:
        spread = f"{_number(min(result.samples))} to {_number(max(result.samples))}"
        ratio = _ratio(results[0], result)
        cells = (result.name, _number(result.median), spread, _cpu(result), ratio)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def replaced(text: str, table: str, name: str) -> str:
    """The page with a new table between the marks of that name. Raises ValueError if it has no marks."""
    before, _, after = _divided(text, name)
    return f"{before}\n{table}{after}"


def between_marks(text: str, name: str) -> str:
    """What stands between the marks of that name. Raises ValueError if the page has no marks."""
    return _divided(text, name)[1].removeprefix("\n")


def _divided(text: str, name: str) -> tuple[str, str, str]:
    """The text up to the end of the first mark, between the two, and from the second on."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, has_begin, rest = text.partition(begin)
    between, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the page has no {begin} and {end}")
    return before + begin, between, end + after


def as_json(measured: Sequence[tuple[Row, Sequence[Result]]]) -> dict[str, Any]:
    """Everything, including single samples."""
    return {
        "machine": machine(),
        "rows": [
            {
                "row": row.title,
                "unit": row.unit,
                "more_is_better": row.more_is_better,
                "results": [
                    {
                        "name": result.name,
                        "median": result.median,
                        "min": min(result.samples),
                        "max": max(result.samples),
                        "embedlog_ratio": results[0].median / result.median,
                        "samples": result.samples,
                        "cpu_us": result.cpu_us,
                    }
                    for result in results
                ],
            }
            for row, results in measured
        ],
    }


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures depend on."""
    return {
        "embedlog": embedlog.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "loops": LOOPS_IMPLEMENTATION,
        "checksum": checksum_implementation(),
        "sqlite": sqlite3.sqlite_version,
        "lmdb": version("lmdb"),
        "rocksdict": version("rocksdict"),
        "persist-queue": version("persist-queue"),
    }


def _processor() -> str:
    """The processor's name; empty on systems without /proc."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _line(cells: Sequence[str]) -> str:
    name, *numbers = cells
    aligned = (number.rjust(width) for number, width in zip(numbers, _WIDTHS[1:], strict=True))
    return (name.ljust(_WIDTHS[0]) + "  ".join(aligned)).rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _cpu(result: Result) -> str:
    cpu_us = result.least_cpu_us
    if cpu_us is None:
        return ""
    return _number(cpu_us) if cpu_us >= 10 else f"{cpu_us:.2f}"


def _ratio(ours: Result, contender: Result) -> str:
    return "" if contender is ours else f"{ours.median / contender.median:,.2f}x"
