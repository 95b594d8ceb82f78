"""The matrix in docs/explanation/promoting.md is what its cases do; every public method has a case."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import pytest
from matrix import CASES, page
from matrix.cases import Case
from matrix.columns import HERE, Column, column
from matrix.page import HEADINGS, Outcomes, Place

import embedlog
import embedlog.aio

VALUES: Final = {
    "AppendedMany",  # a sequence of metadata
    "LogSettings",
    "PartitionRecovery",
    "RecoveryReport",
    "TopicSettings",
    "Assignor",  # what programs implement, and hand in
    "FileOffsetStore",  # a file
    "OffsetStore",
    "Partitioner",
    "RebalanceCallback",
    "Serializer",
    "Encoder",
    "Where",
}
"""Public names that are the same on every log, besides named tuples and errors."""

UNDERNEATH: Final = {"clients", "core", "in_transaction", "opened", "traced_classes"}
"""What `embedlog.metrics` and `embedlog.opentelemetry` ask the classes of `embedlog.aio` for."""


def methods(public: object) -> set[str]:
    return {name for name in dir(public) if not name.startswith("_")}


def public_methods() -> set[tuple[str, str]]:
    found = set()
    for module in (embedlog, embedlog.aio):
        for name in module.__all__:
            public = getattr(module, name)
            if not inspect.isclass(public):
                if name not in VALUES:
                    found.add(("embedlog", name))
            elif name not in VALUES and not issubclass(public, tuple | Exception | Warning):
                found |= {(name, method) for method in methods(public)}
    return {(group, method) for group, method in found if method not in UNDERNEATH}


def test_every_public_method_has_a_case() -> None:
    cases = {(case.group, case.method) for case in CASES.values()} | {("ConsumerGroup", "name")}
    assert public_methods() - cases == set()
    assert {case.group for case in CASES.values()} == HEADINGS.keys()


def test_the_page_is_as_it_is_written() -> None:
    assert page.written(page.read()) == page.section(), "run `make matrix`"


def test_a_directory_refuses_nothing() -> None:
    there = {place for place, outcome in page.read().items() if outcome.kind != "yes"}
    assert [place for place in there if place.column == "directory"] == []


COLUMNS: Final = [pytest.param(where, marks=pytest.mark.xdist_group(f"matrix-{where}")) for where in HERE]
FOR_TASKS: Final = {name: case for name, case in CASES.items() if case.for_tasks}


@pytest.fixture(scope="module", params=COLUMNS)
def threads(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Column]]:
    with column(request.param, False, tmp_path_factory.mktemp("threads")) as opened:
        yield request.param, opened


@pytest.fixture(scope="module", params=COLUMNS)
def tasks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Column]]:
    with column(request.param, True, tmp_path_factory.mktemp("tasks")) as opened:
        yield request.param, opened


@pytest.fixture(scope="module")
def said() -> Outcomes:
    return page.read()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_page_says_what_threads_get(threads: tuple[str, Column], said: Outcomes, case: Case) -> None:
    where, there = threads
    assert there.outcome(case) == said[Place(case.name, False, where)], "run `make matrix`"


@pytest.mark.parametrize("case", FOR_TASKS.values(), ids=FOR_TASKS)
def test_the_page_says_what_tasks_get(tasks: tuple[str, Column], said: Outcomes, case: Case) -> None:
    where, there = tasks
    assert there.outcome(case) == said[Place(case.name, True, where)], "run `make matrix`"
