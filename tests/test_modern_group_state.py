"""The records of modern groups: golden bytes from Kafka's schemas, and what becomes of damaged ones.

The hex is written out by hand from Kafka's message schemas (ConsumerGroupMetadataKey, ShareGroupMetadataKey
and so on), field by field.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.errors import CorruptRecord, InvalidArgument
from embedlog.wire import modern_group_state as records
from embedlog.wire.modern_group_state import (
    CONSUMER,
    PATTERN,
    SHARE,
    ClassicMember,
    ClassicProtocol,
    GroupEpoch,
    MemberAssignment,
    MemberState,
    MemberSubscription,
    ResolvedPattern,
    StateKey,
    Value,
)
from embedlog.wire.offsets_topic import decode_key

pytestmark = pytest.mark.plain


def hexed(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


ONE, TWO = bytes(range(16)), bytes(range(16, 32))
GROUP, MEMBER = ("0007", b"billing".hex()), ("0001", b"m".hex())
KEYS = {
    StateKey(CONSUMER.epoch, "billing"): hexed("0003", *GROUP),
    StateKey(CONSUMER.subscription, "billing", "m"): hexed("0005", *GROUP, *MEMBER),
    StateKey(CONSUMER.target_epoch, "billing"): hexed("0006", *GROUP),
    StateKey(CONSUMER.target, "billing", "m"): hexed("0007", *GROUP, *MEMBER),
    StateKey(CONSUMER.current, "billing", "m"): hexed("0008", *GROUP, *MEMBER),
    StateKey(PATTERN, "billing", "^t.*"): hexed("0010", *GROUP, "0004", b"^t.*".hex()),
    StateKey(SHARE.subscription, "billing", "m"): hexed("000a", *GROUP, *MEMBER),
    StateKey(SHARE.epoch, "billing"): hexed("000b", *GROUP),
    StateKey(SHARE.target_epoch, "billing"): hexed("000c", *GROUP),
    StateKey(SHARE.target, "billing", "m"): hexed("000d", *GROUP, *MEMBER),
    StateKey(SHARE.current, "billing", "m"): hexed("000e", *GROUP, *MEMBER),
}
# Two topics, the first with partitions 0 and 2, the second with 1; each ends with its (no) tagged fields.
TOPICS = ("03", ONE.hex(), "03", "00000000", "00000002", "00", TWO.hex(), "02", "00000001", "00")
ASSIGNED = frozenset({(ONE, 0), (ONE, 2), (TWO, 1)})
VALUES: list[tuple[int, Value, bytes]] = [
    (CONSUMER.epoch, GroupEpoch(7, 0), hexed("0000", "00000007", "00")),
    (
        CONSUMER.epoch,
        GroupEpoch(7, -2),
        hexed("0000", "00000007", "01", *("00", "08", "fffffffffffffffe")),  # one tagged field: the hash
    ),
    (
        CONSUMER.subscription,
        MemberSubscription("one", "rack", "cli", "/127.0.0.1", ("t", "u"), "^v", 300_000, "uniform"),
        hexed(
            "0000",
            *("04", b"one".hex(), "05", b"rack".hex(), "04", b"cli".hex(), "0b", b"/127.0.0.1".hex()),
            *("03", "02", b"t".hex(), "02", b"u".hex()),  # two topics
            *("03", b"^v".hex(), "000493e0", "08", b"uniform".hex()),
            "00",
        ),
    ),
    (
        CONSUMER.subscription,
        MemberSubscription(),
        hexed("0000", "00", "00", "01", "01", "01", "00", "ffffffff", "00", "00"),
    ),
    (
        CONSUMER.subscription,
        MemberSubscription(
            topics=("t",),
            rebalance_timeout_ms=300_000,
            classic=ClassicMember(
                45_000, (ClassicProtocol("range", b"\0\1"), ClassicProtocol("sticky", b""))
            ),
        ),
        hexed(
            *("0000", "00", "00", "01", "01", "02", "02", b"t".hex(), "00", "000493e0", "00"),
            *("01", "00", "1a", "01"),  # one tagged field, of 26 bytes, that is not null
            *("0000afc8", "03"),
            *("06", b"range".hex(), "03", "0001", "00"),
            *("07", b"sticky".hex(), "01", "00"),
            "00",
        ),
    ),
    (CONSUMER.target_epoch, 7, hexed("0000", "00000007", "00")),
    (CONSUMER.target, frozenset(), hexed("0000", "01", "00")),
    (
        CONSUMER.target,
        frozenset({(TWO, 3), (ONE, 1), (ONE, 0)}),
        hexed(
            *("0000", "03"),  # two topics
            *(ONE.hex(), "03", "00000000", "00000001", "00"),
            *(TWO.hex(), "02", "00000003", "00"),
            "00",
        ),
    ),
    (
        CONSUMER.current,
        MemberAssignment(
            7, 6, MemberState.UNREVOKED_PARTITIONS, frozenset({(ONE, 1)}), frozenset({(TWO, 0)})
        ),
        hexed(
            *("0000", "00000007", "00000006", "01"),
            *("02", ONE.hex(), "02", "00000001", "00"),
            *("02", TWO.hex(), "02", "00000000", "00"),
            "00",
        ),
    ),
    (
        PATTERN,
        ResolvedPattern(("t", "u"), 1_000),
        hexed("0000", "03", "02", b"t".hex(), "02", b"u".hex(), "00" * 8, "00000000000003e8", "00"),
    ),
    (
        SHARE.subscription,
        MemberSubscription(None, "rack", "cli", "/127.0.0.1", ("t", "u")),
        hexed(
            "0000",
            *("05", b"rack".hex(), "04", b"cli".hex(), "0b", b"/127.0.0.1".hex()),
            *("03", "02", b"t".hex(), "02", b"u".hex(), "00"),
        ),
    ),
    (SHARE.subscription, MemberSubscription(), hexed("0000", "00", "01", "01", "01", "00")),
    (SHARE.epoch, GroupEpoch(7, -2), hexed("0000", "00000007", "fffffffffffffffe", "00")),
    (SHARE.target_epoch, 6, hexed("0000", "00000006", "00")),
    (SHARE.target, ASSIGNED, hexed("0000", *TOPICS, "00")),
    (
        SHARE.current,
        MemberAssignment(7, 6, assigned=ASSIGNED),
        hexed("0000", "00000007", "00000006", "00", *TOPICS, "00"),
    ),
]  # fmt: skip


def test_keys_are_kafkas_bytes() -> None:
    for key, data in KEYS.items():
        assert records.encode_key(key) == data
        assert decode_key(data) == records.decode_key(data) == key
        assert key.version in records.KEY_VERSIONS


@pytest.mark.parametrize(("version", "value", "data"), VALUES)
def test_values_are_kafkas_bytes(version: int, value: Value, data: bytes) -> None:
    assert records.encode_value(version, value) == data
    assert records.decode_value(version, data) == value


def test_fields_of_newer_versions_are_skipped() -> None:
    created = hexed("0000", "00000007", "02", *("00", "08", "fffffffffffffffe"), *("01", "08", "00" * 8))
    assert records.decode_value(CONSUMER.epoch, created) == GroupEpoch(7, -2)
    epochs = hexed("0000", "02", ONE.hex(), "02", "00000001", *("01", "00", "05", "02", "00000007"), "00")
    assert records.decode_value(CONSUMER.target, epochs) == frozenset({(ONE, 1)})


def test_topics_come_sorted() -> None:
    stored = records.encode_value(CONSUMER.subscription, MemberSubscription(topics=("u", "t")))
    value = records.decode_value(CONSUMER.subscription, stored)
    assert isinstance(value, MemberSubscription)
    assert value.topics == ("t", "u")


@pytest.mark.parametrize(("version", "value", "data"), VALUES)
def test_damaged_values(version: int, value: Value, data: bytes) -> None:
    for damaged in (b"", data[:1], data[:-1], data + b"\0", b"\0\1" + data[2:]):
        with pytest.raises(CorruptRecord):
            records.decode_value(version, damaged)


def test_damaged_keys_and_states() -> None:
    for data in KEYS.values():
        for damaged in (b"", data[:-1], data + b"\0"):
            with pytest.raises(CorruptRecord):
                records.decode_key(damaged)
    with pytest.raises(CorruptRecord, match="unknown state 3"):
        records.decode_value(CONSUMER.current, hexed("0000", "00000007", "00000006", "03", "01", "01", "00"))
    with pytest.raises(InvalidArgument):
        records.encode_key(StateKey(CONSUMER.epoch, "g" * 32_768))


INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(max_size=9)
CLASSIC = st.builds(
    ClassicMember,
    INT32,
    st.lists(st.builds(ClassicProtocol, NAMES, st.binary(max_size=9)), max_size=3).map(tuple),
)
ASSIGNMENTS = st.frozensets(st.tuples(st.binary(min_size=16, max_size=16), INT32))


@given(
    st.one_of(
        st.tuples(st.just(CONSUMER.epoch), st.builds(GroupEpoch, INT32, st.integers(-(2**63), 2**63 - 1))),
        st.tuples(
            st.just(CONSUMER.subscription),
            st.builds(
                MemberSubscription,
                st.none() | NAMES,
                st.none() | NAMES,
                NAMES,
                NAMES,
                st.frozensets(NAMES).map(sorted).map(tuple),
                st.none() | NAMES,
                INT32,
                st.none() | NAMES,
                st.none() | CLASSIC,
            ),
        ),
        st.tuples(st.just(CONSUMER.target_epoch), INT32),
        st.tuples(st.just(CONSUMER.target), ASSIGNMENTS),
        st.tuples(
            st.just(CONSUMER.current),
            st.builds(MemberAssignment, INT32, INT32, st.sampled_from(MemberState), ASSIGNMENTS, ASSIGNMENTS),
        ),
    )
)
def test_what_is_decoded_is_what_was_encoded(stored: tuple[int, Value]) -> None:
    version, value = stored
    assert records.decode_value(version, records.encode_value(version, value)) == value
