"""SASL on a broker's connections: which mechanism, whose turn, how long it holds.

    SaslHandshake v1     the mechanism
    SaslAuthenticate     its tokens, until both sides are content; the answer says how long (KIP-368)
    SaslHandshake v0     the same, but the tokens come without any header

Until then, and when the session has ended, a connection may ask for nothing else but ApiVersions. Before its
session ends a client authenticates again, as the same principal, on the connection that it has; requests may
come in between. A connection of a user who was deleted goes on until then, as on Kafka.

What computes or waits for long (PLAIN's hashes, a JWT, ZooKeeper) runs in a few other threads, and only so
much may wait for them: beyond it connections close, which clients take for a fault that passes. A failure is
answered after a pause, and then its connection closes.

Invariant: a connection's state is touched in its loop's thread only.

Source: KIP-12, KIP-43, KIP-152 (SaslAuthenticate), KIP-368 (re-authentication), KIP-306 (the pause); Kafka's
`SaslServerAuthenticator`.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from ....errors import EmbedlogError, InvalidSetting
from ....runtime.log_throttle import LogThrottle
from ....runtime.worker_pool import WorkerPool
from ....security.oauthbearer import Jwks, JwtVerifier
from ....security.principal import Principal
from ....security.sasl import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    AuthenticationFailed,
    Mechanism,
    OAuthBearer,
    Plain,
    Scram,
    Step,
)
from ....security.users import UserStore
from ...network.close_reasons import CloseConnection
from ...network.connection import Connection
from ...network.event_loop import EncodedResponse
from ...network.listeners import Listener
from ...settings.broker_settings import BrokerSettings

logger = logging.getLogger(__name__)

_KEY: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
_BEFORE: Final = frozenset({_API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
_THREADS: Final = 2
_MOST_WAITING: Final = 256
_MAX_TOKEN: Final = 64 << 10

Finish = Callable[[Step | EmbedlogError], Any]
"""Makes a response of a step's result, in the loop's thread: the response, or a future of it."""


class Conversation:
    """A connection's authentication: `connection.authentication`."""

    __slots__ = ("asked_at", "failed", "mechanism", "name", "raw", "session")

    def __init__(self) -> None:
        self.mechanism: Mechanism | None = None  # while tokens are expected
        self.raw = False  # tokens without headers
        self.name = ""  # of the mechanism that it authenticated with
        self.session: Principal | None = None
        self.failed = False
        self.asked_at = 0.0  # when the last token came, of time.monotonic; 0: none has


class Authenticator:
    """A broker's. `close` it.

    Args:
        users: where credentials are.
        settings: the mechanisms, and limits.

    Raises InvalidSetting, InvalidArgument (a library is missing), and what reading the users raises.
    """

    def __init__(self, users: UserStore, settings: BrokerSettings) -> None:
        self.mechanisms = enabled_mechanisms(settings.sasl_enabled_mechanisms)
        self.succeeded = self.failed = self.expired = 0
        self._users = users
        self._settings = settings
        self._pools = {name: _Bounded(_THREADS, "embedlog-sasl") for name in ("passwords", "tokens")}
        self._busy_log = LogThrottle()
        self._verifier: JwtVerifier | None = None
        if OAUTHBEARER in self.mechanisms:
            self._verifier = _verifier(settings)
        users.secret()  # which writes it once
        for name in self.mechanisms:
            self._mechanism(name)  # its library is there

    def close(self) -> None:
        """End the threads."""
        for pool in self._pools.values():
            pool.close()

    def admit(self, connection: Connection, frame: memoryview) -> EncodedResponse | None:
        """A frame on a connection without a session: None if it is a request that may come now.

        Returns the answer to a token without header. Raises CloseConnection.
        """
        state = conversation(connection)
        if state.failed:
            raise CloseConnection("a request after its authentication has failed", logging.DEBUG)
        if state.raw and state.mechanism is not None:
            return self._raw_token(connection, state, bytes(frame))
        key = _KEY.unpack_from(frame)[0] if len(frame) >= _KEY.size else -1
        if key in _BEFORE:
            return None
        if state.session is not None:
            self.expired += 1
            raise CloseConnection(
                f"the session of {state.session} has ended, and it has not authenticated again", logging.INFO
            )
        if state.mechanism is not None:  # aiokafka does so when its token is refused
            self.failed += 1
        raise CloseConnection(f"a request of API {key} before authentication")

    def begin(self, connection: Connection, name: str, *, raw: bool) -> None:
        """The client has chosen one of `mechanisms`."""
        state = conversation(connection)
        state.mechanism, state.raw = self._mechanism(name), raw

    def advance(self, connection: Connection, token: bytes, finish: Finish) -> Any:
        """Take a token. `finish` gets the mechanism's answer, or its error; what it makes is returned, or a
        future of it.

        Raises CloseConnection if too many wait already.
        """
        state = conversation(connection)
        mechanism, state.asked_at = state.mechanism, time.monotonic()
        assert mechanism is not None
        if len(token) > _MAX_TOKEN:
            return finish(AuthenticationFailed("The token is too long", f"a token of {len(token):,} bytes"))
        if not mechanism.waits:
            return finish(_result(mechanism, token))
        outcome: Future[Any] = Future()
        pool = self._pools["tokens" if mechanism.name == OAUTHBEARER else "passwords"]

        def work() -> None:
            result = _result(mechanism, token)
            connection.loop.post(lambda: _complete(outcome, connection, finish, result))

        if not pool.submit(work):
            if count := self._busy_log.count():
                logger.warning("too many authentications at once: %d connections were closed", count)
            raise CloseConnection("too many authentications at once", logging.DEBUG)
        return outcome

    def succeed(self, connection: Connection, step: Step) -> int:
        """The client is who it says. Returns for how long, in ms; 0: as long as it likes.

        Raises AuthenticationFailed if it was somebody else before.
        """
        state = conversation(connection)
        assert step.user is not None and state.mechanism is not None
        principal = Principal("User", step.user)
        if state.session not in (None, principal):
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from {state.session}: {principal}",
                "it authenticates again as another user",
            )
        limits = (
            [self._settings.connections_max_reauth_ms] if self._settings.connections_max_reauth_ms else []
        )
        if step.expires_ms is not None:
            limits.append(max(step.expires_ms - int(time.time() * 1000), 1))
        lifetime_ms = min(limits, default=0)
        state.name, state.mechanism, state.session = state.mechanism.name, None, principal
        state.asked_at = 0.0
        ends = time.monotonic() + lifetime_ms / 1000 if limits else float("inf")
        self.succeeded += 1
        connection.authenticated(principal, ends)
        return lifetime_ms

    def fail(self, connection: Connection, error: EmbedlogError, response: Any = None) -> Future[Any]:
        """Answer after the pause, and close; without a response, only close. Nothing of it is a secret.

        The pause begins with the token: how long the check took, which differs between users, is not seen.
        """
        state = conversation(connection)
        state.failed, state.mechanism = True, None
        self.failed += 1
        cause = error.cause if isinstance(error, AuthenticationFailed) else str(error)
        shown = cause[:200].encode("unicode_escape").decode()  # on one line, whatever the client sent
        logger.warning("%r: authentication failed: %s", connection, shown)
        answer: Future[Any] = Future()

        def complete() -> None:
            if answer.set_running_or_notify_cancel():
                if response is None:
                    answer.set_exception(CloseConnection("authentication failed", logging.DEBUG))
                else:
                    connection.end()
                    answer.set_result(response)

        pause_s = self._settings.connection_failed_authentication_delay_ms / 1000
        took_s = time.monotonic() - state.asked_at if state.asked_at else 0.0
        connection.loop.call_later(max(pause_s - took_s, 0.0), complete)
        return answer

    def _raw_token(self, connection: Connection, state: Conversation, token: bytes) -> EncodedResponse:
        def finish(result: Step | EmbedlogError) -> Any:
            try:
                if isinstance(result, EmbedlogError):
                    raise result
                if result.user is not None:
                    self.succeed(connection, result)
            except EmbedlogError as error:
                return self.fail(connection, error)
            return (_LENGTH.pack(len(result.token)) + result.token,)

        answer: EncodedResponse = self.advance(connection, token, finish)
        return answer

    def _mechanism(self, name: str) -> Mechanism:
        if name == PLAIN:
            return Plain(self._users)
        if self._verifier is not None and name == OAUTHBEARER:
            return OAuthBearer(self._verifier.verify)
        return Scram(name, self._users)


