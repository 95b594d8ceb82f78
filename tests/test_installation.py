"""Installing from source: with a C compiler, without one, and with one that fails."""

from __future__ import annotations

import sysconfig
import tarfile
from pathlib import Path

import pytest
from installations import build_wheel, copy_source, files_of, install, run

LOOPS = ("compiled_encoding", "compiled_decoding", "compiled_columns", "compiled_json", "compiled_scanning")
PATHS = ("compiled", "compiled_path", "compiled_send", "compiled_iteration")
GOES_ON = "embedlog: cannot build the compiled loops, going on without them"

APPEND_AND_READ = """
import embedlog
from embedlog.codec import LOOPS_IMPLEMENTATION
with embedlog.open("log") as log:
    log.create_topic("t")
    log.append("t", b"one", key=b"k")
    log.append_many("t", [b"two", b"three"], compression="zstd")
    print(LOOPS_IMPLEMENTATION, *(record.value.decode() for record in log.read("t")))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return copy_source(tmp_path / "source")


def broken_cython(tmp_path: Path) -> str:
    (tmp_path / "broken" / "Cython").mkdir(parents=True)
    (tmp_path / "broken" / "Cython" / "__init__.py").write_text("raise ImportError('no Cython here')")
    return str(tmp_path / "broken")


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["a compiler that works", "a compiler", "Cython"])
def test_without(lacking: str, source: Path, tmp_path: Path) -> None:
    environments = {
        "a compiler that works": {"CC": "false"},
        "a compiler": {"CC": str(tmp_path / "none")},
        "Cython": {"PYTHONPATH": broken_cython(tmp_path)},
    }
    built = build_wheel(source, tmp_path / "wheels", **environments[lacking])
    assert built.returncode == 0, built.stderr
    assert (built.stdout + built.stderr).count(GOES_ON) == 1
    assert not [name for name in files_of(tmp_path / "wheels") if name.endswith((".c", ".so"))]

    packages = install(tmp_path / "wheels", tmp_path / "packages")
    used = run("-W", "error", "-c", APPEND_AND_READ, cwd=tmp_path, PYTHONPATH=str(packages))
    assert (used.stdout, used.stderr) == ("plain one two three\n", "")


@pytest.mark.slow
def test_a_required_build_fails_without_a_compiler(source: Path, tmp_path: Path) -> None:
    built = build_wheel(source, tmp_path / "wheels", CC="false", EMBEDLOG_LOOPS="compiled")
    assert built.returncode == 1
    assert GOES_ON not in built.stdout + built.stderr


@pytest.mark.slow
def test_a_failing_build_leaves_no_stale_modules(source: Path, tmp_path: Path) -> None:
    name = f"compiled_encoding{sysconfig.get_config_var('EXT_SUFFIX')}"
    older = tmp_path / "build" / "embedlog" / "codec" / name
    older.parent.mkdir(parents=True)
    older.touch()
    (source / "setup.py").touch()
    built = run(
        "setup.py", "build", "--build-lib", tmp_path / "build", cwd=source, CC="false", EMBEDLOG_LOOPS=""
    )
    assert built.returncode == 0, built.stderr
    assert not older.exists()
    assert (older.parent / "compiled_encoding.py").exists()


@pytest.mark.slow
def test_a_wheel_has_the_loops_and_no_generated_source(source: Path, tmp_path: Path) -> None:
    """By a compiler that takes no time: empty files are packaged like any."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n')
    compiler.chmod(0o755)
    built = build_wheel(source, tmp_path / "wheels", CC=str(compiler), LDSHARED=str(compiler))
    assert built.returncode == 0, built.stderr
    files = files_of(tmp_path / "wheels")
    loops = [f"embedlog/codec/{name}" for name in LOOPS]
    loops += [f"embedlog/fast_append/{name}" for name in PATHS]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert {name for name in files if name.endswith((".c", suffix))} == {f"{loop}{suffix}" for loop in loops}
    assert not list((source / "embedlog").rglob("*.c"))


def test_a_source_distribution_has_the_sources_of_the_loops(source: Path) -> None:
    built = run("setup.py", "sdist", cwd=source)
    assert built.returncode == 0, built.stderr
    (archive,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        files = {name.partition("/")[2] for name in opened.getnames()}
    sources = {str(path.relative_to(source)) for path in (source / "embedlog").rglob("*") if path.is_file()}
    assert files >= sources | {"setup.py", "pyproject.toml"}
    assert not [name for name in files if name.endswith(".c")]
