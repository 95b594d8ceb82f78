"""What other clients call the settings of security, where more differs than the name.

    ssl.endpoint.identification.algorithm=https     ssl_check_hostname
    sasl.jaas.config=...ScramLoginModule required username="alice" password="...";
                                                    sasl_plain_username, sasl_plain_password
    ssl.truststore.type=PEM                         nothing: files are PEM. Another type is an error that says
                                                    how to convert

`translated` leaves other names as they are; synonyms.py has those that differ in their name alone.

Source: Kafka's SslConfigs, SaslConfigs, JaasConfig; librdkafka's CONFIGURATION.md; KIP-651 (PEM).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import InvalidSetting, UnsupportedByBackend, shown
from ..fields import Secret
from ..synonyms import plain

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

CONVERT: Final = (
    "convert it to PEM: for a JKS file first keytool -importkeystore -srckeystore FILE -destkeystore "
    "store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 -out store.pem (and -nokeys for "
    "certificates alone)"
)

_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<quoted> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
          | (?P<word>[^\s="';]+) | (?P<sign>[=;]) )""",
    re.VERBOSE | re.DOTALL,
)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "PlainLoginModule": {"username": "sasl_plain_username", "password": "sasl_plain_password"},
    "ScramLoginModule": {"username": "sasl_plain_username", "password": "sasl_plain_password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl_oauthbearer_client_id",
        "clientSecret": "sasl_oauthbearer_client_secret",
        "scope": "sasl_oauthbearer_scope",
    },
}


def translated(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the names that config.py knows. Raises InvalidSetting, UnsupportedByBackend."""
    settings: dict[str, Any] = {}
    for typed, value in entries.items():
        name = plain(typed)
        if name in _SPECIAL:
            for own, meant in _SPECIAL[name](typed, value).items():
                if own in settings:
                    raise InvalidSetting(f"{own} is given twice, once by {typed}")
                settings[own] = meant
        elif name in _UPPER and isinstance(value, str):
            settings[typed] = value.upper()
        else:
            settings[typed] = value
    return settings


def is_about_security(typed: str) -> bool:
    """Whether a setting must not be passed over, even if nobody here knows it."""
    return plain(typed).startswith(("ssl_", "sasl_", "security_", "enable_ssl_", "oauth", "https_"))


_UPPER: Final = frozenset({"security_protocol"})  # librdkafka takes either case


def _host_name(typed: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.lower() in ("https", "", "none"):
        return {"ssl_check_hostname": value.lower() == "https"}
    raise InvalidSetting(f"{typed} must be https, or empty for no check of the host's name")


def _store_type(typed: str, value: Any) -> dict[str, Any]:
    if str(value).upper() == "PEM":
        return {}
    raise UnsupportedByBackend(f"{typed}={shown(value)}: stores are PEM files here: {CONVERT}")


def _certificates_are_checked(typed: str, value: Any) -> dict[str, Any]:
    if str(value).lower() in ("true", "1"):
        return {}
    raise UnsupportedByBackend(
        f"{typed}={shown(value)}: a broker's certificate is always checked. Give the certificate of the "
        "authority that issued it: ssl_cafile"
    )


def _login_module(typed: str, value: Any) -> dict[str, Any]:
    """Java's line of a login module: MODULE required name="value" ... ;"""
    text = value.reveal() if isinstance(value, Secret) else value
    if not isinstance(text, str):
        raise InvalidSetting(f"{typed} must be a string, not {type(value).__name__}")
    words = _words(typed, text)
    if len(words) < 3 or words[1].lower() not in _FLAGS or words[-1] != ";":
        raise _no_login_module(typed)
    module = words[0].rpartition(".")[2]
    if module not in _OPTIONS:
        raise UnsupportedByBackend(
            f"{typed}: {shown(module)} is not one of {', '.join(_OPTIONS)}; the mechanisms here are "
            f"{', '.join(MECHANISMS)}"
        )
    options = words[2:-1]
    if len(options) % 3 or any(sign != "=" for sign in options[1::3]):
        raise _no_login_module(typed)
    own_names = _OPTIONS[module]
    return {
        own_names[name]: Secret(value) if own_names[name].endswith(("password", "secret")) else value
        for name, value in zip(options[::3], options[2::3], strict=True)
        if name in own_names
    }


def _words(typed: str, text: str) -> list[str]:
    """The words of a login module's line, without quotes. An "=" or ";" of its own is a word."""
    words, pos = [], 0
    text = text.rstrip()
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise _no_login_module(typed)
        quoted = match["quoted"]
        words.append(match["word"] or match["sign"] or re.sub(r"\\(.)", r"\1", quoted[1:-1]))
        pos = match.end()
    return words


def _no_login_module(typed: str) -> InvalidSetting:
    return InvalidSetting(
        f"{typed} cannot be read: it is like org.apache.kafka.common.security.scram.ScramLoginModule "
        'required username="alice" password="...";'
    )


def _none(typed: str, value: Any) -> dict[str, Any]:
    return {}


_SPECIAL: Final[Mapping[str, Callable[[str, Any], dict[str, Any]]]] = {
    "enable_ssl_certificate_verification": _certificates_are_checked,
    "sasl_jaas_config": _login_module,
    "sasl_login_callback_handler_class": _none,  # which of Java's classes fetches a token
    "sasl_oauthbearer_method": _none,
    "ssl_endpoint_identification_algorithm": _host_name,
    "ssl_keystore_password": _none,  # a PEM file has none, but for its key
    "ssl_keystore_type": _store_type,
    "ssl_truststore_password": _none,
    "ssl_truststore_type": _store_type,
}
