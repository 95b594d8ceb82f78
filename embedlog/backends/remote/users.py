"""Users of brokers, by DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

A password does not leave this process: the brokers get it salted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from ...errors import InvalidArgument
from ...security.scram import NUMBERS, SALT, check_password, check_user, salted_password
from ...wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ...wire.apis.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ...wire.error_codes import ErrorCode
from .brokers import Brokers, check_code

_NUMBER_OF = {name: number for number, name in NUMBERS.items()}


class RemoteUsers:
    """Methods raise BrokerError, BrokerUnavailable; InvalidArgument. Thread-safe."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def describe(self, name: str | None = None) -> dict[str, Mapping[str, int]]:
        """User -> mechanism -> iterations; of one user, or of all. Empty if there is no such user."""
        request = DescribeUserScramCredentialsRequest(users=None if name is None else [UserName(name=name)])

        def attempt(deadline: float) -> dict[str, Mapping[str, int]]:
            response = self._brokers.ask_any(request, DescribeUserScramCredentialsResponse, deadline)
            check_code(response.error_code, "users", response.error_message)
            users: dict[str, Mapping[str, int]] = {}
            for credentials in response.results:
                if credentials.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                    continue
                check_code(credentials.error_code, credentials.user, credentials.error_message)
                users[credentials.user] = {
                    NUMBERS[info.mechanism]: info.iterations
                    for info in credentials.credential_infos
                    if info.mechanism in NUMBERS
                }
            return users

        return self._brokers.retried(attempt)

    def set_password(self, name: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
        """Add a user, or change the password."""
        check_user(name)
        secret = check_password(password).encode()
        upsertions = []
        for mechanism in mechanisms:
            salt = secrets.token_bytes(SALT)
            salted = salted_password(mechanism, secret, salt, iterations)
            upsertions.append(
                ScramCredentialUpsertion(
                    name=name,
                    mechanism=_NUMBER_OF[mechanism],
                    iterations=iterations,
                    salt=salt,
                    salted_password=salted,
                )
            )
        self._alter(AlterUserScramCredentialsRequest(upsertions=upsertions))

    def delete(self, name: str, mechanisms: Iterable[str]) -> None:
        """Delete a user's credentials."""
        numbers = [_NUMBER_OF[mechanism] for mechanism in mechanisms]
        deletions = [ScramCredentialDeletion(name=name, mechanism=number) for number in numbers]
        self._alter(AlterUserScramCredentialsRequest(deletions=deletions))

    def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        def attempt(deadline: float) -> None:
            response = self._brokers.ask_any(request, AlterUserScramCredentialsResponse, deadline)
            for alteration in response.results:
                if alteration.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                    raise InvalidArgument(f"there is no user {alteration.user!r}")
                check_code(alteration.error_code, alteration.user, alteration.error_message)

        self._brokers.retried(attempt)
