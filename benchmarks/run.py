"""`python -m benchmarks.run`: measure all rows, print each as soon as it is done."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from . import appending, broker, checking, columns, crash, disk, durable, mirroring, plain, protocol, reading
from .measure import Result, Row, measure
from .table import as_json, as_markdown, block, heading, replaced

_RESULTS = Path(__file__).parent / "results"
_FAMILIES = (appending, durable, reading, plain, columns, crash, checking, disk, protocol, broker, mirroring)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the records, three rounds")
    parser.add_argument("--rounds", type=int, help="rounds (default: 5, or 3 with --quick)")
    parser.add_argument("--only", metavar="TEXT", default="", help="only rows whose title holds this")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there, too")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the table into this page, too")
    parser.add_argument("--dir", type=Path, default=_RESULTS, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    scale = 0.2 if options.quick else 1.0
    rounds = options.rounds or (3 if options.quick else 5)

    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.dir))
    measured: list[tuple[Row, list[Result]]] = []
    print(heading(), flush=True)
    try:
        for family in _FAMILIES:
            for row in family.rows(scale):
                if options.only in row.title:
                    measured.append((row, measure(row, rounds, directory)))
                    print(block(*measured[-1]), flush=True)
    finally:
        shutil.rmtree(directory)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(measured), indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(replaced(options.page.read_text(), as_markdown(measured)))


if __name__ == "__main__":
    main()
