"""Which hour of the day, and which carrier, to avoid in New York? An answer from the warehouse.

    python report.py TABLE

Bad luck is a flight that leaves 30 minutes late or later, or not at all.
"""

import sys

from pyspark.sql import functions as F

import embedlog.spark

FEWEST = 100  # flights; carriers, hours, and carriers in an hour that have fewer are left out
NAMES = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet",
    "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy", "OO": "SkyWest", "UA": "United",
    "US": "US Airways", "VX": "Virgin America", "WN": "Southwest", "YV": "Mesa",
}  # fmt: skip

Shares = dict[tuple[str | None, int | None], float]  # (carrier, hour) -> bad luck; None stands for all


def read(table: str) -> tuple[int, Shares]:
    """The number of flights, and the share of those with bad luck."""
    hours = embedlog.spark.warehouse(embedlog.spark.session("report"), table)
    flights, bad = F.sum("flights").alias("flights"), F.sum(F.col("late") + F.col("cancelled")).alias("bad")
    rows = hours.cube("carrier", "local_hour").agg(flights, bad).collect()
    shares = {(row.carrier, row.local_hour): row.bad / row.flights for row in rows if row.flights >= FEWEST}
    if not any(None not in cell for cell in shares):
        sys.exit(f"no carrier has {FEWEST} flights in an hour of the day yet: load more days")
    return max(row.flights for row in rows), shares


def ranked(shares: Shares) -> tuple[list[str], list[int]]:
    """The carriers and the hours of the day, the best first."""
    cells = sorted(shares, key=shares.__getitem__)
    carriers = [carrier for carrier, hour in cells if carrier is not None and hour is None]
    return carriers, [hour for carrier, hour in cells if carrier is None and hour is not None]


def main(table: str) -> None:
    flights, shares = read(table)
    carriers, hours = ranked(shares)
    worst = max((cell for cell in shares if None not in cell), key=shares.__getitem__)
    share = {cell: f"{part:.0%}" for cell, part in shares.items()}
    print(f"{flights:,} flights, of which {share[None, None]} left 30 minutes late or more, or not at all")
    best, last = hours[0], hours[-1]
    print(f"hour      best {best}:00 ({share[None, best]}), worst {last}:00 ({share[None, last]})")
    good, bad = carriers[0], carriers[-1]
    print(f"carrier   best {NAMES[good]} ({share[good, None]}), worst {NAMES[bad]} ({share[bad, None]})")
    print(f"avoid     {NAMES[worst[0]]} at {worst[1]}:00: {share[worst]} of its flights")


if __name__ == "__main__":
    main(sys.argv[1])
