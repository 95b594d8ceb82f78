"""New connections that authenticate, beside those that do not, over loopback.

The broker runs in a process of its own. The client knows the salted password already: of SCRAM's iterations
neither side computes any, which is what a broker always does. CPU is the broker's, for each connection.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from embedlog.security.scram import salted_password
from embedlog.wire.apis.metadata import MetadataRequest
from embedlog.wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from embedlog.wire.apis.sasl_handshake import SaslHandshakeRequest

from .broker import connected, frame_of, receive_frame, serving
from .measure import Contender, Prepare, Row, Sample, Work, cpu_seconds
from .servers import PASSWORD, USER

_MECHANISM: Final = "SCRAM-SHA-256"
_KINDS: Final = {"with SCRAM-SHA-256": "sasl", "without": "broker"}
_HEADER: Final = 9  # length, correlation id, and no tags


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of connections."""
    count = int(2_000 * scale)
    contenders = [Contender(name, _preparing(kind, count)) for name, kind in _KINDS.items()]
    return [Row("new connections by SCRAM", "connections/s", True, contenders)]


def _preparing(kind: str, count: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with serving(kind, where) as served:
            client = _Client(served.port)
            client.connect(kind == "sasl")  # learns the salt

            def work() -> Sample:
                cpu_s, began = cpu_seconds(served.pid), time.perf_counter()
                for _ in range(count):
                    client.connect(kind == "sasl")
                rate = count / (time.perf_counter() - began)
                return Sample(rate, (cpu_seconds(served.pid) - cpu_s) / count * 1e6)

            yield work

    return prepare


class _Client:
    """Connects, and authenticates by RFC 5802 where it is asked to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = bytearray(1 << 16)
        self._salted: dict[tuple[bytes, int], bytes] = {}
        self._ask = frame_of(MetadataRequest(topics=[]), 4)
        self._begin = frame_of(SaslHandshakeRequest(mechanism=_MECHANISM), 1)

    def connect(self, authenticates: bool) -> None:
        with connected(self._port) as connection:

            def exchange(frame: bytes) -> bytes:
                connection.sendall(frame)
                return bytes(self._buffer[: receive_frame(connection, self._buffer)])

            def token(data: bytes) -> bytes:
                answer = exchange(frame_of(SaslAuthenticateRequest(auth_bytes=data), 2))
                decoded = SaslAuthenticateResponse.decode(answer, 2, _HEADER)
                assert decoded.error_code == 0, decoded.error_message
                return bytes(decoded.auth_bytes)

            if authenticates:
                exchange(self._begin)
                first = f"n={USER},r=client".encode()
                challenge = token(b"n,," + first)
                parts = dict(part.split(b"=", 1) for part in challenge.split(b","))
                final = b"c=biws,r=" + parts[b"r"]
                key = self._client_key(base64.b64decode(parts[b"s"]), int(parts[b"i"]))
                signed = b",".join((first, challenge, final))
                signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
                proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
                token(final + b",p=" + base64.b64encode(proof))
            exchange(self._ask)

    def _client_key(self, salt: bytes, iterations: int) -> bytes:
        salted = self._salted.get((salt, iterations))
        if salted is None:
            salted = salted_password(_MECHANISM, PASSWORD.encode(), salt, iterations)
            self._salted[salt, iterations] = salted
        return hmac.digest(salted, b"Client Key", "sha256")
