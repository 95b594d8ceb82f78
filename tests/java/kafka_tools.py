"""Apache Kafka's command-line tools, which Maven fetches."""

from __future__ import annotations

import subprocess
from pathlib import Path

_HERE = Path(__file__).parent / "tools"


def classpath(into: Path) -> str:
    """The class path of the tools that tools/pom.xml names; Maven writes it into a file."""
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={into}"]
    subprocess.run(["mvn", "--batch-mode", "--quiet", *goal], cwd=_HERE, check=True)
    return into.read_text().strip()
