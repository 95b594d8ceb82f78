"""The nightly load of the hourly counts, for cron: everything since the last load, exactly once.

    python nightly.py DIR

The same on the command line:
    embedlog load DIR --topic flights-hourly --to DIR-warehouse/hourly --schema '...' --date-column hour
"""

from __future__ import annotations

import argparse

import embedlog.spark

SCHEMA = (
    "hour TIMESTAMP, local_hour INT, carrier STRING, origin STRING, flights BIGINT, departed BIGINT, "
    "cancelled BIGINT, late BIGINT, delay_minutes BIGINT"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    args = parser.parse_args()
    done = embedlog.spark.load(
        args.directory,
        topic="flights-hourly",
        to=f"{args.directory}-warehouse/hourly",
        schema=SCHEMA,
        date_column="hour",
    )
    print(f"load {done.load}: {done.records:,} rows in {done.files:,} files, {done.bad:,} bad records")


if __name__ == "__main__":
    main()
