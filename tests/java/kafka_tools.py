"""Apache Kafka's command-line programs, which Maven fetches."""

from __future__ import annotations

import subprocess
from pathlib import Path

_HERE = Path(__file__).parent


def classpath(into: Path, project: str = "tools") -> str:
    """The class path of what PROJECT/pom.xml names; Maven writes it into a file."""
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={into}"]
    subprocess.run(["mvn", "--batch-mode", "--quiet", *goal], cwd=_HERE / project, check=True)
    return into.read_text().strip()
