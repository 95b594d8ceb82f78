"""The programs in examples/ are short; those that use several processes run: servers, HTTP, kills."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import signal
import socketserver
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import ROOT, Clients, Started, owner_of, wait_until_committed

import embedlog

EXAMPLES = ROOT / "examples"
WITH_START_METHOD = """
import multiprocessing, runpy, sys

_, method, *sys.argv = sys.argv
multiprocessing.set_start_method(method)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("program", sorted(EXAMPLES.rglob("*.py")), ids=lambda program: program.name)
def test_a_program_is_short_enough_to_copy(program: Path) -> None:
    assert len(program.read_text().splitlines()) < 60


def kill_workers(server: Started, clients: Clients, path: Path, started: str) -> None:
    """Kill the owner of the log, then a worker that is not, while the clients post.

    started: matches the line in which a worker gives its process id.
    """
    owner = owner_of(path)
    workers = {int(pid) for pid in server.find(started)}
    assert owner in workers
    os.kill(owner, signal.SIGKILL)
    clients.wait_for_more(100)
    successor = owner_of(path)
    assert successor != owner
    os.kill(min(workers - {owner, successor}), signal.SIGKILL)
    server.find(started, len(workers) + 2)  # the server has replaced both
    clients.wait_for_more(100)


def rows(database: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_visits(path: Path, tmp_path: Path, start: Callable[..., Started]) -> None:
    database = tmp_path / "visits.sqlite"
    server = start(
        *("-m", "uvicorn", "--app-dir", EXAMPLES / "web", "visits:app", "--workers", 4, "--port", 0),
        VISITS_LOG=path,
        VISITS_DATABASE=database,
    )
    port = int(server.find(r"running on http://127\.0\.0\.1:(\d+)")[0])
    server.find("(Application startup complete)", 4)

    def visit(name: str) -> dict[str, Any]:
        number = int(name.split("-")[1])
        return {"id": name, "page": f"/{number % 3}", "user": f"user-{number % 50}"}

    clients = Clients(port, "/visits", visit)
    try:
        clients.wait_for_more(100)
        kill_workers(server, clients, path, r"Started server process \[(\d+)\]")
    finally:
        clients.stop()
    assert clients.post({"id": "no page"})[0] == 422
    wait_until_committed(path, "pages", "visits")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/pages")
        pages = json.loads(connection.getresponse().read())
    server.stop()

    with embedlog.open(path) as log:
        assert log.recovery.clean
        at = {(r.partition, r.offset): json.loads(r.value or b"") for r in log.read("visits")}
    logged = Counter(visit["id"] for visit in at.values())
    assert set(logged.values()) == {1}
    for name, where in clients.acknowledged.items():
        assert at[where["partition"], where["offset"]] == visit(name)
    processed = rows(database, "SELECT id, worker FROM visits")
    assert {name for name, _ in processed} == set(logged)
    assert len({worker for _, worker in processed}) > 1  # which of them had partitions in time is chance
    assert pages == Counter(visit["page"] for visit in at.values())


def test_orders(path: Path, tmp_path: Path, start: Callable[..., Started]) -> None:
    database = tmp_path / "orders.sqlite"
    server = start(
        *("-m", "gunicorn", "--chdir", EXAMPLES / "web", "--workers", 3, "--bind", "127.0.0.1:0"),
        "orders:create_app()",
        HOME=tmp_path,  # gunicorn has a socket there
        ORDERS_LOG=path,
        ORDERS_DATABASE=database,
    )
    port = int(server.find(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])
    booting = r"Booting worker with pid: (\d+)"
    server.find(booting, 3)
    clients = Clients(port, "/", lambda name: {"customer": name, "total": 12})
    try:
        clients.wait_for_more(100)
        kill_workers(server, clients, path, booting)
    finally:
        clients.stop()
    assert clients.post({"customer": "no total"})[0] == 400
    orders = rows(database, "SELECT id, customer, total FROM orders ORDER BY id")
    with embedlog.open(path, "r") as log:
        records = list(itertools.islice(log.read("orders", 0, follow=True), len(orders)))
    server.stop()

    events = [json.loads(record.value or b"") for record in records]
    assert [(event["order"], event["customer"], event["total"]) for event in events] == orders
    assert {order["order"]: name for name, order in clients.acknowledged.items()}.items() <= {
        number: customer for number, customer, _ in orders
    }.items()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert log.offsets("orders")[0].log_end_offset == len(orders)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=[] if method == "fork" else [pytest.mark.slow])
        for method in multiprocessing.get_all_start_methods()
    ],
)
def test_pool(path: Path, tmp_path: Path, start: Callable[..., Started], method: str) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(20)]
    for number, file in enumerate(files):
        file.write_text(f"all {'some ' * number}")
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)  # the last file: the pool waits until something is written
    command = ("-c", WITH_START_METHOD, method, EXAMPLES / "pool.py", path, *files, pipe)
    pool = start(*command)
    assert pool.find(r"^ +\d+  (\S+)$", len(files)) == [str(file) for file in files]
    os.kill(owner_of(path), signal.SIGKILL)
    pool.find("(a process was killed)")
    pipe.write_text("all")
    assert pool.end().endswith("some 190, all 21")

    assert start(*command).end() == "some 190, all 21"
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert Counter(record.key for record in log.read("words")) == {
            str(file).encode(): 1 for file in [*files, pipe]
        }


