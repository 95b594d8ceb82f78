"""What a client speaks that begins with something else than it should, for the log."""

from __future__ import annotations

from typing import Final

_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI")


def of_a_length(first_bytes: bytes) -> str:
    """Explains what would be, on a plaintext listener, the length of a request that is too long."""
    if first_bytes[:4] in _HTTP:
        return " (this is HTTP; the port speaks Kafka's protocol)"
    if first_bytes[:2] == b"\x16\x03":
        return " (this is TLS; the listener is plaintext: the client has another security.protocol)"
    return ""


def of_tls(first_bytes: bytes) -> str:
    """Explains what is no ClientHello on a listener with TLS."""
    if first_bytes[:4] in _HTTP:
        return "the client speaks HTTP without TLS; the port speaks Kafka's protocol over TLS"
    if first_bytes[0] == 0:  # of the length of a request
        return "the client speaks Kafka's protocol without TLS: set security.protocol in its configuration"
    return "the client does not speak TLS"
