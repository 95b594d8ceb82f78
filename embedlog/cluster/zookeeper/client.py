"""A ZooKeeper session: kazoo's client with a chroot, access control, and embedlog's errors.

    with ZooKeeper("127.0.0.1:2181,127.0.0.2:2181/kafka") as zookeeper:
        zookeeper.create(paths.broker(0), data, ephemeral=True)

All paths are below the chroot. The session survives the loss of a server: kazoo connects to another one, and
ephemeral nodes stay. It expires when no server hears from it for `session_timeout_s`; kazoo then begins a new
one, and `on_session` listeners are called. Without a connection, an idempotent call is retried for ten
seconds; any other raises ZooKeeperUnavailable at once: it may have been executed, so the caller checks.

Access: auth="user:password" authenticates the session by ZooKeeper's digest scheme, or by SASL; with TLS a
client's certificate does, too (security.py). With set_acl=True only that identity can change the nodes that
it creates, and everyone can read them, as with Kafka's zookeeper.set.acl. Users' credentials only it can
read. Nodes under /consumers stay open to all: consumers of any program write there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SASLException,
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
from .paths import CONSUMERS, SASL_SECRET, USERS
from .security import Security

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 15.0
_LOG_AFTER_S: Final = 2.0  # of waiting for a server
_RETRY_S: Final = 10.0
_PLAIN: Final = Security()

_LOST: Final = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    RetryFailedError,
    SessionExpiredError,
    SessionMovedError,
)
_CONSEQUENTIAL: Final = (RolledBackError, RuntimeInconsistency)  # another operation of the transaction failed


class Znode(NamedTuple):
    """A znode's contents and version. `owner` is the session of an ephemeral node, otherwise 0."""

    data: bytes
    version: int
    owner: int
    created: int  # czxid: differs if the node was deleted and created again


