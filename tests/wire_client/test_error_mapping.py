"""The errors that clients raise for the codes of responses."""

from __future__ import annotations

import pytest

from embedlog import errors
from embedlog.cluster.broker.api_errors import error_code_for
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.error_meanings import CODES
from embedlog.wire_client.error_mapping import error_of


def test_every_code_has_an_error_that_names_it() -> None:
    for code in set(ErrorCode) - {ErrorCode.NONE}:
        error = error_of(code, "asking")
        assert isinstance(error, errors.EmbedlogError)
        assert f"{code.name} ({code.value})" in str(error)
        if isinstance(error, errors.BrokerError):
            assert (error.code, error.retriable) == (code, code.retriable)
    unknown = error_of(30_000, "asking", "says the broker")
    assert isinstance(unknown, errors.BrokerError)
    assert not unknown.retriable
    assert str(unknown) == "asking: error 30000 [says the broker]"


@pytest.mark.parametrize("kind", [kind for kind in CODES if kind is not errors.InvalidCommit])
def test_a_client_raises_what_the_broker_answered_with(kind: type[errors.EmbedlogError]) -> None:
    answered = kind.__new__(kind)  # some take more than a message
    assert type(error_of(error_code_for(answered), "asking")) is kind
