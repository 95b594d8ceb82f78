"""What other processes ask of a log's owner: requests by name, with arguments and result in JSON.

    LogCalls       the caller's side: methods, which ask by `ask(name, arguments)`
    LogRequests    the owner's side: executes requests on its log; share_requests.py has more of them

    append_staged    {"transaction_id", "batch_id", "once", "appends": [{"topic", "partition", "files"}, ...]}
                     -> whether it was done just now; see store/atomic_append.py
    commit_offsets   {"group", "offsets": [{"topic", "partition", "offset", "leader_epoch", "metadata"}, ...]}
    discard          {"set"} -> how many staged files were removed
    abort_transaction  {"transactional_id"}
    flush            {}
    reopen           {"topic", "partition"} -> a PartitionRecovery, or null
    compact          {"topic"} -> bytes freed
    backup           {"destination"}
    health           {} -> a Health
    recovery         {} -> a RecoveryReport

FOR_TOOLS are those that the owner of a log that is not shared executes, too. All but backup may be executed
twice: the second time changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from .. import errors
from ..errors import EmbedlogError, InvalidArgument, InvalidType, StorageError, shown
from ..model import CommittedOffset, Health, PartitionRecovery, RecoveryReport, TopicPartition
from ..store.atomic_append import append_atomically, discard, tidy_staging
from ..validation import check_int, check_text
from .owned_log import OwnedLog
from .share_requests import ShareRequests

Ask: TypeAlias = Callable[[str, Mapping[str, Any]], Any]

FOR_TOOLS: Final = frozenset({"abort_transaction", "append_staged", "commit_offsets", "discard"})


# -- the caller's side -------------------------------------------------------------------------------------


class LogCalls:
    """Implements `port.Maintenance`, health, and what tools need, by asking the owner. Thread-safe.

    Args:
        ask: sends a request and returns its result; raises the owner's error.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def append_staged(
        self,
        transaction_id: str,
        batch_id: int,
        staged: Mapping[TopicPartition, str | Sequence[str]],
        *,
        once: bool = False,
    ) -> bool:
        """Append staged files to their partitions, all or none; durable on return.

        Arguments, result and errors as atomic_append.append_atomically.
        """
        appends = [
            {"topic": topic, "partition": partition, "files": [files] if isinstance(files, str) else [*files]}
            for (topic, partition), files in staged.items()
        ]
        arguments = {
            "transaction_id": transaction_id,
            "batch_id": batch_id,
            "once": once,
            "appends": appends,
        }
        return bool(self._ask("append_staged", arguments))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets of a group without members.

        Raises InvalidGroup, InvalidCommit, GroupError (it has members), StorageError.
        """
        commits = [
            {
                "topic": topic,
                "partition": partition,
                "offset": committed.offset,
                "leader_epoch": committed.leader_epoch,
                "metadata": committed.metadata,
            }
            for (topic, partition), committed in offsets.items()
        ]
        self._ask("commit_offsets", {"group": group, "offsets": commits})

    def discard(self, chosen: str) -> int:
        """Remove the staged files of a set (staging.set_of); returns how many. Raises StorageError."""
        return int(self._ask("discard", {"set": chosen}))

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id.

        Raises TransactionNotFound, ConcurrentTransactions, StorageError.
        """
        self._ask("abort_transaction", {"transactional_id": transactional_id})

    @property
    def recovery(self) -> RecoveryReport:
        report = self._ask("recovery", {})
        partitions = [PartitionRecovery(**partition) for partition in report.pop("partitions")]
        return RecoveryReport(**report, partitions=partitions)

    def flush(self) -> None:
        self._ask("flush", {})

    def reopen(self, topic: str, partition: int) -> PartitionRecovery | None:
        recovery = self._ask("reopen", {"topic": topic, "partition": partition})
        return None if recovery is None else PartitionRecovery(**recovery)

    def compact(self, topic: str) -> int:
        return int(self._ask("compact", {"topic": topic}))

    def backup(self, destination: str) -> None:
        # The owner may have another working directory.
        self._ask("backup", {"destination": os.path.abspath(destination)})

    def health(self) -> Health:
        health = self._ask("health", {})
        refusing = {TopicPartition(topic, number): reason for topic, number, reason in health.pop("refusing")}
        return Health(**health, refusing=refusing)


# -- the owner's side --------------------------------------------------------------------------------------


