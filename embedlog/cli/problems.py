"""Formats an error: one line says what happened, an optional second line what to do.

The library's messages are for Python code; these are for a command line, and about one line long.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from typing import Final

from ..errors import (
    BrokerError,
    BrokerUnavailable,
    CorruptRecord,
    DirectoryError,
    DirectoryLocked,
    EmbedlogError,
    GroupNotFound,
    InvalidArgument,
    InvalidSetting,
    LoadFailed,
    Located,
    LogTruncated,
    NotALog,
    OffsetOutOfRange,
    PartialAppend,
    RecordsLost,
    RequestTimedOut,
    StorageError,
    TlsFailed,
    TopicExists,
    TopicNotFound,
    UnknownSetting,
    ZooKeeperUnavailable,
)
from ..units import moment
from .arguments import config_again, did_you_mean, is_over_wire

_HINT: Final = re.compile(r"(?m)^(embedlog .*://.*\S)(   )")  # a command over the wire, and what it does
_MOST_NAMES: Final = 60  # characters of a list of known names
_NOT_DONE: Final = (
    Located,
    StorageError,
    PartialAppend,
    LogTruncated,
    BrokerUnavailable,
    BrokerError,
    LoadFailed,
    RecordsLost,
    ZooKeeperUnavailable,
)


def exit_code(error: EmbedlogError) -> int:
    """1 for damage and for failures of the system; 2 for a mistake or a refusal."""
    return 1 if isinstance(error, _NOT_DONE) else 2


def explain(error: EmbedlogError, args: argparse.Namespace) -> str:
    """What to print for an error of a command."""
    return _HINT.sub(lambda hint: f"{hint[1]}{config_again(args)}{hint[2]}", _explained(error, args))


def _explained(error: EmbedlogError, args: argparse.Namespace) -> str:
    directory = getattr(args, "directory", None) or ""  # a command that takes none, or was given none
    if isinstance(error, DirectoryLocked):
        return _locked(error, args, directory)
    problem = str(error).removeprefix(os.path.abspath(directory))
    if directory and problem in (" does not exist", " is empty: it holds no log yet"):
        return f"{directory}{problem}\nembedlog topics create {directory} NAME   makes it, with a topic"
    if isinstance(error, DirectoryError) and "one broker of a cluster" in str(error):
        return (
            f"{str(error).partition(', and ')[0]}\ngive --bootstrap-server HOST:PORT in place of {directory}"
        )
    if isinstance(error, TopicNotFound):
        return _no_topic(error, args, directory)
    if isinstance(error, TopicExists):
        return f"{_cause(error)}\n--if-not-exists takes it as it is, `embedlog topics alter` changes it"
    if isinstance(error, GroupNotFound) and args.action == "delete":
        listing = f"embedlog {args.command} list {directory}   shows those that there are"
        return f"no group {args.group!r} in {directory}\n{listing}"
    if isinstance(error, GroupNotFound):
        return str(error).replace(" (groups: ", f" in {directory} (groups: ")
    if isinstance(error, NotALog):
        return "\n".join(str(error).rsplit(". ", 1))  # cause, and what to do
    if isinstance(error, UnknownSetting) and "did you mean" not in str(error):
        where = "docs/reference/settings.md" if args.command == "serve" else "embedlog topics create --help"
        setting = re.search("unknown setting '.*?'", str(error))  # a broker's words may stand around it
        return f"{setting[0] if setting else error}\n{where}   names them all"
    if args.command == "groups" and isinstance(error, (InvalidArgument, OffsetOutOfRange)):
        cause = str(error).partition(";")[0]
        return cause.replace("give partitions=", "give --partition ").replace("give topics=", "give --topic")
    if isinstance(error, OffsetOutOfRange) and error.log_start_offset >= 0:
        return (
            f"{getattr(args, 'topic', '')}: offset {error.offset:,} is outside "
            f"{error.log_start_offset:,}..{error.log_end_offset:,}; 'earliest' begins at "
            f"{error.log_start_offset:,}"
        )
    if isinstance(error, (InvalidSetting, TlsFailed)) and is_over_wire(directory):
        return str(error).replace("in a file (client_config)", "in the file of --command-config")
    if isinstance(error, BrokerUnavailable):
        return _no_broker(error)
    if isinstance(error, ZooKeeperUnavailable) and "responds at" in str(error):
        return f"{error}\nis one running there? embedlog zookeeper DIR   starts one"
    if isinstance(error, RecordsLost):
        cause, _, advice = str(error).partition(". ")
        return f"{cause}\n{advice.replace('allow_data_loss', '--allow-data-loss  ')}"
    if isinstance(error, CorruptRecord) and directory and not is_over_wire(directory):
        return f"DAMAGED  {error}\nembedlog verify {directory} --deep   tells how much, and what can be done"
    return str(error)


def _no_broker(error: BrokerUnavailable) -> str:
    cause = re.sub(r"\[Errno -?\d+\] ", "", str(error))
    if isinstance(error, RequestTimedOut):
        return f"{cause}\nit may be busy, or out of reach; what was asked for may be done all the same"
    return f"{cause}\nis a broker running there? embedlog serve DIR   starts one"


def _cause(error: EmbedlogError) -> str:
    return str(error).partition(": ")[0]


def _no_topic(error: TopicNotFound, args: argparse.Namespace, directory: str) -> str:
    cause, _, topics = str(error).split(";")[0].partition(" (topics: ")
    lines = [f"{cause} (topics: {topics}" if topics and len(topics) <= _MOST_NAMES else cause]
    if args.command == "append":
        lines.append(f"embedlog topics create {directory} {args.topic}   makes it")
    elif lines[0] == cause:
        lines.append(f"embedlog topics list {directory}   shows those that there are")
    lines[0] += _near_topic(cause, args)
    return "\n".join(lines)


def _near_topic(cause: str, args: argparse.Namespace) -> str:
    from .opening import reader

    missing_topic = re.match("no topic '(.*?)'", cause)
    if missing_topic is not None:
        with contextlib.suppress(EmbedlogError, OSError), reader(args) as log:
            return did_you_mean(missing_topic[1], log.topics())
    return ""


def _locked(error: DirectoryLocked, args: argparse.Namespace, directory: str) -> str:
    if error.pid is None:
        holder = "another process"
    else:
        since = f", since {moment(error.since_ms)}" if error.since_ms is not None else ""
        holder = f"process {error.pid} ({error.program}{since})"
    inside = getattr(args, "inside", None)
    lines = [f"{directory} is open for writing in {holder}."]
    if hasattr(args, "refused"):
        lines.append(args.refused)
    elif error.broker and not hasattr(args, "here_only"):
        lines.append(f"It is a broker: give --bootstrap-server {error.broker} in place of {directory}")
    elif error.broker:
        lines.append(f"It is the broker at {error.broker}: stop that first.")
    elif inside:
        lines.append(f"There it can be done by {inside}; or close it first.")
    else:
        lines.append(f"Open it with shared=True there, or run a broker: embedlog serve {directory}")
    return "\n".join(lines)
