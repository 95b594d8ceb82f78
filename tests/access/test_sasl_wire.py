"""SASL by hand: states, versions, sessions, and clients that mean harm."""

from __future__ import annotations

import base64
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from scramp import ScramClient
from secured import (
    PASSWORD,
    QUICK,
    Issuer,
    add_user,
    bearer,
    handshake,
    plain,
    raw_token,
    secured,
    token,
)
from wire import Wire, batch_of
from zookeepers import eventually

from embedlog.cluster import Broker
from embedlog.errors import InvalidArgument, InvalidSetting
from embedlog.security import scram
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.metadata import MetadataRequest
from embedlog.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from embedlog.wire.apis.sasl_handshake import SaslHandshakeRequest
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.frames import encode_request

SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def secure(tmp_path: Path, issuer: Issuer) -> Iterator[Broker]:
    with secured(tmp_path, issuer=issuer, **QUICK) as broker:
        yield broker


@pytest.fixture
def wire(secure: Broker) -> Iterator[Wire]:
    with Wire(secure) as wire:
        yield wire


def scram_login(wire: Wire, mechanism: str, user: str = "alice", password: str = PASSWORD) -> Any:
    """The last answer."""
    client = ScramClient([mechanism], user, password)
    assert handshake(wire, mechanism) == 0
    answer = token(wire, client.get_client_first().encode())
    assert answer.error_code == 0
    client.set_server_first(bytes(answer.auth_bytes).decode())
    answer = token(wire, client.get_client_final().encode())
    if not answer.error_code:
        client.set_server_final(bytes(answer.auth_bytes).decode())  # the broker knows the password, too
    return answer


def is_served(wire: Wire) -> bool:
    return bool(wire.ask(MetadataRequest(topics=None), 9).brokers)


# -- the way it should go ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram(wire: Wire, mechanism: str) -> None:
    answer = scram_login(wire, mechanism)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert is_served(wire)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_in_each_version(wire: Wire, version: int) -> None:
    assert handshake(wire, "PLAIN") == 0
    assert token(wire, plain(), version).error_code == 0
    assert is_served(wire)


def test_tokens_without_headers(secure: Broker, wire: Wire) -> None:
    """After SaslHandshake v0, as clients before Kafka 1.0 send them."""
    assert handshake(wire, "PLAIN", 0) == 0
    assert raw_token(wire, plain()) == b""
    assert is_served(wire)
    with Wire(secure) as other:
        client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
        assert handshake(other, "SCRAM-SHA-256", 0) == 0
        client.set_server_first(raw_token(other, client.get_client_first().encode()).decode())
        client.set_server_final(raw_token(other, client.get_client_final().encode()).decode())
        assert is_served(other)
    with Wire(secure) as wrong:
        assert handshake(wrong, "PLAIN", 0) == 0
        wrong.socket.sendall(struct.pack(">i", 4) + b"\0a\0b")
        assert wrong.is_closed_by_peer()


def test_a_nonce_as_librdkafka_before_2_6_1_sends_it(wire: Wire) -> None:
    """Debian's kcat does."""
    client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
    handshake(wire, "SCRAM-SHA-256")
    client.set_server_first(bytes(token(wire, client.get_client_first().encode()).auth_bytes).decode())
    client.nonce = type(client.nonce)(f"{client.c_nonce}{client.nonce}")
    assert token(wire, client.get_client_final().encode()).error_code == 0


def test_api_versions_come_before(wire: Wire) -> None:
    offered = {each.api_key for each in wire.ask(ApiVersionsRequest(), 2).api_keys}
    assert {17, 36, 50, 51} <= offered
    assert handshake(wire, "PLAIN") == 0
    assert wire.ask(ApiVersionsRequest(), 2).error_code == 0
    assert token(wire, plain()).error_code == 0


