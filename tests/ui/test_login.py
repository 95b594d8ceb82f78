"""The page for other machines: HTTPS, users, what each may see."""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from certificates import Authority
from servers import Started

import embedlog
from embedlog.cli.page_security import SECURITY_OPTIONS, hosts, security
from embedlog.cluster.network.server import bind, listen
from embedlog.errors import InvalidArgument
from embedlog.security.acl_store import DocumentAcls
from embedlog.security.acls import (
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
)
from embedlog.security.scram import credential_of
from embedlog.security.users import DocumentUsers
from embedlog.ui import application, login

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PASSWORD = "correct horse battery staple"
SESSION = "__Host-embedlog"
HIDDEN = re.compile("secret|spies")
"""In the names and values of all that alice may not see."""


def allow(path: Path, kind: ResourceType, name: str, *operations: Operation) -> None:
    DocumentAcls(str(path)).add(
        Binding(Resource(kind, name, PatternType.LITERAL), Rule("User:alice", "*", each, Permission.ALLOW))
        for each in operations
    )


def filled(path: Path) -> None:
    """A log whose users are alice, who may read orders, and root, who may do everything."""
    with embedlog.open(path) as log:
        log.create_topic("described")
        log.append("described", b"unreadable")
        for topic in ("orders", "secret"):
            log.create_topic(topic, 2)
            log.append_many(topic, [f'{{"n": {n}, "of": "{topic}"}}'.encode() for n in range(50)])
            with log.queue(topic, f"workers-{topic}") as queue:
                job = queue.take(10_000)
                job.reject(f"no {topic} today")
            with log.transaction(f"loader-{topic}") as tx:
                tx.append(topic, b"loaded")
        for group, topics in (("billing", ["orders"]), ("spies", ["secret"]), ("both", ["orders", "secret"])):
            with log.consumer(topics, group=group, stop_at_end=True) as consumer:
                assert list(consumer)
                consumer.commit()
    users = DocumentUsers(str(path))
    for name in ("alice", "root"):
        users.alter(name, {"SCRAM-SHA-256": credential_of("SCRAM-SHA-256", PASSWORD)})
    allow(path, ResourceType.TOPIC, "orders", Operation.READ)
    allow(path, ResourceType.TOPIC, "dlq.orders", Operation.READ)
    allow(path, ResourceType.GROUP, "billing", Operation.READ)
    allow(path, ResourceType.GROUP, "both", Operation.READ)
    allow(path, ResourceType.GROUP, "workers-orders", Operation.READ)
    allow(path, ResourceType.GROUP, "members", Operation.READ)
    allow(path, ResourceType.TOPIC, "described", Operation.DESCRIBE)
    allow(path, ResourceType.TRANSACTIONAL_ID, "loader-orders", Operation.DESCRIBE)
    allow(path, ResourceType.TRANSACTIONAL_ID, "loader-both", Operation.DESCRIBE)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for add in SECURITY_OPTIONS:
        add(parser)
    return parser.parse_args(words)


class Served:
    """A page with TLS, by uvicorn, in a thread; and visitors of it."""

    def __init__(self, path: Path, authority: Authority, *given: str, writable: bool = True) -> None:
        self.certificate = authority.issue()
        self._trusted = ssl.create_default_context(cafile=authority.file)
        args = parsed(*given, "--set", f"ssl_keystore_location={self.certificate}")
        args.directory, args.port = str(path), 0
        found = security(args)
        assert found is not None
        self._security = found
        self._log = embedlog.open(path, mode="rw" if writable else "r")
        self._ends = contextlib.ExitStack()
        if writable:
            self._open_some()
        listening = bind("127.0.0.1", 0)
        listen(listening, 10)
        self.port: int = listening.getsockname()[1]
        self.app = application(
            self._log,
            writable=writable,
            hosts=hosts(args, self.port),
            users=found.users,
            access=found.access,
        )
        config = uvicorn.Config(
            self.app, log_level="warning", proxy_headers=False, ws="none", timeout_graceful_shutdown=1
        )
        config.load()
        config.ssl = found.context()
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]})
        self._thread.start()
        self._visitors: list[httpx2.Client] = []

    def _open_some(self) -> None:
        """A member of a group, and a transaction, of both topics."""
        consumer = self._log.consumer(["orders", "secret"], group="members", max_poll_interval_ms=3_600_000)
        self._ends.enter_context(consumer)
        while not consumer.assignment():
            consumer.poll(100)
        transaction = self._ends.enter_context(self._log.transaction("loader-both", timeout_ms=900_000))
        for topic in ("orders", "secret"):
            transaction.append(topic, b"under way")

    def visitor(self, user: str = "", password: str = PASSWORD) -> httpx2.Client:
        """A browser; logged in if it names a user."""
        base = f"https://localhost:{self.port}"
        client = httpx2.Client(base_url=base, verify=self._trusted, timeout=60)
        self._visitors.append(client)
        if user:
            assert log_in(client, user, password).status_code == 303
        return client

    def connect(self) -> HTTPSConnection:
        """Without cookies."""
        return HTTPSConnection("localhost", self.port, context=self._trusted)

    def close(self) -> None:
        for each in self._visitors:
            each.close()
        self.app.state.site.streams.stop()
        self._server.should_exit = True
        self._thread.join()
        self._security.close()
        self._ends.close()
        self._log.close()


