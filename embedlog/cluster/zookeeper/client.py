"""A session with ZooKeeper: kazoo's client, with the chroot made, access control, and errors of our own.

    with ZooKeeper("127.0.0.1:2181,127.0.0.2:2181/kafka") as zookeeper:
        zookeeper.create(paths.broker(0), data, ephemeral=True)

All paths are below the chroot. The session survives the loss of a server: another one is connected to, and
ephemeral nodes stay. It is over when no server hears of it for `session_timeout_s`; kazoo then begins a new
one by itself, and `on_session` tells. Without a connection a call is tried again for ten seconds where that
cannot do harm, and raises ZooKeeperUnavailable at once where it can: what was asked may have been done, and
the caller has to look.

Access: with auth="user:password" the session is authenticated by ZooKeeper's digest scheme; with set_acl=True
what it makes can be changed by that user alone, and read by everybody, as Kafka's zookeeper.set.acl has it.
What lies under /consumers stays open to all: consumers of any program write there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.retry import RetryFailedError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from ...errors import InvalidArgument, ZooKeeperError, ZooKeeperUnavailable
from ...runtime.closing import Closing
from ...validation import check_flag, check_text
from .paths import CONSUMERS

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 15.0
_SILENT_S: Final = 2.0  # that somebody waits for a server is told after this
_PATIENCE_S: Final = 10.0

_LOST: Final = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    RetryFailedError,
    SessionExpiredError,
    SessionMovedError,
)
_FOLLOWS: Final = (RolledBackError, RuntimeInconsistency)  # another change of the transaction is in the way


class Znode(NamedTuple):
    """What stands in a znode, and which version that is. `owner`: the session whose it is, or 0."""

    data: bytes
    version: int
    owner: int
    created: int  # the zxid: another node of the same path has another


class ZooKeeper(Closing):
    """A client. Safe between threads.

    Args:
        connect: "host:port,host:port/chroot"; the chroot is made where it is not there.
        session_timeout_s: after how long without a sign of us our ephemeral nodes go.
        connect_timeout_s: how long making it waits for a server.
        auth: "user:password" for the digest scheme.
        set_acl: have what is made be changed by that user alone.

    Raises InvalidType, InvalidArgument, ZooKeeperUnavailable, ZooKeeperError (wrong credentials).
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_s: float = 6.0,
        connect_timeout_s: float = _CONNECT_S,
        auth: str | None = None,
        set_acl: bool = False,
    ) -> None:
        check_text("zookeeper_connect", connect)
        check_flag("set_acl", set_acl)
        hosts, chroot = split_connect(connect)
        if auth is not None and ":" not in auth:
            raise InvalidArgument("auth is user:password")
        if set_acl and auth is None:
            raise InvalidArgument("set_acl needs auth: who may change what is made?")
        self.connect_string = connect
        self.session_timeout_s = session_timeout_s
        self._acl = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if set_acl else list(OPEN_ACL_UNSAFE)
        self._listeners: list[Callable[[bool], None]] = []
        self._closed = False
        self._has_session = False
        self._suspended = False
        self._kazoo = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            auth_data=None if auth is None else [("digest", auth)],
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            command_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0, "deadline": _PATIENCE_S},
            logger=_quiet(),
        )
        self._kazoo.add_listener(self._state_changed)
        _keep_alive(self._kazoo)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._connect(hosts, connect_timeout_s)
            if chroot:
                self._ensure(chroot)
                self._kazoo.chroot = chroot
            undo.pop_all()

    @property
    def kazoo(self) -> KazooClient:
        """kazoo's client, for its watches and recipes: paths are below the chroot there, too."""
        return self._kazoo

    @property
    def session_id(self) -> int:
        """Which session this is; 0 while there is none."""
        client = self._kazoo.client_id
        return int(client[0]) if client and self._kazoo.state != KazooState.LOST else 0

    @property
    def is_connected(self) -> bool:
        return bool(self._kazoo.connected)

    def on_session(self, listener: Callable[[bool], None]) -> None:
        """listener(False) when the session is over, listener(True) when there is a new one.

        Called in kazoo's thread: it must not wait, nor ask ZooKeeper anything.
        """
        self._listeners.append(listener)

    # -- reading ---------------------------------------------------------------------------------------

    def get(self, path: str, watch: Callable[[Any], None] | None = None) -> Znode | None:
        """What stands there; None where nothing is. `watch` is called once, when that changes."""
        with _ours():
            if watch is not None:
                # Registers a watch whether or not it is there.
                stat = self._retry(self._kazoo.exists, path, watch)
                if stat is None:
                    return None
            try:
                data, found = self._retry(self._kazoo.get, path)
            except NoNodeError:
                return None
            return _znode(data, found)

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str] | None:
        """Sorted; None where the path is not there."""
        with _ours():
            try:
                return sorted(self._retry(self._kazoo.get_children, path, watch))
            except NoNodeError:
                return None

    # -- writing ---------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> bool:
        """Make a node, and what lies above it. False where it is there already, whoever made it."""
        with _ours():
            while True:
                try:
                    self._kazoo.create(path, data, acl=self.acl_of(path), ephemeral=ephemeral)
                    return True
                except NodeExistsError:
                    return False
                except NoNodeError:
                    self._ensure(path.rpartition("/")[0])

    def ensure(self, path: str) -> None:
        """Make a node without contents, and what lies above it, unless it is there."""
        with _ours():
            self._ensure(path)

    def write(self, path: str, data: bytes) -> None:
        """Have it there with these contents, whatever was there before; the last one who writes wins."""
        with _ours():
            while True:
                try:
                    self._retry(self._kazoo.set, path, data)
                    return
                except NoNodeError:
                    if self.create(path, data):
                        return

    def replace(self, path: str, data: bytes, version: int) -> bool:
        """Replace the contents if they are still of this version; False if not, or if it is gone."""
        with _ours():
            try:
                self._kazoo.set(path, data, version)
                return True
            except (BadVersionError, NoNodeError):
                return False

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """False where it was not there."""
        with _ours():
            try:
                self._retry(self._kazoo.delete, path, recursive=recursive)
                return True
            except NoNodeError:
                return False

    def transaction(self) -> TransactionRequest:
        """For several changes at once, see kazoo; `commit` it here."""
        return self._kazoo.transaction()

    def commit(self, transaction: TransactionRequest) -> KazooException | None:
        """Make all of its changes or none: None when they are made, else what is in the way."""
        with _ours():
            results = transaction.commit()
        for result in results:
            if isinstance(result, KazooException) and not isinstance(result, _FOLLOWS):
                return result
        return None

    def acl_of(self, path: str) -> list[Any]:
        """Who may do what with a node that is made there."""
        if path == CONSUMERS or path.startswith(CONSUMERS + "/"):
            return list(OPEN_ACL_UNSAFE)
        return self._acl

    def pipeline(self, requests: Iterable[Callable[[KazooClient], Any]]) -> list[Any]:
        """Several requests, sent without waiting for one before the next: their results, in order.

        Each is called with kazoo's client and returns what one of its `..._async` methods returns. What
        ZooKeeper refuses (no such node, say) is a result too: kazoo's error for it.
        """
        found: list[Any] = []
        with _ours():
            for asked in [request(self._kazoo) for request in requests]:
                try:
                    found.append(asked.get(timeout=_PATIENCE_S))
                except (NoNodeError, NodeExistsError) as refused:
                    found.append(refused)
        return found

    # -- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        with contextlib.suppress(KazooException, *_LOST):
            self._kazoo.stop()
        with contextlib.suppress(KazooException, *_LOST):
            self._kazoo.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _connect(self, hosts: str, timeout_s: float) -> None:
        """Raises ZooKeeperUnavailable."""
        connected = self._kazoo.start_async()
        if not connected.wait(min(_SILENT_S, timeout_s)):
            logger.warning("waiting for a ZooKeeper server at %s, %g s at most", hosts, timeout_s)
            connected.wait(max(timeout_s - _SILENT_S, 0))
        if not self._kazoo.connected:
            raise ZooKeeperUnavailable(f"no ZooKeeper server answers at {hosts} within {timeout_s:g} s")

    def _ensure(self, path: str) -> None:
        above = ""
        for step in path.strip("/").split("/"):
            above += f"/{step}"
            with contextlib.suppress(NodeExistsError):
                if self._retry(self._kazoo.exists, above) is None:
                    self._retry(self._kazoo.create, above, b"", acl=self.acl_of(above))

    def _retry(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._kazoo.retry(call, *args, **kwargs)

    def _state_changed(self, state: str) -> None:
        """Called by kazoo in its own thread."""
        if state == KazooState.CONNECTED:
            if not self._has_session:
                self._has_session = True
                self._tell(True)
            elif self._suspended:
                logger.warning("connected with ZooKeeper again, the session is the same")
            self._suspended = False
        elif state == KazooState.SUSPENDED:
            self._suspended = True
            logger.warning(
                "the connection with ZooKeeper (%s) is lost, looking for another", self.connect_string
            )
        elif self._has_session:
            self._has_session = False
            self._tell(False)

    def _tell(self, there_is_one: bool) -> None:
        for listener in list(self._listeners):
            try:
                listener(there_is_one)
            except Exception:  # kazoo's thread would end
                logger.exception("what follows the session failed")


def split_connect(connect: str) -> tuple[str, str]:
    """ "host:port,host:port/chroot" as hosts and chroot ("" or "/..."). Raises InvalidArgument."""
    hosts, slash, chroot = connect.strip().partition("/")
    chroot = (slash + chroot).rstrip("/")
    names = [host.strip() for host in hosts.split(",")]
    if not all(names) or "//" in chroot or any(step in (".", "..") for step in chroot.split("/")):
        raise InvalidArgument(f"{connect!r} is not host:port[,host:port...][/chroot]")
    for name in names:
        _, colon, port = name.rpartition(":")
        if colon and not (port.isdecimal() and 0 < int(port) < 65_536) and not name.endswith("]"):
            raise InvalidArgument(f"{name!r} in {connect!r} is not host:port")
    return ",".join(names), chroot


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """kazoo's errors as our own."""
    try:
        yield
    except _LOST as error:
        raise ZooKeeperUnavailable(f"no connection with ZooKeeper ({type(error).__name__})") from error
    except (NoAuthError, AuthFailedError) as error:
        raise ZooKeeperError(
            f"ZooKeeper does not allow this: are the credentials right? ({error!r})"
        ) from error
    except KazooException as error:
        raise ZooKeeperError(f"ZooKeeper refused: {error!r}") from error
    except RuntimeError as error:  # see _keep_alive
        raise ZooKeeperUnavailable(f"no connection with ZooKeeper ({error})") from error


def _znode(data: bytes, stat: ZnodeStat) -> Znode:
    return Znode(data, stat.version, stat.ephemeralOwner, stat.czxid)


def _quiet() -> logging.Logger:
    """kazoo tells each attempt to connect: what matters of it we tell ourselves."""
    quiet = logging.getLogger("embedlog.kazoo")
    quiet.setLevel(logging.CRITICAL)
    return quiet


def _keep_alive(kazoo: KazooClient) -> None:
    """Have what goes wrong with a connection cost that connection.

    kazoo's thread ends, and its client with it, when it gets what it does not understand: an answer that is
    not the next one's, say, as a server gives them that has lost its leader meanwhile.
    """
    connection = kazoo._connection
    attempt = connection._connect_attempt

    def attempted(*args: Any) -> Any:
        try:
            return attempt(*args)
        except Exception as error:
            logger.warning("the connection with ZooKeeper is given up: %r", error)
            kazoo._session_callback(KeeperState.CONNECTING)
            return None

    connection._connect_attempt = attempted
