"""Draws the pictures of docs/explanation/the-log.md: `python scripts/draw_log.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
_STYLE: Final = """
.ground { fill: #ffffff }
text { font: 14px system-ui, sans-serif; fill: #24292f }
.small { font-size: 12px; fill: #57606a }
.mono { font-family: ui-monospace, monospace; font-size: 12px }
.box { fill: #eaf1fb; stroke: #3b6db5 }
.old { fill: #f3f4f6; stroke: #9aa4b2 }
.new { fill: #e3f5e8; stroke: #2f8a4a }
.file { fill: #fff8e6; stroke: #b98900 }
line, path { stroke: #57606a; fill: none; stroke-width: 1.5 }
.tip { fill: #57606a; stroke: none }
@media (prefers-color-scheme: dark) {
  .ground { fill: #14181f } text { fill: #e6edf3 } .small { fill: #9aa7b4 }
  .box { fill: #182b45; stroke: #6ea3ee } .old { fill: #22272e; stroke: #6b7684 }
  .new { fill: #14301d; stroke: #58b877 } .file { fill: #372c0c; stroke: #d6a623 }
  line, path { stroke: #9aa7b4 } .tip { fill: #9aa7b4 }
}
"""


class Picture:
    """An SVG, built shape by shape. Lengths are in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{title}"><title>{title}</title><style>{_STYLE}</style>'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
            f'<rect class="ground" width="{width}" height="{height}"/>'
        ]

    def box(self, x: int, y: int, width: int, height: int, text: str = "", kind: str = "box") -> None:
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>')
        if text:
            self.text(x + width // 2, y + height // 2 + 5, text, anchor="middle")

    def text(self, x: int, y: int, text: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>')

    def arrow(self, x1: int, y1: int, x2: int, y2: int) -> None:
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#tip)"/>')

    def save(self, name: str) -> None:
        (IMAGES / name).write_text("\n".join([*self._parts, "</svg>"]) + "\n")


def topic() -> None:
    """A topic of three partitions, a producer and two consumers."""
    picture = Picture(
        720, 240, "A topic has partitions; records are appended at the end and read from an offset"
    )
    for partition, count in enumerate((9, 7, 8)):
        y = 50 + 60 * partition
        picture.text(10, y + 22, f"partition {partition}", "small")
        for offset in range(count):
            kind = "new" if offset == count - 1 else "box"
            picture.box(95 + 44 * offset, y, 38, 34, str(offset), kind)
        end = 95 + 44 * count
        picture.arrow(end + 60, y + 17, end + 4, y + 17)
        picture.text(end + 66, y + 22, "append", "small")
    picture.arrow(95 + 44 * 6 + 19, 28, 95 + 44 * 6 + 19, 48)
    picture.text(95 + 44 * 6 + 19, 20, "group billing: next is 6", "small", "middle")
    picture.arrow(95 + 44 * 1 + 19, 28, 95 + 44 * 1 + 19, 48)
    picture.text(95 + 44 * 1 + 19, 20, "group audit: next is 1", "small", "middle")
    picture.save("log-topic.svg")


def partition() -> None:
    """A partition's directory: segments with their indexes."""
    picture = Picture(720, 230, "A partition is a directory of segments; only the last one grows")
    names = ("00000000000", "00000052000", "00000104500")
    for number, name in enumerate(names):
        x = 20 + 235 * number
        kind = "new" if number == len(names) - 1 else "old"
        picture.box(x, 40, 210, 44, f"{name}.kafka", kind)
        picture.text(x, 30, ("sealed segment", "sealed segment", "active segment")[number], "small")
        picture.box(x, 96, 210, 30, ".index: offset to byte", "file")
        picture.box(x, 132, 210, 30, ".timeindex: time to offset", "file")
    picture.arrow(700, 62, 712, 62)
    picture.text(20, 195, "retention deletes whole segments from this end", "small")
    picture.text(700, 195, "appends go to this end", "small", "end")
    picture.arrow(18, 210, 2, 210)
    picture.save("log-partition.svg")


def durability() -> None:
    """The offsets of a partition that say what survives what."""
    picture = Picture(720, 170, "Flushed records survive a power cut, appended ones the process")
    picture.box(40, 60, 420, 40, "durable: survives a power cut", "old")
    picture.box(460, 60, 180, 40, "appended", "new")
    for x, name in ((40, "log start offset"), (460, "flushed offset"), (640, "log end offset")):
        picture.arrow(x, 40, x, 58)
        picture.text(x, 32, name, "small", "middle" if x > 40 else "start")
    picture.text(550, 120, "survives the process;", "small", "middle")
    picture.text(550, 136, "durable within a second", "small", "middle")
    picture.save("log-durability.svg")


def main() -> None:
    topic()
    partition()
    durability()


if __name__ == "__main__":
    main()
