"""Validates the arguments of public methods. The errors say what is expected.

Records are checked in clients/record_input.py, topic names in files/names.py, settings in config.py. A
`check_...` function raises or does nothing; an `as_...` function also normalizes its argument. `also_named`
lets a function accept synonyms of its keyword arguments.

Invariant: only embedlog's errors are raised, with messages of a few lines at most, whatever the argument.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeGuard, TypeVar

from .config import MAX_INT32, MAX_INT64, MAX_STRING_BYTES, unknown_setting
from .errors import (
    DirectoryError,
    InvalidArgument,
    InvalidCommit,
    InvalidGroup,
    InvalidType,
    PartitionNotFound,
    UnknownSetting,
    shown,
)
from .model import NO_EPOCH, NO_TIMESTAMP, CommittedOffset, TopicPartition
from .synonyms import Synonyms, plain

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Two of these can be added and still be passed to a lock.
_LONGEST_WAIT_S: Final = threading.TIMEOUT_MAX / 4

_ID_CHARACTERS: Final = 22
_VAR_KEYWORDS: Final = 0x08  # inspect.CO_VARKEYWORDS


def also_named(synonyms: Synonyms) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorator: keyword arguments may be written with dots, and as synonyms.

    The function then raises UnknownSetting, with a suggestion, for an unknown argument, and InvalidArgument
    if one is given under two names.
    """

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        code = function.__code__  # not inspect, whose import would take longer than all of this module
        takes_any = bool(code.co_flags & _VAR_KEYWORDS)
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def call(*args: _P.args, **given: _P.kwargs) -> _R:
            resolved = renamed(given, known, synonyms, others=takes_any)
            named: Callable[..., _R] = function
            return named(*args, **resolved)

        return call

    return decorated


def renamed(
    given: Mapping[str, Any], known: Collection[str], synonyms: Synonyms, *, others: bool = False
) -> dict[str, Any]:
    """Keyword arguments by canonical name. `others`: keep unknown names as they are.

    Raises UnknownSetting; InvalidArgument if an argument is given under two names.
    """
    found: dict[str, Any] = {}
    for typed, value in given.items():
        name = plain(typed)
        name = synonyms[name].name if name in synonyms else name
        if name not in known:
            if not others:
                raise UnknownSetting(unknown_setting(typed, known, synonyms))
            name = typed
        if name in found:
            raise InvalidArgument(f"{name} is given twice, once as {typed}")
        found[name] = value
    return found


def check_int(name: str, given: object, *, low: int | None = None, high: int | None = None) -> None:
    """Raises InvalidType unless it is an int, InvalidArgument below `low` or above `high`."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidType(f"{name} must be int, not {_described(given)}")
    if low is not None and given < low:
        raise InvalidArgument(f"{name} must be at least {low:,}, not {shown(given)}")
    if high is not None and given > high:
        raise InvalidArgument(f"{name} must be at most {high:,}, not {shown(given)}")


def check_positive(**given: object) -> None:
    """Raises InvalidType or InvalidArgument unless all are ints of at least 1."""
    for name, number in given.items():
        check_int(name, number, low=1)


def check_choice(name: str, given: object, choices: Collection[str]) -> None:
    """Raises InvalidArgument unless it is one of the choices."""
    if not isinstance(given, str) or given not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, not {shown(given)}")


def check_flag(name: str, given: object) -> None:
    """Raises InvalidType unless it is True or False; a truthy "no" is an error."""
    if not isinstance(given, bool):
        raise InvalidType(f"{name} must be True or False, not {_described(given)}")


def check_text(name: str, given: object) -> None:
    """Raises InvalidType unless it is a str, InvalidArgument if Kafka's formats cannot hold it."""
    if not isinstance(given, str):
        raise InvalidType(f"{name} must be str, not {_described(given)}")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} cannot be written as UTF-8: {shown(given)}") from None
    if size > MAX_STRING_BYTES:
        raise InvalidArgument(f"{name} has at most {MAX_STRING_BYTES:,} bytes, not {size:,}")


def is_several(given: object) -> TypeGuard[Iterable[object]]:
    """Whether it is a collection, as opposed to one str or bytes, which iterate too."""
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | memoryview)


def as_seconds(name: str, given: object, *, per_second: int = 1000) -> float:
    """A duration, given in milliseconds by default, in seconds; capped at the longest wait of a lock.

    Raises InvalidType unless it is a number, InvalidArgument below 0 and for nan.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidType(f"{name} must be a number, not {_described(given)}")
    if not given >= 0:
        raise InvalidArgument(f"{name} must be 0 or more, not {shown(given)}")
    return min(given, _LONGEST_WAIT_S * per_second) / per_second


# -- topics, partitions, groups ------------------------------------------------------------------------------


def check_topic(topic: object) -> None:
    """Raises InvalidType unless it is a str. The backend checks whether it exists."""
    if not isinstance(topic, str):
        raise InvalidType(f"topic must be str, not {_described(topic)}")


def check_partition(topic: str, partition: object, num_partitions: int) -> None:
    """Raises InvalidType unless it is an int, PartitionNotFound if the topic has no such partition."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidType(f"partition must be int, not {_described(partition)}")
    if not 0 <= partition < num_partitions:
        has = "one partition, 0" if num_partitions == 1 else f"partitions 0 to {num_partitions - 1:,}"
        raise PartitionNotFound(f"topic {topic!r} has {has}; there is no {shown(partition)}")


