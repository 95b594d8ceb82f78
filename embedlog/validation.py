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

from .config import MAX_INT16, MAX_INT32, MAX_INT64, MAX_STRING_BYTES, unknown_setting
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
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def call(*args: _P.args, **arguments: _P.kwargs) -> _R:
            resolved = renamed(arguments, names, synonyms, others=takes_any)
            named: Callable[..., _R] = function
            return named(*args, **resolved)

        return call

    return decorated


def renamed(
    arguments: Mapping[str, Any], names: Collection[str], synonyms: Synonyms, *, others: bool = False
) -> dict[str, Any]:
    """Keyword arguments by canonical name. `others`: keep unknown names as they are.

    Raises UnknownSetting; InvalidArgument if an argument is given under two names.
    """
    by_name: dict[str, Any] = {}
    for typed, value in arguments.items():
        name = plain(typed)
        name = synonyms[name].name if name in synonyms else name
        if name not in names:
            if not others:
                raise UnknownSetting(unknown_setting(typed, names, synonyms))
            name = typed
        if name in by_name:
            raise InvalidArgument(f"{name} is given twice, once as {typed}")
        by_name[name] = value
    return by_name


def check_int(name: str, number: object, *, low: int | None = None, high: int | None = None) -> None:
    """Raises InvalidType unless it is an int, InvalidArgument below `low` or above `high`."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidType(f"{name} must be int, not {_described(number)}")
    if low is not None and number < low:
        raise InvalidArgument(f"{name} must be at least {low:,}, not {shown(number)}")
    if high is not None and number > high:
        raise InvalidArgument(f"{name} must be at most {high:,}, not {shown(number)}")


def check_replication_factor(number: object) -> None:
    """Raises InvalidType, InvalidArgument unless it is a number of replicas, or None for the default."""
    if number is not None:
        check_int("replication_factor", number, low=1, high=MAX_INT16)


def check_positive(**numbers: object) -> None:
    """Raises InvalidType or InvalidArgument unless all are ints of at least 1."""
    for name, number in numbers.items():
        check_int(name, number, low=1)


def check_choice(name: str, choice: object, choices: Collection[str]) -> None:
    """Raises InvalidArgument unless it is one of the choices."""
    if not isinstance(choice, str) or choice not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, not {shown(choice)}")


def check_flag(name: str, flag: object) -> None:
    """Raises InvalidType unless it is True or False; a truthy "no" is an error."""
    if not isinstance(flag, bool):
        raise InvalidType(f"{name} must be True or False, not {_described(flag)}")


def check_text(name: str, text: object) -> None:
    """Raises InvalidType unless it is a str, InvalidArgument if Kafka's formats cannot hold it."""
    if not isinstance(text, str):
        raise InvalidType(f"{name} must be str, not {_described(text)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} cannot be written as UTF-8: {shown(text)}") from None
    if size > MAX_STRING_BYTES:
        raise InvalidArgument(f"{name} has at most {MAX_STRING_BYTES:,} bytes, not {size:,}")


def is_several(argument: object) -> TypeGuard[Iterable[object]]:
    """Whether it is a collection, as opposed to one str or bytes, which iterate too."""
    return isinstance(argument, Iterable) and not isinstance(argument, str | bytes | bytearray | memoryview)


def as_seconds(name: str, duration: object, *, per_second: int = 1000) -> float:
    """A duration, given in milliseconds by default, in seconds; capped at the longest wait of a lock.

    Raises InvalidType unless it is a number, InvalidArgument below 0 and for nan.
    """
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidType(f"{name} must be a number, not {_described(duration)}")
    if not duration >= 0:
        raise InvalidArgument(f"{name} must be 0 or more, not {shown(duration)}")
    return min(duration, _LONGEST_WAIT_S * per_second) / per_second


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


def as_topic_partition(name: object) -> TopicPartition:
    """A partition's name, from a TopicPartition or an equal tuple. Does not check whether it exists.

    Raises InvalidType, InvalidArgument.
    """
    if (
        type(name) is TopicPartition
        and (type(name[0]) is str and type(name[1]) is int)
        and 0 <= name[1] <= MAX_INT32
    ):
        return name
    if isinstance(name, tuple) and len(name) == 2:
        topic, partition = name
        if isinstance(topic, str) and isinstance(partition, int) and not isinstance(partition, bool):
            check_int("partition", partition, low=0, high=MAX_INT32)
            return TopicPartition(topic, partition)
    raise InvalidType(f'a partition is named as TopicPartition("topic", 0), not as {_described(name)}')


