"""Who may ask the page for anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

import embedlog
from embedlog.ui import application
from embedlog.ui.guard import form

TOKEN = "the-token"
HOST = "127.0.0.1:9480"


async def change(request: Request) -> Response:
    return PlainTextResponse((await form(request))["what"])


@pytest.fixture
def visitor(path: Path) -> Iterator[TestClient]:
    """A browser that has not been here before."""
    with embedlog.open(path) as log:
        log.create_topic("t")
        app = application(log, hosts=[HOST], token=TOKEN)
        app.routes.append(Route("/change", change, methods=["POST"]))
        with TestClient(app, base_url=f"http://{HOST}", follow_redirects=False) as client:
            yield client


def csrf_of(visitor: TestClient) -> str:
    return visitor.get("/").text.partition('data-csrf="')[2].partition('"')[0]


def test_the_token_is_shown_once(visitor: TestClient) -> None:
    assert visitor.get("/").status_code == 401
    assert visitor.get("/?token=another").status_code == 403
    response = visitor.get(f"/?search=t&token={TOKEN}")
    assert (response.status_code, response.headers["location"]) == (303, "/?search=t")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert visitor.get("/").status_code == 200
    assert TOKEN not in visitor.get("/").text


@pytest.mark.parametrize("cookie", ["", "x", "x.y", "x." + "0" * 64, "\xff", "a" * 9_000])
def test_a_cookie_that_is_not_ours(visitor: TestClient, cookie: str) -> None:
    visitor.get(f"/?token={TOKEN}")
    visitor.cookies.clear()
    sent = f"embedlog_visitor={cookie}".encode("latin-1")
    assert visitor.get("/", headers=[(b"cookie", sent)]).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9480", "127.0.0.1", "127.0.0.1:80", ""])
def test_other_hosts(visitor: TestClient, host: str) -> None:
    """A foreign name that resolves to this machine (DNS rebinding)."""
    visitor.get(f"/?token={TOKEN}")
    assert visitor.get("/", headers={"host": host}).status_code == 421


def test_forms(visitor: TestClient) -> None:
    visitor.get(f"/?token={TOKEN}")
    fields = {"csrf": csrf_of(visitor), "what": "this"}
    assert visitor.post("/change", data=fields).text == "this"
    own = {"origin": f"http://{HOST}"}
    assert visitor.post("/change", data=fields, headers=own).status_code == 200
    for fetched_from in ("same-origin", "none"):  # of a browser that sends no Origin
        own = {"sec-fetch-site": fetched_from}
        assert visitor.post("/change", data=fields, headers=own).status_code == 200
    for wrong in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another host of the same site
    ):
        assert visitor.post("/change", data=fields, headers=wrong).status_code == 403
    for given in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ü"}):
        assert visitor.post("/change", data={**given, "what": "this"}).status_code == 409
    assert visitor.post("/change", content=b"csrf=" + b"x" * 100_000).status_code == 409
    assert visitor.post("/change", content=b"&a=1" * 5_000).status_code == 409
    assert visitor.post("/change", content=b"\xff=\xff").status_code == 409


def test_a_form_of_another_visitor(visitor: TestClient) -> None:
    visitor.get(f"/?token={TOKEN}")
    theirs = csrf_of(visitor)
    visitor.cookies.clear()
    visitor.get(f"/?token={TOKEN}")
    assert csrf_of(visitor) != theirs
    assert visitor.post("/change", data={"csrf": theirs, "what": "this"}).status_code == 409


def test_security_headers_are_everywhere(visitor: TestClient) -> None:
    refused = visitor.get("/")
    visitor.get(f"/?token={TOKEN}")
    for response in (refused, visitor.get("/"), visitor.get("/nowhere"), visitor.get("/static/page.js")):
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"


def test_mounted_in_an_application(path: Path) -> None:
    """Its links begin with where it is mounted, and it leaves visitors to the application."""
    from fastapi import FastAPI

    app = FastAPI()
    with embedlog.open(path) as log:
        log.create_topic("t")
        app.mount("/log", application(log))
        with TestClient(app) as client:
            page = client.get("/log/")
            assert page.status_code == 200
            assert 'href="/log/topics/t"' in page.text
            assert client.get("/log/static/style.css").status_code == 200
