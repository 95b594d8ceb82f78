"""`make matrix`: runs the cases in all columns, and writes docs/explanation/promoting.md.

    python -m matrix [COLUMN...]        only these: the others stay as they are

Needs Java 17 or newer and Maven for "kafka".
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import page
from .cases import CASES, Outcome
from .columns import TITLES, column
from .page import Place


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m matrix", description="Writes the matrix.")
    parser.add_argument("column", nargs="*", choices=[*TITLES, []], help="default: all")
    chosen = parser.parse_args().column or list(TITLES)
    outcomes = page.read() if len(chosen) < len(TITLES) else {}
    for where in chosen:
        with tempfile.TemporaryDirectory() as directory, _bootstrap(where, Path(directory)) as bootstrap:
            for for_tasks in (False, True):
                outcomes |= _outcomes(where, for_tasks, Path(directory) / str(for_tasks), bootstrap)
    page.write(page.written(outcomes))


def _outcomes(where: str, for_tasks: bool, directory: Path, bootstrap: str) -> dict[Place, Outcome]:
    directory.mkdir()
    outcomes = {}
    with column(where, for_tasks, directory, bootstrap) as opened:
        for case in opened.cases():
            try:
                outcomes[Place(case.name, for_tasks, where)] = opened.outcome(case)
            except Exception as error:
                raise SystemExit(
                    f"{where}, {'tasks' if for_tasks else 'threads'}: {case.name}: {error!r}"
                ) from error
    print(f"{where}, {'tasks' if for_tasks else 'threads'}: {len(outcomes)} of {len(CASES)} cases")
    return outcomes


@contextlib.contextmanager
def _bootstrap(where: str, directory: Path) -> Iterator[str]:
    """The address of an Apache Kafka, for its column."""
    if where != "kafka":
        yield ""
        return
    from java_programs import apache_kafka
    from kafka_tools import classpath

    with apache_kafka(classpath(directory / "classpath", "connect"), directory) as bootstrap:
        yield bootstrap


if __name__ == "__main__":
    main()
