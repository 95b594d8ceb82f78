"""What a connection needs from those around it: the loop that owns it, the application that answers it.

Both know connections, so their kind is a parameter here: this file imports none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias, TypeVar

from .frame_memory import FrameMemory
from .handshakes import Handshakes
from .outbox import Chunk
from .unauthenticated import Candidates

_Served = TypeVar("_Served", contravariant=True)
_Owned = TypeVar("_Owned")

EncodedResponse: TypeAlias = "Sequence[Chunk] | Future[Sequence[Chunk]]"


class Application(Protocol[_Served]):
    """Handles the frames that a server receives."""

    def handle(self, connection: _Served, frame: memoryview) -> bytes | EncodedResponse:
        """The response to one frame, given without its length, now (whole, or in chunks) or later.

        `frame` is valid until this returns. Any thread may complete a future; it is cancelled when the
        connection closes. Raises CloseConnection.
        """

    def on_half_close(self, connection: _Served) -> None:
        """The client sends no more and may have disconnected: complete its pending request now.

        In the loop's thread. May close the connection.
        """

    def on_gone(self, host: str) -> None:
        """The last connection from this host, or of this process of the machine, has closed."""

    def on_close(self, connection: _Served) -> None:
        """A connection has closed. In the loop's thread."""


class Cancellable(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class EventLoop(Protocol[_Owned]):
    """What a connection and the handlers of its requests need from the processor that owns it."""

    application: Application[_Owned]
    frame_memory: FrameMemory
    max_frame_bytes: int
    now: float  # of time.monotonic, as of this turn
    share_s: float  # of a connection, in this turn
    bytes_in: int
    bytes_out: int
    too_slow: int  # connections closed because a request arrived too slowly

    @property
    def unsent_bytes(self) -> int:
        """The bytes of responses in memory that clients have not read yet."""

    @property
    def may_wait(self) -> bool:
        """Whether a request may wait for a disk in the loop's thread: no other connection waits with it."""

    def post(self, callback: Callable[[], object]) -> None:
        """Call it in the loop's thread soon. From any thread."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Cancellable:
        """Call it after delay_s."""

    def watch(self, connection: _Owned, events: int) -> None:
        """Poll the connection for READ, WRITE, both or nothing from now on."""

    @property
    def candidates(self) -> Candidates:
        """The connections that have not authenticated."""

    def serve_next_turn(self, connection: _Owned) -> None:
        """Call its `serve_deferred` in the next turn."""

    def read_next_turn(self, connection: _Owned) -> None:
        """Call its `on_readable` in the next turn, if it is watched for READ then."""

    @property
    def handshakes(self) -> Handshakes:
        """The TLS handshakes that are open."""

    def remove(self, connection: _Owned) -> None:
        """Forget a connection that closes."""
