"""DescribeUserScramCredentials, AlterUserScramCredentials: users and their passwords' credentials (KIP-554).

Passwords do not come here: a client sends the salted password.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

from ....errors import EmbedlogError, InvalidArgument
from ....security.scram import (
    DIGESTS,
    MAX_ITERATIONS,
    MAX_SALT,
    MIN_ITERATIONS,
    MIN_SALT,
    NUMBERS,
    ScramCredential,
    check_user,
    from_salted_password,
)
from ....security.users import UserStore
from ....wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from ....wire.apis.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ....wire.error_codes import ErrorCode
from ..api_errors import ApiError, error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext

_NUMBER_OF = {name: number for number, name in NUMBERS.items()}


class UserHandlers:
    """Handles the APIs of users."""

    def __init__(self, broker: BrokerContext, users: UserStore) -> None:
        self._broker = broker
        self._users = users

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"DescribeUserScramCredentials": self.describe, "AlterUserScramCredentials": self.alter}

    def describe(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> Future[DescribeUserScramCredentialsResponse]:
        return self._broker.run_blocking(self._describe_all, request)

    def _describe_all(
        self, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        try:
            names = [user.name for user in request.users or ()] or self._users.names()
            counts = Counter(names)
            results = [self._describe(name, counts[name]) for name in counts]
        except EmbedlogError as error:
            return DescribeUserScramCredentialsResponse(
                error_code=error_code_for(error), error_message=message_for(error)
            )
        return DescribeUserScramCredentialsResponse(results=results)

    def _describe(self, name: str, times: int) -> DescribeUserScramCredentialsResult:
        result = DescribeUserScramCredentialsResult(user=name)
        if times > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = f"Cannot describe SCRAM credentials for the same user twice: {name}"
            return result
        result.credential_infos = [
            CredentialInfo(mechanism=_NUMBER_OF[mechanism], iterations=credential.iterations)
            for mechanism, credential in self._users.credentials(name).items()
        ]
        if not result.credential_infos:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
        return result

    def alter(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> Future[AlterUserScramCredentialsResponse]:
        """Each user is changed as a whole or not at all."""
        return self._broker.run_blocking(
            lambda: AlterUserScramCredentialsResponse(
                results=[
                    self._alter(name, request)
                    for name in dict.fromkeys(
                        [deletion.name for deletion in request.deletions]
                        + [upsertion.name for upsertion in request.upsertions]
                    )
                ]
            )
        )

    def _alter(self, name: str, request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResult:
        try:
            changes: dict[str, ScramCredential | None] = {}
            deletions = [deletion for deletion in request.deletions if deletion.name == name]
            upsertions = [upsertion for upsertion in request.upsertions if upsertion.name == name]
            numbers = [deletion.mechanism for deletion in deletions] + [
                upsertion.mechanism for upsertion in upsertions
            ]
            if len(set(numbers)) < len(numbers):
                raise ApiError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            if not NUMBERS.keys() >= set(numbers):
                raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
            _check_name(name)
            for deletion in deletions:
                changes[NUMBERS[deletion.mechanism]] = None
            for upsertion in upsertions:
                changes[NUMBERS[upsertion.mechanism]] = _credential(upsertion)
            if not self._users.alter(name, changes):
                raise ApiError(
                    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                )
        except EmbedlogError as error:
            return AlterUserScramCredentialsResult(
                user=name, error_code=error_code_for(error), error_message=message_for(error)
            )
        return AlterUserScramCredentialsResult(user=name)


def _check_name(name: str) -> None:
    try:
        check_user(name)
    except InvalidArgument as error:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message_for(error)) from None


def _credential(upsertion: ScramCredentialUpsertion) -> ScramCredential:
    """Raises ApiError."""
    mechanism = NUMBERS[upsertion.mechanism]
    size = int(DIGESTS[mechanism].removeprefix("sha")) // 8
    problem = ""
    if upsertion.iterations < MIN_ITERATIONS:
        problem = f"Too few iterations: at least {MIN_ITERATIONS:,}"
    elif upsertion.iterations > MAX_ITERATIONS:
        problem = f"Too many iterations: at most {MAX_ITERATIONS:,}"
    elif not MIN_SALT <= len(upsertion.salt) <= MAX_SALT:
        problem = f"The salt must have {MIN_SALT} to {MAX_SALT:,} bytes"
    elif len(upsertion.salted_password) != size:
        problem = f"The salted password of {mechanism} must have {size} bytes"
    if problem:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
    return from_salted_password(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)
