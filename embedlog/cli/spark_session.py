"""Starts a Spark session for a command, and keeps the start-up output of Java and Spark off the terminal.

The JVM inherits standard error and writes a dozen useless lines to it, so it gets a temporary file instead.
If the start fails, the relevant lines of the file are shown.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING

from ..errors import EmbedlogError, LoadFailed
from ..spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quiet_session(app_name: str, master: str) -> SparkSession:
    """As `embedlog.spark.session`. Raises what it raises, and LoadFailed if Spark does not start."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            return session(app_name, master)
        except EmbedlogError:
            raise
        except Exception as error:  # of pyspark, py4j, or the system
            said.seek(0)
            lines = [each for each in said.read().decode(errors="replace").splitlines() if _tells(each)]
            raise LoadFailed(
                "\n".join([f"Spark did not start: {str(error).partition(chr(10))[0]}", *lines[-5:]])
            ) from error
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def _tells(line: str) -> bool:
    """Whether a line is worth showing: no start-up banner, no stack frame."""
    return bool(line.strip()) and not line.startswith(("\t", " ", "Using Spark's")) and "WARN" not in line
