"""OpenSSL's reasons in words that say what to do."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

_REASONS: Final[Mapping[str, str]] = {
    "BAD_KEY_SHARE": "the client sent a damaged key",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "what arrived is damaged, or was altered on the way",
    "HTTP_REQUEST": "the client speaks HTTP without TLS",
    "NO_SHARED_CIPHER": "the client has none of the cipher suites (ssl.cipher.suites)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate (ssl.client.auth=required)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the broker's certificate has expired, says the client",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of the broker's certificate",
    "UNSUPPORTED_PROTOCOL": "the client has none of the versions of TLS (ssl.enabled.protocols)",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
}


def reason_of(error: Exception) -> str:
    """What went wrong, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return str(error)
    reason = error.reason or ""
    return _REASONS.get(reason) or reason.replace("_", " ").lower() or str(error)
