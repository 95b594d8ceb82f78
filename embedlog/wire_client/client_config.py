"""A client's settings from a file, from the environment and from its address.

    client.properties      security.protocol=SASL_SSL          Java's properties, as Kafka's tools take them
    client.toml            security_protocol = "SASL_SSL"      a table within is a name with dots

The password may be in the environment instead: EMBEDLOG_SASL_PASSWORD. What is given to `embedlog.open` comes
before the file, the file before the environment.

A properties file is often shared with Java's clients: names that are not this client's are passed over with
a warning, unless they are about security. In TOML every name must be known.

Source: java.util.Properties.load; Kafka's `--command-config`.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..errors import InvalidArgument, InvalidSetting, shown
from ..fields import Secret
from ..synonyms import plain
from .security_names import is_about_security, translated
from .settings import ClientSettings, user_of

CLIENT_CONFIG: Final = "client_config"
"""The argument that names a file."""
PASSWORD: Final = "EMBEDLOG_SASL_PASSWORD"

_MAX_BYTES: Final = 1 << 20
_ADDRESS: Final = "bootstrap_servers"
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ENTRY: Final = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.DOTALL)

logger = logging.getLogger(__name__)


def client_settings(typed: Mapping[str, Any], address: str = "", **defaults: Any) -> ClientSettings:
    """The settings of a client.

    Args:
        typed: as the user writes them; "client_config" names a file with more.
        address: kafka://user@host, whose user is the SASL user name.
        defaults: for those that are nowhere.

    Raises InvalidSetting, UnknownSetting, InvalidType, InvalidArgument for the file or the address,
    UnsupportedByBackend.
    """
    own = {name: value for name, value in typed.items() if plain(name) != CLIENT_CONFIG}
    file = next((value for name, value in typed.items() if plain(name) == CLIENT_CONFIG), None)
    parsed = ClientSettings.parse(own)
    merged = {**defaults, **(read_client_config(file) if file else {}), **parsed}
    user = user_of(address)
    if user:
        if parsed.get("sasl_plain_username", user) != user:
            raise InvalidSetting(
                f"the address has the user {shown(user)}, and sasl_plain_username is another one"
            )
        merged["sasl_plain_username"] = user
    settings = ClientSettings().replaced(**merged)
    if settings.sasl_plain_username and not settings.sasl_plain_password:
        settings = settings.replaced(sasl_plain_password=Secret(os.environ.get(PASSWORD, "")))
    return settings


def read_client_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a file, by their names here; warns if others may read a secret in it.

    Raises InvalidArgument, and as `ClientSettings.parse`; messages show no values.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"client_config: {where} cannot be read: {_why(error)}") from None
    if len(content) > _MAX_BYTES:
        raise InvalidArgument(f"client_config: {where} is larger than {_MAX_BYTES:,} bytes")
    if where.endswith(".toml"):
        settings = _from_toml(where, content)
        settings = {name: value for name, value in settings.items() if plain(name) != _ADDRESS}
    else:
        settings = _own(where, from_properties(_text(content)))
    parsed = ClientSettings.parse(settings)
    if mode & (stat.S_IRGRP | stat.S_IROTH) and any(isinstance(value, Secret) for value in parsed.values()):
        logger.warning("%s has a password, and others may read it: chmod 600 %s", where, where)
    return parsed


def from_properties(text: str) -> dict[str, str]:
    """The entries of a file of Java's properties; the last of a name counts."""
    entries = {}
    for line in _logical_lines(text):
        match = _ENTRY.match(line)
        assert match is not None
        entries[_unescaped(match[1])] = _unescaped(match[2])
    return entries


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones; a backslash at its end continues a line."""
    begun = ""
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not begun and line[:1] in ("", "#", "!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)

    return _ESCAPE.sub(meant, text)


def _own(where: str, entries: Mapping[str, str]) -> dict[str, str]:
    """The entries for this client; those for other clients are left out, with a warning."""
    own, others = {}, []
    for name, value in entries.items():
        names = translated({name: value})
        if all(ClientSettings.resolved(setting, None) for setting in names) or is_about_security(name):
            own[name] = value.rstrip() if name.endswith(("location", "protocol", "mechanism")) else value
        elif plain(name) != _ADDRESS:
            others.append(name)
    if others:
        logger.warning("%s: without effect here: %s", where, ", ".join(sorted(others))[:500])
    return own


def _from_toml(where: str, content: bytes) -> dict[str, Any]:
    import tomllib  # slow to import

    try:
        return dict(_flat(tomllib.loads(content.decode())))
    except UnicodeDecodeError:
        raise InvalidArgument(f"client_config: {where} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^()]*\)$", str(error))  # the rest may have a value
        at = f" {place[0]}" if place else ""
        raise InvalidArgument(f"client_config: {where} is not TOML{at}") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(content: bytes) -> str:
    """The text of a file: Java reads Latin-1, and editors write UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
