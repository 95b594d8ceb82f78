"""The records of __consumer_offsets: golden bytes from Kafka's schemas, and what becomes of damaged ones.

The hex is written out by hand from Kafka's message schemas (OffsetCommitKey, OffsetCommitValue,
GroupMetadataKey, GroupMetadataValue), field by field; partition numbers come from Java's String.hashCode.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedlog.errors import CorruptRecord, InvalidArgument
from embedlog.model import CommittedOffset, GroupMemberMetadata, GroupMetadata
from embedlog.wire import offsets_topic as records

pytestmark = pytest.mark.plain


def hexed(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


OFFSET_KEY = hexed("0001", "0007", b"billing".hex(), "0006", b"clicks".hex(), "00000003")
GROUP_KEY = hexed("0002", "0007", b"billing".hex())
VALUE_3 = hexed("0003", "000000000001d4fc", "00000005", "0002", b"hi".hex(), "000001900abbcc00")
MEMBER_3 = hexed(
    *("0003", b"m-1".hex()),  # member_id
    *("0002", b"i1".hex()),  # group_instance_id
    *("0001", b"c".hex()),  # client_id
    *("0002", b"/h".hex()),  # client_host
    *("000493e0", "0000afc8"),  # rebalance timeout 300000, session timeout 45000
    *("00000002", "aabb"),  # subscription
    *("00000003", "010203"),  # assignment
)
GROUP_3 = hexed(
    *("0003", "0008", b"consumer".hex(), "0000000c", "0005", b"range".hex(), "0003", b"m-1".hex()),
    *("000001900abbcc00", "00000001"),
)
MEMBER = GroupMemberMetadata("m-1", "i1", "c", "/h", 300_000, 45_000, b"\xaa\xbb", b"\x01\x02\x03")
GROUP = GroupMetadata("consumer", 12, "range", "m-1", 0x1900ABBCC00, (MEMBER,))
COMMITTED = CommittedOffset(120_060, 5, "hi", 0x1900ABBCC00)


def test_keys_are_kafkas_bytes() -> None:
    assert records.encode_offset_key("billing", "clicks", 3) == OFFSET_KEY
    assert records.encode_group_key("billing") == GROUP_KEY
    assert records.decode_key(OFFSET_KEY) == records.OffsetKey("billing", "clicks", 3)
    assert records.decode_key(b"\0\0" + OFFSET_KEY[2:]) == records.OffsetKey("billing", "clicks", 3)
    assert records.decode_key(GROUP_KEY) == records.GroupKey("billing")


def test_offset_values_of_every_version() -> None:
    assert records.encode_offset_value(COMMITTED) == VALUE_3
    assert records.decode_offset_value(VALUE_3) == COMMITTED
    without_epoch = hexed("000000000001d4fc", "0002", b"hi".hex(), "000001900abbcc00")
    old = COMMITTED._replace(leader_epoch=-1)
    assert records.decode_offset_value(hexed("0000") + without_epoch) == old
    assert records.decode_offset_value(hexed("0002") + without_epoch) == old
    assert records.decode_offset_value(hexed("0001") + without_epoch + hexed("ffffffffffffffff")) == old


@pytest.mark.parametrize(
    ("value", "metadata", "topic_id"),
    [
        ("00040000011f71fb04cb000000070b68616c66206f662069740000018bcfe5687b00", "half of it", ""),
        (
            "00040000011f71fb04cb00000007010000018bcfe5687b01001097b4befb1f3a4281b1e4e9dfb6ee20af",
            "",
            "l7S--x86QoGx5Onftu4grw",
        ),
    ],
)
def test_offset_values_of_version_4(value: str, metadata: str, topic_id: str) -> None:
    """Bytes that Kafka 4.1.1 wrote, which writes no other version."""
    read = CommittedOffset(1_234_567_890_123, 7, metadata, 1_700_000_000_123, topic_id)
    data = bytes.fromhex(value)
    assert not topic_id or records.encode_offset_value(read) == data
    assert records.decode_offset_value(data) == read
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            records.decode_offset_value(data[:size])
    with pytest.raises(CorruptRecord, match="OffsetCommitValue v4, metadata at byte 15: a length of -1"):
        records.decode_offset_value(data[:14] + b"\0" + data[15:])


def test_group_values_of_every_version() -> None:
    assert records.encode_group_value(GROUP) == GROUP_3 + MEMBER_3
    assert records.decode_group_value(GROUP_3 + MEMBER_3) == GROUP
    head = hexed("0008", b"consumer".hex(), "0000000c", "0005", b"range".hex(), "0003", b"m-1".hex())
    names = hexed("0003", b"m-1".hex(), "0001", b"c".hex(), "0002", b"/h".hex())
    tail = hexed("00000002", "aabb", "00000003", "010203")
    v0 = hexed("0000") + head + hexed("00000001") + names + hexed("0000afc8") + tail
    v1 = hexed("0001") + head + hexed("00000001") + names + hexed("000493e0", "0000afc8") + tail
    v2 = hexed("0002") + head + hexed("000001900abbcc00", "00000001") + v1[len(head) + 6 :]
    dynamic = MEMBER._replace(group_instance_id=None)
    assert records.decode_group_value(v2) == GROUP._replace(members=(dynamic,))
    assert records.decode_group_value(v1) == GROUP._replace(members=(dynamic,), state_timestamp_ms=-1)
    v0_member = dynamic._replace(rebalance_timeout_ms=45_000)
    assert records.decode_group_value(v0) == GROUP._replace(members=(v0_member,), state_timestamp_ms=-1)


def test_an_empty_group_has_null_protocol_and_leader() -> None:
    empty = GroupMetadata("consumer", 13, None, None, -1)
    encoded = hexed("0003", "0008", b"consumer".hex(), "0000000d", "ffff", "ffff", "ff" * 8, "00000000")
    assert records.encode_group_value(empty) == encoded
    assert records.decode_group_value(encoded) == empty


@pytest.mark.parametrize("version", [-1, 3, 4, 99])
def test_unknown_key_versions_are_damage(version: int) -> None:
    with pytest.raises(CorruptRecord, match=f"version {version}"):
        records.decode_key(version.to_bytes(2, "big", signed=True) + OFFSET_KEY[2:])


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_unknown_value_versions_are_damage(version: int) -> None:
    number = version.to_bytes(2, "big", signed=True)
    with pytest.raises(CorruptRecord, match=f"version {version}"):
        records.decode_offset_value(number + VALUE_3[2:])
    with pytest.raises(CorruptRecord, match=f"version {version}"):
        records.decode_group_value(number + GROUP_3[2:])


def test_a_missing_key_is_damage() -> None:
    with pytest.raises(CorruptRecord, match="no key"):
        records.decode_key(None)


@pytest.mark.parametrize("key", [OFFSET_KEY, GROUP_KEY])
def test_keys_cut_or_too_long_are_damage(key: bytes) -> None:
    for bad in [*(key[:size] for size in range(len(key))), key + b"\0"]:
        with pytest.raises(CorruptRecord):
            records.decode_key(bad)


def test_values_cut_or_too_long_are_damage() -> None:
    for bad in [*(VALUE_3[:size] for size in range(len(VALUE_3))), VALUE_3 + b"\0"]:
        with pytest.raises(CorruptRecord):
            records.decode_offset_value(bad)
    group = GROUP_3 + MEMBER_3
    for bad in [*(group[:size] for size in range(len(group))), group + b"\0"]:
        with pytest.raises(CorruptRecord):
            records.decode_group_value(bad)


def test_hostile_counts_and_nulls_are_refused_before_they_cost_anything() -> None:
    with pytest.raises(CorruptRecord, match="members at byte 40: 2147483647 elements, 37 bytes remain"):
        records.decode_group_value(GROUP_3[:-4] + hexed("7fffffff") + MEMBER_3)
    with pytest.raises(CorruptRecord, match="members at byte 40: a length of -2"):
        records.decode_group_value(GROUP_3[:-4] + hexed("fffffffe") + MEMBER_3)
    with pytest.raises(CorruptRecord, match="GroupMetadataKey v2, group at byte 4: a length of -1"):
        records.decode_key(hexed("0002", "ffff"))
    with pytest.raises(CorruptRecord, match=r"group at byte 4: .utf-8. codec can't decode"):
        records.decode_key(hexed("0002", "0001", "ff"))
    with pytest.raises(CorruptRecord, match=r"assignment at byte .*: a length of -1"):
        records.decode_group_value(GROUP_3 + MEMBER_3[:-7] + hexed("ffffffff"))


def test_unwritable_values_are_errors_of_the_caller() -> None:
    with pytest.raises(InvalidArgument, match=r"GroupMetadataKey v2, group: .* 32767"):
        records.encode_group_key("x" * 32_768)
    with pytest.raises(InvalidArgument, match="surrogates not allowed"):
        records.encode_group_key("\ud800")
    with pytest.raises(InvalidArgument, match=r"OffsetCommitKey v1: .* 2147483647"):
        records.encode_offset_key("g", "t", 2**31)


@pytest.mark.parametrize(
    ("group", "partition"),
    [  # Java: Utils.abs(group.hashCode()) % 50
        ("", 0),
        ("a", 47),
        ("billing", 9),  # hashCode -109829509
        ("my-group", 12),  # hashCode -1906497762
        ("group-1", 49),
        ("über", 5),
        ("\U0001f680rocket", 31),  # two UTF-16 code units
        ("console-consumer-12345", 6),
        ("polygenelubricants", 0),  # hashCode is the least int32
        ("zzzzzzzzzz", 36),
    ],
)
def test_partition_for_agrees_with_java(group: str, partition: int) -> None:
    assert records.partition_for(group, 50) == partition


def test_partition_for_needs_a_partition() -> None:
    with pytest.raises(InvalidArgument):
        records.partition_for("g", 0)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@unhurried
@given(TEXT, TEXT, INT32)
def test_keys_round_trip(group: str, topic: str, partition: int) -> None:
    key = records.encode_offset_key(group, topic, partition)
    assert records.decode_key(key) == (group, topic, partition)
    assert records.decode_key(records.encode_group_key(group)) == (group,)
    assert 0 <= records.partition_for(group, 7) < 7


@unhurried
@given(st.builds(CommittedOffset, INT64, INT32, TEXT, INT64, st.sampled_from(("", "l7S--x86QoGx5Onftu4grw"))))
def test_offset_values_round_trip(committed: CommittedOffset) -> None:
    assert records.decode_offset_value(records.encode_offset_value(committed)) == committed


MEMBERS = st.builds(
    GroupMemberMetadata, TEXT, st.none() | TEXT, TEXT, TEXT, INT32, INT32, st.binary(), st.binary()
)
GROUPS = st.builds(
    GroupMetadata,
    TEXT,
    INT32,
    st.none() | TEXT,
    st.none() | TEXT,
    INT64,
    st.lists(MEMBERS, max_size=4).map(tuple),
)


@unhurried
@given(GROUPS)
def test_group_values_round_trip(group: GroupMetadata) -> None:
    assert records.decode_group_value(records.encode_group_value(group)) == group


@unhurried
@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (records.decode_key, records.decode_offset_value, records.decode_group_value):
        try:
            decode(data)
        except CorruptRecord:
            pass
