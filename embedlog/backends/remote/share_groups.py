"""Share groups of a log that another process owns: asks the owner (../share_requests.py has the requests).

An acquire is asked for ten seconds at a time, each time under another member name: the member's and a number.
If the owner ends, the request is repeated to the next one, which then knows whether it was executed.

Accepts of several threads that come while a request with accepts is under way share the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from itertools import islice
from typing import Any, Final

from ...errors import EmbedlogError
from ...model import (
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    ShareGroupDescription,
    ShareGroupOptions,
    SharePartitionDescription,
)
from ...runtime.futures import new_future
from ...storage.group_commit import GroupCommit, Waiter
from ...validation import check_int
from ..log_requests import error_named
from ..share_requests import ACKNOWLEDGE, ACQUIRE, as_released
from .maintenance import AskAgain

_LONGEST_WAIT_MS: Final = 10_000  # of one request
_SENT: Final = 0  # a waiter's target that is reached at once


class ShareCalls:
    """Implements `coordinators.ShareCoordinator` by asking the owner. Thread-safe.

    A waiting acquire takes a thread of this process, and a connection. Deliveries have no records: the caller
    reads the files.

    Args:
        ask: sends a request and returns its result; raises the owner's error.
    """

    keeps_delays = True

    def __init__(self, ask: AskAgain) -> None:
        self._ask = ask
        self._numbers = itertools.count(1)
        self._accepting: dict[tuple[str, str, bool], _AcceptRequests] = {}  # by what they have in common

    def prepare(self, group: str, options: ShareGroupOptions) -> None:
        pass

    def acquire(
        self,
        group: str,
        topic: str,
        member_id: str,
        *,
        max_records: int,
        max_wait_ms: int,
        options: ShareGroupOptions,
    ) -> Future[list[Delivery]]:
        check_int("max_records", max_records, low=1)
        check_int("max_wait_ms", max_wait_ms, low=0)
        future: Future[list[Delivery]] = new_future()
        common_arguments = {"group": group, "topic": topic, "max_records": max_records, "options": [*options]}
        deadline = time.monotonic() + max_wait_ms / 1000

        def run() -> None:
            try:
                deliveries = self._acquired(common_arguments, member_id, deadline, future)
            except BaseException as error:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(error)
                return
            try:
                future.set_result(deliveries)
            except InvalidStateError:  # it was cancelled
                with contextlib.suppress(EmbedlogError):  # then their locks expire
                    self.acknowledge(group, topic, as_released(deliveries))

        threading.Thread(target=run, name="embedlog-acquire", daemon=True).start()
        return future

    def _acquired(
        self,
        common_arguments: Mapping[str, Any],
        member_id: str,
        deadline: float,
        future: Future[list[Delivery]],
    ) -> list[Delivery]:
        while True:
            left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
            number = next(self._numbers)
            arguments = {
                **common_arguments,
                "member": f"{member_id}/{number}",
                "max_wait_ms": min(left_ms, _LONGEST_WAIT_MS),
                "again": False,
            }
            acquired = self._ask(ACQUIRE, arguments, {"again": True})
            if acquired or left_ms <= _LONGEST_WAIT_MS or future.cancelled():
                return [Delivery(*fields) for fields in acquired]

    def acknowledge(
        self, group: str, topic: str, acknowledgements: Sequence[Acknowledgement], *, flush: bool = False
    ) -> list[EmbedlogError | None]:
        key = group, topic, flush
        if any(acknowledgement.type != AcknowledgeType.ACCEPT for acknowledgement in acknowledgements):
            return self._acknowledge(*key, acknowledgements)  # in one request with an accept, either is late
        requests = self._accepting.get(key)
        if requests is None:
            requests = self._accepting.setdefault(key, _AcceptRequests(partial(self._acknowledge, *key)))
        return requests.accept(acknowledgements)

    def _acknowledge(
        self, group: str, topic: str, flush: bool, acknowledgements: Sequence[Acknowledgement]
    ) -> list[EmbedlogError | None]:
        arguments = {"group": group, "topic": topic, "acknowledgements": acknowledgements, "flush": flush}
        return [
            None if error is None else error_named(*error) for error in self._ask(ACKNOWLEDGE, arguments, {})
        ]

    def release_member(self, group: str, topic: str, member_id: str) -> None:
        self._ask("share_release", {"group": group, "topic": topic, "member": member_id}, {})

    def list_share_groups(self) -> list[tuple[str, str]]:
        return [(group, topic) for group, topic in self._ask("share_list", {}, {})]

    def describe_share_group(self, group: str, topic: str) -> ShareGroupDescription:
        partitions = self._ask("share_describe", {"group": group, "topic": topic}, {})
        return ShareGroupDescription(
            group, topic, tuple(SharePartitionDescription(*fields) for fields in partitions)
        )

    def delete_share_group(self, group: str, topic: str) -> None:
        self._ask("share_delete", {"group": group, "topic": topic}, {})


class _Accepts(Waiter):
    """The accepts of one thread, and what came of them."""

    __slots__ = ("acknowledgements", "results")

    def __init__(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        super().__init__(-1)
        self.acknowledgements = acknowledgements
        self.results: list[EmbedlogError | None] = []


class _AcceptRequests:
    """Sends one request with accepts at a time; the next one takes along all that wait meanwhile."""

    def __init__(self, send: Callable[[Sequence[Acknowledgement]], list[EmbedlogError | None]]) -> None:
        self._send = send
        self._rounds = GroupCommit(self._serve, lambda: _SENT)

    def accept(self, acknowledgements: Sequence[Acknowledgement]) -> list[EmbedlogError | None]:
        """Returns when they are executed. Raises the request's error."""
        accepts = _Accepts(acknowledgements)
        self._rounds.wait(accepts)
        return accepts.results

    def _serve(self, waiters: Sequence[Waiter]) -> None:
        served = [waiter for waiter in waiters if isinstance(waiter, _Accepts)]
        try:
            results = iter(self._send([accept for accepts in served for accept in accepts.acknowledgements]))
        except EmbedlogError as error:
            for accepts in served:  # each thread raises one of its own
                accepts.error = error_named(type(error).__name__, str(error))
        else:
            for accepts in served:
                accepts.results = list(islice(results, len(accepts.acknowledgements)))
                accepts.target = _SENT