AUTHORIZED = ("--set", "authorizer_class_name=AclAuthorizer", "--set", "super_users=User:root")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def served(path: Path, authority: Authority) -> Iterator[Served]:
    filled(path)
    served = Served(path, authority, *AUTHORIZED)
    yield served
    served.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that change nothing, and guess no password."""
    where = tmp_path_factory.mktemp("shared")
    filled(where / "log")
    served = Served(where / "log", Authority(where), *AUTHORIZED)
    yield served
    served.close()


def csrf_of(page: httpx2.Response) -> str:
    found = re.search(r'csrf" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


def log_in(visitor: httpx2.Client, user: str, password: str, to: str = "/") -> httpx2.Response:
    fields = {"csrf": csrf_of(visitor.get("/login")), "user": user, "password": password, "next": to}
    return visitor.post("/login", data=fields)


def crawl(visitor: httpx2.Client) -> dict[str, str]:
    """All pages that links lead to from the first one, by address; of records a few."""
    found: dict[str, str] = {}
    shapes: set[tuple[str, frozenset[str]]] = set()
    left = ["/"]
    while left:
        address = left.pop()
        parts = urlsplit(address)
        shape = parts.path, frozenset(each.partition("=")[0] for each in parts.query.split("&"))
        if address in found or (shape in shapes and "/record" in parts.path):
            continue
        shapes.add(shape)
        page = visitor.get(address)
        assert page.status_code == 200, (address, page.text)
        found[address] = page.text
        links = re.findall(r'(?:href|action)="([^"]+)"', page.text)
        links = [urljoin(address, each.replace("&amp;", "&")).partition("#")[0] for each in links]
        left += [
            each
            for each in dict.fromkeys(links)
            if each.startswith("/")
            and not re.search("/static/|/logout|/delete|/reset|/redrive|/abort|/sql/download", each)
        ]
    return found


# -- coming in ---------------------------------------------------------------------------------------------


def test_a_guest_sees_the_form_and_nothing_else(shared: Served) -> None:
    guest = shared.visitor()
    form = guest.get("/login")
    assert form.status_code == 200
    assert str(shared.app.state.site.log.path) not in form.text
    assert "default-src 'none'" in form.headers["content-security-policy"]
    assert guest.get("/static/style.css").status_code == 200
    for address in ("/", "/topics/orders", "/topics/orders/records?from=-1", "/groups", "/nowhere"):
        assert guest.get(address).status_code == 303
    asked = guest.get("/topics/orders?range=day")
    assert asked.headers["location"] == "/login?next=%2Ftopics%2Forders%3Frange%3Dday"
    assert guest.get("/topics/orders/records/live", headers={"sec-fetch-mode": "cors"}).status_code == 401
    assert guest.post("/group/delete", data={"name": "billing", "confirm": "billing"}).status_code == 401
    assert guest.post("/logout").status_code == 401


def test_the_cookie(shared: Served) -> None:
    visitor = shared.visitor()
    before = visitor.get("/login").headers["set-cookie"]
    response = log_in(visitor, "alice", PASSWORD, "/topics/orders")
    assert (response.status_code, response.headers["location"]) == (303, "/topics/orders")
    for cookie in (before, response.headers["set-cookie"]):
        assert cookie.startswith(SESSION)
        assert {"HttpOnly", "Secure", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
        assert "domain" not in cookie.lower()
    assert visitor.get("/topics/orders").status_code == 200
    assert visitor.get("/login?next=/groups").headers["location"] == "/groups"


def test_a_session_that_was_chosen_by_another(shared: Served) -> None:
    """Session fixation: a login makes another session, whatever cookies came with it."""
    visitor = shared.visitor()
    visitor.cookies.set(SESSION, "chosen", domain="localhost.local")
    log_in(visitor, "alice", PASSWORD)
    stranger = shared.visitor()
    for value in ("chosen", "", "x" * 5_000, "\xff"):
        answer = stranger.get("/groups", headers={"cookie": f"{SESSION}={value}".encode("latin-1")})
        assert answer.status_code == 303
    first, second = shared.visitor("alice"), shared.visitor("alice")
    assert first.cookies[SESSION] != second.cookies[SESSION]
    before = first.cookies[SESSION]
    log_in_again = {"csrf": csrf_of(shared.visitor().get("/login")), "user": "alice", "password": PASSWORD}
    assert first.post("/login", data=log_in_again).status_code == 409  # a form of another visitor
    first.cookies.delete(SESSION)
    assert stranger.get("/groups", headers={"cookie": f"{SESSION}={before}"}).status_code == 200


def test_a_login_ends_the_session_before(shared: Served) -> None:
    visitor = shared.visitor("alice")
    before = visitor.cookies[SESSION]
    guest = {"csrf": csrf_of(shared.visitor().get("/login"))}
    assert visitor.post("/login", data={**guest, "user": "root", "password": PASSWORD}).status_code == 409
    visitor.cookies.delete(SESSION)
    form = {"csrf": csrf_of(visitor.get("/login")), "user": "root", "password": PASSWORD}
    visitor.cookies.set(SESSION, before, domain="localhost.local")
    assert visitor.post("/login", data=form).status_code == 303
    assert shared.visitor().get("/", headers={"cookie": f"{SESSION}={before}"}).status_code == 303


@pytest.mark.parametrize(
    "to", ["//evil.example", "/\\evil.example", "https://evil.example/", "evil", "/a\nb", "/" + "a" * 3_000]
)
def test_a_login_leads_nowhere_else(shared: Served, to: str) -> None:
    assert log_in(shared.visitor(), "alice", PASSWORD, to).headers["location"] == "/"


def test_a_login_from_another_site(shared: Served) -> None:
    visitor = shared.visitor()
    fields = {"csrf": csrf_of(visitor.get("/login")), "user": "alice", "password": PASSWORD}
    for wrong in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert visitor.post("/login", data=fields, headers=wrong).status_code == 403
    assert visitor.post("/login", data={**fields, "csrf": ""}).status_code == 409
    assert visitor.post("/login", data=fields, headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice", "wrong"),
        ("alice", ""),
        ("alice", PASSWORD + "\0"),
        ("nobody", PASSWORD),
        ("", ""),
        ("alice\0alice", PASSWORD),
        ("Alice", PASSWORD),
        ("a" * 10_000, PASSWORD),
        ("<script>", "\U0001f600"),
    ],
)
@pytest.mark.slow
def test_wrong_passwords_and_unknown_users_get_one_answer(served: Served, user: str, password: str) -> None:
    answer = log_in(served.visitor(), user, password)
    assert answer.status_code == 403
    assert "That is not a user of this log with that password." in answer.text
    assert "<script>" not in answer.text


@pytest.mark.slow
def test_guessing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few failures an address has to wait, with the right password, too."""
    monkeypatch.setattr(login, "_FIRST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(login, "_LONGEST_PAUSE_S", 3_600.0)
    guesser = served.visitor()
    fields = {"csrf": csrf_of(guesser.get("/login")), "user": "alice"}
    answers = [guesser.post("/login", data={**fields, "password": f"guess {n}"}) for n in range(5)]
    assert [each.status_code for each in answers] == [403] * 5
    for password in ("guess 5", PASSWORD):
        headers = {"x-forwarded-for": "10.0.0.9"}  # whoever connects could say that
        refused = guesser.post("/login", data={**fields, "password": password}, headers=headers)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 60
    assert SESSION not in guesser.cookies


@pytest.mark.slow
def test_many_guesses_at_once_are_many_guesses(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_FIRST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(login, "_LONGEST_PAUSE_S", 3_600.0)
    guesser = served.visitor()
    fields = {"csrf": csrf_of(guesser.get("/login")), "user": "alice"}
    codes: list[int] = []

    def guess(number: int) -> None:
        codes.append(guesser.post("/login", data={**fields, "password": f"guess {number}"}).status_code)

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(codes) == [403] * 5 + [429] * 15


def test_the_pauses() -> None:
    pauses = login._Pauses()
    assert [pauses.begin("10.0.0.1", 0.0) for _ in range(5)] == [0.0] * 5
    assert pauses.begin("10.0.0.1", 0.0) == 1.0
    assert pauses.begin("10.0.0.1", 0.75) == 0.25
    assert pauses.begin("10.0.0.1", 1.0) == 0.0
    assert pauses.begin("10.0.0.1", 1.0) == 2.0
    assert pauses.begin("10.0.0.2", 1.0) == 0.0
    now = 1.0
    for _ in range(200):  # the longest is a minute
        now += pauses.begin("10.0.0.1", now)
        assert pauses.begin("10.0.0.1", now) == 0.0
    assert pauses.begin("10.0.0.1", now) == 60.0
    pauses.succeeded("10.0.0.1")  # which forgets no failure: an own password lets nobody guess another's
    assert pauses.begin("10.0.0.1", now) > 0.0
    assert pauses.begin("10.0.0.1", now + 1_000) == 0.0
    assert [pauses.begin(f"2001:db8::{n}", 0.0) > 0 for n in range(7)] == [False] * 5 + [True] * 2
    for number in range(20_000):
        pauses.begin(f"10.1.{number >> 8}.{number & 255}", 0.0)
    assert len(pauses._failed) == 10_000


# -- going -------------------------------------------------------------------------------------------------


def test_logout(shared: Served) -> None:
    visitor = shared.visitor("alice")
    cookie = visitor.cookies[SESSION]
    page = visitor.get("/")
    assert "alice" in page.text
    assert visitor.post("/logout", data={"csrf": "0" * 64}).status_code == 409
    assert visitor.get("/logout").status_code == 405
    assert visitor.get("/").status_code == 200
    response = visitor.post("/logout", data={"csrf": csrf_of(page)})
    assert response.headers["location"] == "/login"
    assert SESSION not in visitor.cookies
    assert visitor.get("/", headers={"cookie": f"{SESSION}={cookie}"}).status_code == 303


@pytest.mark.parametrize("limit", ["_LASTS_S", "_IDLE_S"])
@pytest.mark.slow
def test_sessions_end_by_themselves(served: Served, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    visitor = served.visitor("alice")
    assert visitor.get("/").status_code == 200
    monkeypatch.setattr(login, limit, 0.0)
    assert visitor.get("/").status_code == 303
    monkeypatch.undo()
    assert visitor.get("/").status_code == 303  # for good


@pytest.mark.parametrize("change", [None, "another password"])
@pytest.mark.slow
def test_sessions_of_a_user_who_is_deleted_or_gets_another_password(
    served: Served, path: Path, change: str | None
) -> None:
    visitor, other = served.visitor("alice"), served.visitor("root")
    credential = None if change is None else credential_of("SCRAM-SHA-256", change)
    DocumentUsers(str(path)).alter("alice", {"SCRAM-SHA-256": credential})
    assert visitor.get("/").status_code == 303
    assert other.get("/").status_code == 200


@pytest.mark.slow
def test_of_many_sessions_the_oldest_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_MOST_OF_A_USER", 2)
    first, second, third = (served.visitor("alice") for _ in range(3))
    assert [each.get("/groups").status_code for each in (first, second, third)] == [303, 200, 200]
    monkeypatch.setattr(login, "_MOST_SESSIONS", 2)
    served.visitor("root")
    assert [each.get("/groups").status_code for each in (second, third)] == [303, 200]


@pytest.mark.parametrize("how", ["logout", "rights"])
@pytest.mark.slow
def test_a_stream_ends_with_the_session(served: Served, path: Path, how: str) -> None:
    visitor, control = served.visitor("alice"), served.visitor()
    with visitor.stream("GET", "/topics/orders/records/live?partition=0") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: step"
        if how == "logout":
            cookie = {"cookie": f"{SESSION}={visitor.cookies[SESSION]}"}
            csrf = csrf_of(control.get("/", headers=cookie))
            control.post("/logout", data={"csrf": csrf}, headers=cookie)
        else:
            DocumentAcls(str(path)).remove([BindingFilter(ResourceType.TOPIC, "orders")])
        rest = list(lines)  # it ends
    assert ("event: failed" in rest) == (how == "rights")


# -- what each sees ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_that_is_hidden_is_in_any_page(shared: Served) -> None:
    pages = crawl(shared.visitor("alice"))
    assert {"/", "/groups", "/queues", "/transactions", "/topics/orders", "/group?name=both"} <= pages.keys()
    assert "/topics/orders/records" in pages
    assert [address for address, text in pages.items() if HIDDEN.search(address + text)] == []
    for shown in ("loader-orders", "workers-orders", "loader-both", "members", "described"):
        assert any(shown in text for text in pages.values())
    # The same walk finds it for somebody who may see everything.
    assert any(HIDDEN.search(address) for address in crawl(shared.visitor("root")))


def test_where_the_log_is_concerns_those_who_see_all_of_it(path: Path, authority: Authority) -> None:
    """Neither a page nor an error tells others the directory and its files: here a record is damaged."""
    filled(path)
    damaged = max(path.glob("orders_*/*.kafka"), key=lambda each: each.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[70] ^= 1
    damaged.write_bytes(data)
    record = f"/topics/orders/record?partition={damaged.parent.name[-1]}&offset=0"
    with contextlib.closing(Served(path, authority, *AUTHORIZED, writable=False)) as served:
        alice = served.visitor("alice")
        for address in (
            "/",
            "/topics/orders",
            "/topics/orders/records?from=0",
            "/topics/orders/records/search?search=n",
            "/transactions?topic=orders",
            "/topics/nosuch",
            record,
        ):
            shown = alice.get(address).text
            assert str(path) not in shown, address
            assert damaged.name not in shown, address
        assert "stored data is damaged" in alice.get(record).text
        assert str(damaged) in served.visitor("root").get(record).text


@pytest.mark.parametrize(
    "address",
    [
        "/topics/NAME",
        "/topics/NAME/partitions/0",
        "/topics/NAME/records",
        "/topics/NAME/records?search=x",
        "/topics/NAME/records?partition=0&from=0",
        "/topics/NAME/records/live",
        "/topics/NAME/records/search?search=n",
        "/topics/NAME/record?partition=0&offset=0",
        "/topics/NAME/record?partition=0&offset=0&part=yes",
        "/topics/NAME/record/bytes?partition=0&offset=0",
        "/queue?topic=NAME&group=workers-NAME",
        "/queue?topic=NAME&group=workers-orders",
        "/queue?topic=orders&group=workers-NAME",
        "/group?name=spies-of-NAME",
        "/group/reset?name=billing&topic=NAME&to=earliest",
    ],
)
def test_what_is_hidden_is_as_if_it_were_not_there(shared: Served, address: str) -> None:
    visitor = shared.visitor("alice")
    answers = []
    for name in ("secret", "nosuch"):
        answer = visitor.get(address.replace("NAME", name))
        text = re.sub(r'data-csrf="[^"]*"|csrf" value="[^"]*"', "", answer.text)
        answers.append((answer.status_code, text.replace(name, "NAME")))
    assert answers[0] == answers[1]
    assert "no NAME today" not in answers[0][1]


@pytest.mark.parametrize(
    "address",
    [
        "/records",
        "/records/live?at=0:0",
        "/records/search?search=unreadable",
        "/record?partition=0&offset=0",
        "/record/bytes?partition=0&offset=0",
    ],
)
def test_records_need_more_than_that_the_topic_is_seen(shared: Served, address: str) -> None:
    visitor = shared.visitor("alice")
    assert visitor.get("/topics/described").status_code == 200
    text = visitor.get(f"/topics/described{address}").text.replace("search=unreadable", "")
    assert "User:alice may not read the topic" in html.unescape(text)
    assert "unreadable" not in text.replace('value="unreadable"', "")
    assert "unreadable" in shared.visitor("root").get("/topics/described/records").text


def test_hidden_groups_are_as_if_they_were_not_there(shared: Served) -> None:
    visitor = shared.visitor("alice")
    known, unknown = visitor.get("/group?name=spies").text, visitor.get("/group?name=nosuch").text
    assert known.replace("spies", "nosuch").replace(csrf_of(visitor.get("/")), "") == unknown.replace(
        csrf_of(visitor.get("/")), ""
    )
    shown = visitor.get("/groups?search=spies").text
    assert "/group?name=spies" not in shown
    both = visitor.get("/group?name=both").text
    assert "orders" in both
    assert "secret" not in both


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM secret",
        "SELECT value FROM orders UNION ALL SELECT value FROM SECRET",
        'SELECT * FROM "embedlog: secret"',
        "SELECT value FROM described",
        "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal",
        "SUMMARIZE secret",
    ],
)
def test_a_query_sees_what_its_visitor_may_read(shared: Served, query: str) -> None:
    visitor = shared.visitor("alice")
    fields = {"csrf": csrf_of(visitor.get("/sql")), "query": query}
    for answer in (
        visitor.post("/sql/run", data=fields),
        visitor.post("/sql/download", data={**fields, "format": "csv"}),
    ):
        seen = answer.text.replace(html.escape(query), "").replace(json.dumps(query)[1:-1], "")
        assert "loaded" not in seen
        assert "unreadable" not in seen
        assert '"of"' not in seen


@pytest.mark.slow
def test_a_query_of_what_one_may_read(shared: Served) -> None:
    for user, query in (("alice", "SELECT count(*) FROM orders"), ("root", "SELECT count(*) FROM secret")):
        visitor = shared.visitor(user)
        fields = {"csrf": csrf_of(visitor.get("/sql")), "query": query, "format": "csv"}
        assert visitor.post("/sql/download", data=fields).text.split() == ["count_star()", "51"]


@pytest.mark.slow
def test_changes_need_rights(served: Served, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    visitor = served.visitor("alice")
    csrf = csrf_of(visitor.get("/"))
    log = served.app.state.site.log

    def post(address: str, **fields: str) -> httpx2.Response:
        return visitor.post(address, data={"csrf": csrf, **fields})

    def committed(group: str) -> dict[object, int]:
        return {tp: each.offset for tp, each in log.group(group).offsets().items()}

    before = {group: committed(group) for group in ("billing", "both", "spies")}
    assert post("/group/reset", name="spies", to="earliest").status_code == 409
    assert post("/group/reset", name="billing", to="earliest", topic="secret").status_code == 409
    assert post("/group/delete", name="billing", confirm="billing").status_code == 409
    assert post("/transactions/abort", id="loader-orders", confirm="loader-orders").status_code == 409
    assert post("/transactions/abort", id="loader-secret", confirm="loader-secret").status_code == 409
    redrive = {"topic": "orders", "group": "workers-orders", "which": "all"}
    assert post("/queue/redrive", **redrive).status_code == 409  # not the group that sends them again
    allow(path, ResourceType.GROUP, "embedlog.redrive", Operation.READ)
    assert post("/queue/redrive", **redrive).status_code == 409  # not Write on orders
    assert {group: committed(group) for group in before} == before
    assert log.offsets("orders") == log.offsets("orders")
    # What she may read the offsets of, of both groups' topics.
    assert post("/group/reset", name="both", to="earliest").status_code == 303
    assert {tp.topic: offset for tp, offset in committed("both").items()}["orders"] == 0
    assert {tp: o for tp, o in committed("both").items() if tp.topic == "secret"} == {
        tp: o for tp, o in before["both"].items() if tp.topic == "secret"
    }
    allow(path, ResourceType.GROUP, "billing", Operation.DELETE)
    assert post("/group/delete", name="billing", confirm="billing").status_code == 303
    assert "billing" not in log.groups()
    ends = sum(each.log_end_offset for each in log.offsets("orders").values())
    allow(path, ResourceType.TOPIC, "orders", Operation.WRITE)
    assert post("/queue/redrive", **redrive).status_code == 303
    assert sum(each.log_end_offset for each in log.offsets("orders").values()) == ends + 1


@pytest.mark.slow
def test_without_an_authorizer_each_user_sees_everything(path: Path, authority: Authority) -> None:
    filled(path)
    served = Served(path, authority, writable=False)
    try:
        assert any("secret" in address for address in crawl(served.visitor("alice")))
    finally:
        served.close()


# -- the connection ----------------------------------------------------------------------------------------


def test_plain_http_gets_nothing(shared: Served) -> None:
    with socket.create_connection(("127.0.0.1", shared.port)) as plain:
        plain.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in plain.makefile("rb").read()


def test_old_tls_is_refused(shared: Served) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", shared.port)) as plain,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(plain)


@pytest.mark.slow
def test_a_certificate_that_was_renewed(
    served: Served, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.cluster.network.tls_context._CHECK_S", 0.0)

    def serial() -> object:
        connection = served.connect()
        connection.request("GET", "/login")
        assert connection.getresponse().status == 200
        found = connection.sock.getpeercert()
        connection.close()
        return found["serialNumber"]

    before = serial()
    assert serial() == before
    os.replace(authority.issue(), served.certificate)
    assert serial() != before


# -- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--host", "0.0.0.0"], "give --secure"),
        (["--host", "::"], "give --secure"),
        (["--host", ""], "every address may be reached from other machines"),
        (["--advertised-host", "a"], "with --secure"),
        (["--set", "super_users=User:a"], "with --secure"),
        (["--secure", "--set", "listeners=PLAINTEXT://:1"], "--set listeners is none of the page's"),
        (["--secure", "--set", "ssl_keystore_location=x"], "leave out ssl_keystore_location"),
        (["--set", "ssl_keystore_location=/nowhere"], "the log has no users"),
    ],
)
def test_arguments_that_let_in_nobody_or_everybody(path: Path, given: list[str], said: str) -> None:
    embedlog.open(path).close()
    args = parsed(*given)
    args.directory, args.port = str(path), 0
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        security(args)


@pytest.mark.parametrize("of", ["kafka://127.0.0.1:1", "cluster"])
def test_brokers_keep_their_users(path: Path, of: str) -> None:
    args = parsed("--secure", "--host", "0.0.0.0")
    args.directory, args.port = of, 0
    if of == "cluster":
        embedlog.open(path).close()
        (path / "cluster.json").write_text("{}")
        args.directory = str(path)
    with pytest.raises(InvalidArgument, match=r"brokers? "):
        security(args)
    assert not Path(f"{path}-security").exists()


@pytest.mark.slow
def test_from_the_command_to_a_change(path: Path, start: Callable[..., Started]) -> None:
    """--secure: the certificate, the administrator, the addresses; who changed what is in a log line."""
    filled(path)
    options = ("--secure", "--writable", "--port", 0, "--json", "--advertised-host", "log.example")
    page = start("-m", "embedlog", "ui", path, *options)
    told = json.loads(page.find(r"^(\{.*\})$")[0])
    assert re.fullmatch(r"https://log\.example:\d+/", told["address"])
    password = re.search('password="([^"]+)"', Path(told["client_properties"]).read_text())
    assert password is not None
    trusted = ssl.create_default_context(cafile=f"{path}-security/ca.pem")
    port = urlsplit(told["address"]).port
    with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=60) as visitor:
        assert visitor.get("/login", headers={"host": f"log.example:{port}"}).status_code == 200
        assert visitor.get("/login", headers={"host": f"evil.example:{port}"}).status_code == 421
        assert log_in(visitor, "admin", "wrong").status_code == 403
        assert log_in(visitor, "admin", password[1]).status_code == 303
        fields = {"csrf": csrf_of(visitor.get("/")), "name": "spies", "confirm": "spies"}
        assert visitor.post("/group/delete", data=fields).status_code == 303
        assert page.find("(admin: group spies was deleted)") == ["admin: group spies was deleted"]
        assert page.find("(no login as admin)") == ["no login as admin"]
        assert page.find("(admin has logged in from 127.0.0.1)")
    assert not any(password[1] in line for line in page.lines)


@pytest.mark.slow
def test_in_a_browser(path: Path, authority: Authority, browser: Browser) -> None:
    """Without scripts, by the keyboard; then with scripts, as records come. axe-core finds nothing."""
    filled(path)
    served = Served(path, authority, *AUTHORIZED, writable=False)
    base = f"https://localhost:{served.port}"
    try:
        plain = browser.new_context(base_url=base, ignore_https_errors=True, java_script_enabled=False)
        page = plain.new_page()
        page.goto("/topics/orders/records")
        for field, typed in (("user", "alice"), ("password", PASSWORD)):
            page.locator(f"[name={field}]:focus").wait_for()  # it is where the keys go
            page.keyboard.insert_text(typed)
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/orders/records")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
        plain.close()

        # axe-core is a script, which the page's Content-Security-Policy would not let in
        context = browser.new_context(base_url=base, ignore_https_errors=True, bypass_csp=True)
        page = context.new_page()
        page.goto("/topics/orders/records")
        assert Axe().run(page).violations_count == 0
        page.get_by_label("User").fill("alice")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Follow").click()
        with embedlog.open(path) as log:
            log.append("orders", b"just now")
            page.get_by_text("just now").wait_for()
        assert Axe().run(page).violations_count == 0
        context.close()
    finally:
        served.close()
