"""The error of this package: bytes that are not the message they claim to be."""

from __future__ import annotations

__all__ = ["ProtocolError"]


class ProtocolError(ValueError):
    """Bytes that cannot be decoded, or a message that cannot be encoded.

    Names the message, its version, the field and the byte. A server closes the connection: after a frame that
    it cannot read, it cannot trust the next one.
    """
