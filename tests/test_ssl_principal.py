"""Principals of certificates: names as Java writes them, and Kafka's own examples of mapping rules."""

from __future__ import annotations

import datetime
import re

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from embedlog.errors import InvalidSetting
from embedlog.security.principal import ANONYMOUS
from embedlog.security.ssl_principal import PrincipalMapping, distinguished_name

OF_KAFKA = (  # of the tests of KIP-371 and KIP-492
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)
CN, ORG, C, L, ST = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.COUNTRY_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
)
OF_THE_DOCUMENTATION = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (OF_KAFKA, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (OF_KAFKA, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (OF_KAFKA, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (OF_KAFKA, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (OF_KAFKA, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (
            OF_THE_DOCUMENTATION,
            "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "serviceuser",
        ),
        (
            OF_THE_DOCUMENTATION,
            "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "adminuser@admin",
        ),
        (
            "RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/",
            "CN=Tkac\\, Adam,OU=ITZ,DC=cz",
            "Tkac\\, Adam",
        ),
        ("RULE:^CN=(.*?),.*$/$1\\/$2$3/", "CN=a,OU=b", "a/$2$3"),  # groups that there are not stay
        ("RULE:^CN=(a)?(.*)$/<$1$2>/", "CN=b", "<b>"),
        ("RULE:CN=a/A/\nRULE:CN=b/B/,", "CN=b", "B"),
        ("", "CN=a", "CN=a"),
    ],
)
def test_rules(rules: str, name: str, principal: str) -> None:
    assert str(PrincipalMapping(rules).of_name(name)) == f"User:{principal}"


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
        "DEFAULT,RULE:",
        " ",
    ],
)
def test_wrong_rules(rules: str) -> None:
    with pytest.raises(InvalidSetting, match="ssl_principal_mapping_rules"):
        PrincipalMapping(rules)


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1"])
def test_what_re2_does_not_have(pattern: str) -> None:
    with pytest.raises(InvalidSetting, match="not RE2's syntax"):
        PrincipalMapping(f"RULE:{pattern}/x/")


@pytest.mark.parametrize("name", ["CN=b", "xCN=a", "CN=ax", "CN=" + "a" * 5_000])
def test_a_rule_matches_the_whole_name_or_not_at_all(name: str) -> None:
    with pytest.raises(ValueError, match=r"no rule of ssl\.principal\.mapping\.rules matches"):
        PrincipalMapping("RULE:CN=a|a/x/").of_name(name)


def test_a_pattern_takes_linear_time() -> None:
    """Python's own engine would not come back."""
    with pytest.raises(ValueError, match="no rule"):
        PrincipalMapping("RULE:CN=(a*)*(a*)*b/x/").of_name("CN=" + "a" * 4_000)


def attribute(oid: x509.ObjectIdentifier, value: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(oid, value)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            [(C, "DE"), (ORG, "X"), (CN, "a")],
            "CN=a,O=X,C=DE",
        ),
        (
            [(ST, "s"), (L, "l"), (NameOID.USER_ID, "u")],
            "UID=u,L=l,ST=s",
        ),
        ([(NameOID.DOMAIN_COMPONENT, "com"), (NameOID.STREET_ADDRESS, "way 1")], "STREET=way 1,DC=com"),
        ([(CN, 'a,b+c"d\\e<f>g;h=i')], 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h=i'),
        ([(CN, " #x ")], "CN=\\ #x\\ "),
        ([(CN, "#x")], "CN=\\#x"),
        ([(CN, "\u00e9\u4e2d")], "CN=\u00e9\u4e2d"),
        # What RFC 2253 has no keyword for: the number, and the value's bytes (an IA5String, a UTF8String).
        ([(NameOID.EMAIL_ADDRESS, "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
        ([(NameOID.TITLE, "T" * 128)], "2.5.4.12=#0c8180" + "54" * 128),
    ],
)
def test_names_as_java_writes_them(parts: list[tuple[x509.ObjectIdentifier, str]], text: str) -> None:
    assert distinguished_name(x509.Name([attribute(*part) for part in parts])) == text


def test_several_values_in_one_part() -> None:
    part = x509.RelativeDistinguishedName([attribute(CN, "a"), attribute(NameOID.USER_ID, "b")])
    assert distinguished_name(x509.Name([part])) in ("CN=a+UID=b", "UID=b+CN=a")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16))  # 64 bytes at most
def test_no_name_looks_like_another(common_name: str) -> None:
    """A certificate's text has the components that it has: nobody becomes another by a comma."""
    name = x509.Name([attribute(CN, common_name)])
    text = distinguished_name(name)
    assert not re.search(r"(?<!\\)(\\\\)*[,+]", text)
    if "\0" not in common_name and not any(each.isspace() for each in common_name):
        assert x509.Name.from_rfc4514_string(text) == name


def test_of_a_certificate() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([attribute(ORG, "X"), attribute(CN, "Alice")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    mapping = PrincipalMapping("RULE:CN=(.*),O=X/$1/L")
    assert str(mapping.of_certificate(made)) == "User:alice"
    assert mapping.of_certificate(None) == ANONYMOUS
    with pytest.raises(ValueError):
        mapping.of_certificate(made[:-10])
