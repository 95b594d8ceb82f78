"""Checks the JWTs of OAUTHBEARER with the public keys of their issuer (a JWK set).

    token --kid--> key of the set --PyJWT--> signature, exp, nbf, iat, aud, iss --> the user

The set is a file, which is read again when it has changed, or an https address, which is fetched when it is
older than its refresh period, and at most every `_FETCH_S` for a key that it lacks: tokens that anybody makes
up cannot make this broker a burden to the issuer. If a fetch fails the keys that were there go on, and they
count while one lasts: an issuer that stalls holds up one thread, not those whose keys are known.

Only asymmetric algorithms: with HS256 a public key would sign. Which one it is, the key's type decides too.

Thread-safe; fetches wait for the network, so call it outside of an event loop.

Source: RFC 7515, RFC 7517, RFC 7519, RFC 8725; KIP-768 (Kafka's BrokerJwtValidator, RefreshingHttpsJwks).
"""

from __future__ import annotations

import http.client
import json
import logging
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ..errors import InvalidSetting
from ..runtime.locks import Lock
from .file_identity import file_identity
from .libraries import jwt
from .sasl import AuthenticationFailed, Verified

logger = logging.getLogger(__name__)

_ALGORITHMS: Final = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
_FETCH_S: Final = 10.0
_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 1 << 20
_MAX_TOKEN: Final = 64 << 10
_LATEST_S: Final = 1 << 40
_FAILED: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
)


_Key: TypeAlias = tuple[Any, frozenset[str]]
"""A public key of cryptography, and the algorithms that it may be used with."""


class Jwks:
    """The keys of a JWK set, by their ids.

    Args:
        url: https://..., or a file: file:///... or its path.
        refresh_s: how old a fetched set may be.

    Raises InvalidSetting for another kind of address, or a set that cannot be read at the start.
    """

    def __init__(self, url: str, refresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        parts = urllib.parse.urlsplit(url)
        self._path = urllib.parse.unquote(parts.path) if parts.scheme in ("", "file") else None
        if self._path is None and parts.scheme != "https":
            raise InvalidSetting(
                f"sasl_oauthbearer_jwks_endpoint_url is an https address or a file: over {parts.scheme} "
                "anybody on the way could replace the keys"
            )
        self._url = url
        self._refresh_s = refresh_s
        self._clock = clock
        self._lock = Lock()
        self._keys: dict[str | None, _Key] = {}
        self._identity: object = None
        self._tried = self._fetched = float("-inf")
        try:
            with self._lock:
                self._load()
        except (OSError, ValueError) as error:
            if self._path is not None:
                raise InvalidSetting(f"sasl_oauthbearer_jwks_endpoint_url: {url}: {error}") from None
            logger.warning("the keys of OAUTHBEARER cannot be fetched yet: %s", error)

    def key(self, kid: str | None) -> _Key | None:
        """The key with this id, and its algorithms; without an id the only key. None if there is none."""
        if not self._lock.acquire(blocking=self._path is not None):
            return self._find(kid)
        try:
            now = self._clock()
            stale = (
                self._path is not None or now - self._fetched >= self._refresh_s or self._find(kid) is None
            )
            if stale and (self._path is not None or now - self._tried >= _FETCH_S):
                try:
                    self._load()
                except (OSError, ValueError) as error:
                    logger.warning("the keys of OAUTHBEARER stay as they were: %s: %s", self._url, error)
            return self._find(kid)
        finally:
            self._lock.release()

    def _find(self, kid: str | None) -> _Key | None:
        keys = self._keys  # another thread may replace them
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(kid)

    def _load(self) -> None:
        """Raises OSError, ValueError."""
        self._tried = self._clock()
        if self._path is None:
            jwk_set = _fetch(self._url)
        else:
            identity = file_identity(self._path)
            if identity == self._identity:
                return
            with open(self._path, "rb") as file:
                jwk_set = file.read(_MAX_BYTES + 1)
            self._identity = identity
        self._keys = _parse(jwk_set)
        self._fetched = self._tried


class JwtVerifier:
    """Checks tokens.

    Args:
        audience, issuer: that tokens must have; "" for any. Several audiences are separated by commas.
        sub_claim: the claim that has the user's name.
        leeway_s: how far clocks may be apart.
    """

    def __init__(self, jwks: Jwks, audience: str, issuer: str, sub_claim: str, leeway_s: float) -> None:
        self._jwt = jwt()
        self._jwks = jwks
        self._audience = [name.strip() for name in audience.split(",") if name.strip()]
        self._issuer = issuer or None
        self._sub_claim = sub_claim
        self._leeway_s = leeway_s

    def verify(self, token: str) -> Verified:
        """Whose token it is. Raises AuthenticationFailed."""
        if len(token) > _MAX_TOKEN:
            raise AuthenticationFailed(_FAILED, "the token is too long")
        try:
            header = self._jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if not any(algorithm in accepted for accepted in _ALGORITHMS.values()):
                raise AuthenticationFailed(_FAILED, f"the algorithm {str(algorithm)[:20]!r} is not accepted")
            signing_key = self._jwks.key(header.get("kid"))
            if signing_key is None:
                raise AuthenticationFailed(_FAILED, "the token is signed with an unknown key")
            key, algorithms = signing_key
            if algorithm not in algorithms:
                raise AuthenticationFailed(_FAILED, f"its key is not for {algorithm}")
            claims = self._jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience or None,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={"require": ["exp"], "verify_aud": bool(self._audience)},
            )
        except (self._jwt.PyJWTError, RecursionError) as error:  # JSON may be nested too deeply
            raise AuthenticationFailed(_FAILED, f"{type(error).__name__}: {error}"[:200]) from None
        user = claims.get(self._sub_claim)
        if not isinstance(user, str) or not user or not user.isprintable():
            raise AuthenticationFailed(_FAILED, f"the token's claim {self._sub_claim} is not a name")
        return Verified(user, min(int(claims["exp"]), _LATEST_S) * 1000)


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme != "https":
            raise OSError("it redirects to another address than an https one")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str) -> bytes:
    """Raises OSError."""
    opener = urllib.request.build_opener(_OnlyHttps)
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as response:
            return bytes(response.read(_MAX_BYTES + 1))
    except http.client.HTTPException as error:
        raise OSError(f"not an answer of HTTP: {type(error).__name__}") from None


def _parse(jwk_set: bytes) -> dict[str | None, _Key]:
    """The set's keys that can check signatures. Raises ValueError."""
    if len(jwk_set) > _MAX_BYTES:
        raise ValueError(f"a JWK set of more than {_MAX_BYTES:,} bytes")
    library = jwt()
    try:
        document = json.loads(jwk_set)
    except RecursionError:
        raise ValueError("the JWK set is nested too deeply") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JWK set: it has no keys")
    keys: dict[str | None, _Key] = {}
    for jwk in listed:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
            continue
        algorithms = _ALGORITHMS.get(str(jwk.get("kty")), frozenset())
        if "alg" in jwk:
            algorithms &= {str(jwk["alg"])}
        if not algorithms:
            continue  # a shared secret, or a key for something else
        try:
            keys[jwk.get("kid")] = library.PyJWK.from_dict(jwk).key, algorithms
        except (library.PyJWTError, TypeError, ValueError) as error:  # the id of another type, no point
            logger.warning("a key of OAUTHBEARER is left out: %s", error)
    if not keys:
        raise ValueError("the JWK set has no public key that checks signatures")
    return keys
