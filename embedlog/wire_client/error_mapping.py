"""A client's errors for the error codes of responses, by the table in wire/error_meanings.py.

A code without an error of its own in embedlog becomes a BrokerError, which keeps it. A message has Kafka's
name of the code, and advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .. import errors
from ..errors.public import public_message
from ..wire.error_codes import ErrorCode
from ..wire.error_meanings import DENIED, MEANINGS, known_code
from ..wire.owner_apis import STORAGE_ERRORS

_FULL: Final = {public_message(kind("")): kind for kind in (errors.DiskFull, errors.LogFull)}
"""What an embedlog broker says beside POLICY_VIOLATION if it has no room."""

_OWNERS: Final = {code: kind for kind, code in STORAGE_ERRORS.items()}

_ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader: retry",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads the partition: refresh the metadata",
    ErrorCode.REQUEST_TIMED_OUT: "the broker could not finish in time: retry",
    ErrorCode.POLICY_VIOLATION: "a rule of the broker does not allow it, or it has no room",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still reading its offsets: retry",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the group has no coordinator: retry",
    ErrorCode.NOT_COORDINATOR: "another broker coordinates the group: look it up, and retry there",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not have this version of the request",
    ErrorCode.SECURITY_DISABLED: "start the brokers with authorizer_class_name=AclAuthorizer",
}


def error_of(
    code: int, subject: str, details: str | None = None, names: Mapping[str, str] | None = None
) -> errors.EmbedlogError:
    """The error for a code that is not 0.

    `subject` names the request in a few words; `details` is the broker's own message, if any; `names` has the
    topic, the group, the transactional id that it was about.
    """
    error_code = known_code(code)
    name = f"error {code}" if error_code is None else f"{error_code.name} ({code})"
    own = f" [{details}]" if details else ""
    if error_code is not None and error_code in DENIED:
        kind = DENIED[error_code]
        resource = (names or {}).get(kind, "")
        of = f"{kind} {resource!r}" if resource else f"the {kind}"
        return errors.AuthorizationFailed(
            f"{subject}: {name}: the principal of this client may not do that with {of}{own}",
            resource_type=kind,
            resource=resource,
        )
    if code in _OWNERS:
        return _OWNERS[code](f"{subject}: {details or 'the owner cannot write its files'}")
    if code == ErrorCode.POLICY_VIOLATION and details in _FULL:
        return _FULL[details](f"{subject}: {details}")
    if error_code is not None and error_code in MEANINGS:
        error, advice = MEANINGS[error_code]
        return error(f"{subject}: {name}: {advice}{own}")
    advice = f": {_ADVICE[error_code]}" if error_code in _ADVICE else ""
    retriable = error_code is not None and error_code.retriable
    return errors.BrokerError(f"{subject}: {name}{advice}{own}", code=code, retriable=retriable)