class ZooKeeper(Closing):
    """A client. Thread-safe.

    Args:
        connect: "host:port,host:port/chroot"; the chroot is created if it does not exist.
        session_timeout_s: the session expires after this time without contact, and its ephemeral nodes go.
        connect_timeout_s: how long the constructor waits for a server.
        auth: "user:password" for the digest scheme, or for SASL.
        set_acl: only that user can change the nodes that it creates.
        security: TLS and SASL.

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
        security: Security = _PLAIN,
    ) -> None:
        check_text("zookeeper_connect", connect)
        check_flag("set_acl", set_acl)
        hosts, chroot = split_connect(connect)
        if auth is not None and ":" not in auth:
            raise InvalidArgument("auth is user:password")
        if set_acl and auth is None and not security.keystore:
            raise InvalidArgument("set_acl needs auth or a certificate: who may change the nodes")
        sasl_options, handler = security.sasl_options(auth), security.handler()
        self._tls = handler
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
            auth_data=None if auth is None or sasl_options else [("digest", auth)],
            sasl_options=sasl_options,
            handler=handler,
            use_ssl=security.tls,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            command_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0, "deadline": _RETRY_S},
            logger=_quiet(),
        )
        self._kazoo.add_listener(self._state_changed)
        _keep_alive(self._kazoo)
        if sasl_options is not None:
            _authenticate_again(self._kazoo)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._connect(hosts, connect_timeout_s)
            if sasl_options is not None:  # only now it is known whether the server accepts them
                with _converted_errors():
                    self._kazoo.exists_async("/").get(timeout=connect_timeout_s)
            if chroot:
                self._ensure(chroot)
                self._kazoo.chroot = chroot
            undo.pop_all()

    @property
    def kazoo(self) -> KazooClient:
        """kazoo's client, for its watches and recipes; its paths are below the chroot, too."""
        return self._kazoo

    @property
    def session_id(self) -> int:
        """The session's id; 0 while there is none."""
        client = self._kazoo.client_id
        return int(client[0]) if client and self._kazoo.state != KazooState.LOST else 0

    @property
    def is_connected(self) -> bool:
        return bool(self._kazoo.connected)

    def on_session(self, listener: Callable[[bool], None]) -> None:
        """Call listener(False) when the session ends, and listener(True) when a new one begins.

        Called in kazoo's thread: it must neither block nor call ZooKeeper.
        """
        self._listeners.append(listener)

    # -- reading ---------------------------------------------------------------------------------------

    def get(self, path: str, watch: Callable[[Any], None] | None = None) -> Znode | None:
        """The node at a path; None if it does not exist. `watch` is called once, when that changes."""
        with _converted_errors():
            if watch is not None:
                # Sets the watch whether or not the node exists.
                stat = self._retry(self._kazoo.exists, path, watch)
                if stat is None:
                    return None
            try:
                data, stat = self._retry(self._kazoo.get, path)
            except NoNodeError:
                return None
            return _znode(data, stat)

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str] | None:
        """The children's names, sorted; None if the path does not exist."""
        with _converted_errors():
            try:
                return sorted(self._retry(self._kazoo.get_children, path, watch))
            except NoNodeError:
                return None

    # -- writing ---------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> bool:
        """Create a node and its parents. Returns False if it exists already."""
        with _converted_errors():
            while True:
                try:
                    self._kazoo.create(path, data, acl=self.acl_of(path), ephemeral=ephemeral)
                    return True
                except NodeExistsError:
                    return False
                except NoNodeError:
                    self._ensure(path.rpartition("/")[0])

    def append(self, path: str, data: bytes) -> None:
        """Create a node whose name is this one's and the next number; its parent exists. After an error there
        may be one."""
        with _converted_errors():
            self._kazoo.create(path, data, acl=self.acl_of(path), sequence=True)

    def ensure(self, path: str) -> None:
        """Create an empty node and its parents, unless it exists."""
        with _converted_errors():
            self._ensure(path)

    def write(self, path: str, data: bytes) -> None:
        """Create a node or overwrite its contents; the last write wins."""
        with _converted_errors():
            while True:
                try:
                    self._retry(self._kazoo.set, path, data)
                    return
                except NoNodeError:
                    if self.create(path, data):
                        return

    def replace(self, path: str, data: bytes, version: int) -> bool:
        """Replace the contents if the node still has this version. Returns False if not, or if it is gone."""
        with _converted_errors():
            try:
                self._kazoo.set(path, data, version)
                return True
            except (BadVersionError, NoNodeError):
                return False

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Returns False if the node does not exist."""
        with _converted_errors():
            try:
                self._retry(self._kazoo.delete, path, recursive=recursive)
                return True
            except NoNodeError:
                return False

    def transaction(self) -> TransactionRequest:
        """A new transaction, see kazoo; pass it to `commit`."""
        return self._kazoo.transaction()

    def commit(self, transaction: TransactionRequest) -> KazooException | None:
        """Commit all operations or none. Returns None on success, else the error of the failed operation."""
        with _converted_errors():
            responses = transaction.commit()
        for response in responses:
            if isinstance(response, KazooException) and not isinstance(response, _CONSEQUENTIAL):
                return response
        return None

    def acl_of(self, path: str) -> list[Any]:
        """The ACL of a node to be created at this path."""
        if path == CONSUMERS or path.startswith(CONSUMERS + "/"):
            return list(OPEN_ACL_UNSAFE)
        if self._acl[:1] == CREATOR_ALL_ACL and (path == SASL_SECRET or path.startswith(USERS)):
            return list(CREATOR_ALL_ACL)
        return self._acl

    def pipeline(self, requests: Iterable[Callable[[KazooClient], Any]]) -> list[Any]:
        """Send several requests without waiting between them. Returns their results in order.

        Each request is called with kazoo's client and returns the result of one of its `..._async` methods.
        NoNodeError and NodeExistsError are returned as results.
        """
        results: list[Any] = []
        with _converted_errors():
            for pending in [request(self._kazoo) for request in requests]:
                try:
                    results.append(pending.get(timeout=_RETRY_S))
                except (NoNodeError, NodeExistsError) as error:
                    results.append(error)
        return results

    def pipeline_of(
        self, paths: Iterable[str], request: Callable[[KazooClient, str], Any] = KazooClient.get_async
    ) -> list[Any]:
        """The same request for each path, by default to read it."""
        return self.pipeline([partial(lambda path, kazoo: request(kazoo, path), path) for path in paths])

    # -- closing ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        with contextlib.suppress(KazooException, *_LOST):
            self._kazoo.stop()
        with contextlib.suppress(KazooException, *_LOST):
            self._kazoo.close()

    def _connect(self, hosts: str, timeout_s: float) -> None:
        """Raises ZooKeeperUnavailable."""
        connected = self._kazoo.start_async()
        if not connected.wait(min(_LOG_AFTER_S, timeout_s)):
            logger.warning("waiting for a ZooKeeper server at %s, %g s at most", hosts, timeout_s)
            connected.wait(max(timeout_s - _LOG_AFTER_S, 0))
        if not self._kazoo.connected:
            why = f": {self._tls.failure}" if self._tls is not None and self._tls.failure else ""
            raise ZooKeeperUnavailable(f"no ZooKeeper server responds at {hosts} within {timeout_s:g} s{why}")

    def _ensure(self, path: str) -> None:
        parent = ""
        for step in path.strip("/").split("/"):
            parent += f"/{step}"
            with contextlib.suppress(NodeExistsError):
                if self._retry(self._kazoo.exists, parent) is None:
                    self._retry(self._kazoo.create, parent, b"", acl=self.acl_of(parent))

    def _retry(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._kazoo.retry(call, *args, **kwargs)

    def _state_changed(self, state: str) -> None:
        """Called in kazoo's thread."""
        if state == KazooState.CONNECTED:
            if not self._has_session:
                self._has_session = True
                self._notify(True)
            elif self._suspended:
                logger.warning("reconnected to ZooKeeper in the same session")
            self._suspended = False
        elif state == KazooState.SUSPENDED:
            self._suspended = True
            logger.warning(
                "the connection to ZooKeeper (%s) is lost, connecting to another server", self.connect_string
            )
        elif self._has_session:
            self._has_session = False
            self._notify(False)

    def _notify(self, is_active: bool) -> None:
        for listener in list(self._listeners):
            try:
                listener(is_active)
            except Exception:  # kazoo's thread would end
                logger.exception("a listener of the session failed")


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
def _converted_errors() -> Iterator[None]:
    """Raises embedlog's errors instead of kazoo's."""
    try:
        yield
    except _LOST as error:
        raise ZooKeeperUnavailable(f"no connection to ZooKeeper ({type(error).__name__})") from error
    except (NoAuthError, AuthFailedError) as error:
        raise ZooKeeperError(f"ZooKeeper denies access: check the credentials ({error!r})") from error
    except KazooException as error:
        raise ZooKeeperError(f"ZooKeeper rejected the request: {error!r}") from error
    except RuntimeError as error:  # see _keep_alive
        raise ZooKeeperUnavailable(f"no connection to ZooKeeper ({error})") from error


