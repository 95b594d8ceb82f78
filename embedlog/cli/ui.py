"""Everything a command prints: lines, tables, JSON, progress bars.

Results go to standard output; warnings, errors and progress to standard error. What could control a terminal
or turn its text around is escaped here, whatever the names of groups and clients have. Tables and errors fit
the terminal: long names lose their middle, text wraps, dispensable columns are left out. Without a terminal
everything is shown, each row and error on one line. Colour is used only on a terminal, and adds nothing to
the text. `rich` is imported for the first table or progress bar.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from ..units import size
from ..wording import visible, visible_in_a_line

if TYPE_CHECKING:
    from rich.console import Console, ScreenContext

_UNBOUNDED: Final = 10_000
_GAP: Final = 2
_FOLDED: Final = 12  # columns that fold stay at least as wide
_WORD: Final = 32  # and no word up to so many characters is broken, if there is room
_NAME: Final = 20  # names that lose their middle stay at least as wide
_CUT: Final = 8  # and texts that lose their end
_PATIENCE_S: Final = 0.5  # work that is done sooner needs no progress bar


class Column(NamedTuple):
    """A table's column: its heading, its alignment, and what happens to it if the table does not fit.

    folds: its text wraps. shortens: names lose their middle. cuts: its text loses its end. spare: it is left
    out, the highest number first.
    """

    name: str
    right: bool = False
    folds: bool = False
    shortens: bool = False
    cuts: bool = False
    spare: int = 0


def number_columns(*names: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(name, right=True) for name in names)


class UI:
    """A command's output. Not thread-safe, except that progress may be reported from another thread."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A terminal or locale that cannot show a character must not fail the command.
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self.out: TextIO = sys.stdout
        self.err: TextIO = sys.stderr
        self.for_machines = False
        """With --json: no progress bars, not even on a terminal."""

    def line(self, text: str = "") -> None:
        """A line on standard output."""
        self.out.write(visible(text) + "\n")

    def json(self, value: object) -> None:
        """A JSON object on a line of its own."""
        self.out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    def result(self, facts: object, text: str) -> None:
        """What a command has done: with --json an object, otherwise a line."""
        if self.for_machines:
            self.json(facts)
        else:
            self.line(text)

    def listing(
        self,
        facts: Iterable[object],
        columns: Sequence[Column],
        rows: Iterable[Sequence[object]],
        nothing: str = "",
    ) -> bool:
        """What a command lists: with --json objects, otherwise a table, or the line `nothing` without rows.

        Of `facts` and `rows` only one is iterated over. Returns whether there is a table.
        """
        if self.for_machines:
            for fact in facts:
                self.json(fact)
            return False
        shown = list(rows)
        if shown:
            self.table(columns, shown)
        elif nothing:
            self.line(nothing)
        return bool(shown)

    def confirms_deletion(self, what: str) -> bool:
        """Ask on a terminal whether something is to be deleted. Without one: it is."""
        if not (sys.stdin.isatty() and self.out.isatty()):
            return True
        self.err.write(f"Delete {what}? [y/N] ")
        self.err.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
        self.note("nothing was deleted")
        return False

    def flush(self) -> None:
        self.out.flush()

    def note(self, text: str) -> None:
        """Print information to standard error."""
        self._write_to_err(visible(text))

    def _write_to_err(self, text: str) -> None:
        self.err.write(text + "\n")
        self.err.flush()

    def error(self, text: str) -> None:
        """Print an error to standard error; its first line is red on a terminal."""
        width = width_of(self.err)
        first, newline, rest = (wrapped(visible(part), width) for part in text.partition("\n"))
        if self._colours(self.err):
            first = f"\x1b[31m{first}\x1b[0m"
        self._write_to_err(first + newline + rest)

    def table(
        self,
        columns: Sequence[Column],
        rows: Iterable[Sequence[object]],
        *,
        totals: Sequence[object] | None = None,
    ) -> None:
        """Rows under their headings; numbers get commas, None becomes a dash. `totals` is the last row."""
        for line in self.table_lines(columns, rows, totals=totals):
            self.out.write(line + "\n")  # with colours on a terminal

    def table_lines(
        self,
        columns: Sequence[Column],
        rows: Iterable[Sequence[object]],
        *,
        totals: Sequence[object] | None = None,
    ) -> list[str]:
        """The lines that `table` prints."""
        from rich.table import Table
        from rich.text import Text

        cells = [[_cell(cell) for cell in row] for row in (*rows, *([totals] if totals else []))]
        console = self._console(self.out)
        widths = _fitting(columns, cells, console.width)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
        for number, width in widths.items():
            table.add_column(
                columns[number].name,
                justify="right" if columns[number].right else "left",
                no_wrap=not columns[number].folds,
                overflow="fold",
                width=width,
            )
        for row in cells:
            style = "bold" if totals and row is cells[-1] else ""
            shown = (_shown(row[n], columns[n], width) for n, width in widths.items())
            table.add_row(*(Text(cell, style=style) for cell in shown))
        console.width = max(console.width, sum(widths.values()) + _GAP * len(widths))
        with console.capture() as captured:
            console.print(table)
        return [line.rstrip() for line in captured.get().splitlines()]

    def screen(self) -> ScreenContext:
        """The terminal's other screen, as a context with `update`; what was there before comes back."""
        return self._console(self.out).screen()

    @contextlib.contextmanager
    def progress(self, *, sizes: bool = True, shown: bool = True) -> Iterator[Progress]:
        """Progress bars on standard error, if that is a terminal and the block takes long.

        sizes: the numbers are bytes. shown: False for no bars.
        """
        if not shown or self.for_machines or not self.err.isatty():
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
    """Receives the progress of long-running work. This one shows nothing."""

    def update(self, name: str, done: int, total: int | None) -> None:
        """`done` of `total` (bytes or items) of the part called `name`; None if the total is unknown."""


