"""The versions that Kafka 4 dropped, compared with another encoder's bytes in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_messages import EVERY_MESSAGE, messages, name_of
from protocol_old import BYTES, MESSAGES
from test_protocol_oracle import ORACLE

from embedlog.wire.apis.describe_log_dirs import DescribeLogDirsRequest
from embedlog.wire.messages import Message

OLD = [case for case in EVERY_MESSAGE if case not in ORACLE]
BY_CLASS = {type(message): message for message, _ in MESSAGES}


@pytest.mark.parametrize("case", OLD, ids=name_of)
def test_golden_bytes(case: tuple[type[Message], int]) -> None:
    cls, version = case
    message = BY_CLASS[cls]
    if cls is DescribeLogDirsRequest:  # the other encoder has it wrong; it is the same as the next version
        assert message.encode(version) == message.encode(version + 1)
        return
    encoded = bytes.fromhex(BYTES[cls.__name__, version])
    assert message.encode(version) == encoded
    decoded = cls.decode(encoded, version)
    assert decoded.encode(version) == encoded
    if (message, version) in MESSAGES:
        assert decoded == message


@pytest.mark.parametrize("case", OLD, ids=name_of)
@settings(max_examples=8)
@given(st.data())
def test_round_trip(case: tuple[type[Message], int], data: st.DataObject) -> None:
    cls, version = case
    message = data.draw(messages(cls, version))
    assert cls.decode(message.encode(version), version) == message
