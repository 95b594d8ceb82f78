"""`async for record in consumer`, compiled by Cython: see `plain_iteration`."""

from time import monotonic

import cython

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_iteration is its twin")

_monotonic = cython.declare(object, monotonic)


@cython.cclass
class Iteration:
    """See `plain_iteration`."""

    def __init__(self, consumer):
        self._consumer = consumer

    def __aiter__(self):
        return self

    def __anext__(self):
        # One that another task awaits, or that was never awaited, remains what it is.
        step: Iteration = self if not self._asked else Iteration(self._consumer)
        step._asked = True
        return step

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        """Cython's slot for this is replaced by `set_send`."""

    def throw(self, kind, error=None, traceback=None):
        """Raise an error in the await that waits, as `coroutine.throw`."""
        waiting = self._waiting
        try:
            if waiting is None:
                raise kind if error is None else error
            return waiting.throw(kind if error is None else error)
        except BaseException:
            self._waiting = None
            self._asked = False
            raise

    def close(self):
        """End the await that waits, as `coroutine.close`."""
        waiting, self._waiting = self._waiting, None
        self._asked = False
        if waiting is not None:
            waiting.close()

    def _at_hand(self):
        """The next record; None if none is at hand, or if a turn is due."""
        if self._core is None:
            self._core = self._consumer._core
            if self._core is None:
                return None
            self._interrupt = self._core._interrupt
        if self._interrupt.is_set or _monotonic() >= self._core._due:
            return None
        for record in self._core._left:
            return record
        return None


def _send(iteration, value, result):
    """What the interpreter calls, again and again, until it returns PYGEN_RETURN."""
    self: Iteration = cython.cast(Iteration, iteration)
    waiting = self._waiting
    if waiting is None:
        if not self._asked:
            raise RuntimeError("cannot await anext() of a consumer twice")
        self._asked = False
        record = self._at_hand()
        if record is not None:
            Py_INCREF(record)
            result[0] = cython.cast(cython.pointer(PyObject), record)
            return PYGEN_RETURN
        waiting = self._waiting = self._consumer.__anext__()
        self._asked = True
    sent: PySendResult = PYGEN_ERROR
    try:
        sent = PyIter_Send(waiting, value, result)
    finally:
        if sent != PYGEN_NEXT:
            self._waiting = None
            self._asked = False
    return sent


set_send(cython.cast(cython.pointer(PyTypeObject), Iteration), _send)