def test_the_principal(secure: Broker, wire: Wire) -> None:
    scram_login(wire, "SCRAM-SHA-256")
    (connection,) = (each for processor in secure.server.processors for each in processor.connections)
    assert str(connection.principal) == "User:alice"


def test_a_token(wire: Wire, issuer: Issuer) -> None:
    assert handshake(wire, "OAUTHBEARER") == 0
    answer = token(wire, bearer(issuer.token(lasts_s=60), "a=alice"))
    assert answer.error_code == 0 and 50_000 < answer.session_lifetime_ms <= 60_000
    assert is_served(wire)


# -- sessions ----------------------------------------------------------------------------------------------


def test_a_session_is_renewed_and_requests_come_in_between(tmp_path: Path) -> None:
    with secured(tmp_path, connections_max_reauth_ms=3_600_000, **QUICK) as broker, Wire(broker) as wire:
        broker.log.create_topic("t")
        for _ in range(2):
            assert scram_login(wire, "SCRAM-SHA-256").session_lifetime_ms == 3_600_000
            assert wire.produce("t", batch_of(b"x")).error_code == 0
        assert handshake(wire, "SCRAM-SHA-256") == 0
        assert wire.produce("t", batch_of(b"x")).error_code == 0
        assert wire.produce("t", batch_of(b"x")).error_code == 0  # by the template


@pytest.mark.parametrize("repeated", [False, True])
def test_a_session_that_is_past_ends_the_connection(tmp_path: Path, repeated: bool) -> None:
    """For repeated requests, which are not decoded, too."""
    with secured(tmp_path, connections_max_reauth_ms=200, **QUICK) as broker, Wire(broker) as wire:
        broker.log.create_topic("t")
        scram_login(wire, "SCRAM-SHA-512")
        sent = 0
        with pytest.raises(ConnectionError):
            while True:
                if repeated:
                    wire.produce("t", batch_of(b"x"))
                else:
                    is_served(wire)
                sent += 1
        assert sent > 1
        assert broker.context.authenticator is not None and broker.context.authenticator.expired == 1


def test_nobody_becomes_somebody_else(secure: Broker, wire: Wire) -> None:
    add_user(secure, "bob", "b")
    handshake(wire, "PLAIN")
    assert token(wire, plain()).error_code == 0
    handshake(wire, "PLAIN")
    answer = token(wire, plain("bob", "b"))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "User:alice: User:bob" in (answer.error_message or "")
    assert wire.is_closed_by_peer()


def test_the_mechanism_stays(wire: Wire) -> None:
    scram_login(wire, "SCRAM-SHA-256")
    assert handshake(wire, "PLAIN") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert wire.is_closed_by_peer()


def test_a_deleted_user_goes_on_until_the_session_ends(secure: Broker, wire: Wire) -> None:
    scram_login(wire, "SCRAM-SHA-256")
    assert secure.context.users is not None
    secure.context.users.alter("alice", dict.fromkeys(SCRAM))
    assert is_served(wire)
    assert scram_login(wire, "SCRAM-SHA-256").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# -- wrong states ------------------------------------------------------------------------------------------


def test_nothing_else_before_authentication(secure: Broker) -> None:
    for begun in (False, True):
        with Wire(secure) as wire:
            if begun:
                handshake(wire, "PLAIN")
            wire.send(MetadataRequest(topics=None), 9)
            assert wire.is_closed_by_peer()


