"""The results as text for people and as JSON for machines."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import embedlog
from embedlog.codec import CHECKSUM_IMPLEMENTATION, LOOPS_IMPLEMENTATION

from .measure import Result, Row

_WIDTHS = (34, 15, 25, 10, 16)


def heading() -> str:
    """The machine, and the names of the columns."""
    return "\n".join([*heading_lines(), "", _line(("", "median", "min..max", "CPU us", "embedlog / other"))])


def heading_lines() -> list[str]:
    """The machine and the versions."""
    about = machine()
    return [
        f"embedlog {about['embedlog']}, Python {about['python']}, {about['cpus']} CPUs, {about['system']}",
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


def as_markdown(measured: Sequence[tuple[Row, Sequence[Result]]]) -> str:
    """A table with a line for each contender: median, range, CPU time per item, embedlog's ratio."""
    return "\n".join([*(f"{line}  " for line in heading_lines()), "", markdown_rows(measured)])


def markdown_rows(measured: Sequence[tuple[Row, Sequence[Result]]]) -> str:
    """The table of `as_markdown`, without its heading."""
    lines = ["| | median | min to max | CPU us | embedlog / other |", "|---|---:|---:|---:|---:|"]
    for row, results in measured:
        better = "" if row.more_is_better else ", less is better"
        lines.append(f"| **{row.title}** ({row.unit}{better}) | | | | |")
        for result in results:
            spread = f"{_number(min(result.samples))} to {_number(max(result.samples))}"
            ratio = _ratio(results[0], result)
            cells = (result.name, _number(result.median), spread, _cpu(result), ratio)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def replaced(text: str, table: str, name: str = "bench") -> str:
    """The page with a new table between the marks of that name. Raises ValueError if it has no marks."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page has no {begin} and {end}")
    return f"{before}{begin}\n{table}{end}{after}"


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
        "loops": LOOPS_IMPLEMENTATION,
        "checksum": CHECKSUM_IMPLEMENTATION,
        "sqlite": sqlite3.sqlite_version,
        "lmdb": version("lmdb"),
        "rocksdict": version("rocksdict"),
        "persist-queue": version("persist-queue"),
    }


def _line(cells: Sequence[str]) -> str:
    name, *numbers = cells
    aligned = (number.rjust(width) for number, width in zip(numbers, _WIDTHS[1:], strict=True))
    return (name.ljust(_WIDTHS[0]) + "  ".join(aligned)).rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _cpu(result: Result) -> str:
    cpu_us = result.median_cpu_us
    if cpu_us is None:
        return ""
    return _number(cpu_us) if cpu_us >= 10 else f"{cpu_us:.2f}"


def _ratio(ours: Result, other: Result) -> str:
    return "" if other is ours else f"{ours.median / other.median:,.2f}x"
