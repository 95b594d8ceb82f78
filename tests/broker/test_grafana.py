"""docs/grafana: each expression parses, and asks for names and labels that a broker or a log really has."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import defaultdict
from pathlib import Path

import promql_parser
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from secured import secured
from wire import Wire, batch_of, produce
from zookeepers import eventually

from embedlog.cluster import Broker
from embedlog.metrics import LogCollector
from embedlog.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)

HERE = Path(__file__).resolve().parents[2] / "docs" / "grafana"
DASHBOARD = json.loads((HERE / "embedlog.json").read_text())
BY_PROMETHEUS = {"job", "instance"}  # which a scrape adds
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
ALERTS = re.findall(r"^ +expr: (.+)$", (HERE / "alerts.yml").read_text(), re.M)
VARIABLES = [
    re.sub(r"label_values\((.+), \w+\)", r"\1", each["definition"])
    for each in DASHBOARD["templating"]["list"]
    if each["type"] == "query"
]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of all samples, and their labels: of a broker, of a secured one, and of a log."""
    known: dict[str, set[str]] = defaultdict(set)

    def add(text: str) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                known[sample.name].update(sample.labels)

    def scrape(broker: Broker) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as answer:
            add(answer.read().decode())

    with secured(tmp_path_factory.mktemp("secured"), metrics_port=0) as broker:
        scrape(broker)
    with Broker(tmp_path_factory.mktemp("plain"), metrics_port=0, max_bytes=10**9) as broker:
        log = broker.log
        log.create_topic("events")
        entity = RequestEntityData(entity_type="client-id", entity_name="greedy")
        rate = OpData(key="producer_byte_rate", value=100.0, remove=False)
        quota = RequestEntryData(entity=[entity], ops=[rate])
        with Wire(broker, "greedy") as greedy:
            greedy.ask(AlterClientQuotasRequest(entries=[quota], validate_only=False), 1)
            while not greedy.ask(produce("events", batch_of(b"x" * 1_000)), 9).throttle_time_ms:
                pass
        log.group("billing").reset("events", to="earliest")
        with log.queue("jobs", dead_letter_topic="dlq.jobs") as queue:
            log.append("jobs", b"bad")
            job = queue.take()
            job.reject("no such order")
            eventually(lambda: "dlq.jobs" in log.topics())  # written in the background
        scrape(broker)
        registry = CollectorRegistry()
        registry.register(LogCollector(log))
        add(generate_latest(registry).decode())
    return known


def selectors(node: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    found = []

    def visit(each: promql_parser.Expr) -> None:
        if isinstance(each, promql_parser.VectorSelector):
            found.append(each)
        elif isinstance(each, promql_parser.MatrixSelector):
            found.append(each.vector_selector)

    promql_parser.walk(node, visit)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS + ALERTS + VARIABLES)
def test_expressions(expression: str, known: dict[str, set[str]]) -> None:
    parsed = promql_parser.parse(expression.replace("$__rate_interval", "1m"))
    asked = selectors(parsed)
    assert asked
    labels = set(BY_PROMETHEUS)
    for each in asked:
        matchers = each.matchers.matchers
        names = [each.name] if each.name else matchers[0].value.split("|")
        for name in names:
            assert name in known, name
            labels |= known[name]
            assert {m.name for m in matchers} - {"__name__"} <= known[name] | BY_PROMETHEUS
    for grouped in re.findall(r"by \((.+?)\)", expression):
        assert set(grouped.split(", ")) <= labels


def test_legends_name_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            left = {
                label for each in re.findall(r"by \((.+?)\)", target["expr"]) for label in each.split(", ")
            }
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left


def test_all_rows_and_no_panel_twice() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Topics", "Groups", "Requests", "Durability", "Queues", "Security"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len(ALERTS) == (HERE / "alerts.yml").read_text().count("alert:")
