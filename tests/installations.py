"""embedlog built by pip from a copy of the source, and installed in its own environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
_FILES = ("LICENSE", "README.md", "pyproject.toml", "pyspark_embedlog.py", "pytest_embedlog.py", "setup.py")
_BUILT = shutil.ignore_patterns("__pycache__", "*.so", "compiled_*.c")


def copy_source(to: Path) -> Path:
    """Copy the source without build products."""
    to.mkdir()
    for name in _FILES:
        shutil.copy(ROOT / name, to)
    shutil.copytree(ROOT / "embedlog", to / "embedlog", ignore=_BUILT)
    return to


def run(*arguments: object, cwd: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """Run this Python without EMBEDLOG variables other than those given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMBEDLOG_")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**environment, **changed},
        capture_output=True,
        text=True,
    )


def build_wheel(source: Path, to: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """`pip wheel` with the installed setuptools and Cython."""
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check")
    return run("-m", "pip", "wheel", "-v", *offline, "-w", to, source, cwd=source, **changed)


def build_plain_wheel(source: Path, to: Path) -> Path:
    """Build a wheel without the compiled loops, which takes seconds."""
    built = build_wheel(source, to, EMBEDLOG_LOOPS="plain")
    assert built.returncode == 0, built.stderr
    (wheel,) = to.glob("embedlog-*.whl")
    return wheel


def make_environment(to: Path) -> Path:
    """Make a virtual environment with this one's packages except embedlog; return its Python.

    A path in a .pth file is searched for packages, but .pth files in it, such as that of an editable
    installation, are not read.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", to], check=True)
    packages = to / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return to / "bin" / "python"


def pip_install(python: Path, *arguments: object) -> None:
    """Install only the given packages into another environment."""
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check")
    done = run(
        *("-m", "pip", "--python", python, "install", *offline, *arguments),
        cwd=python.parent,
        EMBEDLOG_LOOPS="plain",
    )
    assert done.returncode == 0, done.stderr


def files_of(wheels: Path) -> list[str]:
    """The files in a directory's only wheel."""
    (wheel,) = wheels.glob("embedlog-*.whl")
    return zipfile.ZipFile(wheel).namelist()


def install(wheels: Path, to: Path) -> Path:
    """Install a directory's wheel without its dependencies; they are found in this environment."""
    done = run(
        *(
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-index",
            "--find-links",
            wheels,
            "--target",
            to,
            "embedlog",
        ),
        cwd=wheels,
    )
    assert done.returncode == 0, done.stderr
    return to
