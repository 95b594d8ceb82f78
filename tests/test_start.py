"""What a small program pays before its first record: modules and processes, counted, never timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import embedlog
from embedlog.codec import LOOPS_IMPLEMENTATION

ROOT = Path(__file__).parent.parent

# Runs a program and prints the modules that it imported, and the processes that it started.
WATCHED = """
import sys
started = []
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system")
sys.addaudithook(lambda event, arguments: started.append(event) if event in STARTS else None)
before = set(sys.modules)
{program}
print(*set(sys.modules) - before)
print(*started)
"""
FIRST_APPEND = """
import embedlog
with embedlog.open(sys.argv[1]) as log:
    log.create_topic("t")
    log.append("t", b"x")
"""


def watched(program: str, *arguments: object) -> tuple[set[str], list[str]]:
    """(the modules that a program imports, the processes that it starts)."""
    shown = subprocess.run(
        [sys.executable, "-c", WATCHED.format(program=program), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    modules, processes = shown.stdout.splitlines()[-2:]
    return set(modules.split()), processes.split()


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "embedlog"}


def test_import_embedlog_imports_next_to_nothing() -> None:
    modules, processes = watched("import embedlog")
    assert own(modules) == {
        "embedlog",
        "embedlog.errors",
        "embedlog.errors.base",
        "embedlog.open",
        "embedlog.wording",
    }
    assert len(modules) < 40
    assert processes == []


def test_a_first_append_imports_only_the_way_to_the_file(tmp_path: Path) -> None:
    modules, processes = watched(FIRST_APPEND, tmp_path / "log")
    assert len(own(modules)) <= 117
    rooms = {name.split(".")[1] for name in own(modules) if name.count(".")}
    assert not rooms & {"cli", "cluster", "compaction", "groups", "mirroring", "spark", "wire"}
    clients = {name.split(".")[2] for name in own(modules) if name.startswith("embedlog.clients.")}
    assert not clients & {"arrow", "consumer", "membership", "producer"}
    # Its own cannot be put off: it locks the directory. It imports redis where that is installed.
    lockers, _ = watched("import portalocker")
    libraries = {name.partition(".")[0] for name in modules - lockers}
    assert not libraries & {"asyncio", "concurrent", "lz4", "pyarrow", "rich", "snappy", "zstandard"}
    # Where Cython is installed, sources of loops that are not compiled import it to find out.
    others = {name for name in modules - lockers - own(modules) if name.partition(".")[0].lower() != "cython"}
    assert len(others) <= 14
    assert not (modules - lockers) & {"ctypes", "inspect"}
    assert LOOPS_IMPLEMENTATION != "compiled" or "google_crc32c" not in modules
    assert processes == []


def test_embedlog_version_imports_no_command() -> None:
    modules, _ = watched("from embedlog.cli import main; main(['--version'])")
    assert {name.split(".")[1] for name in own(modules) if name.count(".")} == {
        "cli",
        "errors",
        "open",
        "units",
        "wording",
    }
    parts = {"arguments", "problems", "ui"}
    assert {name.split(".")[2] for name in modules if name.startswith("embedlog.cli.")} == parts


def test_every_exported_name_is_there() -> None:
    """Names that are imported when they are used: `from embedlog import X`, `dir`, `import *`."""
    assert set(embedlog.__all__) <= set(dir(embedlog))
    for name in embedlog.__all__:
        assert getattr(embedlog, name) is not None
    everything: dict[str, object] = {}
    exec("from embedlog import *", everything)
    assert set(embedlog.__all__) <= everything.keys()
    assert not hasattr(embedlog, "no_such_name")


def test_an_exported_name_outlives_the_import_of_its_module() -> None:
    """`embedlog.open` is a function, and also the name of a module."""
    program = "import embedlog, embedlog.cli.opening, embedlog.open; assert callable(embedlog.open)"
    assert "embedlog.open" in watched(program)[0]