def test_wrong_states(secure: Broker) -> None:
    with Wire(secure) as wire:
        assert token(wire, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed_by_peer()
    with Wire(secure) as wire:
        handshake(wire, "PLAIN")
        assert handshake(wire, "PLAIN") == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed_by_peer()
    with Wire(secure) as wire:
        scram_login(wire, "SCRAM-SHA-256")
        assert token(wire, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert is_served(wire)


def test_an_unknown_mechanism_gets_the_list(tmp_path: Path) -> None:
    from embedlog.wire.apis.sasl_handshake import SaslHandshakeRequest

    with secured(tmp_path, sasl_enabled_mechanisms="SCRAM-SHA-512", **QUICK) as broker, Wire(broker) as wire:
        answer = wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["SCRAM-SHA-512"]
        assert wire.is_closed_by_peer()


def test_a_listener_without_sasl(broker: Broker) -> None:
    with Wire(broker) as wire:
        assert handshake(wire, "PLAIN") == ErrorCode.ILLEGAL_SASL_STATE
        assert token(wire, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert is_served(wire)


def test_requests_behind_a_failure_are_not_answered(secure: Broker, wire: Wire) -> None:
    handshake(wire, "PLAIN")
    number = wire.send_together(  # one by one, the last would meet a connection that is closed
        (SaslAuthenticateRequest(auth_bytes=plain(password="x")), 2),
        (SaslAuthenticateRequest(auth_bytes=plain()), 2),
        (MetadataRequest(topics=None), 9),
    )
    answer = wire.receive(SaslAuthenticateRequest, 2, number)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    with pytest.raises(ConnectionError):
        wire.receive_frame()


# -- tampering ---------------------------------------------------------------------------------------------


def _altered(message: str, name: str, change: Any) -> str:
    return ",".join(
        f"{name}={change(part[2:])}" if part.startswith(f"{name}=") else part for part in message.split(",")
    )


FIRST = {
    "no name": lambda text: text.replace("n=alice,", ""),
    "no nonce": lambda text: text.partition(",r=")[0],
    "an extension that must be known": lambda text: text.replace("n=alice", "m=x,n=alice"),
    "channel binding": lambda text: text.replace("n,,", "p=tls-unique,,", 1),
    "an authzid": lambda text: text.replace("n,,", "n,a=bob,", 1),
    "a bad escape": lambda text: text.replace("alice", "al=ice"),
    "NUL": lambda text: text.replace("alice", "ali\0ce"),
    "a long name": lambda text: text.replace("alice", "a" * 300),
    "nothing": lambda text: "",
}
FINAL = {
    "another nonce": lambda text: _altered(text, "r", lambda nonce: nonce[:-1] + "!"),
    "a longer nonce": lambda text: _altered(text, "r", lambda nonce: nonce + "x"),
    "the client's nonce alone": lambda text: _altered(text, "r", lambda nonce: nonce[:32]),
    "another proof": lambda text: _altered(text, "p", lambda _: base64.b64encode(b"\1" * 32).decode()),
    "a short proof": lambda text: _altered(text, "p", lambda _: "AAAA"),
    "no proof": lambda text: text.partition(",p=")[0],
    "not base64": lambda text: _altered(text, "p", lambda _: "*"),
    "channel binding": lambda text: _altered(text, "c", lambda _: base64.b64encode(b"y,,").decode()),
    "two proofs": lambda text: text + ",p=AAAA",
}


@pytest.mark.parametrize("what", FIRST)
def test_a_tampered_first_message(wire: Wire, what: str) -> None:
    handshake(wire, "SCRAM-SHA-256")
    message = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD).get_client_first()
    assert token(wire, FIRST[what](message).encode()).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.is_closed_by_peer()


@pytest.mark.parametrize("what", FINAL)
def test_a_tampered_final_message(wire: Wire, what: str) -> None:
    client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
    handshake(wire, "SCRAM-SHA-256")
    client.set_server_first(bytes(token(wire, client.get_client_first().encode()).auth_bytes).decode())
    answer = token(wire, FINAL[what](client.get_client_final()).encode())
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.is_closed_by_peer()


def test_a_proof_is_not_of_use_twice(secure: Broker) -> None:
    """The broker's nonce is new each time."""
    finals = []
    for _ in range(2):
        with Wire(secure) as wire:
            client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD, c_nonce="fixed")
            handshake(wire, "SCRAM-SHA-256")
            client.set_server_first(
                bytes(token(wire, client.get_client_first().encode()).auth_bytes).decode()
            )
            finals.append(client.get_client_final())
            answer = token(wire, finals[0].encode())
    assert finals[0] != finals[1]
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0pw",
        b"\0a\0b\0c",
        b"\xff\0\xff\0\xff",
        plain(authzid="bob"),
    ],
)
def test_malformed_plain(wire: Wire, data: bytes) -> None:
    handshake(wire, "PLAIN")
    assert token(wire, data).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.is_closed_by_peer()


