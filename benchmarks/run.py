"""`python -m benchmarks.run`: measure all rows, and print each as soon as it is done.

A family of rows is a module of this package: `--only reading` runs one. With
`--page docs/explanation/performance.md` each row is written there as soon as it is done (page.py), so that a
run may be divided: `--only appending`, later `--only durable`, and single rows by their titles,
`--only "batches of 100"`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .measure import Result, Row, measure
from .page import Page
from .table import as_json, block, heading, heading_lines

_RESULTS = Path(__file__).parent / "results"
_FAMILIES = (
    "appending",
    "durable",
    "shared",
    "queues",
    "transactions",
    "reading",
    "consuming",
    "tasks",
    "starting",
    "plain",
    "columns",
    "sql",
    "crash",
    "checking",
    "disk",
    "protocol",
    "broker",
    "clients",
    "tls",
    "sasl",
    "acls",
    "command_line",
    "mirroring",
)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the records, three rounds")
    parser.add_argument("--rounds", type=int, help="rounds (default: 5, or 3 with --quick)")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", help="only this family, or rows whose title holds this"
    )
    parser.add_argument("--alone", action="store_true", help="embedlog without the others")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there, too")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the rows into this page, too")
    parser.add_argument("--dir", type=Path, default=_RESULTS, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    if options.page is not None and (options.quick or options.alone):
        parser.error("--page takes rows as they are without --quick and --alone")
    scale = 0.2 if options.quick else 1.0
    rounds = options.rounds or (3 if options.quick else 5)

    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.dir))
    measured: list[tuple[Row, list[Result]]] = []
    try:
        page = None if options.page is None else _page(options.page, fresh=not options.only)
        print(heading(), flush=True)
        for family, rows in _rows(scale):
            for row in rows:
                if not any(_names(text, family, row.title) for text in options.only or [""]):
                    continue
                ours = [contender for contender in row.contenders if "embedlog" in contender.name]
                chosen = row._replace(contenders=ours) if options.alone else row
                measured.append((chosen, measure(chosen, rounds, directory)))
                print(block(*measured[-1]), flush=True)
                if page is not None:
                    page.put(family, [sibling.title for sibling in rows], *measured[-1])
    finally:
        shutil.rmtree(directory)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(measured), indent=1) + "\n")


def _names(text: str, family: str, title: str) -> bool:
    return text == family if text in _FAMILIES else text in title


def _page(path: Path, *, fresh: bool) -> Page:
    about = "".join(f"{line}  \n" for line in heading_lines())
    try:
        return Page(path, _FAMILIES, about, fresh=fresh)
    except ValueError as error:
        sys.exit(str(error))


def _rows(scale: float) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each module that can be imported: in_turns runs them with another checkout's embedlog."""
    for name in _FAMILIES:
        try:
            family = importlib.import_module(f"{__package__}.{name}")
        except ImportError as error:
            print(f"without benchmarks.{name}: {error}", file=sys.stderr)
        else:
            yield name, list(family.rows(scale))


if __name__ == "__main__":
    main()
