"""Which hour of the day, and which carrier, to avoid in New York? A table and a plot from the warehouse.

    python report.py TABLE [--plot delays.png]

Bad luck is a flight that leaves 30 minutes late or later, or not at all.
"""

from __future__ import annotations

import argparse
import os
import sys

import matplotlib
from pyspark.sql import functions as F

import embedlog.spark

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FEWEST = 100  # flights of a carrier in an hour of the day; cells with fewer are left out
NAMES = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet",
    "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy", "OO": "SkyWest", "UA": "United",
    "US": "US Airways", "VX": "Virgin America", "WN": "Southwest", "YV": "Mesa",
}  # fmt: skip

Cells = dict[tuple[str, int], tuple[int, int]]  # (carrier, hour of the day) -> flights, flights with bad luck


def read(table: str) -> Cells:
    spark = embedlog.spark.session("report")
    hours = embedlog.spark.warehouse(spark, table)
    bad = F.sum(F.col("late") + F.col("cancelled")).alias("bad")
    rows = hours.groupBy("carrier", "local_hour").agg(F.sum("flights").alias("flights"), bad).collect()
    return {(row.carrier, row.local_hour): (row.flights, row.bad) for row in rows}


def share(cells: Cells, carrier: str | None = None, hour: int | None = None) -> float:
    """The share of flights with bad luck: of a carrier, of an hour of the day, or of all."""
    chosen = [cell for (c, h), cell in cells.items() if carrier in (None, c) and hour in (None, h)]
    flights = sum(cell[0] for cell in chosen)
    return sum(cell[1] for cell in chosen) / flights if flights else 0.0


def answer(cells: Cells) -> list[str]:
    """The answer as lines of text."""
    full = {key: cell for key, cell in cells.items() if cell[0] >= FEWEST}
    hours = sorted({h for _, h in full}, key=lambda h: share(cells, hour=h))
    carriers = sorted({c for c, _ in full}, key=lambda c: share(cells, carrier=c))
    worst = max(full, key=lambda key: share(cells, *key))
    return [
        f"{sum(flights for flights, _ in cells.values()):,} flights, of which {share(cells):.0%} left "
        "30 minutes late or more, or not at all",
        f"hour      best {hours[0]}:00 ({share(cells, hour=hours[0]):.0%}), worst {hours[-1]}:00 "
        f"({share(cells, hour=hours[-1]):.0%})",
        f"carrier   best {NAMES[carriers[0]]} ({share(cells, carrier=carriers[0]):.0%}), worst "
        f"{NAMES[carriers[-1]]} ({share(cells, carrier=carriers[-1]):.0%})",
        f"avoid     {NAMES[worst[0]]} at {worst[1]}:00: {share(cells, *worst):.0%} of its flights",
    ]


def plot(cells: Cells, path: str) -> None:
    full = {key for key, (flights, _) in cells.items() if flights >= FEWEST}
    hours = list(range(min(h for _, h in full), max(h for _, h in full) + 1))
    carriers = sorted({c for c, _ in full}, key=lambda c: share(cells, carrier=c))
    values = [[share(cells, c, h) * 100 if (c, h) in full else float("nan") for h in hours] for c in carriers]
    figure, axes = plt.subplots(figsize=(11, 5.6), layout="constrained")
    colours = plt.get_cmap("YlOrRd").with_extremes(bad="#f2f2f2")
    image = axes.imshow(values, aspect="auto", cmap=colours, vmin=0, vmax=50)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value == value:
                axes.text(
                    x,
                    y,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if value > 33 else "#333333",
                )
    axes.set_xticks(range(len(hours)), [f"{h}:00\n{share(cells, hour=h):.0%}" for h in hours], fontsize=8)
    axes.set_yticks(range(len(carriers)), [f"{NAMES[c]}  {share(cells, carrier=c):.0%}" for c in carriers])
    axes.set_xlabel("scheduled departure, local time; below it the share of all carriers")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks([x - 0.5 for x in range(1, len(hours))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(carriers))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    axes.set_title("Fly early: delays pile up through the day\n", loc="left", fontsize=14, fontweight="bold")
    axes.text(
        0, 1.02,
        "% of flights from New York, 2013, that left 30 minutes late or more, or not at all "
        f"(grey: fewer than {FEWEST} flights)",
        transform=axes.transAxes, fontsize=9, color="#555555",
    )  # fmt: skip
    figure.colorbar(image, ax=axes, shrink=0.7, label="%", extend="max").outline.set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table")
    parser.add_argument("--plot", metavar="PNG", help="write the plot to this file")
    args = parser.parse_args()
    cells = read(args.table)
    if all(flights < FEWEST for flights, _ in cells.values()):
        sys.exit(f"no carrier has {FEWEST} flights in an hour of the day yet: load more days")
    print("\n".join(answer(cells)))
    if args.plot:
        plot(cells, args.plot)
        print(f"plot      {os.path.abspath(args.plot)}")


if __name__ == "__main__":
    main()