class MailServer(socketserver.ThreadingTCPServer):
    """Takes mails by SMTP, except for nobody@example.org, and notes their recipients by Message-ID."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.taken: dict[str, set[str]] = {}
        self.changed = threading.Condition()
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Smtp(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        recipient = ""
        while line := self.rfile.readline().decode().rstrip():
            verb = line[:4].upper()
            if verb == "RCPT":
                recipient = line.partition("<")[2].partition(">")[0]
            if verb == "RCPT" and recipient.startswith("nobody@"):
                self.wfile.write(b"550 nobody of that name\r\n")
            elif verb == "DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                [name] = [each.split()[1].decode() for each in lines if each.startswith(b"Message-ID:")]
                with self.server.changed:
                    self.server.taken.setdefault(name, set()).add(recipient)
                    self.server.changed.notify_all()
                self.wfile.write(b"250 taken\r\n")
            else:
                self.wfile.write(b"221 bye\r\n" if verb == "QUIT" else b"250 fine\r\n")


@pytest.mark.slow
def test_mail(path: Path, start: Callable[..., Started]) -> None:
    server = MailServer()
    address = f"127.0.0.1:{server.server_address[1]}"
    environment = {"MAIL_LOG": path, "MAIL_SERVER": address, "LOCK_MS": 1_000, "BACKOFF_MS": 50}

    def worker() -> Started:
        arguments = ("work", "deliver:deliver", path, "--app-dir", EXAMPLES / "mail", "--create")
        started = start("-m", "embedlog", *arguments, **environment)
        started.find("^(working)")
        return started

    def mail(name: str) -> dict[str, Any]:
        return {"to": f"{name}@example.org", "subject": "Welcome", "text": "..."}

    try:
        first, second = worker(), worker()
        application = start(
            *("-m", "uvicorn", "--app-dir", EXAMPLES / "mail", "app:app", "--workers", 2, "--port", 0),
            **environment,
        )
        port = int(application.find(r"running on http://127\.0\.0\.1:(\d+)")[0])
        application.find("(Application startup complete)", 2)
        clients = Clients(port, "/mails", mail)
        try:
            clients.wait_for_more(50)
            first.kill()  # the owner of the log
            clients.wait_for_more(50)
            third = worker()
            second.kill()
            clients.wait_for_more(50)
        finally:
            clients.stop()
        wanted = {f"{name}@example.org" for name in clients.acknowledged}
        with server.changed:
            server.changed.wait_for(lambda: wanted <= set().union(*server.taken.values()))
        assert all(len(recipients) == 1 for recipients in server.taken.values())
        assert len(server.taken) == len(set().union(*server.taken.values()))  # one name each, however often

        status, _ = clients.post(mail("nobody"))
        assert status == 202
        third.find("(failed at its last delivery)")
        while True:  # the dead letter follows
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
                connection.request("GET", "/mails/dead")
                found = json.loads(connection.getresponse().read())
            if found:
                break
        [letter] = found
        assert letter["mail"] == mail("nobody")
        assert "550" in letter["error"]
        assert "nothing in hand" in third.stop()
        application.stop()
    finally:
        server.stop()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        with log.queue("mails", group="mailers") as queue:
            assert queue.take(default=None) is None