def as_topic_partition(given: object) -> TopicPartition:
    """A partition's name, from a TopicPartition or an equal tuple. Does not check whether it exists.

    Raises InvalidType, InvalidArgument.
    """
    if (
        type(given) is TopicPartition
        and (type(given[0]) is str and type(given[1]) is int)
        and 0 <= given[1] <= MAX_INT32
    ):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        topic, partition = given
        if isinstance(topic, str) and isinstance(partition, int) and not isinstance(partition, bool):
            check_int("partition", partition, low=0, high=MAX_INT32)
            return TopicPartition(topic, partition)
    raise InvalidType(f'a partition is named as TopicPartition("topic", 0), not as {_described(given)}')


def as_topic_partitions(given: object) -> list[TopicPartition]:
    """Names of partitions, from any iterable. Raises InvalidType, InvalidArgument."""
    if isinstance(given, TopicPartition) or not is_several(given):
        raise InvalidType(f'partitions must be several TopicPartition("topic", 0), not {_described(given)}')
    return [as_topic_partition(each) for each in given]


def check_group(given: object) -> None:
    """Raises InvalidGroup unless it is a valid group name."""
    try:
        check_text("group", given)
    except (InvalidType, InvalidArgument) as error:
        raise InvalidGroup(str(error)) from None
    if not given:
        raise InvalidGroup("group must be a name of at least one character")


def check_topic_id(given: object) -> None:
    """Raises InvalidType, InvalidArgument unless it is the text of a topic's id."""
    check_text("topic_id", given)
    if len(str(given)) != _ID_CHARACTERS or not str(given).replace("-", "_").replace("_", "0").isalnum():
        raise InvalidArgument(
            f"topic_id must be {_ID_CHARACTERS} characters of URL-safe base64, not {shown(given)}"
        )


def check_committed(name: TopicPartition, given: object, *, low: int = 0) -> None:
    """Raises InvalidType or InvalidArgument unless it is a CommittedOffset that can be stored, InvalidCommit
    for an offset below `low` or above MAX_INT64."""
    if not isinstance(given, CommittedOffset):
        raise InvalidType(f"a commit for {name} must be a CommittedOffset, not {_described(given)}")
    offset, epoch, metadata, timestamp_ms, topic_id = given
    if (
        (type(offset) is type(epoch) is type(timestamp_ms) is int)
        and low <= offset <= MAX_INT64
        and NO_EPOCH <= epoch <= MAX_INT32
        and NO_TIMESTAMP <= timestamp_ms <= MAX_INT64
        and metadata == topic_id == ""
    ):
        return
    try:
        check_int("the offset", given.offset)
        check_int("the leader_epoch", given.leader_epoch, low=NO_EPOCH, high=MAX_INT32)
        check_text("the metadata", given.metadata)
        check_int("commit_timestamp_ms", given.commit_timestamp_ms, low=NO_TIMESTAMP, high=MAX_INT64)
        if given.topic_id != "":
            check_topic_id(given.topic_id)
    except (InvalidType, InvalidArgument) as error:
        raise type(error)(f"a commit for {name}: {error}") from None
    if not low <= given.offset <= MAX_INT64:
        raise InvalidCommit(
            f"offset {shown(given.offset)} cannot be committed for {name}: offsets begin at 0"
        )


# -- functions -----------------------------------------------------------------------------------------------


def is_coroutine_function(function: object) -> bool:
    """Whether a call gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of an object, it may be one
    )


# -- paths ---------------------------------------------------------------------------------------------------


def as_path(given: object, name: str = "path") -> str:
    """An absolute path, so that a later chdir changes nothing.

    Raises InvalidType, InvalidArgument; DirectoryError if the current directory no longer exists.
    """
    try:
        path = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise InvalidType(f"{name} must be str or os.PathLike of str, not {_described(given)}")
    if not path or "\0" in path:
        raise InvalidArgument(f"{name} must name a file or directory, which {shown(path)} cannot")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise InvalidArgument(
            f"{name} {shown(path)} cannot be written in {encoding}, as names here are"
        ) from None
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise DirectoryError(
            f"{name} {shown(path)} is relative, and the current directory is gone: give an absolute one",
            path=path,
        ) from None


def _described(given: object) -> str:
    return f"{type(given).__name__} ({shown(given)})"
