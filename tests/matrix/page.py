"""The matrix as a part of docs/explanation/promoting.md: written from outcomes, and read again.

| `append(flush=True)` | yes | yes | no (1) | no (1) |        a row; the notes are below the tables
| `append`, `aio`      | ...                                 what tasks have, where it is something else
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from .cases import CASES, Outcome
from .columns import TITLES

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "promoting.md"
BEGIN: Final = "<!-- Written by `make matrix` from what tests/matrix does. -->\n"
END: Final = "<!-- The end of what `make matrix` writes. -->\n"
HEADINGS: Final = {
    "embedlog": "Functions",
    "Log": "Log",
    "Topic": "Topic",
    "Producer": "Producer",
    "TopicProducer": "TopicProducer",
    "TransactionalProducer": "TransactionalProducer",
    "Transaction": "Transaction",
    "Consumer": "Consumer",
    "ConsumerGroup": "ConsumerGroup",
    "Queue": "Queue",
    "Job": "Job",
    "Workers": "Workers",
    "Mirror": "Mirror",
}
_THREADS, _TASKS = "", ", `aio`"
_ONLY: Final = " †"
_NOTE: Final = re.compile(r"\| (\d+) \| (?:`(\w+)`: )?(.*) \|")


class Place(NamedTuple):
    """Of an outcome: which case, for threads or for tasks, in which column."""

    case: str
    for_tasks: bool
    column: str


Outcomes = Mapping[Place, Outcome]


def written(outcomes: Outcomes) -> str:
    """The part of the page."""
    numbers: dict[Outcome, int] = {}

    def cell(there: Outcome) -> str:
        if there.kind == "yes":
            return "yes"
        return f"{there.kind} ({numbers.setdefault(there, len(numbers) + 1)})"

    lines = []
    for group, heading in HEADINGS.items():
        lines += [f"### {heading}", "", f"| | {' | '.join(TITLES.values())} |", "|---|---|---|---|---|"]
        for case in CASES.values():
            if case.group != group:
                continue
            name, _, more = case.shown.partition(", ")
            shown = f"`{name}`{', ' if more else ''}{more}{'' if case.for_tasks else _ONLY}"
            kinds = [
                [outcomes[Place(case.name, for_tasks, column)] for column in TITLES]
                for for_tasks in ((False, True) if case.for_tasks else (False,))
            ]
            for suffix, row in zip((_THREADS, _TASKS), kinds, strict=False):
                if suffix == _THREADS or row != kinds[0]:
                    lines.append(f"| {shown}{suffix} | {' | '.join(map(cell, row))} |")
        lines.append("")
    lines += ["### Notes", "", "| | |", "|---|---|"]
    for there, number in numbers.items():
        error = f"`{there.error}`: " if there.error else ""
        lines.append(f"| {number} | {error}{_escaped(there.words)} |")
    return "\n".join(lines) + "\n"


def read() -> dict[Place, Outcome]:
    """What the page says."""
    part = section()
    notes = {number: (error or "", _plain(words)) for number, error, words in _NOTE.findall(part)}
    unread = set(CASES)
    outcomes = {}
    for group, heading in HEADINGS.items():
        table = part.partition(f"### {heading}\n")[2].partition("\n### ")[0]
        for line in re.findall(r"^\| (`.*) \|$", table, re.M):
            shown, *cells = (cell.strip() for cell in line.split(" | "))
            for_tasks = shown.endswith(_TASKS)
            shown = shown.removesuffix(_TASKS).removesuffix(_ONLY).replace("`", "")
            case = CASES[f"{group}.{shown}"]
            unread.discard(case.name)
            for column, cell in zip(TITLES, cells, strict=True):
                kind, _, number = cell.removesuffix(")").partition(" (")
                there = Outcome(kind, *notes[number]) if number else Outcome(kind)
                outcomes[Place(case.name, for_tasks, column)] = there
                if not for_tasks and case.for_tasks:
                    outcomes[Place(case.name, True, column)] = there
    assert not unread, f"no row for {unread}: run `make matrix`"
    return outcomes


def section() -> str:
    """The part of the page that is written."""
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    return text.partition(BEGIN)[2].partition(END)[0]


def write(part: str) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + part + END + rest.partition(END)[2])


def _escaped(words: str) -> str:
    return words.replace("|", "\\|")


def _plain(words: str) -> str:
    return words.replace("\\|", "|")
