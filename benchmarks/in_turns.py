"""Does a change make anything slower? The same rows against two checkouts, in turns.

    python -m benchmarks.in_turns BEFORE [AFTER] [--only TEXT]... [--rounds N] [--own] [--quick] [--dir DIR]

BEFORE and AFTER (by default this checkout) are checkouts with compiled modules, for example one made by
`git worktree add ../before main`. Each round runs a new process for each of them, in changing order, with
these benchmarks or, with --own, with those of the checkout (for rows that import names which have moved).

For each row it prints the medians and the ratio AFTER / BEFORE of the time per item, wall and CPU: below 1 is
faster. A round gives one ratio, of medians of three. The output is the median of the ratios and its 99 %
confidence interval by order statistics, which assumes nothing about the distribution. It gives a verdict only
if the interval excludes 1, and on CPU time if that is measured: wall time depends on what else the machine
does. Compare a checkout with itself to see that the interval contains 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
_TIMES = 3  # of each row in each round: the first run pays for cold caches
_WIDTHS = (76, 14, 14, 22, 10)

Results = dict[tuple[str, str], dict[str, Any]]  # by the row's title and the contender's name


class Ratio(NamedTuple):
    """After / before: the median and its confidence interval."""

    median: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """The verdict on a time."""
        return "slower" if self.low > 1 else "faster" if self.high < 1 else ""

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}..{self.high:.2f})"


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.in_turns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=_HERE.parent)
    parser.add_argument("--only", metavar="TEXT", action="append", help="only rows whose title holds this")
    parser.add_argument("--rounds", type=int, default=12, help="default: %(default)s; at least 8")
    parser.add_argument("--own", action="store_true", help="the benchmarks of either checkout, not these")
    parser.add_argument("--quick", action="store_true", help="a fifth of the records")
    parser.add_argument("--dir", type=Path, default=_HERE / "results", help="default: %(default)s")
    options = parser.parse_args()
    if options.rounds < 8:
        parser.error("fewer than 8 rounds give no 99 % interval")
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="turns-", dir=options.dir)).resolve()
    try:
        _compare(directory, options)
    finally:
        shutil.rmtree(directory)


def _compare(directory: Path, options: argparse.Namespace) -> None:
    pair = [checkout.resolve() for checkout in (options.before, options.after)]
    runs: list[list[Results]] = []
    for number in range(options.rounds):
        order = (0, 1) if number % 2 else (1, 0)
        results = {which: _run(pair[which], directory, options) for which in order}
        runs.append([results[0], results[1]])
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(_line(("", "before", "after", "after / before", "")))
    for name in runs[0][1]:
        if name in runs[0][0]:
            print("\n".join(_block(name, runs)), flush=True)
        else:
            print(f"{': '.join(name)}: not in {pair[0]}")


def _run(checkout: Path, directory: Path, options: argparse.Namespace) -> Results:
    """Run the rows with the embedlog of a checkout, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        where = Path(name)
        (where / "benchmarks").symlink_to(checkout / "benchmarks" if options.own else _HERE)
        report = where / "report.json"
        command = [sys.executable, "-m", "benchmarks.run", "--rounds", str(_TIMES), "--alone"]
        command += ["--json", str(report), "--dir", str(directory)]
        command += [f"--only={text}" for text in options.only or ()]
        command += ["--quick"] if options.quick else []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(where), str(checkout)))}
        # In a directory that holds the benchmarks and no embedlog: the current one comes first.
        subprocess.run(command, cwd=where, env=env, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(report.read_text())["rows"]
        return {(row["row"], result["name"]): row | result for row in rows for result in row["results"]}


# -- what it says --------------------------------------------------------------------------------------


def _block(name: tuple[str, str], runs: Sequence[Sequence[Results]]) -> Iterator[str]:
    first = runs[0][0][name]
    walls = [[results[name]["median"] for results in pair] for pair in runs]
    # A rate is inverted, so that every ratio is one of times.
    ratio = _ratio([b / a if first["more_is_better"] else a / b for b, a in walls])
    cpus = [
        [statistics.median(results[name]["cpu_us"]) for results in pair] for pair in runs if first["cpu_us"]
    ]
    title = f"{name[0]}: {name[1]}, {first['unit']}"
    yield _line((title, *_medians(walls), str(ratio), "" if cpus else ratio.verdict))
    if cpus:
        ratio = _ratio([a / b for b, a in cpus])
        yield _line(("  CPU us", *_medians(cpus), str(ratio), ratio.verdict))


def _medians(pairs: Sequence[Sequence[float]]) -> tuple[str, str]:
    before, after = (statistics.median(samples) for samples in zip(*pairs, strict=True))
    return _number(before), _number(after)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _ratio(ratios: Sequence[float]) -> Ratio:
    ranked = sorted(ratios)
    outside = _outside(len(ranked))
    return Ratio(statistics.median(ranked), ranked[outside], ranked[-1 - outside])


def _outside(count: int) -> int:
    """How many samples to drop at each end: in 99 % of cases the rest encloses the median."""
    left_out, below = 0, 1
    while True:
        below += comb(count, left_out + 1)  # ways in which no more samples than that are below the median
        if 2 * below > 0.01 * 2**count:
            return left_out
        left_out += 1


def _line(cells: Sequence[str]) -> str:
    name, *others = cells
    aligned = (cell.rjust(width) for cell, width in zip(others, _WIDTHS[1:], strict=True))
    return (name.ljust(_WIDTHS[0]) + "  ".join(aligned)).rstrip()


if __name__ == "__main__":
    main()
