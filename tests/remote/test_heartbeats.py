"""The thread that keeps the members of a client alive."""

from __future__ import annotations

import threading

from embedlog.backends.remote.heartbeats import Heartbeats, LocalMember
from embedlog.errors import IllegalGeneration


def test_a_heartbeat_of_the_generation_before_ends_nothing() -> None:
    """It was under way while its member joined again: the coordinator is a generation ahead of it."""
    under_way, has_joined, has_ended = threading.Event(), threading.Event(), threading.Event()

    def beat(member: LocalMember) -> None:
        if member.generation == 1:
            under_way.set()
            has_joined.wait()
            raise IllegalGeneration("group 'g' is in generation 2, not 1: join again")

    def member(generation: int) -> LocalMember:
        return LocalMember("g", "m", None, 60.0, has_ended.set, generation)

    heartbeats = Heartbeats(beat, lambda _: None, interval_s=0.001)
    try:
        heartbeats.add(member(1))
        under_way.wait()
        heartbeats.remove("g", "m")
        heartbeats.add(member(2))
        has_joined.set()
        has_ended.wait()
        heartbeats.visit("g", "m")  # raises UnknownMember if the new one is gone
    finally:
        heartbeats.close()
