"""The one error of this package: bytes that are not the message they are said to be."""

from __future__ import annotations

__all__ = ["ProtocolError"]


class ProtocolError(ValueError):
    """Bytes that cannot be decoded, or a message that cannot be encoded.

    Says which message and version, which field, and at which byte. A server closes the connection: where
    one frame is not understood, what follows cannot be trusted either.
    """