def test_huge_tokens_and_frames(secure: Broker) -> None:
    with Wire(secure) as wire:
        handshake(wire, "PLAIN")
        wire.socket.sendall(struct.pack(">i", 600 << 10))
        assert wire.is_closed_by_peer()
    with Wire(secure) as wire:
        handshake(wire, "PLAIN")
        wire.send(SaslAuthenticateRequest(auth_bytes=b"\0" * (300 << 10)), 2)
        assert wire.is_closed_by_peer()
    with Wire(secure) as wire:
        assert scram_login(wire, "SCRAM-SHA-256").error_code == 0


# -- what does not tell ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_unknown_user_looks_like_a_known_one(secure: Broker, mechanism: str) -> None:
    """A salt that stays the same, also after a restart; the usual iterations; the same refusal."""

    def asked(user: str) -> tuple[str, Any]:
        with Wire(secure) as wire:
            client = ScramClient([mechanism], user, "guessed")
            handshake(wire, mechanism)
            first = bytes(token(wire, client.get_client_first().encode()).auth_bytes).decode()
            client.set_server_first(first)
            answer = token(wire, client.get_client_final().encode())
            return first.partition(",s=")[2], (answer.error_code, answer.error_message)

    known, unknown, other = asked("alice"), asked("nobody"), asked("somebody")
    assert known[1] == unknown[1] == other[1]
    assert known == asked("alice")
    assert unknown == asked("nobody") != other
    assert (
        len(known[0]) == len(unknown[0]) and known[0].endswith(",i=4096") and unknown[0].endswith(",i=4096")
    )


