"""The pages of consumer groups, and what they change."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import embedlog
from embedlog import Log
from embedlog.ui import application

HOSTILE = "<script>alert(1)</script> ü/?&#\u202e"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """Two groups have read the half of a topic."""
    with embedlog.open(path) as log:
        log.create_topic("clicks", 2)
        for partition in range(2):
            log.append_many("clicks", [b"x"] * 100, partition=partition)
        for name in ("billing", HOSTILE):
            log.group(name).reset("clicks", to=50, partitions=0)
            log.group(name).reset("clicks", to=50, partitions=1)
        yield log


@pytest.fixture
def visitor(log: Log) -> Iterator[TestClient]:
    with TestClient(application(log, writable=True), follow_redirects=False) as client:
        yield client


def csrf_of(visitor: TestClient) -> str:
    return visitor.get("/").text.partition('data-csrf="')[2].partition('"')[0]


def test_groups_are_listed(visitor: TestClient) -> None:
    page = visitor.get("/groups").text
    assert "billing" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\\u202e" in page
    assert "\u202e" not in page
    assert "billing" not in visitor.get("/groups?search=SCRIPT").text
    assert "No group has" in visitor.get("/groups?search=%3Cb%3E").text


@pytest.mark.parametrize("name", ["billing", HOSTILE])
def test_a_group(visitor: TestClient, name: str) -> None:
    page = visitor.get("/group", params={"name": name}).text
    assert "<b>100</b><span>records behind" in page
    assert "<script>alert" not in page
    assert visitor.get("/group", params={"name": "none"}).status_code == 409


def test_members(log: Log, visitor: TestClient) -> None:
    with log.consumer("clicks", group="billing", client_id="<b>app</b>") as consumer:
        next(iter(consumer))
        page = visitor.get("/group?name=billing").text
        assert "&lt;b&gt;app&lt;/b&gt;" in page
        assert "clicks 0, clicks 1" in page
        fields = {"csrf": csrf_of(visitor), "name": "billing", "to": "earliest"}
        refused = visitor.post("/group/reset", data=fields)
        assert refused.status_code == 409
        assert "has members" in refused.text


def test_the_last_ones(log: Log, visitor: TestClient) -> None:
    given = {"name": "billing", "to": "-10", "topic": "clicks"}
    assert 'name="to" value="-10"' in visitor.get("/group/reset", params=given).text
    assert visitor.post("/group/reset", data={**given, "csrf": csrf_of(visitor)}).status_code == 303
    assert log.group("billing").describe().lag == 20


@pytest.mark.parametrize("name", ["billing", HOSTILE])
def test_a_reset(log: Log, visitor: TestClient, caplog: pytest.LogCaptureFixture, name: str) -> None:
    given = {"name": name, "to": "latest", "topic": "clicks", "partition": "1"}
    preview = visitor.get("/group/reset", params=given).text
    assert "50 skipped" in preview
    assert log.group(name).describe().lag == 100  # nothing was changed
    with caplog.at_level(logging.INFO):
        done = visitor.post("/group/reset", data={**given, "csrf": csrf_of(visitor)})
    assert done.status_code == 303
    assert log.group(name).describe().lag == 50
    assert "clicks 1 reset from 50 to 100" in caplog.text
    assert visitor.get(done.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"to": "soon"}, "is none of"),
        ({"to": ""}, "is none of"),
        ({"to": "9"}, "belongs to one partition"),
        ({"to": "9999", "partition": "0"}, "outside"),
        ({"to": "latest", "partition": "x"}, "is no partition"),
        ({"to": "latest", "topic": "nowhere"}, "no topic"),
        ({"to": "latest", "name": ""}, "group"),
    ],
)
def test_a_reset_that_cannot_be(log: Log, visitor: TestClient, wrong: dict[str, str], says: str) -> None:
    given = {"name": "billing", "topic": "clicks", **wrong}
    csrf = {"csrf": csrf_of(visitor)}
    for response in (
        visitor.get("/group/reset", params=given),
        visitor.post("/group/reset", data={**given, **csrf}),
    ):
        assert response.status_code == 409
        assert says in response.text
    assert log.group("billing").describe().lag == 100


def test_deletion_wants_the_name(log: Log, visitor: TestClient) -> None:
    fields = {"csrf": csrf_of(visitor), "name": HOSTILE}
    assert visitor.post("/group/delete", data={**fields, "confirm": "x"}).status_code == 409
    assert HOSTILE in log.groups()
    assert visitor.post("/group/delete", data={**fields, "confirm": HOSTILE}).status_code == 303
    assert log.groups() == ["billing"]


def test_without_the_token_of_the_form(log: Log, visitor: TestClient) -> None:
    for where in ("/group/reset", "/group/delete"):
        given = {"name": "billing", "to": "latest", "confirm": "billing", "csrf": "x"}
        assert visitor.post(where, data=given).status_code == 409
    assert log.group("billing").describe().lag == 100


def test_a_page_that_changes_nothing(log: Log) -> None:
    with TestClient(application(log)) as visitor:
        assert "Reset" not in visitor.get("/group?name=billing").text
        given = {"name": "billing", "to": "latest", "confirm": "billing", "csrf": csrf_of(visitor)}
        assert visitor.get("/group/reset", params=given).status_code == 403
        for where in ("/group/reset", "/group/delete"):
            assert visitor.post(where, data=given).status_code == 403
    assert log.group("billing").describe().lag == 100
