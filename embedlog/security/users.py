"""Users and their credentials: in a file of the log's directory, or wherever a cluster keeps them.

    users.json   {"version": 1, "secret": "<base64>",
                  "users": {"alice": {"SCRAM-SHA-256": "salt=...,stored_key=...,..."}}}

The secret is behind what an unknown user seems to have. Passwords are not stored.

Source: Kafka's `ScramCredentialUtils` and `/config/users`; KIP-554.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

from ..errors import CorruptCheckpoint, InvalidArgument
from ..files.names import USERS_FILE
from .document import Document
from .scram import DIGESTS, ScramCredential, check_user, fake_credential

_VERSION: Final = 1
_SECRET: Final = 32
MAX_USERS: Final = 100_000

Credentials: TypeAlias = Mapping[str, ScramCredential]
"""Mechanism -> credential."""
Changes: TypeAlias = Mapping[str, ScramCredential | None]
"""Mechanism -> its new credential; None: there is none any more."""


class UserStore(Protocol):
    """Where users are kept. Thread-safe.

    Methods raise StorageError, CorruptCheckpoint, or ZooKeeper's errors.
    """

    waits: bool
    """Whether a reader waits for another machine: not for an event loop."""

    def credentials(self, name: str) -> Credentials:
        """A user's; empty if there is no such user."""

    def names(self) -> list[str]:
        """The users' names, sorted."""

    def alter(self, name: str, changes: Changes) -> bool:
        """Change a user, all or nothing, durably. A user without a credential is gone.

        Returns False, without a change, if one to be deleted does not exist.
        Raises InvalidArgument for a name that cannot be a user's, and if there are too many users.
        """

    def secret(self) -> bytes:
        """The secret of `fake_credential`; made when it is first asked for."""


class DocumentUsers:
    """Implements `UserStore` over a log's directory, which exists."""

    waits = False

    def __init__(self, directory: str) -> None:
        self._document = Document(os.path.join(directory, USERS_FILE), _VERSION, check_s=0)

    def credentials(self, name: str) -> Credentials:
        return decode_credentials(self._users().get(name, {}))

    def names(self) -> list[str]:
        return sorted(self._users())

    def alter(self, name: str, changes: Changes) -> bool:
        check_user(name)
        existed = True

        def change(contents: dict[str, Any]) -> Mapping[str, Any]:
            nonlocal existed
            users = contents.setdefault("users", {})
            credentials = users.get(name, {})
            for mechanism, credential in changes.items():
                if credential is not None:
                    credentials[mechanism] = credential.encode()
                elif credentials.pop(mechanism, None) is None:
                    existed = False
                    raise _Unchanged
            users[name] = credentials
            if not credentials:
                del users[name]
            if len(users) > MAX_USERS:
                raise InvalidArgument(f"there are {MAX_USERS:,} users already: delete some")
            return contents

        try:
            self._document.update(change)
        except _Unchanged:
            pass
        return existed

    def secret(self) -> bytes:
        if "secret" not in self._document.read():

            def change(contents: dict[str, Any]) -> Mapping[str, Any]:
                contents.setdefault("secret", base64.b64encode(secrets.token_bytes(_SECRET)).decode())
                return contents

            self._document.update(change)
        return base64.b64decode(self._document.read()["secret"])

    def _users(self) -> Mapping[str, Mapping[str, str]]:
        users = self._document.read().get("users", {})
        if not isinstance(users, dict) or not all(
            isinstance(credentials, dict) for credentials in users.values()
        ):
            raise CorruptCheckpoint(f"{self._document.path} has no users", path=self._document.path)
        return users


class _Unchanged(Exception):
    """What was to be deleted does not exist."""


def decode_credentials(texts: Mapping[str, str]) -> Credentials:
    """The credentials among a user's settings. Raises InvalidArgument."""
    return {
        mechanism: ScramCredential.decode(mechanism, texts[mechanism])
        for mechanism in DIGESTS
        if mechanism in texts
    }


def credential_or_fake(store: UserStore, name: str, mechanism: str) -> ScramCredential:
    """A user's credential; what cannot be told from one if there is none."""
    fake = fake_credential(mechanism, name, store.secret())
    return store.credentials(name).get(mechanism, fake)
