"""The page's box for queries: what it shows is escaped, and a query ends with its request."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import httpx2 as httpx
import pytest
from programs import children_of, is_alive
from served_page import Served
from servers import Started
from starlette.testclient import TestClient

import embedlog
from embedlog import AuthorizationFailed, Log
from embedlog.sql.sandbox import Limits
from embedlog.ui import application

ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"
HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture
def log(log: Log) -> Log:
    log.create_topic("orders.eu", 2)
    log.create_topic("select")
    log.append_many("select", [b'{"city": "Bern", "n": %d}' % number for number in range(10)])
    log.append("orders.eu", json.dumps({HOSTILE: HOSTILE}).encode(), key=HOSTILE.encode())
    return log


@pytest.fixture
def visitor(log: Log) -> Iterator[TestClient]:
    with TestClient(application(log), follow_redirects=False) as client:
        yield client


def csrf_of(visitor: Any) -> str:
    found: str = visitor.get("/").text.partition('data-csrf="')[2].partition('"')[0]
    return found


def asked(visitor: Any, query: str) -> list[dict[str, Any]]:
    """The lines of a query's answer."""
    response = visitor.post("/sql/run", data={"csrf": csrf_of(visitor), "query": query})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_query(visitor: TestClient) -> None:
    lines = asked(visitor, 'SELECT city, sum(n), NULL FROM "select" GROUP BY 1')
    assert '<th scope="col" class="number" title="HUGEINT">' in lines[0]["head"]
    html = "".join(line.get("html", "") for line in lines)
    assert re.sub(r"\s+|</?bdi>", "", html) == (
        '<tr><tdclass="shown">Bern</td><tdclass="number">45</td><tdclass="shown"><i>null</i></td></tr>'
    )
    assert lines[-2:] == [{"end": {"rows": 1, "more": False}}, {"read": 10}]


def test_hostile_records(visitor: TestClient) -> None:
    lines = asked(visitor, 'SELECT * FROM "orders.eu"')
    for part in (lines[0]["head"], "".join(line.get("html", "") for line in lines)):
        assert "&lt;img" in part
        assert "<img" not in part
    (line,) = asked(visitor, f"SELECT '{HOSTILE}\u202e' AS")
    assert "\u202e" not in line["problem"]


def test_columns_and_examples(visitor: TestClient) -> None:
    """The examples are queries that run."""
    response = visitor.post("/sql/columns", data={"csrf": csrf_of(visitor)})
    assert "<img" not in response.text
    assert 'data-insert="&#34;offset&#34;"' in response.text
    queries = re.findall(r'data-query="([^"]*)"', response.text)
    assert len(queries) == 8
    last = unescape(queries[-1])
    assert last == (
        "SELECT city, count(*) AS records, round(avg(n), 1) AS mean\n"
        'FROM "select" GROUP BY 1 ORDER BY 2 DESC LIMIT 20'
    )
    assert {"end": {"rows": 1, "more": False}} in asked(visitor, last)


@pytest.mark.slow
def test_all_examples_run(visitor: TestClient) -> None:
    response = visitor.post("/sql/columns", data={"csrf": csrf_of(visitor)})
    for query in re.findall(r'data-query="([^"]*)"', response.text):
        lines = asked(visitor, unescape(query))
        assert any("end" in line for line in lines), lines


def test_the_box(log: Log, visitor: TestClient) -> None:
    assert "SELECT 1 &lt; 2" in visitor.get("/sql?query=SELECT 1 < 2").text
    page = visitor.get("/sql?topic=select").text
    assert page.index("<summary>select</summary>") < page.index("<summary>orders.eu</summary>")
    found = visitor.get("/sql?find=ORD").text
    assert "<summary>orders.eu</summary>" in found
    assert "<summary>select</summary>" not in found
    for number in range(12):
        log.create_topic(f"more-{number}")
    assert "These are 12 of 14 topics" in visitor.get("/sql").text


def test_names_that_differ_in_case(log: Log, visitor: TestClient) -> None:
    log.create_topic("orders.EU")
    assert 'data-insert="city"' in visitor.post("/sql/columns", data={"csrf": csrf_of(visitor)}).text