class _Bounded:
    """A few threads, and a bound to what waits for them."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = WorkerPool(threads, name)
        self._room = threading.BoundedSemaphore(_MOST_WAITING)
        self.close: Callable[[], None] = lambda: self._pool.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[], None]) -> bool:
        """Whether there is room for it."""
        if not self._room.acquire(blocking=False):
            return False

        def run() -> None:
            try:
                work()
            finally:
                self._room.release()

        self._pool.submit(run)
        return True


def authenticator_of(
    users: UserStore, settings: BrokerSettings, listeners: Iterable[Listener]
) -> Authenticator | None:
    """What authenticates clients; None if no listener has SASL. Raises as `Authenticator`."""
    if any(listener.protocol.has_sasl for listener in listeners):
        return Authenticator(users, settings)
    return None


def conversation(connection: Connection) -> Conversation:
    """The connection's."""
    if not isinstance(connection.authentication, Conversation):
        connection.authentication = Conversation()
    return connection.authentication


def enabled_mechanisms(text: str) -> tuple[str, ...]:
    """The mechanisms of a list with commas. Raises InvalidSetting."""
    mechanisms = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise InvalidSetting(
                f"sasl_enabled_mechanisms: {mechanism[:40]!r} is none of {', '.join(MECHANISMS)}"
            )
    if not mechanisms:
        raise InvalidSetting(f"sasl_enabled_mechanisms has none of {', '.join(MECHANISMS)}")
    return mechanisms


def _verifier(settings: BrokerSettings) -> JwtVerifier:
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        raise InvalidSetting(
            "OAUTHBEARER needs sasl_oauthbearer_jwks_endpoint_url: the https address or the file of the keys "
            "that sign tokens"
        )
    return JwtVerifier(
        Jwks(url, settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000),
        settings.sasl_oauthbearer_expected_audience,
        settings.sasl_oauthbearer_expected_issuer,
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds,
    )


def _result(mechanism: Mechanism, token: bytes) -> Step | EmbedlogError:
    try:
        return mechanism.step(token)
    except EmbedlogError as error:
        return error
    except Exception:  # a library's: the client is told nothing of it
        logger.exception("%s failed", mechanism.name)
        return AuthenticationFailed("Authentication failed", "internal error of the broker")


def _complete(outcome: Future[Any], connection: Connection, finish: Finish, result: Any) -> None:
    """Answer with what `finish` makes, unless the connection has closed."""
    if connection.closed or outcome.cancelled():
        return
    response = finish(result)
    if not isinstance(response, Future):
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(response)
        return

    def done(later: Future[Any]) -> None:
        if outcome.set_running_or_notify_cancel():
            error = later.exception()
            if error is None:
                outcome.set_result(later.result())
            else:
                outcome.set_exception(error)

    response.add_done_callback(done)
