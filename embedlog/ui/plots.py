"""Plots as SVG, made here: no script draws them, and they follow the page's colours by their classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup, escape

_WIDTH: Final = 640
_HEIGHT: Final = 120
_GAP: Final = 1.0
_SIZES: Final = {"spark": (120, 28), "plot": (_WIDTH, _HEIGHT)}


def bars(values: Sequence[float], labels: Sequence[str], title: str) -> Markup:
    """A bar for each value, from left to right.

    Args:
        values: not negative.
        labels: what each bar says when the pointer is on it.
        title: what the plot shows, for those who do not see it.
    """
    top = max(values, default=0.0) or 1.0
    step = _WIDTH / max(len(values), 1)
    rects = []
    for number, (value, label) in enumerate(zip(values, labels, strict=True)):
        height = value / top * _HEIGHT if value else 0.0
        height = max(height, 1.0) if value else 0.0
        rects.append(
            f'<g><rect class="hit" x="{number * step:.2f}" y="0" width="{step:.2f}" height="{_HEIGHT}"/>'
            f'<rect class="bar" x="{number * step + _GAP / 2:.2f}" y="{_HEIGHT - height:.2f}" '
            f'width="{max(step - _GAP, 0.5):.2f}" height="{height:.2f}"/><title>{escape(label)}</title></g>'
        )
    return _svg(_WIDTH, _HEIGHT, "plot", title, "".join(rects))


def line(values: Sequence[float], title: str, *, kind: str = "spark") -> Markup:
    """A line through the values, from left to right, with the area under it.

    kind: "spark", as small as a word, or "plot", as wide as the page.
    """
    width, height = _SIZES[kind]
    if len(values) < 2:
        return _svg(width, height, kind, title, "")
    top = max(values) or 1.0
    step = width / (len(values) - 1)
    points = " ".join(
        f"{number * step:.1f},{height - 1 - value / top * (height - 2):.1f}"
        for number, value in enumerate(values)
    )
    area = f'<polygon class="area" points="0,{height} {points} {width},{height}"/>'
    return _svg(width, height, kind, title, f'{area}<polyline class="line" points="{points}"/>')


def _svg(width: int, height: int, kind: str, title: str, content: str) -> Markup:
    return Markup(  # all text in it is escaped
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" preserveAspectRatio="none" '
        f'aria-label="{escape(title)}">{content}</svg>'
    )
