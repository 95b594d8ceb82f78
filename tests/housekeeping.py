"""Background work on demand, for tests whose store has no threads or does not wait for them."""

from __future__ import annotations

from embedlog.store.store import Store


def housekeep(store: Store) -> None:
    """Run all background work now, in this thread, whether due or not."""
    flusher, background = store.flusher, store.background
    with flusher._lock:  # as if everything had waited since 1970
        flusher._dirty = dict.fromkeys(flusher._dirty, 0)
        flusher._ahead = dict.fromkeys(flusher._ahead, 0)
    for scheduler in (background.flusher, background.cleaner):
        for task in list(scheduler._tasks.values()):
            task()
