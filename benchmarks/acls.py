"""Small requests to a broker that decides by 10,000 ACLs, beside the same broker without an authorizer.

The broker runs in a process of its own, this process is its client. CPU is the broker's, per request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from embedlog.codec import encode_batch

from .broker import connected, fetch, make_topic, produce, receive_frame, serving
from .measure import Contender, Prepare, Row, Sample, Work, cpu_seconds

_KINDS: Final = {"with 10,000 ACLs": "acls", "without an authorizer": "broker"}
_BYTES: Final = 100


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of requests."""
    times = int(50_000 * scale)
    return [_row(f"{what} requests of {_BYTES} B with ACLs", what, times) for what in ("produce", "fetch")]


def _row(title: str, what: str, times: int) -> Row:
    contenders = [Contender(name, _asking(kind, what, times)) for name, kind in _KINDS.items()]
    return Row(title, "requests/s", True, contenders)


def _asking(kind: str, what: str, times: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with serving(kind, where) as served, connected(served.port) as connection:
            make_topic(connection)
            buffer = bytearray(1 << 16)
            producing = produce(bytes(encode_batch([(None, bytes(_BYTES), (), 1_700_000_000_000)])))
            frame = producing if what == "produce" else fetch(0, 2 * _BYTES)

            def ask(frame: bytes, times: int) -> None:
                for _ in range(times):
                    connection.sendall(frame)
                    receive_frame(connection, buffer)

            ask(producing, 1)
            ask(frame, 100)

            def work() -> Sample:
                cpu_s, started = cpu_seconds(served.pid), time.perf_counter()
                ask(frame, times)
                took_s = time.perf_counter() - started
                return Sample(times / took_s, (cpu_seconds(served.pid) - cpu_s) / times * 1e6)

            yield work

    return prepare
