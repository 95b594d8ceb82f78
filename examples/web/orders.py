"""An outbox: each order in sqlite has its event in the log, exactly once. Plain WSGI, gunicorn.

    gunicorn --chdir examples/web --workers 4 'orders:create_app()'
    curl localhost:8000 --json '{"customer": "alice", "total": 12}'
    embedlog cat examples/web/orders-data orders

A request writes the order and its event to the database in one transaction: both are there, or neither. A
relay in each worker moves events from the outbox to the log. It may be killed at any point:

- The log says which event was the last: the key of its last record. The relay appends those after it.
- expected_offset makes an append fail if the relay of another worker was faster: no event is appended twice.
- Events leave the outbox after they have become durable in the log.

gunicorn forks its workers and then calls `create_app` in each, so each opens the log itself. Do not use
--preload here: the master would open the log, and threads such as the relay do not survive a fork.

sqlite commits one transaction after the other, so ids become visible in their order. With a database that
does not (PostgreSQL), let the relay take a lock and number the events that are new.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from typing import Any

import embedlog
from embedlog.errors import Closed, EmbedlogError, UnexpectedOffset

DIRECTORY = os.environ.get("ORDERS_LOG", "./orders-data")
DATABASE = os.environ.get("ORDERS_DATABASE", "./orders.sqlite")
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, total INTEGER);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT);
"""


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASE, timeout=30)
    connection.executescript(SCHEMA)
    return connection


def place(customer: str, total: int) -> int:
    """Write an order and its event. Returns the order's number."""
    connection = database()
    with connection:
        insert = "INSERT INTO orders (customer, total) VALUES (?, ?)"
        order = connection.execute(insert, (customer, total)).lastrowid
        event = json.dumps({"order": order, "customer": customer, "total": total})
        connection.execute("INSERT INTO outbox (event) VALUES (?)", (event,))
    connection.close()
    return order


def relay(log: embedlog.Log, connection: sqlite3.Connection) -> None:
    """Append the events of the outbox that are not in the log. Raises UnexpectedOffset if another does."""
    end = log.offsets("orders")[0].log_end_offset
    last = log.read_at("orders", 0, end - 1) if end else None
    last_id = int(last.key) if last else 0
    select = "SELECT id, event FROM outbox WHERE id > ? ORDER BY id"
    for event_id, event in connection.execute(select, (last_id,)).fetchall():
        log.append("orders", event.encode(), key=b"%d" % event_id, expected_offset=end)
        last_id, end = event_id, end + 1
    log.flush()
    with connection:
        connection.execute("DELETE FROM outbox WHERE id <= ?", (last_id,))


def keep_relaying(log: embedlog.Log, ordered: threading.Event) -> None:
    """Relay after each order of this worker, and each second: another worker may have been killed."""
    connection = database()
    while True:
        ordered.wait(1)
        ordered.clear()
        try:
            relay(log, connection)
        except UnexpectedOffset:
            ordered.set()  # begin again, after what the other has appended
        except Closed:
            return  # the worker ends
        except (EmbedlogError, sqlite3.Error):
            logging.exception("events wait in the outbox")


def create_app() -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """The WSGI application of a worker."""
    log = embedlog.open(DIRECTORY, shared=True)  # closed when the worker exits
    log.create_topic("orders", exist_ok=True)
    ordered = threading.Event()
    threading.Thread(target=keep_relaying, args=(log, ordered), daemon=True).start()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            given = json.load(environ["wsgi.input"])
            order = place(str(given["customer"]), int(given["total"]))
        except (KeyError, TypeError, ValueError):
            start_response("400 Bad Request", [])
            return [b'post {"customer": ..., "total": ...}\n']
        ordered.set()
        start_response("201 Created", [("Content-Type", "application/json")])
        return [json.dumps({"order": order}).encode()]

    return app
