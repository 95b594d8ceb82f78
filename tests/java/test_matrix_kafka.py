"""The last column of the matrix in docs/explanation/promoting.md: what its cases do on Apache Kafka.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from java_programs import apache_kafka
from kafka_tools import classpath
from matrix import CASES, page
from matrix.cases import Case
from matrix.columns import Column, column
from matrix.page import Outcomes, Place


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("kafka")
    with apache_kafka(classpath(path / "classpath", "connect"), path) as address:
        yield address


@pytest.fixture(scope="module")
def opened(
    kafka: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Column]:
    with column("kafka", request.param, tmp_path_factory.mktemp("column"), kafka) as opened:
        yield opened


@pytest.fixture(scope="module")
def said() -> Outcomes:
    return page.read()


@pytest.mark.parametrize(
    ("opened", "case"),
    [
        pytest.param(for_tasks, case, id=f"{'tasks' if for_tasks else 'threads'}-{name}")
        for for_tasks in (False, True)
        for name, case in CASES.items()
        if case.for_tasks or not for_tasks
    ],
    indirect=["opened"],
)
def test_the_page_says_what_a_method_does(opened: Column, said: Outcomes, case: Case) -> None:
    assert opened.outcome(case) == said[Place(case.name, opened.loop is not None, "kafka")], (
        "run `make matrix`"
    )
