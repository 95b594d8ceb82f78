"""A client's settings of security: three kinds of names, files, and nothing secret that is shown."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from pathlib import Path

import pytest
from certificates import Authority

import embedlog
from embedlog import (
    EmbedlogError,
    InvalidArgument,
    InvalidSetting,
    InvalidType,
    UnknownSetting,
    UnsupportedByBackend,
)
from embedlog.fields import Secret
from embedlog.spark.options import read_options
from embedlog.wire_client.client_config import client_settings, from_properties, read_client_config
from embedlog.wire_client.security import ClientSecurity
from embedlog.wire_client.settings import ClientSettings, user_of

SECRET = "s3cret \"quoted\" 'and' \\ back=slash; é"
JAAS = "org.apache.kafka.common.security.{}LoginModule required {};"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def properties(path: Path, mode: int = 0o600, **entries: str) -> str:
    escaped = {
        name.replace("_", "."): value.replace("\\", "\\\\").replace("\n", "\\n")
        for name, value in entries.items()
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
    path.chmod(mode)
    return str(path)


SCRAM = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_plain_username": "alice",
    "sasl_plain_password": Secret(SECRET),
    "ssl_cafile": "/ca.pem",
    "ssl_check_hostname": False,
}


@pytest.mark.parametrize(
    "given",
    [
        {**SCRAM, "sasl_plain_password": SECRET},
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": SECRET,
            "ssl.ca.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "enable.ssl.certificate.verification": "true",
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": JAAS.format("scram.Scram", f"username='alice' password={quoted(SECRET)}"),
            "ssl.truststore.location": "/ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.password": "x",
            "ssl.endpoint.identification.algorithm": "",
        },
    ],
    ids=["kafka-python", "librdkafka", "java"],
)
def test_three_kinds_of_names(given: dict[str, object]) -> None:
    assert ClientSettings.parse(given) == SCRAM


def test_the_other_names() -> None:
    provider = object()
    given = {
        "ssl.certificate.location": "c",
        "ssl.key.location": "k",
        "ssl.key.password": "p",
        "oauth_cb": provider,
        "sasl.oauthbearer.token.endpoint.url": "https://h/t",
        "sasl.oauthbearer.method": "oidc",
        "sasl.login.callback.handler.class": "x",
        "sasl.jaas.config": JAAS.format(
            "oauthbearer.OAuthBearer", 'clientId="id" clientSecret="se" scope=all'
        ),
    }
    assert ClientSettings.parse(given) == {
        "ssl_certfile": "c",
        "ssl_keyfile": "k",
        "ssl_password": Secret("p"),
        "sasl_oauth_token_provider": provider,
        "sasl_oauthbearer_token_endpoint_url": "https://h/t",
        "sasl_oauthbearer_client_id": "id",
        "sasl_oauthbearer_client_secret": Secret("se"),
        "sasl_oauthbearer_scope": "all",
    }
    assert ClientSettings.parse({"ssl.keystore.location": "both", "ssl.keystore.type": "PEM"}) == {
        "ssl_certfile": "both"
    }


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"ssl.truststore.type": "JKS"}, UnsupportedByBackend, "keytool -importkeystore"),
        ({"enable.ssl.certificate.verification": False}, UnsupportedByBackend, "ssl_cafile"),
        ({"sasl_mechanism": "GSSAPI"}, InvalidSetting, "must be one of"),
        ({"security_protocol": "TLS"}, InvalidSetting, "must be one of"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, InvalidSetting, "https"),
        ({"sasl.password": 5}, InvalidType, "must be a string, not int"),
        ({"sasl.password": "a", "sasl_plain_password": "b"}, InvalidSetting, "given twice"),
        (
            {"sasl.password": "a", "sasl.jaas.config": JAAS.format("plain.Plain", "password=b")},
            InvalidSetting,
            "given twice",
        ),
        ({"sasl.jaas.config": JAAS.format("Krb5", "a=b")}, UnsupportedByBackend, "PlainLoginModule"),
        (
            {"sasl.jaas.config": JAAS.format("plain.Plain", f"password={SECRET}")},
            InvalidSetting,
            "cannot be read",
        ),
        ({"sasl.jaas.config": f'X required password="{SECRET}'}, InvalidSetting, "cannot be read"),
        ({"ssl_cipher": "x"}, UnknownSetting, "did you mean 'ssl_ciphers'"),
    ],
)
def test_what_is_refused(given: dict[str, object], error: type[EmbedlogError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        ClientSettings.parse(given)
    assert "s3cret" not in str(caught.value)


# -- nothing secret is shown -------------------------------------------------------------------------------


def test_no_repr_shows_a_secret() -> None:
    settings = client_settings({**SCRAM, "sasl_plain_password": SECRET, "ssl_password": "hush"})
    shown = [repr(settings), str(settings), f"{settings.sasl_plain_password}", repr(settings.changed())]
    shown.append(str(settings.ssl_password))
    options = read_options(
        {
            "path": "kafka://h",
            "subscribe": "t",
            "kafka.sasl.password": SECRET,
            "kafka.ssl.key.password": "hush",
            "kafka.sasl.jaas.config": SECRET,
        },
        "batch",
    )
    shown += [repr(options), str(options.location)]
    assert not [each for each in shown if "s3cret" in each or "hush" in each]
    assert "[hidden]" in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.sasl_plain_password.reveal() == SECRET
    with pytest.raises(AttributeError):
        settings.sasl_plain_password._text = "x"


@pytest.mark.parametrize(
    "address", ["kafka://alice:s3cret@h:9092", "http://alice:s3cret@h", "kafka://a:s3cret@h:x"]
)
def test_a_password_in_the_address(address: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        embedlog.open(address)
    assert "s3cret" not in "".join(traceback.format_exception_only(caught.value))
    if address.startswith("kafka"):
        assert "EMBEDLOG_SASL_PASSWORD" in str(caught.value)


def test_a_user_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLOG_SASL_PASSWORD", SECRET)
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    settings = client_settings(given, "kafka://al%40ice@h1:9093,h2")
    assert (settings.sasl_plain_username, settings.sasl_plain_password.reveal()) == ("al@ice", SECRET)
    assert user_of("kafka://h1,h2") == ""
    with pytest.raises(InvalidSetting, match="another one"):
        client_settings({**given, "sasl.username": "bob"}, "kafka://alice@h")
    with pytest.raises(InvalidSetting, match="SASL_SSL"):
        embedlog.open("kafka://alice@127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs sasl_mechanism"),
        ({"sasl_mechanism": "PLAIN"}, "needs a user"),
        ({"sasl_mechanism": "PLAIN", "sasl.username": "alice"}, "EMBEDLOG_SASL_PASSWORD"),
        ({"sasl_mechanism": "PLAIN", "sasl.username": "a\0b", "sasl.password": "x"}, "NUL"),
        ({"sasl_mechanism": "SCRAM-SHA-256", "sasl.username": "a", "sasl.password": "\x07"}, "RFC 4013"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider"),
        ({"sasl_mechanism": "OAUTHBEARER", "oauth_cb": 5}, "function"),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_endpoint_url": "http://example.com/t",
                "sasl_oauthbearer_client_id": "a",
                "sasl_oauthbearer_client_secret": "b",
            },
            "https://",
        ),
    ],
)
def test_what_is_missing(given: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBEDLOG_SASL_PASSWORD", raising=False)
    with pytest.raises(InvalidSetting, match=said):
        embedlog.open("kafka://127.0.0.1:1", security_protocol="SASL_PLAINTEXT", **given)


# -- files -------------------------------------------------------------------------------------------------


def test_properties_as_java_reads_them() -> None:
    text = (
        "# comment\n! another\n\n  a = 1\nb:2\nc 3\nd\ne=\\u00e9\\t\\=x\nf=one \\\n   two\\\\\r\n"
        "g\\ h=i\\:j\n"
        "path=C:\\\\x\na=last\nk=\\\n"
    )
    assert from_properties(text) == {
        "a": "last",
        "b": "2",
        "c": "3",
        "d": "",
        "e": "é\t=x",
        "f": "one two\\",
        "g h": "i:j",
        "path": "C:\\x",
        "k": "",
    }


def test_a_file_of_java(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = properties(
        tmp_path / "client.properties",
        bootstrap_servers="h:1",
        security_protocol="SASL_SSL ",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_jaas_config=JAAS.format("scram.Scram", f"username=alice password={quoted(SECRET)}"),
        ssl_truststore_location="/ca.pem",
        ssl_endpoint_identification_algorithm="",
        key_serializer="org.apache.X",
        request_timeout_ms="5",
    )
    assert read_client_config(path) == {**SCRAM, "request_timeout_ms": 5}
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: without effect here: key.serializer"
    ]
    settings = client_settings({"client_config": path, "request_timeout_ms": 7, "sasl.username": "bob"})
    assert (settings.request_timeout_ms, settings.sasl_plain_username) == (7, "bob")


def test_a_file_of_toml(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(
        'security_protocol = "SASL_SSL"\nsasl.mechanism = "SCRAM-SHA-512"\nbootstrap.servers = "h"\n'
        f'[sasl.plain]\nusername = "alice"\npassword = {quoted(SECRET)}\n[ssl]\ncafile = "/ca.pem"\n'
        "check.hostname = false\n"
    )
    path.chmod(0o600)
    assert read_client_config(path) == SCRAM
    path.write_text("keys = 1\n")
    with pytest.raises(UnknownSetting):
        read_client_config(path)
    path.write_text(f"password = {SECRET}")
    with pytest.raises(InvalidArgument, match="not TOML") as caught:
        read_client_config(path)
    assert "s3cret" not in str(caught.value)


def test_security_is_never_passed_over(tmp_path: Path) -> None:
    path = properties(tmp_path / "p", ssl_enabled_protocols="TLSv1.3")
    with pytest.raises(UnknownSetting, match=r"ssl\.enabled\.protocols"):
        read_client_config(path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_client_config(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("mode", "entries", "warns"),
    [
        (0o644, {"sasl_password": SECRET}, True),
        (0o640, {"ssl_key_password": SECRET}, True),
        (0o600, {"sasl_password": SECRET}, False),
        (0o644, {"sasl_username": "alice"}, False),
    ],
)
def test_others_may_not_read_a_password(
    tmp_path: Path, mode: int, entries: dict[str, str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = properties(tmp_path / "p", mode, **entries)
    with caplog.at_level(logging.WARNING):
        read_client_config(path)
    assert [record.getMessage() for record in caplog.records] == (
        [f"{path} has a password, and others may read it: chmod 600 {path}"] if warns else []
    )


# -- certificates ------------------------------------------------------------------------------------------


def tls(**given: object) -> ClientSecurity:
    return ClientSecurity(client_settings({"security_protocol": "SSL", **given}))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine, others = authority.issue(), authority.issue()
    locked = authority.issue(password=SECRET)
    junk, jks, pkcs = tmp_path / "junk", tmp_path / "jks", tmp_path / "p12"
    junk.write_text("x")
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    pkcs.write_bytes(b"\x30\x82\x01\x01")
    for given, error, said in [
        ({"ssl_cafile": str(junk)}, InvalidSetting, "no certificate in PEM"),
        ({"ssl_cafile": str(tmp_path / "none")}, InvalidSetting, "cannot be read: No such file"),
        ({"ssl_cafile": str(jks)}, UnsupportedByBackend, "JKS.*keytool"),
        ({"ssl_certfile": str(pkcs)}, UnsupportedByBackend, "PKCS12.*openssl"),
        ({"ssl_certfile": str(junk)}, InvalidSetting, "no certificate with its key"),
        ({"ssl_certfile": mine, "ssl_keyfile": others}, InvalidSetting, "does not belong"),
        ({"ssl_certfile": locked}, InvalidSetting, "ssl_password is not"),
        ({"ssl_certfile": locked, "ssl_password": "wrong"}, InvalidSetting, "ssl_password is not"),
        ({"ssl_keyfile": mine}, InvalidSetting, "needs ssl_certfile"),
        ({"ssl_ciphers": "nonsense"}, InvalidSetting, "names no cipher"),
    ]:
        with pytest.raises(error, match=said) as caught:
            tls(**given)
        assert "s3cret" not in str(caught.value)
    tls(ssl_certfile=locked, ssl_password=SECRET, ssl_cafile=authority.file)


def test_files_are_read_again_when_they_have_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    security = tls(ssl_cafile=authority.file)
    first = security.context()
    assert security.context() is first
    (tmp_path / "half").write_text("-----BEGIN")
    os.replace(tmp_path / "half", authority.file)
    assert security.context() is first
    assert "the old certificates are used" in caplog.text
    authority.ca.cert_pem.write_to_path(authority.file)
    second = security.context()
    assert second is not first
    assert len(second.get_ca_certs()) == 1
