"""Draws the terminal of README and the docs: `python scripts/draw_terminal.py [DIRECTORY]`.

Runs the commands on a pseudo-terminal and draws what they print, in their colours. The picture goes to
docs/images/terminal.svg, or into DIRECTORY.
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS: Final = 92
COMMANDS: Final = (
    "embedlog top ./shop --once",
    "embedlog groups describe ./shop billing",
    'embedlog sql ./shop "SELECT page, count(*) views FROM clicks GROUP BY 1 ORDER BY 2 DESC"',
)
# Runs while the commands look, so that there are rates.
SHOP: Final = """
import random, time, embedlog
log = embedlog.open("./shop", shared=True)
log.create_topic("clicks", partitions=4, compression_type="zstd")
log.create_topic("orders", partitions=2)
mails = log.queue("mails", group="mailers", max_deliveries=1)
for number in range(40):
    mails.send(b"welcome customer %d" % number)
for number in range(9):
    job = mails.take(timeout_ms=1_000)
    if number == 3:
        job.reject("no such address")
    elif number < 7:
        job.accept()
random.seed(7)
def clicks():
    pages = random.choices("/ /search /item /cart /pay".split(), (9, 7, 6, 3, 1), k=100)
    return [
        (b"user-%d" % random.randrange(500), b'{"page": "%s"}' % page.encode())
        for page in pages
    ]
for _ in range(400):
    log.append_many("clicks", clicks())
    log.append_many("orders", [b'{"total": 12}'] * 9)
with log.consumer("clicks", group="billing") as consumer:
    taken = len(consumer.poll(1_000, max_records=500))
    consumer.commit()
    print("running", flush=True)
    while True:
        log.append_many("clicks", clicks())
        log.append_many("orders", [b'{"total": 12}'] * 5)
        consumer.poll(0, max_records=300)
        consumer.commit()
        time.sleep(0.05)
"""
# Black, red, green, yellow, blue, magenta, cyan, white.
COLOURS: Final = [
    (20, 24, 31),
    (255, 123, 114),
    (88, 184, 119),
    (214, 166, 35),
    (110, 163, 238),
    (200, 140, 230),
    (94, 200, 210),
    (230, 237, 243),
]
THEME: Final = TerminalTheme(COLOURS[0], COLOURS[-1], COLOURS, COLOURS)
# rich's own frame names fonts on another machine.
FRAME: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>The command line: rates, the lag of a group, a query</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace;
font-size: {char_height}px; line-height: {line_height}px }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#14181f"/>
<g transform="translate(16, 14)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def on_a_terminal(command: str, directory: Path) -> str:
    """What a command prints to a terminal."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, COLUMNS))
    shown = b""
    with subprocess.Popen(
        command.replace("embedlog", f"{sys.executable} -m embedlog", 1),
        shell=True,
        cwd=directory,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
        stdin=its,
        stdout=its,
    ):
        os.close(its)
        try:
            while more := os.read(ours, 65_536):
                shown += more
        except OSError:  # Linux: the terminal's other side is closed
            pass
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def main(target: Path) -> None:
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    with tempfile.TemporaryDirectory() as directory:
        shop = subprocess.Popen(
            [sys.executable, "-c", SHOP], cwd=directory, stdout=subprocess.PIPE, text=True
        )
        try:
            assert shop.stdout is not None
            assert shop.stdout.readline() == "running\n"
            for number, command in enumerate(COMMANDS):
                if number:
                    console.print()
                console.print(Text.assemble(("$ ", "bold green"), (command, "bold")), soft_wrap=True)
                console.print(Text.from_ansi(on_a_terminal(command, Path(directory)).rstrip("\n")))
        finally:
            shop.terminate()
            shop.wait()
    drawn = console.export_svg(theme=THEME, code_format=FRAME, unique_id="terminal")
    (target / "terminal.svg").write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
