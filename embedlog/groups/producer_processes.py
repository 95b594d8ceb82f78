"""Which process has begun with a transactional id: what it leaves open is aborted when it has ended.

    owner BOOT NAMESPACE PID START      of the process that has the log itself
    client BOOT NAMESPACE PID START     of one that asks the log's owner

The text stands in a header of the id's records in `__transaction_state`, which Kafka ignores: an owner that
takes over knows whose transactions it finds open. Clients of a broker have none. They keep their transaction
time-outs, and so do processes of other containers.
"""

from __future__ import annotations

from typing import Final

from ..runtime.processes import parsed, process_of, this_process
from ..wire.transaction_state import TransactionMetadata

HEADER: Final = "embedlog.process"
UNKNOWN: Final = ""
_OWNER, _CLIENT = "owner", "client"
_LOOK_MS: Final = 200


def owner() -> str:
    """This process, which has the log."""
    return f"{_OWNER} {this_process()}"


def client(pid: int) -> str:
    """A process that has connected to this one; UNKNOWN if its pid is unknown, 0."""
    process = process_of(pid)
    return UNKNOWN if process is None else f"{_CLIENT} {process}"


def has_ended(text: str) -> bool:
    """Whether a process of the log cannot go on with its transaction: it has ended.

    Of an owner that holds if it is another process than this one, which has its lock now.
    """
    role, _, words = text.partition(" ")
    process = parsed(words)
    if process is None:
        return False
    if role == _OWNER and process != this_process():
        return True
    return process.has_ended


def look_ms(metadata: TransactionMetadata, now_ms: int, here: str) -> int:
    """When to look at an open transaction: at its deadline, or soon if another process than `here` has it."""
    deadline_ms = metadata.start_ms + metadata.timeout_ms
    return deadline_ms if metadata.process in (UNKNOWN, here) else min(deadline_ms, now_ms + _LOOK_MS)
