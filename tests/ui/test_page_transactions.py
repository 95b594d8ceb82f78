"""The page of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import embedlog
from embedlog import Log
from embedlog.errors import TransactionAborted
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
