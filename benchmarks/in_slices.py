"""Is an everyday call slower than in another checkout? CPU time, in short slices that alternate.

    python -m benchmarks.in_slices BEFORE [AFTER] [--only TEXT]... [--slices N] [--dir DIR]

in_turns runs whole rows in new processes and takes a while. This keeps one process for each checkout and
lets them run slices of some milliseconds in changing order. It prints the least CPU time per item of either
(slices.py), the ratio, and the ratio of the least of the odd and the even slices of BEFORE, which is noise.
Run it with EMBEDLOG_LOOPS=plain for the loops without a compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .slices import PATHS

_HERE = Path(__file__).resolve().parent


class Side:
    """A process with the embedlog of a checkout, which runs slices."""

    def __init__(self, checkout: Path, directory: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's program finds its modules compiled
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "slices.py"), str(directory)],
            cwd=directory,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def tell(self, line: str) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> str:
        """Send a line, and return the answer."""
        self.tell(line)
        process = self._process
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended with status {process.wait()}")
        return answer

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.in_slices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=_HERE.parent)
    parser.add_argument("--only", metavar="TEXT", action="append", help="only paths whose name holds this")
    parser.add_argument("--slices", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--dir", type=Path, default=_HERE / "results", help="default: %(default)s")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="slices-", dir=options.dir)).resolve()
    sides: list[Side] = []
    try:
        sides += [Side(options.before, directory), Side(options.after, directory)]
        print(f"{'CPU us per item':<56}{'before':>12}{'after':>12}{'ratio':>8}{'noise':>8}", flush=True)
        for name in PATHS:
            if any(text in name for text in options.only or [""]):
                print(_line(name, sides, options.slices), flush=True)
    finally:
        for side in sides:
            side.close()
        shutil.rmtree(directory)


def _line(name: str, sides: list[Side], slices: int) -> str:
    for side in sides:
        side.ask(name)
    durations: list[list[float]] = [[], []]
    for number in range(slices):
        for which in (0, 1) if number % 2 else (1, 0):
            durations[which].append(float(sides[which].ask("")))
    for side in sides:
        side.tell("end")
    before, after = min(durations[0]), min(durations[1])
    noise = min(durations[0][::2]) / min(durations[0][1::2])
    return f"{name:<56}{before:>12,.3f}{after:>12,.3f}{after / before:>7.2f}x{noise:>7.2f}x"


if __name__ == "__main__":
    main()
