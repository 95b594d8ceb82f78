"""`embedlog serve --secure`: a certificate authority, a certificate and an administrator, made once.

    DIR                    users.json has the user `admin`
    DIR-security           ca.pem, ca-key.pem, broker.pem (security/certificates.py)
      client.properties    how the administrator's clients connect, with the password; mode 0600

Everybody authenticates by SCRAM over TLS. `admin` may do everything, all others what ACLs allow them. What is
there is kept; without client.properties, or without the user, the administrator gets another password.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterable
from typing import Any, Final

from ..errors import InvalidArgument, StorageError
from ..files.filesystem import FileSystem
from ..files.names import CLUSTER_FILE, FORMAT_FILE
from ..security.certificates import BROKER, Certificates
from ..security.scram import DIGESTS, credential_of
from ..security.users import DocumentUsers
from ..store.store import Store
from .network.listeners import bracketed, named

ADMINISTRATOR: Final = "admin"
CLIENT_FILE: Final = "client.properties"

_MECHANISM: Final = "SCRAM-SHA-512"
_PASSWORD_BYTES: Final = 24
_OWN_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})
_CLIENT: Final = """\
# How clients of {directory} connect as {user}. Kafka's tools take it, too: --command-config {path}
security.protocol=SASL_SSL
sasl.mechanism={mechanism}
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{user}" password="{password}";
ssl.truststore.type=PEM
ssl.truststore.location={authority}
"""


class Secured:
    """What `embedlog serve --secure` made in `path`, and the settings of the broker.

    Args:
        directory: the log's, created if it does not exist.
        hosts: names and addresses that clients know the server by, besides those of this machine.
        server: BROKER or PAGE (security/certificates.py), which has a certificate of its own.

    Raises InvalidArgument for a cluster's directory and without the extra `security`; StorageError; as
    `embedlog.open`.
    """

    def __init__(self, directory: str, hosts: Iterable[str], server: str = BROKER) -> None:
        directory = os.path.abspath(directory)
        if os.path.exists(os.path.join(directory, CLUSTER_FILE)):
            raise InvalidArgument(
                f"{directory} belongs to a broker of a cluster, whose users are in ZooKeeper: configure its "
                "listeners (docs/how-to/secure-a-broker.md)"
            )
        if not os.path.exists(os.path.join(directory, FORMAT_FILE)):
            Store(directory, background=False).close()  # users are added to a log that there is
        self.path = f"{directory}-security"
        self.client_file = os.path.join(self.path, CLIENT_FILE)
        self._certificates = Certificates(self.path, os.path.basename(directory))
        known_by = {*hosts, *_OWN_NAMES, *_names_of_machine()} - _EVERY_ADDRESS
        self.key = self._certificates.of_server(known_by, server)
        users = DocumentUsers(directory)
        # A log that was made anew beside its old DIR-security lacks the user.
        self.is_new = not os.path.exists(self.client_file) or not users.credentials(ADMINISTRATOR)
        if self.is_new:
            self._add_administrator(directory, users)

    def settings(
        self, host: str, port: int, advertised_host: str | None, advertised_port: int | None
    ) -> dict[str, Any]:
        """The settings of the broker, which listens on host and port."""
        settings: dict[str, Any] = {
            "listeners": f"SASL_SSL://{bracketed(host)}:{port}",
            "ssl_keystore_location": self.key,
            "authorizer_class_name": "AclAuthorizer",
            "super_users": f"User:{ADMINISTRATOR}",
        }
        if advertised_host is not None or advertised_port is not None:
            address = f"{bracketed(advertised_host or named(host))}:{advertised_port or port}"
            settings["advertised_listeners"] = f"SASL_SSL://{address}"
        return settings

    def _add_administrator(self, directory: str, users: DocumentUsers) -> None:
        """Killed at any step, it leaves the user or the file missing: the next start makes both anew."""
        password, fs = secrets.token_urlsafe(_PASSWORD_BYTES), FileSystem()
        if os.path.exists(self.client_file):  # of a log that is gone
            fs.unlink(self.client_file)
            fs.sync_dir(self.path)
        users.alter(ADMINISTRATOR, {mechanism: credential_of(mechanism, password) for mechanism in DIGESTS})
        text = _CLIENT.format(
            directory=directory,
            user=ADMINISTRATOR,
            path=self.client_file,
            mechanism=_MECHANISM,
            password=password,
            authority=self._certificates.authority,
        )
        try:
            fs.write_file(self.client_file, text.encode(), private=True)
        except OSError as error:
            raise StorageError(
                f"{self.client_file} cannot be written: {error.strerror}", path=self.client_file
            ) from error


def _names_of_machine() -> set[str]:
    names = {socket.gethostname()}
    with contextlib.suppress(OSError):
        names.add(socket.getfqdn())
    return names
