"""Everything a command prints: lines, tables, JSON, progress bars.

Standard output carries what was asked for; standard error what went on (warnings, errors, progress). Tables
are aligned and as wide as the terminal; where there is no terminal nothing is cut off. Colour comes only on
a terminal and never says anything that the text does not. `rich` is imported when the first table or
progress bar is drawn.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED: Final = 10_000
_GAP: Final = 2
_FOLDED: Final = 12  # columns that may be folded stay at least as wide


class Column(NamedTuple):
    """A table's column: its head, how it is aligned, whether it may be folded to make the table fit."""

    name: str
    right: bool = False
    folds: bool = False


class UI:
    """Where a command's output goes. For one thread; progress may be told from another."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A terminal or locale that cannot show a character must not fail the command.
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self.out: TextIO = sys.stdout
        self.err: TextIO = sys.stderr

    def line(self, text: str = "") -> None:
        """A line on standard output."""
        self.out.write(text + "\n")

    def json(self, value: object) -> None:
        """A JSON object on a line of its own."""
        self.out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        self.out.flush()

    def note(self, text: str) -> None:
        """What went on, on standard error."""
        self.err.write(text + "\n")
        self.err.flush()

    def error(self, text: str) -> None:
        """What went wrong, on standard error; red on a terminal, as far as it is the first line."""
        if self._colours(self.err):
            first, newline, rest = text.partition("\n")
            text = f"\x1b[31m{first}\x1b[0m{newline}{rest}"
        self.note(text)

    def table(
        self,
        columns: Sequence[Column],
        rows: Iterable[Sequence[object]],
        *,
        totals: Sequence[object] | None = None,
    ) -> None:
        """Rows under their heads; numbers get commas, None is shown as a dash. `totals` stand below all."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
        for column in columns:
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=not column.folds,
                overflow="fold",
            )
        shown = [[_cell(cell) for cell in row] for row in (*rows, *([totals] if totals else []))]
        for row in shown:
            style = "bold" if totals and row is shown[-1] else ""
            table.add_row(*(Text(cell, style=style) for cell in row))
        console = self._console(self.out)
        console.width = max(console.width, _narrowest(columns, shown))
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            self.line(line.rstrip())

    @contextlib.contextmanager
    def progress(self, *, sizes: bool = True) -> Iterator[Progress]:
        """A progress bar on standard error while the block runs; nothing where that is no terminal."""
        if not self.err.isatty():
            yield Progress()
            return
        bars = _Bars(lambda: self._console(self.err), sizes)
        try:
            yield bars
        finally:
            bars.stop()

    def _colours(self, stream: TextIO) -> bool:
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def _console(self, stream: TextIO) -> Console:
        from rich.console import Console

        # COLUMNS is honoured by rich itself, for the terminal and for a file.
        width = None if stream.isatty() or os.environ.get("COLUMNS") else _UNBOUNDED
        return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


class Progress:
    """Told how far a long work has come; this one shows nothing."""

    def update(self, name: str, done: int, total: int) -> None:
        """`done` of `total` (bytes or items) of the part called `name`."""


class _Bars(Progress):
    """A bar for each part; nothing is drawn, and rich not imported, before the first word of any."""

    def __init__(self, console_of: Callable[[], Console], sizes: bool) -> None:
        self._console_of = console_of
        self._sizes = sizes
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def update(self, name: str, done: int, total: int) -> None:
        if self._bars is None:
            self._start()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()

    def _start(self) -> None:
        from rich import progress

        columns: tuple[progress.ProgressColumn, ...] = (progress.MofNCompleteColumn(),)
        if self._sizes:
            columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
        text = progress.TextColumn("{task.description}")
        self._bars = progress.Progress(text, progress.BarColumn(), *columns, console=self._console_of())
        self._bars.start()


def _narrowest(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """How wide a table must be at least: rather wider than the terminal than numbers cut off."""
    total = 0
    for number, column in enumerate(columns):
        width = max(len(column.name), *(len(row[number]) for row in rows), 0)
        total += _GAP + (min(width, _FOLDED) if column.folds else width)
    return total


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
