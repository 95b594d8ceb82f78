"""The principal of a client's certificate: its distinguished name, through ssl.principal.mapping.rules.

    CN=alice,OU=Sales,O=Example,C=DE                                  the name, as Java's getName() has it
    RULE:^CN=(.*?),OU=Sales.*$/$1/,RULE:^CN=(.*?),.*$/$1@other/L,DEFAULT    the first that matches applies

A rule's pattern must match the whole name; in its replacement $1 to $9 are the pattern's groups, L and U
change the case of the result. DEFAULT is the name as it is. A name that no rule matches is refused. A slash
within a pattern or replacement is written with a backslash before it.

The engine is google-re2's, whose time is linear in the name, which clients choose: it has no look-around and
no references within a pattern.

Source: KIP-371 (principal mapping rules), KIP-492 (L and U); RFC 2253 (names as text).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidSetting, shown
from .principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from cryptography import x509

Rule = Callable[[str], str | None]

_RULE: Final = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:[,\n]|\Z)", re.DOTALL
)
_REFERENCE: Final = re.compile(r"\\(.)|\$([0-9])", re.DOTALL)
_MAX_CHARS: Final = 4096
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}


class PrincipalMapping:
    """Parsed rules. Raises InvalidSetting."""

    def __init__(self, rules: str) -> None:
        self._rules = _parse(rules or "DEFAULT")

    def of_certificate(self, certificate: bytes | None) -> Principal:
        """The principal of a certificate in DER; None: there is none. Raises ValueError."""
        if certificate is None:
            return ANONYMOUS
        from cryptography import x509

        try:
            subject = x509.load_der_x509_certificate(certificate).subject
        except x509.InvalidVersion as error:
            raise ValueError(str(error)) from None
        return self.of_name(distinguished_name(subject))

    def of_name(self, name: str) -> Principal:
        """The principal of a distinguished name. Raises ValueError if no rule matches."""
        if len(name) <= _MAX_CHARS:
            for rule in self._rules:
                user = rule(name)
                if user is not None:
                    return Principal("User", user)
        raise ValueError(f"no rule of ssl.principal.mapping.rules matches {shown(name)}")


def distinguished_name(name: x509.Name) -> str:
    """A name as text: the last component first, types without a keyword as numbers with their bytes."""
    return ",".join("+".join(_attribute(attribute) for attribute in part) for part in reversed(name.rdns))


def _attribute(attribute: x509.NameAttribute[Any]) -> str:
    oid = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(oid)
    if keyword is not None and isinstance(attribute.value, str):
        return f"{keyword}={_escaped(attribute.value)}"
    from cryptography import x509

    # The value's own bytes, cut out of a name that has nothing else: its lengths are short or long forms.
    name = x509.Name([attribute]).public_bytes()
    for _ in range(3):  # of the sequence, the set and the sequence in it: their tags and lengths
        name = name[_header(name) :]
    return f"{oid}=#{name[2 + name[1] :].hex()}"  # past the type


def _header(data: bytes) -> int:
    """The number of bytes of a tag and a length."""
    return 2 if data[1] < 0x80 else 2 + (data[1] & 0x7F)


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    if len(value) > 1 and value.endswith(" "):
        text = text[:-1] + "\\ "
    return text


def _parse(rules: str) -> list[Rule]:
    parsed: list[Rule] = []
    pos = 0
    while pos < len(rules.rstrip()):
        match = _RULE.match(rules, pos)
        if match is None:
            raise InvalidSetting(
                f"ssl_principal_mapping_rules: {shown(rules[pos:])} is neither DEFAULT nor "
                "RULE:pattern/replacement/ with L or U after it, or nothing"
            )
        parsed.append(_same if match[1] else _rule(match[2], match[3], match[4]))
        pos = match.end()
    if not parsed:
        raise InvalidSetting("ssl_principal_mapping_rules has no rule: DEFAULT would be one")
    return parsed


def _same(name: str) -> str:
    return name


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    compiled = _compiled(pattern)

    def apply(name: str) -> str | None:
        match = compiled.fullmatch(name)
        if match is None:
            return None

        def expand(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            number = int(reference[2])
            return (match[number] or "") if number <= compiled.groups else reference[0]

        result = _REFERENCE.sub(expand, replacement)
        return result.lower() if case == "L" else result.upper() if case == "U" else result

    return apply


def _compiled(pattern: str) -> Any:
    try:
        import re2
    except ImportError:
        raise InvalidSetting(
            "rules in ssl_principal_mapping_rules need google-re2: pip install 'embedlog[security]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    with contextlib.suppress(UnicodeEncodeError):
        try:
            return re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0]
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
            raise InvalidSetting(
                f"ssl_principal_mapping_rules: {shown(pattern)} is not RE2's syntax: {text}"
            ) from None
    raise InvalidSetting(f"ssl_principal_mapping_rules: {shown(pattern)} is not text")
