"""`embedlog users`: who may authenticate to a broker, and with which password."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from ..errors import DirectoryError, InvalidArgument, StorageError
from ..security.scram import (
    DIGESTS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    check_password,
    check_user,
    credential_of,
)
from ..security.users import DocumentUsers
from .arguments import LOG, Argument, Command, arg
from .security_documents import Administers, administers
from .ui import UI, Column, number_columns

_LOCK: Final = "Takes no lock: works while a broker serves the directory, which then knows of it at once."
_PASSWORD: Final = """\
The password is read from the terminal, or from the first line of a file. It is kept salted and hashed, and
serves SCRAM and PLAIN."""
_MAX_LINE: Final = 4_096
_USER: Final = arg("USER")
_JSON: Final = arg("--json", "print a JSON object")


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
        return {
            user: {
                mechanism: credential.iterations
                for mechanism, credential in self._users.credentials(user).items()
            }
            for user in self._users.names()
            if name in (None, user)
        }

    def set_password(self, name: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
        check_password(password)
        self._users.alter(
            name, {mechanism: credential_of(mechanism, password, iterations) for mechanism in mechanisms}
        )

    def delete(self, name: str, mechanisms: Iterable[str]) -> None:
        self._users.alter(name, dict.fromkeys(mechanisms))


_with_users: Administers[_Users] = administers(
    lambda brokers: brokers.users,
    _OfDirectory,
    "{} belongs to a broker of a cluster, whose users are in ZooKeeper: give --bootstrap-server HOST:PORT in "
    "its place",
    DirectoryError,
)


def commands() -> Iterator[Command]:
    yield Command("users", "list, describe, add, delete users, set passwords", _LOCK).with_actions(
        Command("list", "list the users", _LOCK, _list).takes(
            LOG, arg("--json", "print a JSON object per user")
        ),
        Command("describe", "show a user's mechanisms", _LOCK, _describe).takes(LOG, _USER, _JSON),
        Command("add", "add a user", _LOCK, _add, f"Add a user.\n\n{_PASSWORD}").takes(
            *_password_options("default: both")
        ),
        Command(
            "passwd", "set a user's password", _LOCK, _passwd, f"Set a user's password.\n\n{_PASSWORD}"
        ).takes(*_password_options("default: those that it has")),
        Command("delete", "delete a user", _LOCK, _delete).takes(LOG, _USER, _JSON),
    )


def _password_options(default: str) -> Iterator[Argument]:
    yield LOG
    yield _USER
    yield arg("--password-file FILE", "read the password from there; - is standard input")
    yield arg("--mechanism", f"repeatable; {default}", action="append", choices=list(DIGESTS))
    yield arg(
        "--iterations N",
        f"{MIN_ITERATIONS} (the default) to {MAX_ITERATIONS}: more makes guessing dearer",
        type=_iterations,
        default=MIN_ITERATIONS,
    )
    yield _JSON


def _iterations(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise argparse.ArgumentTypeError(f"must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


@_with_users
def _list(args: argparse.Namespace, ui: UI, users: _Users) -> int:
    mechanisms = sorted(users.describe().items())
    ui.listing(
        ({"user": name, "mechanisms": dict(user_mechanisms)} for name, user_mechanisms in mechanisms),
        (Column("user", shortens=True), Column("mechanisms", folds=True)),
        ((name, " ".join(user_mechanisms)) for name, user_mechanisms in mechanisms),
        "no users yet",
    )
    return 0


@_with_users
def _describe(args: argparse.Namespace, ui: UI, users: _Users) -> int:
    own = _own(args, users)
    columns = (Column("mechanism"), *number_columns("iterations"))
    if args.json:
        ui.json({"user": args.user, "mechanisms": dict(own)})
    else:
        ui.table(columns, own.items())
    return 0


@_with_users
def _add(args: argparse.Namespace, ui: UI, users: _Users) -> int:
    if users.describe(args.user):
        raise InvalidArgument(
            f"there is a user {args.user!r} already; embedlog users passwd sets another password"
        )
    return _set_password(users, args.mechanism or list(DIGESTS), args, ui)


@_with_users
def _passwd(args: argparse.Namespace, ui: UI, users: _Users) -> int:
    own = _own(args, users)
    return _set_password(users, args.mechanism or list(own), args, ui)


@_with_users
def _delete(args: argparse.Namespace, ui: UI, users: _Users) -> int:
    users.delete(args.user, list(_own(args, users)))
    line = f"deleted {args.user}; its open connections go on until they authenticate again"
    ui.result({"user": args.user, "action": args.action}, line)
    return 0


def _own(args: argparse.Namespace, users: _Users) -> Mapping[str, int]:
    """A user's mechanisms, with their iterations. Raises InvalidArgument."""
    description = users.describe(args.user)
    if not description:
        raise InvalidArgument(f"there is no user {args.user!r}")
    return description[args.user]


def _set_password(users: _Users, mechanisms: list[str], args: argparse.Namespace, ui: UI) -> int:
    check_user(args.user)
    password = check_password(_password(args))
    users.set_password(args.user, password, dict.fromkeys(mechanisms), args.iterations)
    line = f"{args.user} can authenticate by {', '.join(mechanisms)}"
    ui.result({"user": args.user, "action": args.action}, line)
    return 0


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
