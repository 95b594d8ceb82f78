"""--kcat-format beside kcat itself, of one broker's records."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import call
from clients import NEEDS_KCAT

import embedlog
from embedlog.cli.text import kcat_formatter
from embedlog.cluster import Broker

pytestmark = NEEDS_KCAT
EVERY_BYTE = bytes(range(256))
FORMATS = [
    *("%s", "%S", "%R", "%k", "%K", "%h", "%t", "%p", "%o", "%T", "%%", "%%s", "%s%s"),
    *(r"\n", r"\t", r"\r", r"\\", r"\\n", r"\x41", r"\x4", r"\x041", r"\x414", r"\x4g", r"\x1ff"),
    *(r"\1", r"\9", r"\65", r"\065", r"\101", r"\255", r"\q", r"\"", r"\é", "\\", "", "é", "a\nb"),
    r"%t [%p] at %o, %T: key %K %k, %S bytes: %s (%h) 100%%\x41\t|\n",
]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker with records: with headers, nulls, empty, binary. kcat ends a header at a zero byte."""
    headers = [("a", b"1"), ("b", None), ("c", b""), ("d,e", b"x=y\xff\n"), ("é", "ü".encode())]
    with Broker(None, port=0) as broker:
        broker.log.create_topic("t")
        broker.log.append("t", b"value", key=b"key", headers=headers, timestamp_ms=1_000)
        broker.log.append("t", None, key=None, timestamp_ms=2_000)
        broker.log.append("t", b"", key=b"", timestamp_ms=0)
        broker.log.append("t", EVERY_BYTE, key=EVERY_BYTE[::-1])
        yield broker.bootstrap_servers


def kcat(bootstrap: str, template: str) -> bytes:
    options = ["-t", "t", "-p", "0", "-o", "beginning", "-e", "-q", "-f", template]
    return subprocess.run(["kcat", "-C", "-b", bootstrap, *options], capture_output=True, check=True).stdout


@pytest.mark.parametrize("template", FORMATS)
@pytest.mark.slow
def test_as_kcat(bootstrap: str, template: str) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        fill = kcat_formatter(template)
        assert b"".join(map(fill, log.read("t"))) == kcat(bootstrap, template)


def test_the_command(bootstrap: str, tmp_path: Path) -> None:
    command = ["cat", "--bootstrap-server", bootstrap, "t", "--kcat-format", FORMATS[-1]]
    code, out, _ = call(command, tmp_path)
    assert (code, out) == (0, kcat(bootstrap, FORMATS[-1]))
