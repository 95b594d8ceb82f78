"""An outbox: each order in sqlite has its event in the log, exactly once. Plain WSGI, gunicorn.

relay.py moves the events to the log.

    gunicorn --chdir examples/web --workers 4 'orders:create_app()'
    curl localhost:8000 --json '{"customer": "alice", "total": 12}'
    embedlog cat examples/web/orders-data orders
"""

import json
import os
import sqlite3
import threading
from contextlib import closing
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from relay import keep_relaying

import embedlog


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(os.environ.get("ORDERS_DATABASE", "./orders.sqlite"), timeout=30)
    database.executescript("""
        PRAGMA journal_mode = WAL;
        CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, total INTEGER);
        CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT);
    """)
    return database


def place(customer: str, total: int) -> int | None:
    """Write an order and its event in one transaction: both or neither. Returns the order's number."""
    with closing(connect()) as database, database:
        placed = database.execute("INSERT INTO orders (customer, total) VALUES (?, ?)", (customer, total))
        event = json.dumps({"order": placed.lastrowid, "customer": customer, "total": total})
        database.execute("INSERT INTO outbox (event) VALUES (?)", (event,))
    return placed.lastrowid


def create_app() -> WSGIApplication:
    """The application of a worker. gunicorn forks first, so each worker opens the log itself."""
    log = embedlog.open(os.environ.get("ORDERS_LOG", "./orders-data"), shared=True)  # closed at its exit
    log.create_topic("orders", exist_ok=True)
    ordered = threading.Event()
    threading.Thread(target=keep_relaying, args=(log, connect, ordered), daemon=True).start()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
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