def as_topic_partitions(partitions: object) -> list[TopicPartition]:
    """Names of partitions, from any iterable. Raises InvalidType, InvalidArgument."""
    if isinstance(partitions, TopicPartition) or not is_several(partitions):
        raise InvalidType(
            f'partitions must be several TopicPartition("topic", 0), not {_described(partitions)}'
        )
    return [as_topic_partition(name) for name in partitions]


def check_group(group: object) -> None:
    """Raises InvalidGroup unless it is a valid group name."""
    try:
        check_text("group", group)
    except (InvalidType, InvalidArgument) as error:
        raise InvalidGroup(str(error)) from None
    if not group:
        raise InvalidGroup("group must be a name of at least one character")


def check_topic_id(topic_id: object) -> None:
    """Raises InvalidType, InvalidArgument unless it is the text of a topic's id."""
    check_text("topic_id", topic_id)
    if (
        len(str(topic_id)) != _ID_CHARACTERS
        or not str(topic_id).replace("-", "_").replace("_", "0").isalnum()
    ):
        raise InvalidArgument(
            f"topic_id must be {_ID_CHARACTERS} characters of URL-safe base64, not {shown(topic_id)}"
        )


def check_committed(name: TopicPartition, commit: object, *, low: int = 0) -> None:
    """Raises InvalidType or InvalidArgument unless it is a CommittedOffset that can be stored, InvalidCommit
    for an offset below `low` or above MAX_INT64."""
    if not isinstance(commit, CommittedOffset):
        raise InvalidType(f"a commit for {name} must be a CommittedOffset, not {_described(commit)}")
    offset, epoch, metadata, timestamp_ms, topic_id = commit
    if (
        (type(offset) is type(epoch) is type(timestamp_ms) is int)
        and low <= offset <= MAX_INT64
        and NO_EPOCH <= epoch <= MAX_INT32
        and NO_TIMESTAMP <= timestamp_ms <= MAX_INT64
        and metadata == topic_id == ""
    ):
        return
    try:
        check_int("the offset", commit.offset)
        check_int("the leader_epoch", commit.leader_epoch, low=NO_EPOCH, high=MAX_INT32)
        check_text("the metadata", commit.metadata)
        check_int("commit_timestamp_ms", commit.commit_timestamp_ms, low=NO_TIMESTAMP, high=MAX_INT64)
        if commit.topic_id != "":
            check_topic_id(commit.topic_id)
    except (InvalidType, InvalidArgument) as error:
        raise type(error)(f"a commit for {name}: {error}") from None
    if not low <= commit.offset <= MAX_INT64:
        raise InvalidCommit(
            f"offset {shown(commit.offset)} cannot be committed for {name}: offsets begin at 0"
        )


# -- functions -----------------------------------------------------------------------------------------------


def is_coroutine_function(function: object) -> bool:
    """Whether a call gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of an object, it may be one
    )


# -- paths ---------------------------------------------------------------------------------------------------


def as_path(path: object, name: str = "path") -> str:
    """An absolute path, so that a later chdir changes nothing.

    Raises InvalidType, InvalidArgument; DirectoryError if the current directory no longer exists.
    """
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise InvalidType(f"{name} must be str or os.PathLike of str, not {_described(path)}")
    if not text or "\0" in text:
        raise InvalidArgument(f"{name} must name a file or directory, which {shown(text)} cannot")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise InvalidArgument(
            f"{name} {shown(text)} cannot be written in {encoding}, as names here are"
        ) from None
    try:
        return os.path.abspath(text)
    except FileNotFoundError:
        raise DirectoryError(
            f"{name} {shown(text)} is relative, and the current directory is gone: give an absolute one",
            path=text,
        ) from None


def _described(argument: object) -> str:
    return f"{type(argument).__name__} ({shown(argument)})"
