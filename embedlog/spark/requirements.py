"""Checks the packages that Spark support needs, and says how to install missing ones."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from ..errors import EmbedlogError, shown

_OLDEST: Final = (4, 0)
_INSTALL: Final = "pip install 'embedlog[spark]'"


def check_pyspark() -> tuple[int, int]:
    """Which pyspark there is, as (4, 3). Raises EmbedlogError where it or pyarrow is missing or too old."""
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        if find_spec("pyspark") is None:
            raise EmbedlogError(f"Spark needs pyspark, which is not installed here: {_INSTALL}") from None
        import pyspark  # a distribution of Spark brings it without metadata

        found = pyspark.__version__
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < _OLDEST:
        raise EmbedlogError(
            f"Spark {found} has no data sources in Python: embedlog needs Spark 4.0 or later ({_INSTALL})"
        )
    if find_spec("pyarrow") is None:
        raise EmbedlogError(f"Spark needs pyarrow, which is not installed here: {_INSTALL}")
    return major, minor


def check_workers(python: str) -> None:
    """Can a Python that Spark is to start import the source? Another one than this is started to find out.

    Raises EmbedlogError where it cannot: Spark itself would say so in the middle of a query.
    """
    if python == sys.executable:
        return
    code = "import embedlog.spark.source"
    try:
        tried = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbedlogError(f"PYSPARK_PYTHON is {shown(python)}, which does not run: {error}") from error
    if tried.returncode:
        why = (tried.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise EmbedlogError(
            f"Spark's workers would run {python}, which has no embedlog or lacks something for it ({why}): "
            f"{_INSTALL} there, or set PYSPARK_PYTHON to {sys.executable}"
        )
