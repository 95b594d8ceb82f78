"""Users in ZooKeeper, where Kafka's brokers and tools of that time kept them: implements `UserStore`.

    /config/users/alice   {"version":1,"config":{"SCRAM-SHA-256":"salt=...,stored_key=...,..."}}

A znode has the user's quotas, too, which a change keeps. Every authentication reads the znode: all brokers
know a new password at once, and nothing has to be watched. A notification is written all the same, for
Kafka's brokers.

Source: Kafka 2.7's `AdminZkClient`, `ScramCredentialUtils`.
"""

from __future__ import annotations

import secrets

from ...errors import CorruptZnode, InvalidArgument, ZooKeeperUnavailable
from ...security.scram import DIGESTS, MAX_NAME, check_user
from ...security.users import MAX_USERS, Changes, Credentials, decode_credentials
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper

_ATTEMPTS = 100  # of a change that others make at the same time
_SECRET = 32


class ZooKeeperUsers:
    """The users of a cluster. Raises ZooKeeperError, ZooKeeperUnavailable, CorruptZnode. Thread-safe.

    Args:
        zookeeper: a client, which stays open.
    """

    waits = True

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._secret = b""

    def credentials(self, name: str) -> Credentials:
        if name in ("", ".", "..") or len(name.encode()) > MAX_NAME:
            return {}
        znode = self._zookeeper.get(_path(name))
        return {} if znode is None else decode_credentials(contents.decode_config(znode.data))

    def names(self) -> list[str]:
        steps = self._zookeeper.children(paths.USERS) or ()
        names = [name for name in map(paths.unsanitized, steps) if name is not None]
        responses = self._zookeeper.pipeline_of(map(_path, names))
        return sorted(
            name
            for name, response in zip(names, responses, strict=True)
            if isinstance(response, tuple)
            and not DIGESTS.keys().isdisjoint(contents.decode_config(response[0]))
        )

    def alter(self, name: str, changes: Changes) -> bool:
        path = _path(check_user(name))
        for _ in range(_ATTEMPTS):
            znode = self._zookeeper.get(path)
            if znode is None and len(self._zookeeper.children(paths.USERS) or ()) >= MAX_USERS:
                raise InvalidArgument(f"there are {MAX_USERS:,} users already: delete some")
            config = {} if znode is None else contents.decode_config(znode.data)
            for mechanism, credential in changes.items():
                if credential is not None:
                    config[mechanism] = credential.encode()
                elif config.pop(mechanism, None) is None:
                    return False
            data = contents.encode_config(config)
            is_written = (
                self._zookeeper.create(path, data)
                if znode is None
                else self._zookeeper.replace(path, data, znode.version)
            )
            if is_written:
                self._zookeeper.ensure(paths.CONFIG_CHANGES)
                change = contents.encode_config_change(f"users/{paths.sanitized(name)}")
                self._zookeeper.append(paths.CONFIG_CHANGE, change)
                return True
        raise ZooKeeperUnavailable(f"{path} changes all the time: try again")

    def secret(self) -> bytes:
        if not self._secret:
            self._zookeeper.create(paths.SASL_SECRET, secrets.token_bytes(_SECRET))
            znode = self._zookeeper.get(paths.SASL_SECRET)
            if znode is None or len(znode.data) != _SECRET:
                raise CorruptZnode(f"{paths.SASL_SECRET} does not have {_SECRET} bytes: delete it")
            self._secret = znode.data
        return self._secret


def _path(name: str) -> str:
    return paths.config_entity(f"users/{paths.sanitized(name)}")
