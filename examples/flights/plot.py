"""The table behind report.py as a picture: bad luck by hour and carrier.

    python plot.py TABLE delays.png

The best carrier is at the top.
"""

import sys

import matplotlib
from report import FEWEST, NAMES, ranked, read

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TITLE = "Fly early: delays pile up through the day\n"
SUBTITLE = (
    "% of flights from New York, 2013, that left 30 minutes late or more, or not at all "
    f"(grey: fewer than {FEWEST} flights)"
)


def plot(table: str, path: str) -> None:
    _, shares = read(table)
    carriers, hours = ranked(shares)
    hours.sort()
    values = [[shares.get((carrier, hour), float("nan")) * 100 for hour in hours] for carrier in carriers]
    figure, axes = plt.subplots(figsize=(11, 5.6), layout="constrained")
    colours = plt.get_cmap("YlOrRd").with_extremes(bad="#f2f2f2")
    mesh = axes.pcolormesh(values, cmap=colours, vmin=0, vmax=50, edgecolors="white", linewidth=1.5)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value == value:  # not nan
                colour = "white" if value > 33 else "#333333"
                middle = {"ha": "center", "va": "center", "fontsize": 8, "color": colour}
                axes.text(x + 0.5, y + 0.5, f"{value:.0f}", **middle)
    below = [f"{hour}:00\n{shares[None, hour]:.0%}" for hour in hours]
    axes.set_xticks([x + 0.5 for x in range(len(hours))], below, fontsize=8)
    beside = [f"{NAMES[carrier]}  {shares[carrier, None]:.0%}" for carrier in carriers]
    axes.set_yticks([y + 0.5 for y in range(len(carriers))], beside)
    axes.set_xlabel("scheduled departure, local time; below it the share of all carriers")
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(TITLE, loc="left", fontsize=14, fontweight="bold")
    axes.text(0, 1.02, SUBTITLE, transform=axes.transAxes, fontsize=9, color="#555555")
    figure.colorbar(mesh, ax=axes, shrink=0.7, label="%", extend="max").outline.set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    plot(*sys.argv[1:])
