"""Requests of other processes to the owner of a log, and the answers: files in a directory.

    requests/<id>.request    a request; its sender holds a lock (flock) on it while it waits
    requests/<id>.taken      the same file, renamed by the owner, which executes it; it cannot be withdrawn
    requests/<id>.answer     the result; the sender removes it

A request is JSON:

    {"version": 1, "kind": "publish", "transaction_id", "batch_id", "once",
     "appends": [{"topic", "partition", "files": [...]}, ...]}
    {"version": 1, "kind": "commit_offsets", "group",
     "offsets": [{"topic", "partition", "offset", "leader_epoch", "metadata"}, ...]}
    {"version": 1, "kind": "discard", "set"}

and an answer {"version": 1, "done": true, "result"} or {"version": 1, "done": false, "error", "message"},
where the error is the name of a class in errors.py. No I/O here: handover.py and attendant.py write and read
the files. Every request is idempotent: it may be executed twice.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, TypeAlias

from .. import errors
from ..errors import EmbedlogError, InvalidArgument
from ..model import CommittedOffset, TopicPartition

REQUEST: Final = ".request"
TAKEN: Final = ".taken"
ANSWER: Final = ".answer"

_VERSION: Final = 1


class AppendStaged(NamedTuple):
    """append_atomically: append staged files, all or none. The result: whether it was done just now."""

    transaction_id: str
    batch_id: int
    staged: dict[TopicPartition, tuple[str, ...]]
    once: bool = False


class CommitOffsets(NamedTuple):
    """Commit offsets for a group without members."""

    group: str
    offsets: dict[TopicPartition, CommittedOffset]


class Discard(NamedTuple):
    """atomic_append.discard: remove the staged files of a set. The result: how many."""

    chosen: str


Request: TypeAlias = AppendStaged | CommitOffsets | Discard


class Answer(NamedTuple):
    """The result of a request, or its error."""

    result: int = 0
    error: EmbedlogError | None = None

    def outcome(self) -> int:
        """The result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result


def encode_request(request: Request) -> bytes:
    return json.dumps({"version": _VERSION, **_body(request)}, indent=1).encode()


def _body(request: Request) -> dict[str, Any]:
    if isinstance(request, Discard):
        return {"kind": "discard", "set": request.chosen}
    if isinstance(request, CommitOffsets):
        offsets = [
            {
                "topic": name.topic,
                "partition": name.partition,
                "offset": committed.offset,
                "leader_epoch": committed.leader_epoch,
                "metadata": committed.metadata,
            }
            for name, committed in request.offsets.items()
        ]
        return {"kind": "commit_offsets", "group": request.group, "offsets": offsets}
    return {
        "kind": "publish",
        "transaction_id": request.transaction_id,
        "batch_id": request.batch_id,
        "once": request.once,
        "appends": [
            {"topic": name.topic, "partition": name.partition, "files": list(files)}
            for name, files in request.staged.items()
        ],
    }


def decode_request(data: bytes) -> Request:
    """Parse a request; the owner validates its values.

    Raises InvalidArgument for anything but a request of a known version.
    """
    try:
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']!r} is not one this version of embedlog knows")
        kind = found["kind"]
        if kind == "discard":
            return Discard(found["set"])
        if kind == "commit_offsets":
            offsets = {
                _name(each): CommittedOffset(each["offset"], each["leader_epoch"], each["metadata"])
                for each in found["offsets"]
            }
            return CommitOffsets(found["group"], offsets)
        if kind == "publish":
            staged = {_name(each): tuple(each["files"]) for each in found["appends"]}
            return AppendStaged(found["transaction_id"], found["batch_id"], staged, found["once"])
        raise ValueError(f"a kind of request that is not known: {kind!r}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a request ({type(error).__name__}: {error})") from error


def _name(found: dict[str, Any]) -> TopicPartition:
    return TopicPartition(found["topic"], found["partition"])


def encode_answer(answer: Answer) -> bytes:
    if answer.error is None:
        body: dict[str, Any] = {"done": True, "result": answer.result}
    else:
        body = {"done": False, "error": type(answer.error).__name__, "message": str(answer.error)}
    return json.dumps({"version": _VERSION, **body}, indent=1).encode()


def decode_answer(data: bytes) -> Answer:
    """Parse an answer. Raises InvalidArgument."""
    try:
        found = json.loads(data)
        if found["done"]:
            return Answer(int(found["result"]))
        return Answer(error=_error(str(found["error"]), str(found["message"])))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"not an answer ({type(error).__name__}: {error})") from error


def _error(name: str, message: str) -> EmbedlogError:
    """The owner's error, of the same class if that can be constructed from a message."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, EmbedlogError):
        try:
            return kind(message)
        except TypeError:  # its constructor needs more arguments
            pass
    return EmbedlogError(message)