class _Bars(Progress):
    """A bar for each part; nothing is drawn, and rich is not imported, for the first _PATIENCE_S."""

    def __init__(self, console_of: Callable[[], Console], sizes: bool) -> None:
        self._console_of = console_of
        self._sizes = sizes
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._since = self._last = time.monotonic()
        self._begun: dict[str, float] = {}

    def update(self, name: str, done: int, total: int | None) -> None:
        begun = self._begun.setdefault(name, self._last)  # one part usually begins when another ends
        now = self._last = time.monotonic()
        if now - self._since < _PATIENCE_S:
            return
        if self._bars is None:
            self._start()
        text = self._text(done, total, now - begun)
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(visible_in_a_line(name), total=total, text=text)
        self._bars.update(self._tasks[name], completed=done, total=total, text=text)

    def _text(self, done: int, total: int | None, seconds: float) -> str:
        shown = size if self._sizes else "{:,}".format
        far = shown(done) if total is None else f"{shown(done)} / {shown(total)}"
        return f"{far}   {shown(int(done / seconds))}/s" if seconds else far

    def stop(self) -> None:
        if self._bars is None:
            return
        for task in self._bars.tasks:
            if task.total is None:  # known now
                self._bars.update(task.id, total=task.completed)
        self._bars.stop()

    def _start(self) -> None:
        from rich import progress

        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
            progress.TextColumn("{task.fields[text]}", markup=False),
            progress.TimeRemainingColumn(compact=True),
            console=self._console_of(),
        )
        self._bars.start()


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """The columns of a table to show, by number, and their widths.

    May be wider than the terminal: numbers are not cut off.
    """
    from rich.cells import cell_len

    full = {
        n: max(len(column.name), *(cell_len(row[n]) for row in rows), 0) for n, column in enumerate(columns)
    }
    if _width(full) <= width:
        return full
    words = {
        n: max((cell_len(word) for row in rows for word in row[n].split()), default=0)
        for n, column in enumerate(columns)
        if column.folds
    }
    fitted = {n: min(wide, _least(columns[n], wide, words.get(n, 0))) for n, wide in full.items()}
    for n in sorted(full, key=lambda n: -columns[n].spare):
        if columns[n].spare and _width(fitted) > width:
            del fitted[n]
    if _width(fitted) > width:
        fitted.update({n: min(fitted[n], _FOLDED) for n in words})
    for _ in range(width - _width(fitted)):
        needy = [n for n in fitted if fitted[n] < full[n]]
        if not needy:
            break
        fitted[min(needy, key=fitted.__getitem__)] += 1
    return fitted


def _shown(cell: str, column: Column, width: int) -> str:
    if column.shortens:
        return shortened(cell, width)
    return cut(cell, width) if column.cuts else cell


def _least(column: Column, wide: int, longest_word: int) -> int:
    """The minimum readable width of a column."""
    if column.cuts:
        return max(_CUT, len(column.name))
    if column.shortens:
        return max(_NAME, len(column.name))
    if column.folds:
        return max(_FOLDED, min(longest_word, _WORD), len(column.name))
    return wide


def _width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def shortened(name: str, width: int) -> str:
    """Shorten a name in its middle if it is too wide: a_rather_l…ng_name."""
    from rich.cells import cell_len

    if cell_len(name) <= width:
        return name
    head, tail = name[: width - width // 2], name[-(width // 2) :]
    while cell_len(head) + cell_len(tail) >= width:
        head, tail = (head[:-1], tail) if cell_len(head) >= cell_len(tail) else (head, tail[1:])
    return f"{head}…{tail}"


def cut(text: str, width: int) -> str:
    """Cut the end off a text that is too wide: a rather l…"""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def width_of(stream: TextIO) -> int | None:
    """The width of a stream's terminal; None without a terminal and without COLUMNS."""
    with contextlib.suppress(ValueError):
        return int(os.environ.get("COLUMNS", "")) or None
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns
    return None


def wrapped(text: str, width: int | None) -> str:
    """A text wrapped to a width, except for lines with commands to copy."""
    if width is None:
        return text
    return "\n".join(
        line
        if "   " in line
        else textwrap.fill(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in text.split("\n")
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return visible_in_a_line(str(value))
