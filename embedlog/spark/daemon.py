"""The daemon that forks the Python workers of Spark's tasks, and imports once what they need.

Spark's own daemon (pyspark.daemon) imports pyspark from a zip file, whose modules Python compiles each time,
and each worker that it forks imports everything else. This one imports pyspark from its directory, if there
is one, and imports embedlog before it forks (spark.python.daemon.module).

Invariant: imports nothing that starts threads, as numpy and pyarrow do: threads do not survive a fork.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys


def main() -> None:
    """Run Spark's daemon. Spark passes the workers' module as the only argument."""
    sys.path[:] = map(_unzipped, sys.path)
    importlib.import_module("pyspark.worker")
    importlib.import_module("embedlog.spark.source")
    gc.freeze()  # the workers share what is imported
    importlib.import_module("pyspark.daemon").manager()


def _unzipped(path: str) -> str:
    """The directory beside pyspark's zip file that has the same modules; else the path."""
    library, name = os.path.split(path)
    if name == "pyspark.zip":
        python = os.path.dirname(library)  # .../pyspark/python if installed by pip, else SPARK_HOME/python
        for directory in (python, os.path.dirname(os.path.dirname(python))):
            if os.path.exists(os.path.join(directory, "pyspark", "daemon.py")):
                return directory
    return path


if __name__ == "__main__":
    main()
