"""The memory that large requests hold while they arrive: a limit for all, and one for each client address.

A frame that is refused memory waits until other frames release theirs. To rule out a deadlock, in which every
frame holds a part and waits for the rest, one frame per address and one frame of all may always grow, up to
the frame limit.

Invariant: everything happens in the processor's thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

_FIRST_BYTES: Final = 1 << 20  # initial buffer of a large frame; doubled as it fills
_FIRST_BYTES_IF_SHORT: Final = 64 << 10  # the same when more than half of a limit is in use
_SPARE_BYTES: Final = 4 << 20


class FrameOwner(Protocol):
    """A connection on which a large frame arrives."""

    host: str
    closed: bool

    def resume_frame(self) -> None:
        """Memory has been released: continue receiving."""


class FrameMemory:
    """Allocates the buffers of large frames.

    Args:
        max_bytes: held by all frames together.
        max_bytes_per_ip: of that, held by frames from one address.
    """

    def __init__(self, max_bytes: int, max_bytes_per_ip: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._max_bytes_per_ip = max_bytes_per_ip
        self._held_bytes_by_host: Counter[str] = Counter()
        self._spare: bytearray | None = None
        self._favoured: FrameOwner | None = None
        self._favoured_by_host: dict[str, FrameOwner] = {}
        self._waiting: list[FrameOwner] = []

    def allocate(self, owner: FrameOwner, size: int, received: int) -> bytearray:
        """The first buffer of a frame of `size` bytes: at least `received` bytes, which are there already.

        It may be larger than the frame: reusing a buffer is much faster than allocating one.
        """
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) >= received:
            buffer = spare
        else:
            has_plenty = (
                self.held_bytes + _FIRST_BYTES <= self._max_bytes // 2
                and self._held_bytes_by_host[owner.host] + _FIRST_BYTES <= self._max_bytes_per_ip // 2
            )
            first_bytes = _FIRST_BYTES if has_plenty else _FIRST_BYTES_IF_SHORT
            buffer = bytearray(max(min(size, first_bytes), received))
        self._count(owner, len(buffer))
        return buffer

    def grow(self, owner: FrameOwner, buffer: bytearray, frame_size: int) -> bytearray | None:
        """A buffer of twice the size, at most frame_size, with the same contents.

        None if a limit is reached: `resume_frame` is called when memory has been released.
        """
        if not self._may_grow(owner, len(buffer)):
            return None
        grown = bytearray(min(frame_size, 2 * len(buffer)))
        grown[: len(buffer)] = buffer
        self._count(owner, len(grown) - len(buffer))
        return grown

    def release(self, owner: FrameOwner, buffer: bytearray, *, reuse: bool) -> None:
        """The frame has been handled, or is given up. `reuse`: nothing refers to the buffer any more."""
        if reuse and self._spare is None and len(buffer) <= _SPARE_BYTES:
            self._spare = buffer
        self._count(owner, -len(buffer))
        if self._favoured is owner:
            self._favoured = None
        if self._favoured_by_host.get(owner.host) is owner:
            del self._favoured_by_host[owner.host]
        if not self._held_bytes_by_host[owner.host]:
            del self._held_bytes_by_host[owner.host]
        waiting, self._waiting = self._waiting, []
        for waiting_owner in waiting:
            if not waiting_owner.closed:
                waiting_owner.resume_frame()

    def _may_grow(self, owner: FrameOwner, size: int) -> bool:
        if self._favoured is owner:
            return True
        host = owner.host
        if (
            self._held_bytes_by_host[host] + size > self._max_bytes_per_ip
            and self._favoured_by_host.setdefault(host, owner) is not owner
        ):
            self._waiting.append(owner)
            return False
        if self.held_bytes + size > self._max_bytes:
            if self._favoured is not None:
                self._waiting.append(owner)
                return False
            self._favoured = owner
        return True

    def _count(self, owner: FrameOwner, size: int) -> None:
        self.held_bytes += size
        self._held_bytes_by_host[owner.host] += size