def test_what_a_visitor_may_not_read(visitor: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that refuses a topic refuses it to SQL, too."""
    backend = visitor.app.state.site.log.backend  # type: ignore[attr-defined]
    checked = backend.may_have_data

    def refusing(topic: str, *args: Any, **options: Any) -> bool:
        if topic == "select":
            raise AuthorizationFailed("not this one")
        return bool(checked(topic, *args, **options))

    monkeypatch.setattr(backend, "may_have_data", refusing)
    (line,) = asked(visitor, 'SELECT count(*) FROM "select"')
    assert "does not exist" in line["problem"]


@pytest.mark.slow
def test_downloads(visitor: TestClient) -> None:
    fields = {"csrf": csrf_of(visitor), "query": 'SELECT n FROM "select" ORDER BY n LIMIT 2', "format": "csv"}
    response = visitor.post("/sql/download", data=fields)
    assert response.text == "n\n0\n1\n"
    assert response.headers["content-disposition"] == 'attachment; filename="query.csv"'
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    refused = visitor.post("/sql/download", data={**fields, "query": "FROM read_text('/etc/passwd')"})
    assert refused.status_code == 409
    assert "Permission Error" in refused.text
    assert visitor.post("/sql/download", data={**fields, "format": "xlsx"}).status_code == 409


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_download_counts_values_that_do_not_fit(log: Log, visitor: TestClient, format: str) -> None:
    log.append_many("select", [b'{"city": "Bern", "n": 1e400}'] * 3)
    fields = {"csrf": csrf_of(visitor), "ticket": "t1"}

    def said() -> object:
        return visitor.post("/sql/notes", data=fields).json()["notes"]

    assert said() is None
    asking = {"query": 'SELECT n FROM "select"', "format": format}
    assert visitor.post("/sql/download", data={**fields, **asking}).status_code == 200
    (note,) = said()  # type: ignore[misc]
    assert note.startswith("select: 3 values of n do not fit")
    fitting = {"query": 'SELECT city FROM "select"', "format": format}
    assert visitor.post("/sql/download", data={**fields, **fitting}).status_code == 200
    assert said() == []
    for number in range(200):  # those of earlier pages are forgotten
        visitor.app.state.site.downloads.put(f"other {number}", [])  # type: ignore[attr-defined]
    assert said() is None


@pytest.mark.parametrize("where", ["/sql/run", "/sql/columns", "/sql/download", "/sql/notes"])
def test_only_forms_of_the_page(visitor: TestClient, where: str) -> None:
    assert visitor.get(where).status_code == 405
    assert visitor.post(where, data={"query": "SELECT 1", "format": "csv"}).status_code == 409
    sent = {"csrf": csrf_of(visitor), "query": "SELECT 1", "format": "csv"}
    assert visitor.post(where, data=sent, headers={"origin": "http://evil.example"}).status_code == 403


def test_without_duckdb(visitor: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    response = visitor.post("/sql/run", data={"csrf": csrf_of(visitor), "query": "SELECT 1"})
    assert "pip install 'embedlog[sql]'" in response.json()["problem"]
    assert "embedlog[sql]" in visitor.get("/sql").text


@pytest.fixture
def served(log: Log) -> Iterator[Callable[..., Served]]:
    """served(**limits of queries)"""
    made: list[Served] = []

    def serve(**limits: Any) -> Served:
        made.append(Served(log, query_limits=Limits(**limits)))
        return made[-1]

    yield serve
    for each in made:
        each.close()


def ended(page: Served) -> None:
    """Waits until no query runs."""
    while any(each.is_running for each in page.app.state.site.sandbox._running):
        page.client.get("/static/icon.svg")


@pytest.mark.slow
def test_a_query_ends_with_its_browser(served: Callable[..., Served]) -> None:
    page = served()
    fields = {"csrf": csrf_of(page.client), "query": ENDLESS}
    with page.client.stream("POST", "/sql/run", data=fields) as response:
        assert "head" in json.loads(next(response.iter_lines()))
    ended(page)
    fields |= {"query": "FROM range(1000000000000)", "format": "csv"}
    with page.client.stream("POST", "/sql/download", data=fields) as response:
        assert next(response.iter_bytes()).startswith(b"range\n0\n1\n")
    ended(page)


@pytest.mark.slow
def test_limits(served: Callable[..., Served]) -> None:
    """The page lives on when a query has used up what it may."""
    assert "longer than 3.0 s" in asked(served(timeout_s=3).client, ENDLESS)[-1]["problem"]
    page = served(memory_bytes=150_000_000, copy_bytes=1_000_000)
    hog = asked(page.client, "SELECT length(string_agg(repeat('x', 1000), '')) FROM range(10000000)")
    assert "more memory than 150.0 MB" in hog[-1]["problem"]
    fields = {"csrf": csrf_of(page.client), "query": "FROM range(1000000000000)", "format": "csv"}
    with pytest.raises(Exception, match=r"incomplete|closed"):  # not a whole file
        page.client.post("/sql/download", data=fields)
    assert page.client.get("/topics/select").status_code == 200


@pytest.mark.slow
def test_so_many_at_once(served: Callable[..., Served]) -> None:
    page = served(at_once=1)
    fields = {"csrf": csrf_of(page.client), "query": ENDLESS}
    with page.client.stream("POST", "/sql/run", data=fields) as response:
        lines = response.iter_lines()  # which ends the response when it is forgotten
        next(lines)
        refused = page.client.post("/sql/run", data=fields)
        assert refused.status_code == 503
        assert "wait for one, or cancel it" in refused.json()["problem"]
        lines.close()
    ended(page)
    assert asked(page.client, "SELECT 1")[-2] == {"end": {"rows": 1, "more": False}}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_page_that_ends_leaves_no_query(log: Log, start: Callable[..., Started], number: int) -> None:
    page = start("-m", "embedlog", "ui", log.path, "--port", 0, "--json")
    address = json.loads(page.find(r"^(\{.*\})$")[0])["address"]
    with httpx.Client(base_url=address.partition("/?")[0], timeout=60, follow_redirects=True) as client:
        client.get(address)
        fields = {"csrf": csrf_of(client), "query": ENDLESS}
        with client.stream("POST", "/sql/run", data=fields) as response:
            lines = response.iter_lines()
            next(lines)
            pids = children_of(page.process.pid)
            assert len(pids) == 1
            page.process.send_signal(number)
            assert page.process.wait() == (0 if number == signal.SIGTERM else -number)
            for pid in pids:
                while is_alive(pid):
                    pass


@pytest.mark.slow
def test_of_brokers(log: Log, start: Callable[..., Started]) -> None:
    log.close()
    broker = start("-m", "embedlog", "serve", log.path, "--json", "--port", 0)
    address = broker.find(r'"listening": ?"([^"]+)"')[0]
    with (
        embedlog.open(f"kafka://{address}", client_id="asks") as remote,
        TestClient(application(remote)) as client,
    ):
        lines = asked(client, 'SELECT count(*), sum(n) FROM "select"')
        assert ">45<" in "".join(line.get("html", "") for line in lines)
        assert 'data-insert="city"' in client.post("/sql/columns", data={"csrf": csrf_of(client)}).text
