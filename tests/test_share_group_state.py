"""The records of share groups' members: golden bytes from Kafka's schemas, and what becomes of damaged ones.

The hex is written out by hand from Kafka's message schemas (ShareGroupMetadataKey and so on), field by field.
"""

import pytest

from embedlog.errors import CorruptRecord
from embedlog.wire import share_group_state as records
from embedlog.wire.consumer_group_state import GroupEpoch, StateKey
from embedlog.wire.offsets_topic import decode_key
from embedlog.wire.share_group_state import (
    CURRENT,
    GROUP_EPOCH,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    ShareAssignment,
    ShareSubscription,
    Value,
)

pytestmark = pytest.mark.plain


def hexed(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


ONE, TWO = bytes(range(16)), bytes(range(16, 32))
GROUP, MEMBER = ("0007", b"billing".hex()), ("0001", b"m".hex())
KEYS = {
    StateKey(SUBSCRIPTION, "billing", "m"): hexed("000a", *GROUP, *MEMBER),
    StateKey(GROUP_EPOCH, "billing"): hexed("000b", *GROUP),
    StateKey(TARGET_EPOCH, "billing"): hexed("000c", *GROUP),
    StateKey(TARGET, "billing", "m"): hexed("000d", *GROUP, *MEMBER),
    StateKey(CURRENT, "billing", "m"): hexed("000e", *GROUP, *MEMBER),
}
# Two topics, the first with partitions 0 and 2, the second with 1; each ends with its (no) tagged fields.
TOPICS = ("03", ONE.hex(), "03", "00000000", "00000002", "00", TWO.hex(), "02", "00000001", "00")
ASSIGNED = frozenset({(ONE, 0), (ONE, 2), (TWO, 1)})
VALUES: list[tuple[int, Value, bytes]] = [
    (
        SUBSCRIPTION,
        ShareSubscription("rack", "cli", "/127.0.0.1", ("t", "u")),
        hexed(
            "0000",
            *("05", b"rack".hex(), "04", b"cli".hex(), "0b", b"/127.0.0.1".hex()),
            *("03", "02", b"t".hex(), "02", b"u".hex(), "00"),
        ),
    ),
    (SUBSCRIPTION, ShareSubscription(), hexed("0000", "00", "01", "01", "01", "00")),
    (GROUP_EPOCH, GroupEpoch(7, -2), hexed("0000", "00000007", "fffffffffffffffe", "00")),
    (TARGET_EPOCH, 6, hexed("0000", "00000006", "00")),
    (TARGET, ASSIGNED, hexed("0000", *TOPICS, "00")),
    (CURRENT, ShareAssignment(7, 6, ASSIGNED), hexed("0000", "00000007", "00000006", "00", *TOPICS, "00")),
]


@pytest.mark.parametrize("key", KEYS)
def test_keys(key: StateKey) -> None:
    assert records.encode_key(key) == KEYS[key]
    assert decode_key(KEYS[key]) == key


@pytest.mark.parametrize(("version", "value", "data"), VALUES)
def test_values(version: int, value: Value, data: bytes) -> None:
    assert records.encode_value(value) == data
    assert records.decode_value(version, data) == value


@pytest.mark.parametrize(("version", "value", "data"), VALUES)
def test_damaged_values(version: int, value: Value, data: bytes) -> None:
    for damaged in (data[:-1], data + b"\0", b"\0\1" + data[2:], b""):
        with pytest.raises(CorruptRecord):
            records.decode_value(version, damaged)
