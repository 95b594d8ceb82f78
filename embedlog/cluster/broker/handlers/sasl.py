"""SaslHandshake, SaslAuthenticate: who is at the other end of a connection."""

from __future__ import annotations

from typing import Any

from ....errors import EmbedlogError
from ....security.sasl import AuthenticationFailed, Step
from ....wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ....wire.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ....wire.error_codes import ErrorCode
from ...network.close_reasons import CloseConnection
from ...network.connection import Connection
from ..access.authentication import Authenticator, conversation
from ..api_errors import message_for
from ..broker_context import BrokerContext, Handler, RequestContext

_WRONG_STATE = "SaslHandshake and SaslAuthenticate are for listeners with SASL, and come in this order"


class SaslHandlers:
    """Handles the APIs of authentication. On a listener without SASL they are in a wrong state."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"SaslHandshake": self.handshake, "SaslAuthenticate": self.authenticate}

    def handshake(self, context: RequestContext, request: SaslHandshakeRequest) -> Any:
        connection, authenticator = context.connection, self._authenticator(context.connection)
        if authenticator is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        state = conversation(connection)
        mechanisms = list(authenticator.mechanisms)
        raw = context.version == 0
        if state.mechanism is not None or (raw and state.session is not None):
            error = AuthenticationFailed("", "a SaslHandshake in a wrong state")
            refusal = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=mechanisms)
            return authenticator.fail(connection, error, refusal)
        if request.mechanism not in mechanisms or state.name not in ("", request.mechanism):
            error = AuthenticationFailed("", f"the mechanism {request.mechanism[:40]!r} is not accepted")
            refusal = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms
            )
            return authenticator.fail(connection, error, refusal)
        authenticator.begin(connection, request.mechanism, raw=raw)
        return SaslHandshakeResponse(mechanisms=mechanisms)

    def authenticate(self, context: RequestContext, request: SaslAuthenticateRequest) -> Any:
        connection, authenticator = context.connection, self._authenticator(context.connection)
        wrong = SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_WRONG_STATE)
        if authenticator is None:
            return wrong
        if conversation(connection).mechanism is None:
            if conversation(connection).session is not None:
                return wrong
            error = AuthenticationFailed(_WRONG_STATE, "a SaslAuthenticate before SaslHandshake")
            return authenticator.fail(connection, error, wrong)

        def finish(result: Step | EmbedlogError) -> Any:
            try:
                if isinstance(result, EmbedlogError):
                    raise result
                lifetime_ms = 0 if result.user is None else authenticator.succeed(connection, result)
            except AuthenticationFailed as error:
                refusal = SaslAuthenticateResponse(
                    error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message_for(error)
                )
                return authenticator.fail(connection, error, refusal)
            except EmbedlogError as error:  # users cannot be read: the client tries again
                return authenticator.fail(connection, error)
            return SaslAuthenticateResponse(auth_bytes=result.token, session_lifetime_ms=lifetime_ms)

        return authenticator.advance(connection, request.auth_bytes, finish)

    def _authenticator(self, connection: Connection) -> Authenticator | None:
        """The authenticator; None on a listener without SASL. Raises CloseConnection after a failure."""
        if not connection.listener.protocol.has_sasl:
            return None
        if conversation(connection).failed:
            raise CloseConnection("a request after its authentication has failed")
        return self._broker.authenticator
