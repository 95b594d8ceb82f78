"""Share groups of a log that another process owns: requests by name, with arguments and result in JSON.

    share_acquire        {"group", "topic", "member", "max_records", "max_wait_ms", "options", "again"}
                         -> [[partition, offset, delivery_id, delivery_count], ...]
    share_acknowledge    {"group", "topic", "acknowledgements": [[partition, offset, ...], ...], "flush"}
                         -> [null or [name of an error, message], ...]
    share_release        {"group", "topic", "member"}
    share_list           {} -> [[group, topic], ...]
    share_describe       {"group", "topic"} -> [[partition, start_offset, ...], ...]
    share_delete         {"group", "topic"}

An acquire waits in the owner without a thread: its response is a future. The others are executed at once.

All may be sent again when an owner has ended, to the next one. An acknowledgement is recognized. An acquire
has a number in its member's name, under which its records are locked: with "again" the response that was lost
is given once more. A response that is no longer wanted releases its records, uncounted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from ..config import MAX_INT32
from ..errors import InvalidArgument
from ..model import (
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    ShareGroupOptions,
    SharePartitionDescription,
)
from ..validation import check_flag, check_int, check_text
from .owned_log import OwnedLog

ACQUIRE: Final = "share_acquire"
ACKNOWLEDGE: Final = "share_acknowledge"
_LONGEST_DELAY_MS: Final = 1 << 53


def as_released(deliveries: Sequence[Delivery]) -> list[Acknowledgement]:
    """Acknowledgements that release deliveries uncounted."""
    return [Acknowledgement(*delivery[:3], AcknowledgeType.RELEASE, counted=False) for delivery in deliveries]


class ShareRequests:
    """Executes requests about share groups of a log that this process owns. Thread-safe."""

    def __init__(self, log: OwnedLog) -> None:
        self._log = log
        self.execute: dict[str, Callable[[Mapping[str, Any]], object]] = {
            ACKNOWLEDGE: self._acknowledge,
            "share_release": self._release,
            "share_list": lambda _: log.share_coordinator.list_share_groups(),
            "share_describe": self._describe,
            "share_delete": self._delete,
        }

    def acquire(self, arguments: Mapping[str, Any]) -> Future[list[Delivery]]:
        """Begin an acquire. Raises InvalidArgument."""
        with _parsing():
            lock_ms, max_deliveries, ordered_by_key, dead_letter_topic = arguments["options"]
            max_records, max_wait_ms = arguments["max_records"], arguments["max_wait_ms"]
            again = arguments["again"]
        check_int("lock_ms", lock_ms, high=MAX_INT32)
        check_int("max_wait_ms", max_wait_ms, high=MAX_INT32)
        check_int("max_deliveries", max_deliveries)
        check_flag("ordered_by_key", ordered_by_key)
        check_flag("again", again)
        if dead_letter_topic is not None:
            check_text("dead_letter_topic", dead_letter_topic)
        return self._log.share_coordinator.acquire(
            *_names(arguments, "group", "topic", "member"),
            max_records=max_records,
            max_wait_ms=max_wait_ms,
            options=ShareGroupOptions(lock_ms, max_deliveries, ordered_by_key, dead_letter_topic),
            with_records=False,
            again=again,
        )

    def give_back(self, arguments: Mapping[str, Any], deliveries: Sequence[Delivery]) -> None:
        """Release the records of an acquire whose response is not wanted. Raises as acknowledge."""
        group, topic = _names(arguments, "group", "topic")
        self._log.share_coordinator.acknowledge(group, topic, as_released(deliveries))

    def _acknowledge(self, arguments: Mapping[str, Any]) -> list[tuple[str, str] | None]:
        group, topic = _names(arguments, "group", "topic")
        with _parsing():
            flush = arguments["flush"]
            acknowledgements = [_acknowledgement(fields) for fields in arguments["acknowledgements"]]
        check_flag("flush", flush)
        results = self._log.share_coordinator.acknowledge(group, topic, acknowledgements, flush=flush)
        return [None if error is None else (type(error).__name__, str(error)) for error in results]

    def _release(self, arguments: Mapping[str, Any]) -> None:
        self._log.share_coordinator.release_member(*_names(arguments, "group", "topic", "member"))

    def _describe(self, arguments: Mapping[str, Any]) -> tuple[SharePartitionDescription, ...]:
        group, topic = _names(arguments, "group", "topic")
        return self._log.share_coordinator.describe_share_group(group, topic).partitions

    def _delete(self, arguments: Mapping[str, Any]) -> None:
        self._log.share_coordinator.delete_share_group(*_names(arguments, "group", "topic"))


def _acknowledgement(fields: Sequence[Any]) -> Acknowledgement:
    acknowledgement = Acknowledgement(*fields)
    check_int("partition", acknowledgement.partition)
    check_int("offset", acknowledgement.offset)
    check_int("delivery_id", acknowledgement.delivery_id)
    check_int("delay_ms", acknowledgement.delay_ms, low=0, high=_LONGEST_DELAY_MS)
    check_flag("counted", acknowledgement.counted)
    check_text("error", acknowledgement.error)
    check_int("delivery_count", acknowledgement.delivery_count)
    return acknowledgement._replace(type=AcknowledgeType(acknowledgement.type))


def _names(arguments: Mapping[str, Any], *names: str) -> list[str]:
    with _parsing():
        texts = [arguments[name] for name in names]
    for name, text in zip(names, texts, strict=True):
        check_text(name, text)
    return texts


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Raises InvalidArgument for arguments of another form."""
    try:
        yield
    except InvalidArgument:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"not the arguments of a request ({type(error).__name__}: {error})") from error