def test_plain_hashes_as_often_for_everyone(secure: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, int]] = []
    salted = scram.salted_password

    def counting(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        counted.append((mechanism, iterations))
        return salted(mechanism, password, salt, iterations)

    monkeypatch.setattr(scram, "salted_password", counting)
    answers = []
    for user, password in (("alice", PASSWORD), ("alice", "guessed"), ("nobody", "guessed")):
        with Wire(secure) as wire:
            handshake(wire, "PLAIN")
            answers.append(token(wire, plain(user, password)))
    assert counted == [("SCRAM-SHA-256", 4096)] * 3
    assert answers[0].error_code == 0
    assert answers[1].error_code == answers[2].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answers[1].error_message == answers[2].error_message


def test_the_log_has_the_address_and_no_secret(
    secure: Broker, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    handshake(wire, "PLAIN")
    token(wire, plain("alice", "hunter2-secret"))
    assert "127.0.0.1" in caplog.text and "authentication failed" in caplog.text
    assert "hunter2" not in caplog.text
    assert secure.context.users is not None
    assert "stored" not in repr(secure.context.users.credentials("alice"))


# -- many --------------------------------------------------------------------------------------------------


def test_a_thousand_that_never_authenticate(tmp_path: Path) -> None:
    """Others are served meanwhile; beyond the limit the oldest goes."""
    limits = {"max_unauthenticated_connections": 1_000, "authentication_timeout_ms": 600_000}
    with secured(tmp_path, **QUICK, **limits) as broker, ExitStack() as stack:
        idle = [stack.enter_context(Wire(broker)) for _ in range(1_000)]
        candidates = broker.server.processors[0].candidates
        eventually(lambda: len(candidates) == 1_000)
        with Wire(broker) as wire:
            assert scram_login(wire, "SCRAM-SHA-256").error_code == 0
            assert is_served(wire)
        assert idle[0].is_closed_by_peer()
        assert len(candidates) == 999 and candidates.closed == 1
        handshake(idle[-1], "PLAIN")
        assert token(idle[-1], plain()).error_code == 0


def test_too_late(tmp_path: Path) -> None:
    with secured(tmp_path, authentication_timeout_ms=50) as broker, Wire(broker) as wire:
        assert wire.is_closed_by_peer()
        assert broker.server.processors[0].candidates.closed == 1
    with secured(tmp_path, authentication_timeout_ms=2_000) as broker, Wire(broker) as wire:
        scram_login(wire, "SCRAM-SHA-256")
        assert len(broker.server.processors[0].candidates) == 0


# -- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"sasl_enabled_mechanisms": "GSSAPI"}, InvalidSetting, "'GSSAPI' is none of PLAIN"),
        ({"sasl_enabled_mechanisms": " , "}, InvalidSetting, "has none of"),
        ({"sasl_oauthbearer_jwks_endpoint_url": ""}, InvalidSetting, "OAUTHBEARER needs"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "http://x/y"}, InvalidSetting, "https address or a file"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "/none"}, InvalidSetting, "No such file"),
        ({"zookeeper": "127.0.0.1:1"}, InvalidArgument, "inter_broker_listener_name"),
    ],
)
def test_settings_that_cannot_be(
    tmp_path: Path, settings: dict[str, str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said), secured(tmp_path, **settings):
        pass


def test_a_plain_listener_beside(tmp_path: Path) -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    with secured(tmp_path, listeners=listeners, **QUICK) as broker:
        plain_port, sasl_port = (listener.port for listener in broker.server.listeners)
        for port, served in ((plain_port, True), (sasl_port, False)):
            with closing(Wire(_Port(port))) as wire:
                wire.send(MetadataRequest(topics=None), 9)
                if served:
                    assert wire.receive_frame()
                else:
                    assert wire.is_closed_by_peer()


class _Port:
    def __init__(self, port: int) -> None:
        self.port = port


@pytest.mark.parametrize("authenticated", [False, True])
def test_mutants_of_requests(secure: Broker, authenticated: bool) -> None:
    """Frames of authentication with bytes changed, cut, added: nothing is told, and others are served."""
    secure.log.create_topic("hidden-topic")
    seed = time.time_ns() % 1_000_000
    dice = random.Random(seed)
    frames = [
        encode_request(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1, 1, "fuzz"),
        encode_request(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abcdefgh"), 2, 2, "fuzz"),
        encode_request(SaslAuthenticateRequest(auth_bytes=plain()), 1, 3, "fuzz"),
        encode_request(ApiVersionsRequest(), 3, 4, "fuzz"),
        encode_request(MetadataRequest(topics=None), 9, 5, "fuzz"),
    ]
    for _ in range(300):
        with Wire(secure) as wire:
            if authenticated:
                scram_login(wire, "SCRAM-SHA-256")
            sent = bytearray(b"".join(bytes(part) for frame in dice.choices(frames, k=3) for part in frame))
            for _ in range(dice.randrange(1, 6)):
                at = dice.randrange(len(sent))
                change = dice.randrange(3)
                if change == 0:
                    sent[at] = dice.randrange(256)
                elif change == 1:
                    del sent[at : at + dice.randrange(1, 9)]
                else:
                    sent[at:at] = dice.randbytes(dice.randrange(1, 9))
                if not sent:
                    break
            wire.socket.sendall(sent)
            wire.socket.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda wire=wire: _received(wire), b""))
            assert authenticated or b"hidden-topic" not in received, f"seed {seed}"
    with Wire(secure) as wire:
        assert scram_login(wire, "SCRAM-SHA-256").error_code == 0, f"seed {seed}"


def _received(wire: Wire) -> bytes:
    try:
        return wire.socket.recv(1 << 16)
    except ConnectionResetError:
        return b""