def _znode(data: bytes, stat: ZnodeStat) -> Znode:
    return Znode(data, stat.version, stat.ephemeralOwner, stat.czxid)


def _quiet() -> logging.Logger:
    """A silent logger: kazoo logs each connection attempt, and this module what matters of them."""
    silent_logger = logging.getLogger("embedlog.kazoo")
    silent_logger.setLevel(logging.CRITICAL)
    return silent_logger


def _keep_alive(kazoo: KazooClient) -> None:
    """Limit an unexpected error to its connection.

    kazoo's thread, and its client with it, ends on a response that it does not expect, for example one out of
    order, which a server sends that has lost its leader meanwhile.
    """
    connection = kazoo._connection
    attempt = connection._connect_attempt

    def attempted(*args: Any) -> Any:
        try:
            return attempt(*args)
        except Exception as error:
            logger.warning("closing the connection to ZooKeeper: %r", error)
            kazoo._session_callback(KeeperState.CONNECTING)
            return None

    connection._connect_attempt = attempted


def _authenticate_again(kazoo: KazooClient) -> None:
    """Limit what fails in SASL to its connection, once it has succeeded.

    kazoo's client ends for good, also when a server stops in the middle of it.
    """
    connection = kazoo._connection
    authenticate = connection._authenticate_with_sasl
    has_succeeded = False

    def authenticated(*args: Any) -> None:
        nonlocal has_succeeded
        try:
            authenticate(*args)
        except (AuthFailedError, SASLException) as error:
            if not has_succeeded:
                raise
            logger.warning("ZooKeeper does not authenticate this process: %r", error)
            raise ConnectionDropped("SASL failed") from error
        has_succeeded = True

    connection._authenticate_with_sasl = authenticated
