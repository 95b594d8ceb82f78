"""`embedlog users`: who may authenticate to a broker, and with which password."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from ..backends.remote import RemoteBackend
from ..errors import DirectoryError, InvalidArgument, StorageError
from ..files.names import CLUSTER_FILE
from ..open import open as open_log
from ..security.scram import (
    DIGESTS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    check_password,
    check_user,
    credential_of,
)
from ..security.users import DocumentUsers
from .arguments import add_command, add_json, add_log, is_over_wire, wire_settings
from .opening import existing
from .ui import UI, Column, number_columns

_LOCK: Final = "Takes no lock: works while a broker serves the directory, which then knows of it at once."
_PASSWORD: Final = """\
The password is read from the terminal, or from the first line of a file. It is kept salted and hashed, and
serves SCRAM and PLAIN."""
_MAX_LINE: Final = 4_096


class _Users(Protocol):
    """Of a directory or of brokers."""

    def describe(self, name: str | None = None) -> Mapping[str, Mapping[str, int]]: ...

    def set_password(self, name: str, password: str, mechanisms: Iterable[str], iterations: int) -> None: ...

    def delete(self, name: str, mechanisms: Iterable[str]) -> None: ...


class _OfDirectory:
    """As RemoteUsers, over a directory."""

    def __init__(self, directory: str) -> None:
        self._users = DocumentUsers(directory)

    def describe(self, name: str | None = None) -> Mapping[str, Mapping[str, int]]:
        names = self._users.names()
        return {
            each: {key: found.iterations for key, found in self._users.credentials(each).items()}
            for each in names
            if name in (None, each)
        }

    def set_password(self, name: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
        check_password(password)
        self._users.alter(name, {each: credential_of(each, password, iterations) for each in mechanisms})

    def delete(self, name: str, mechanisms: Iterable[str]) -> None:
        self._users.alter(name, dict.fromkeys(mechanisms))


def add_parser(subparsers: Any) -> None:
    parser = add_command(subparsers, "users", "list, describe, add, delete users, set passwords", lock=_LOCK)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the users", lock=_LOCK)
    add_log(each)
    add_json(each, "print a JSON object per user")

    each = add_command(actions, "describe", "show a user's mechanisms", lock=_LOCK)
    add_log(each)
    _add_user(each)
    add_json(each, "print a JSON object")

    for name, summary in (("add", "add a user"), ("passwd", "set a user's password")):
        each = add_command(
            actions, name, summary, lock=_LOCK, description=f"{summary.capitalize()}.\n\n{_PASSWORD}"
        )
        add_log(each)
        _add_user(each)
        each.add_argument(
            "--password-file", metavar="FILE", help="read the password from there; - is standard input"
        )
        each.add_argument(
            "--mechanism",
            action="append",
            choices=list(DIGESTS),
            help="repeatable; default: both" if name == "add" else "repeatable; default: those that it has",
        )
        each.add_argument(
            "--iterations",
            type=_iterations,
            default=MIN_ITERATIONS,
            metavar="N",
            help=f"{MIN_ITERATIONS} (the default) to {MAX_ITERATIONS}: more makes guessing dearer",
        )
        add_json(each, "print a JSON object")

    each = add_command(actions, "delete", "delete a user", lock=_LOCK)
    add_log(each)
    _add_user(each)
    add_json(each, "print a JSON object")


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", metavar="USER")


def _iterations(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise argparse.ArgumentTypeError(f"must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


def run(args: argparse.Namespace, ui: UI) -> int:
    with _users(args) as users:
        if args.action == "list":
            return _list(users, args, ui)
        found = users.describe(args.user)
        if args.action == "add":
            if found:
                raise InvalidArgument(
                    f"there is a user {args.user!r} already; embedlog users passwd sets another password"
                )
            return _set_password(users, args.mechanism or list(DIGESTS), args, ui)
        if not found:
            raise InvalidArgument(f"there is no user {args.user!r}")
        own = found[args.user]
        if args.action == "passwd":
            return _set_password(users, args.mechanism or list(own), args, ui)
        if args.action == "delete":
            users.delete(args.user, list(own))
            _said(args, ui, f"deleted {args.user}; its open connections go on until they authenticate again")
            return 0
    if args.json:
        ui.json({"user": args.user, "mechanisms": dict(own)})
    else:
        columns = (Column("mechanism"), *number_columns("iterations"))
        ui.table(columns, list(own.items()))
    return 0


def _list(users: _Users, args: argparse.Namespace, ui: UI) -> int:
    found = users.describe()
    if args.json:
        for name, own in sorted(found.items()):
            ui.json({"user": name, "mechanisms": dict(own)})
    elif found:
        columns = (Column("user", shortens=True), Column("mechanisms", folds=True))
        ui.table(columns, [(name, " ".join(own)) for name, own in sorted(found.items())])
    else:
        ui.line("no users yet")
    return 0


def _set_password(users: _Users, mechanisms: list[str], args: argparse.Namespace, ui: UI) -> int:
    check_user(args.user)
    password = check_password(_password(args))
    users.set_password(args.user, password, dict.fromkeys(mechanisms), args.iterations)
    _said(args, ui, f"{args.user} can authenticate by {', '.join(mechanisms)}")
    return 0


def _said(args: argparse.Namespace, ui: UI, line: str) -> None:
    if args.json:
        ui.json({"user": args.user, "action": args.action})
    else:
        ui.line(line)


def _password(args: argparse.Namespace) -> str:
    """Raises InvalidArgument, StorageError."""
    path = args.password_file
    if path is None:
        if not sys.stdin.isatty():
            raise InvalidArgument(
                "a password is asked for on a terminal: give --password-file FILE, or - for standard input"
            )
        password = getpass.getpass(f"password of {args.user}: ")
        if getpass.getpass("once more: ") != password:
            raise InvalidArgument("the passwords differ: nothing was changed")
        return password
    try:
        if path == "-":
            return _first_line(sys.stdin.buffer.readline(_MAX_LINE))
        with open(path, "rb") as file:
            return _first_line(file.readline(_MAX_LINE))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error


def _first_line(line: bytes) -> str:
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the password is not UTF-8") from None


@contextlib.contextmanager
def _users(args: argparse.Namespace) -> Iterator[_Users]:
    """Of a directory or of brokers."""
    target, settings = args.directory, wire_settings(args, args.directory)
    if is_over_wire(target):
        with open_log(target, **settings) as log:
            assert isinstance(log.backend, RemoteBackend)
            yield log.backend.users
        return
    directory = existing(target)
    if os.path.exists(os.path.join(directory, CLUSTER_FILE)):
        raise DirectoryError(
            f"{target} belongs to a broker of a cluster, whose users are in ZooKeeper: give "
            "--bootstrap-server HOST:PORT in its place"
        )
    yield _OfDirectory(directory)
