"""The code blocks of README and docs run as they stand and print what their comments say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCS, DOCUMENTS, ROOT, python_blocks, run_python

import embedlog
from embedlog.cluster import Broker

pytestmark = pytest.mark.plain

README = (ROOT / "README.md").read_text()


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names: dict[str, object] = {"__name__": "__main__"}
    yield names
    log = names.get("log")
    if isinstance(log, embedlog.Log):
        log.close()


def test_the_first_sight(namespace: dict[str, object]) -> None:
    run_python(python_blocks(README.split("## Two commands")[0])[0], namespace)


def test_the_tour(namespace: dict[str, object]) -> None:
    tour = python_blocks(README.split("## Five minutes")[1].split("## On the command line")[0])
    assert len(tour) >= 5
    for block in tour:
        run_python(block, namespace)


def page(name: str) -> list[str]:
    return python_blocks((DOCS / name).read_text())


RUN_AS_THEY_ARE = {
    "reference/asyncio.md": 1,
    "explanation/consumer-groups.md": 4,
    "reference/monitoring.md": 2,
    "reference/old-clients.md": 2,
    "explanation/processes.md": 1,
    "explanation/promoting.md": 1,
    "explanation/queues.md": 10,
    "explanation/transactions.md": 4,
    "reference/sql.md": 3,
    "reference/values.md": 4,
}
RUN_WITH_HELP = {"reference/broker.md", "reference/mirroring.md", "reference/settings.md"}
RUN_ELSEWHERE = {
    "reference/spark.md",  # test_spark_pages.py
    "reference/consumer-connector.md",  # cluster/test_documented_commands.py
}


@pytest.mark.parametrize(("name", "count"), RUN_AS_THEY_ARE.items())
def test_the_blocks_of_a_page(name: str, count: int, namespace: dict[str, object]) -> None:
    """In their order; one by itself needs nothing but what stands above it."""
    found = page(name)
    assert len(found) == count
    for block in found:
        run_python(block, namespace)


def test_the_page_on_settings(
    namespace: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, use = page("reference/settings.md")
    assert policy.startswith("# mypackage/policies.py\n")
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "policies.py").write_text(policy)
    monkeypatch.syspath_prepend(tmp_path)
    run_python(use, namespace)


def test_the_page_on_mirroring(namespace: dict[str, object]) -> None:
    (block,) = page("reference/mirroring.md")
    with embedlog.open("./source") as source, Broker(source, port=0) as broker:
        source.create_topic("clicks")
        source.append("clicks", b"copied")
        run_python(block.replace("localhost:9092", broker.bootstrap_servers), namespace)
    log = namespace["log"]
    assert isinstance(log, embedlog.Log)
    assert [record.value for record in log.read("clicks")] == [b"copied"]


def test_the_page_on_the_broker(namespace: dict[str, object], kafka_broker: Broker) -> None:
    in_a_test, in_a_program = page("reference/broker.md")
    run_python(in_a_test, namespace)
    test_orders = namespace["test_orders"]
    assert callable(test_orders)
    test_orders(kafka_broker)
    run_python(in_a_program.replace("port=9092", "port=0"), namespace)


def test_every_block_is_run() -> None:
    assert len(python_blocks(README)) == 1 + len(
        python_blocks(README.split("## Five minutes")[1].split("## On the command line")[0])
    )
    pages = {
        str(path.relative_to(DOCS))
        for path in DOCS.rglob("*.md")
        if python_blocks(path.read_text()) and path not in DOCUMENTS
    }
    assert pages == RUN_AS_THEY_ARE.keys() | RUN_WITH_HELP | RUN_ELSEWHERE


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                there = (page.parent / target).resolve()
                assert there.exists(), f"{page.name}: {target}"
                # The site has the pages of docs/ alone.
                assert there.is_relative_to(DOCS.resolve()) or page.parent == ROOT, f"{page.name}: {target}"
