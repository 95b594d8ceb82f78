"""A Spark session for a command: what Java and Spark say while they start is kept off the terminal.

The JVM inherits standard error, and writes a dozen lines there that help nobody; so it gets a file in its
place. Where the start fails what stands in the file is told.
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
    """As `embedlog.spark.session`. Raises what it raises, and LoadFailed where Spark does not start."""
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
    """Is it neither what Spark says at every start, nor the depths of a stack trace?"""
    return bool(line.strip()) and not line.startswith(("\t", " ", "Using Spark's")) and "WARN" not in line
