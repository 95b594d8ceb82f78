"""The page of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import embedlog
from embedlog import Log
from embedlog.cluster import Broker
from embedlog.errors import ProducerFenced, TransactionAborted
from embedlog.ui import application

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    with embedlog.open(path) as log:
        log.create_topic("t")
        yield log


def csrf_of(visitor: TestClient) -> str:
    return visitor.get("/").text.partition('data-csrf="')[2].partition('"')[0]


def test_transactions(log: Log) -> None:
    with TestClient(application(log, writable=True), follow_redirects=False) as visitor:
        assert "No producer has" in visitor.get("/transactions").text
        with pytest.raises(TransactionAborted), log.transaction(HOSTILE) as transaction:
            transaction.append("t", b"1")
            page = visitor.get("/transactions").text
            assert HOSTILE not in page
            assert "&lt;script&gt;alert(1)" in page
            assert "Ongoing" in page
            assert "t 0" in page
            fields = {"csrf": csrf_of(visitor), "id": HOSTILE}
            for wrong in ({"confirm": "x"}, {}, {"confirm": HOSTILE, "csrf": "x"}):
                assert visitor.post("/transactions/abort", data={**fields, **wrong}).status_code == 409
            done = visitor.post("/transactions/abort", data={**fields, "confirm": HOSTILE})
            assert done.status_code == 303
        page = visitor.get("/transactions").text
        assert "CompleteAbort" in page
        assert "its producer gets an error" not in page
    assert list(log.read("t", isolation_level="read_committed")) == []


def test_a_page_that_changes_nothing(log: Log) -> None:
    with TestClient(application(log)) as visitor, log.transaction("x") as transaction:
        transaction.append("t", b"1")
        assert "abort" not in visitor.get("/transactions").text
        given = {"csrf": csrf_of(visitor), "id": "x", "confirm": "x"}
        assert visitor.post("/transactions/abort", data=given).status_code == 403
    assert len(list(log.read("t", isolation_level="read_committed"))) == 1


def test_producers(log: Log) -> None:
    log.create_topic("others", 3)
    with TestClient(application(log)) as visitor:
        assert "No idempotent producer has appended yet" in visitor.get("/transactions").text
        log.append("t", b"0")
        with log.transaction(HOSTILE) as transaction:
            transaction.append("t", b"1")
            transaction.append("others", b"1", partition=2)
            page = visitor.get("/transactions").text
            assert HOSTILE not in page
            assert "/topics/t/records?partition=0&amp;from=1&amp;order=oldest" in page
            assert page.count('aria-label="Producers"') == 1
            assert page.count("&lt;script&gt;alert(1)") == 3  # the id, and each of its partitions
        of_one = visitor.get("/transactions?topic=others").text
        assert "/topics/others" in of_one.partition('id="producers"')[2]
        assert 'href="/topics/t"' not in of_one.partition('id="producers"')[2]
        assert "from=0" not in of_one.partition('id="producers"')[2]  # it has ended
        for wrong in ("none", "<b>", "..", "a/b"):
            page = visitor.get("/transactions", params={"topic": wrong}).text
            assert 'role="alert"' in page
            assert "<b>" not in page.partition('id="producers"')[2]


def test_partitions_in_turn(log: Log) -> None:
    log.create_topic("wide", 120)
    with log.transaction("x") as transaction:
        transaction.append("wide", b"1", partition=110)
    with TestClient(application(log)) as visitor:
        assert "Looked at 50 of 121 partitions" in visitor.get("/transactions").text
        first = visitor.get("/transactions?topic=wide").text
        assert "1 to 50 of 120" in first
        assert "No idempotent producer has appended to wide" in first
        assert 'number">110<' in visitor.get("/transactions?topic=wide&first=100").text
        assert visitor.get("/transactions?topic=wide&first=99999").status_code == 200


def test_transactions_of_brokers(path: Path) -> None:
    with (
        Broker(path, port=0) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        TestClient(application(log, writable=True), follow_redirects=False) as visitor,
    ):
        log.create_topic("t")
        with pytest.raises(ProducerFenced), log.transaction("x") as transaction:
            transaction.append("t", b"1")
            page = visitor.get("/transactions").text
            assert "Ongoing" in page
            assert "/topics/t/records?partition=0&amp;from=0&amp;order=oldest" in page
            given = {"csrf": csrf_of(visitor), "id": "x", "confirm": "x"}
            assert visitor.post("/transactions/abort", data=given).status_code == 303
        assert "Ongoing" not in visitor.get("/transactions").text
        assert list(log.read("t", isolation_level="read_committed")) == []
