"""The end of a process of a pool, which does not run the functions given to atexit.

    multiprocessing    a forked process ends by os._exit, after multiprocessing's finalizers
    Celery's prefork   ends by os._exit, after the receivers of the signal worker_process_shutdown

A process that is killed runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from multiprocessing.util import Finalize

_LAST: Final = -100  # after the process's own finalizers, and after its children have ended
_CELERY_ID: Final = "embedlog"

_finalizers: dict[Callable[[], None], Finalize] = {}


def at_pool_exit(function: Callable[[], None]) -> None:
    """Call a function once at the end of this process if it belongs to a pool.

    Call it in the process itself: a child that it forks may forget. It looks only at libraries that are
    imported already.
    """
    if "multiprocessing.util" in sys.modules:
        _at_exit_of_multiprocessing(function)
    signal = getattr(sys.modules.get("celery.signals"), "worker_process_shutdown", None)
    if signal is not None:
        _at_exit_of_celery(signal, function)


def _at_exit_of_multiprocessing(function: Callable[[], None]) -> None:
    from multiprocessing import parent_process
    from multiprocessing.util import Finalize

    if parent_process() is None:
        return
    finalizer = _finalizers.get(function)
    # multiprocessing drops those of the parent after the fork
    if finalizer is None or not finalizer.still_active():
        _finalizers[function] = Finalize(None, function, exitpriority=_LAST)


def _at_exit_of_celery(signal: Any, function: Callable[[], None]) -> None:
    """After the receivers that are connected so far, which may use what the function closes."""
    signal.disconnect(dispatch_uid=_CELERY_ID)
    signal.connect(lambda **_: function(), weak=False, dispatch_uid=_CELERY_ID)