class LogRequests:
    """Executes requests on a log that this process owns. Thread-safe; most block.

    Args:
        shared: whether it executes all requests, or those FOR_TOOLS.
    """

    def __init__(self, log: OwnedLog, *, shared: bool) -> None:
        self.shared = shared
        self.shares = ShareRequests(log)
        self._log = log
        self._execute: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "abort_transaction": lambda arguments: log.transactions.abort(
                _text(arguments, "transactional_id")
            ),
            "append_staged": self._append_staged,
            "commit_offsets": self._commit_offsets,
            "discard": self._discard,
            "flush": lambda _: log.flush(),
            "reopen": self._reopen,
            "compact": lambda arguments: log.compact(_text(arguments, "topic")),
            "backup": lambda arguments: log.backup(_text(arguments, "destination")),
            "health": lambda _: self._health(),
            "recovery": lambda _: self._recovery(),
            **self.shares.execute,
        }

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Execute a request. Returns its result, of which JSON can be made.

        Atomic appends are durable on return, offsets as durable as any commit. Raises InvalidArgument if it
        is not a request as above; DirectoryLocked if the log is not shared; other errors of embedlog. After
        StorageError the next open completes an atomic append that has begun.
        """
        execute = self._execute.get(name)
        if execute is None:
            raise InvalidArgument(f"this version of embedlog has no request {shown(name)}")
        if not self.shared and name not in FOR_TOOLS:
            raise errors.DirectoryLocked(
                f"{self._log.path} was opened without shared=True by process {os.getpid()}",
                path=self._log.path,
                pid=os.getpid(),
            )
        try:
            return execute(arguments)
        except OSError as error:
            raise StorageError(f"{self._log.path}: {error}", path=self._log.path) from error

    def _append_staged(self, arguments: Mapping[str, Any]) -> bool:
        with _parsing():
            staged = {_name(append): tuple(append["files"]) for append in arguments["appends"]}
            transaction_id = arguments["transaction_id"]
            batch_id, once = arguments["batch_id"], arguments["once"]
        store = self._log.store
        store.catalog.check_whole()
        try:
            return append_atomically(store, transaction_id, batch_id, staged, once=once)
        finally:
            tidy_staging(self._log.store)

    def _commit_offsets(self, arguments: Mapping[str, Any]) -> None:
        with _parsing():
            offsets = {
                _name(commit): CommittedOffset(commit["offset"], commit["leader_epoch"], commit["metadata"])
                for commit in arguments["offsets"]
            }
            group = arguments["group"]
        self._log.store.catalog.check_whole()
        self._log.coordinator.commit_offsets(group, offsets)

    def _discard(self, arguments: Mapping[str, Any]) -> int:
        try:
            return discard(self._log.store, _text(arguments, "set"))
        finally:
            tidy_staging(self._log.store)

    def _reopen(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        recovery = self._log.reopen(*_name(arguments))
        return None if recovery is None else recovery.as_dict()

    def _recovery(self) -> dict[str, Any]:
        report = self._log.recovery
        return {**report.as_dict(), "partitions": [partition.as_dict() for partition in report.partitions]}

    def _health(self) -> dict[str, Any]:
        health = self._log.health()
        refusing = [(*name, reason) for name, reason in health.refusing.items()]
        return {**health._asdict(), "refusing": refusing}


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Raises InvalidArgument for arguments of another form."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise InvalidArgument(f"not the arguments of a request ({type(error).__name__}: {error})") from error


def _text(arguments: Mapping[str, Any], name: str) -> str:
    with _parsing():
        text = arguments[name]
    check_text(name, text)
    return str(text)


def _name(fields: Mapping[str, Any]) -> TopicPartition:
    topic = _text(fields, "topic")
    with _parsing():
        partition = fields["partition"]
    check_int("partition", partition)
    return TopicPartition(topic, int(partition))


# -- their bytes -------------------------------------------------------------------------------------------


def encode(content: object) -> bytes:
    """Arguments or a result as JSON. Paths that are not UTF-8 survive. Raises InvalidType."""
    try:
        return json.dumps(content).encode()
    except TypeError as error:
        raise InvalidType(str(error)) from error


def decode(encoded: bytes) -> Any:
    """Parse arguments or a result. Raises InvalidArgument."""
    try:
        return json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not JSON ({type(error).__name__}: {error})") from error


def error_named(name: str, message: str) -> EmbedlogError:
    """The owner's error, of the same class if that can be constructed from a message."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, EmbedlogError):
        try:
            return kind(message)
        except TypeError:  # its constructor needs more arguments
            pass
    return EmbedlogError(message)
