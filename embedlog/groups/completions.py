"""What the coordinator of groups calls after the release of its lock: completed futures, woken members."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from ..errors import EmbedlogError
from .machines.events import JoinCompleted, JoinFailed, SyncCompleted, SyncFailed

Completion: TypeAlias = Callable[[], None]


def calling(wake: Callable[[], object]) -> Completion:
    """Wakes a member."""

    def call() -> None:
        wake()

    return call


def completion(
    effect: JoinCompleted | JoinFailed | SyncCompleted | SyncFailed, failed: EmbedlogError | None
) -> Completion:
    """Completes the future of a join or sync."""
    future = effect.request
    assert isinstance(future, Future)

    def complete() -> None:
        if not future.set_running_or_notify_cancel():
            return
        if failed is not None:
            future.set_exception(failed)
        elif isinstance(effect, (JoinFailed, SyncFailed)):
            future.set_exception(effect.error)
        elif isinstance(effect, SyncCompleted):
            future.set_result(effect.assignment)
        else:
            future.set_result(effect.result)

    return complete
