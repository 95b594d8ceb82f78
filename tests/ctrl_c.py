"""A signal at a chosen point: its handler runs at the n-th place at which the interpreter may run it.

Python looks for signals when a function is entered, behind each call into C, and at each jump backwards:
there and nowhere else can a handler run. `interrupt(n, work, handler)` runs work, and the handler at the n-th
of these points, so that a test can go through all of them; `strike` is Ctrl-C.
"""

from __future__ import annotations

import _weakrefset
import dis
import gc
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from embedlog.runtime.locks import interrupts

_CALLS = {
    op for name, op in dis.opmap.items() if name.startswith("CALL") and not name.startswith("CALL_INTRINSIC")
}
_CHECKED = _CALLS | {op for name, op in dis.opmap.items() if "JUMP_BACKWARD" in name}
# Ourselves, and the callbacks of weak references, out of which no exception comes.
_PASSED_OVER = {__file__, weakref.__file__, _weakrefset.__file__}
# Changes nothing, and walks down the stack: a hundred points, all the same.
_PURE = {interrupts.__code__}
_GENERATORS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR: they are resumed from C


class _Points:
    """A trace function that counts the points and raises at one of them."""

    def __init__(self, number: int, handler: Callable[[], Any]) -> None:
        self.left = number
        self._handler = handler
        self._code: dict[CodeType, bytes] = {}
        self._called: dict[FrameType, bool] = {}  # whether a frame's last call went to a Python function

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename in _PASSED_OVER or frame.f_code in _PURE:
            return None
        caller = frame.f_back
        if caller in self._called and not frame.f_code.co_flags & _GENERATORS:
            self._called[caller] = True
        frame.f_trace = self._follow(frame.f_code)  # first: from Python 3.13 on, f_trace_opcodes needs it
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._called[frame] = False
        self._pass()
        return frame.f_trace

    def _follow(self, code: CodeType) -> Callable[..., Any]:
        if code not in self._code:
            self._code[code] = code.co_code
        codes = self._code[code]
        last = 0

        def trace(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "opcode":
                before, last = last, codes[frame.f_lasti]
                to_python, self._called[frame] = self._called.get(frame, False), False
                if before in _CHECKED and not (before in _CALLS and to_python):
                    self._pass()
            elif event == "return":
                self._called.pop(frame, None)
            return trace

        return trace

    def _pass(self) -> None:
        self.left -= 1
        if self.left == -1:
            sys.settrace(None)
            self._handler()


def interrupt(number: int, work: Callable[[], Any], handler: Callable[[], Any]) -> bool:
    """Run `work`, and the handler at its n-th point (from 0). False if `work` has fewer points and completed.

    Raises the errors of both.
    """
    points = _Points(number, handler)
    before = sys.gettrace()
    gc.disable()  # what others have hung on it is no part of the work
    sys.settrace(points)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return points.left < 0


def strike(number: int, work: Callable[[], Any]) -> bool:
    """As `interrupt`, with Ctrl-C."""

    def handler() -> None:
        raise KeyboardInterrupt

    try:
        return interrupt(number, work, handler)
    except KeyboardInterrupt:
        return True
