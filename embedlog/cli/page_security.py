"""How `embedlog ui` lets in other machines: TLS and the log's users, by the settings of a broker.

--secure    what `embedlog serve --secure` makes, and a certificate of the page's own
--set       ssl_keystore_location=FILE and the other settings of _SETTINGS, as a broker has them
"""

from __future__ import annotations

import argparse
import os
import ssl
from dataclasses import dataclass
from typing import Final

from ..cluster.broker.access.access import AccessControl
from ..cluster.broker.access.access_log import AccessLog
from ..cluster.broker.access.authorizing import authorizer_of
from ..cluster.network.listeners import Listener, is_own, named
from ..cluster.network.tls_context import ListenerTls
from ..cluster.secured import Secured
from ..cluster.settings.broker_settings import BrokerSettings
from ..errors import InvalidArgument
from ..files.names import CLUSTER_FILE
from ..runtime.closing import Closing
from ..security.acl_store import DocumentAcls
from ..security.certificates import PAGE
from ..security.protocol import SecurityProtocol
from ..security.users import DocumentUsers
from .arguments import arg, is_over_wire, own_settings, settings
from .opening import existing

_SETTINGS: Final = frozenset(
    {
        "allow_everyone_if_no_acl_found",
        "authorizer_class_name",
        "ssl_cipher_suites",
        "ssl_enabled_protocols",
        "ssl_key_password",
        "ssl_keystore_location",
        "ssl_keystore_type",
        "super_users",
    }
)
_HTTPS: Final = 443
_OWN_NAMES: Final = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Security(Closing):
    """Of a page where visitors log in.

    client_file: with the administrator's password; empty without --secure.
    """

    tls: ListenerTls
    users: DocumentUsers
    access: AccessControl | None
    client_file: str

    def close(self) -> None:
        """Notice no more changes of ACLs."""
        if self.access is not None:
            self.access.close()

    def context(self) -> ssl.SSLContext:
        """A server's, which has the latest certificate for each connection."""
        context = self.tls.current().context

        def follow(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            latest = self.tls.current().context
            if latest is not connection.context:
                connection.context = latest

        context.sni_callback = follow
        return context


SECURITY_OPTIONS: Final = (
    arg("--host HOST", "the address to listen on (127.0.0.1); another needs --secure", default=_OWN_NAMES[0]),
    arg("--advertised-host HOST...", "a name or address by which browsers know this machine; repeatable"),
    arg(
        "--secure",
        "HTTPS, and users of the log with their passwords and ACLs: make a certificate and an "
        "administrator in DIR-security, unless they are there (needs the extra 'security')",
    ),
    own_settings(
        "instead of --secure, as a broker's: ssl_keystore_location, authorizer_class_name, super_users; "
        "repeatable"
    ),
)


def security(args: argparse.Namespace) -> Security | None:
    """What the arguments ask for; None for a page of this machine that prints a token.

    Raises InvalidArgument, InvalidSetting, UnknownSetting, StorageError, CorruptCheckpoint.
    """
    own_settings = BrokerSettings.parse(settings(args.own, "--set"))
    if not args.secure and "ssl_keystore_location" not in own_settings:
        if not is_own(args.host):
            raise InvalidArgument(
                f"{args.host or 'every address'} may be reached from other machines, and it has no login: "
                "give --secure, which has visitors log in as users of the log, over HTTPS"
            )
        if own_settings or args.advertised_host:
            raise InvalidArgument("--set and --advertised-host are for a page with --secure: give that, too")
        return None
    for name in own_settings.keys() - _SETTINGS:
        raise InvalidArgument(f"--set {name} is none of the page's: these are {', '.join(sorted(_SETTINGS))}")
    if is_over_wire(args.directory):
        raise InvalidArgument(
            "visitors log in as users of a directory's log, and brokers keep theirs: run the page beside a "
            "broker on its directory, or without --secure and --host for this machine only"
        )
    directory = existing(args.directory)
    if os.path.exists(os.path.join(directory, CLUSTER_FILE)):
        raise InvalidArgument(
            f"{args.directory} belongs to a broker of a cluster, whose users are in ZooKeeper: its page "
            "is for this machine only"
        )
    client_file = ""
    if args.secure:
        if "ssl_keystore_location" in own_settings:
            raise InvalidArgument("--secure makes the page's certificate: leave out ssl_keystore_location")
        secured = Secured(directory, [args.host, *args.advertised_host], PAGE)
        client_file = secured.client_file
        of_page = secured.settings(args.host, args.port, None, None)
        own_settings = {name: of_page[name] for name in of_page.keys() & _SETTINGS} | own_settings
    users = DocumentUsers(directory)
    if not users.names():
        raise InvalidArgument(
            f"the log has no users, so no visitor could log in: embedlog users add {args.directory} NAME"
        )
    broker_settings = BrokerSettings().with_changes(own_settings)
    listener = Listener("page", SecurityProtocol.SASL_SSL, args.host, args.port, args.host, args.port)
    tls = ListenerTls(listener, broker_settings)
    authorizer = authorizer_of(broker_settings, lambda: DocumentAcls(directory))
    access = None if authorizer is None else AccessControl(authorizer, AccessLog())
    return Security(tls, users, access, client_file)


def address(args: argparse.Namespace, port: int) -> str:
    """host:port, to print."""
    return f"{_bracketed((args.advertised_host or [named(args.host)])[0])}:{port}"


def hosts(args: argparse.Namespace, port: int) -> list[str]:
    """The values of Host that the page accepts."""
    names = {named(args.host), *args.advertised_host, *_OWN_NAMES}
    values = [f"{_bracketed(name)}:{port}" for name in sorted(names)]
    return values + ([_bracketed(name) for name in sorted(names)] if port == _HTTPS else [])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
