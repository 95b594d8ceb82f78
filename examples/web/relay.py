"""The relay of the outbox in orders.py: it moves events from sqlite to the log, each once and in order.

It may be killed at any point, and each worker has one:

- The key of the log's last record says which event was the last. The relay appends those after it.
- expected_offset makes an append fail if the relay of another worker was faster.
- Events leave the outbox after they have become durable in the log.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable

import embedlog


def relay(log: embedlog.Log, database: sqlite3.Connection) -> None:
    """Append the events of the outbox that are not in the log. Raises UnexpectedOffset if another does."""
    end = log.offsets("orders")[0].log_end_offset
    last = log.read_at("orders", 0, end - 1) if end else None
    last_id = int(last.key or 0) if last else 0
    select = "SELECT id, event FROM outbox WHERE id > ? ORDER BY id"
    for event_id, event in database.execute(select, (last_id,)).fetchall():
        log.append("orders", event.encode(), key=b"%d" % event_id, expected_offset=end)
        last_id, end = event_id, end + 1
    log.flush()
    with database:
        database.execute("DELETE FROM outbox WHERE id <= ?", (last_id,))


def keep_relaying(
    log: embedlog.Log, connect: Callable[[], sqlite3.Connection], ordered: threading.Event
) -> None:
    """Relay after each order of this worker, and each second: another worker may have been killed."""
    database = connect()
    while True:
        ordered.wait(1)
        ordered.clear()
        try:
            relay(log, database)
        except embedlog.UnexpectedOffset:
            ordered.set()  # begin again, after what the other has appended
        except embedlog.Closed:
            return  # the worker ends
        except (embedlog.EmbedlogError, sqlite3.Error):
            logging.exception("events wait in the outbox")
