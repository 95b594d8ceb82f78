"""The pages that show the results: all rows in docs/explanation/performance.md, some of them in README.

    python -m benchmarks.page docs/explanation/performance.md README.md    (README's table, out of the page's)

The page has a table for each family of rows, and a block that names the machine, each between marks. A row
that is measured again replaces the row of its title and leaves the others as they are, so a page can be
written in parts.

Invariant: all rows of a page are of one machine and the same versions.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .measure import Result, Row
from .table import MARKDOWN_HEAD, between_marks, markdown_row, replaced

_TITLE = re.compile(r"\| \*\*(.+)\*\* \(")

_OTHERS: Final = "others: a commit every 1,000"
# README's table: the row's name there, its title in the page.
_FIGURES: Final = (
    ("append, batches of 1,000", "append, batches of 1,000"),
    ("append, batches of 100", "append, batches of 100"),
    ("append, 100 keyed pairs, 4 partitions", "append_many, 100 keyed pairs, partitions: 4"),
    ("append, one record a call", "append, one record a call"),
    (
        "`producer.send`, to the end of `close`",
        f"producer.send to the end of close; {_OTHERS}",
    ),
    ("the same, keyed, 4 partitions", f"producer.send, keyed, 4 partitions; {_OTHERS}"),
    ("durable, batches of 100", "durable append, batches of 100"),
    ("durable, one record a call", "durable append, one record with flush"),
    ("durable, 64 threads at once", "durable append, 64 threads (group commit)"),
    ("durable, 512 futures of a producer", "durable append, 512 futures of a producer"),
    ("read in order, values", "read in order, values"),
    ("read in order, whole records", "read in order, records"),
    ("a consumer of a group, whole records", "for record in consumer, of a group"),
)
_COLUMNS: Final = (
    ("embedlog", ("embedlog",)),
    ("sqlite", ("sqlite",)),
    ("lmdb", ("lmdb",)),
    ("rocksdict", ("rocksdict",)),
    ("persist-queue (sqlite / file)", ("persist-queue sqlite", "persist-queue file")),
)


class Page:
    """A page of results. Each call of `put` writes it."""

    def __init__(self, path: Path, families: Sequence[str], machine: str, *, fresh: bool) -> None:
        """
        Args:
            machine: the machine and the versions, a line each.
            fresh: remove the rows of another machine. All of them will be measured.

        Raises ValueError if the page lacks marks, or is of another machine and not begun fresh.
        """
        self._path = path
        text = path.read_text()
        before = between_marks(text, "bench-machine")
        if before != machine:
            if not fresh:
                raise ValueError(f"{path} is of\n{before}and this is\n{machine}Run all rows, without --only.")
            for family in families:
                text = replaced(text, "", f"bench-{family}")
            path.write_text(replaced(text, machine, "bench-machine"))

    def put(self, family: str, titles: Sequence[str], row: Row, results: Sequence[Result]) -> None:
        """Write a row. `titles` are those of all of the family's rows, in order: others are removed."""
        text, name = self._path.read_text(), f"bench-{family}"
        rows = rows_of(between_marks(text, name))
        rows[row.title] = markdown_row(row, results)
        lines = [line for title in titles for line in rows.get(title, ())]
        self._path.write_text(replaced(text, "\n".join([*MARKDOWN_HEAD, *lines]) + "\n", name))


def rows_of(text: str) -> dict[str, list[str]]:
    """The lines of each row of a text's tables, by title."""
    rows: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        title = _TITLE.match(line)
        if title is not None:
            lines = rows[title[1]] = []
        elif not line.startswith("| "):
            lines = None
        if lines is not None:
            lines.append(line)
    return rows


def figures(text: str) -> str:
    """README's table of thousands of records a second, out of the page of all rows."""
    rows = rows_of(text)
    lines = ["| | " + " | ".join(name for name, _ in _COLUMNS) + " |", "|---" + "|---:" * len(_COLUMNS) + "|"]
    for name, title in _FIGURES:
        medians = [[cell.strip() for cell in line.split("|")[1:3]] for line in rows.get(title, ())[1:]]
        cells = []
        for _, contenders in _COLUMNS:
            shown = [_thousands(medians, contender) for contender in contenders]
            cells.append(" / ".join(shown) if any(shown) else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _thousands(medians: Sequence[Sequence[str]], contender: str) -> str:
    """The median of the first contender that begins so."""
    for name, median in medians:
        if name.startswith(contender):
            value = float(median.replace(",", "")) / 1000
            return f"{value:,.0f}" if value >= 20 else f"{value:,.1f}"
    return ""


def main() -> None:
    """Write README's table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("page", type=Path, help="the page of all rows")
    parser.add_argument("readme", type=Path, help="the page with the short table")
    options = parser.parse_args()
    table = figures(options.page.read_text())
    options.readme.write_text(replaced(options.readme.read_text(), table, "bench"))


if __name__ == "__main__":
    main()
