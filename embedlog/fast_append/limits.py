"""Numbers that the compiled and the plain fast paths share."""

from __future__ import annotations

from typing import Final

CLOSE: Final = 16
"""After this many durable appends, the next one that extends the file may write zeros ahead of it."""

RECORD_MEMORY: Final = 256
"""Bytes that a buffered record takes besides its own: its future, and spare room in the batch's buffer."""
