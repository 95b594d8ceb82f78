"""The records of __transaction_state: golden bytes from Kafka's schemas, and what becomes of damaged ones.

The hex is written out by hand from Kafka's message schemas (TransactionLogKey, TransactionLogValue), field by
field.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedlog.errors import CorruptRecord, InvalidArgument
from embedlog.model import TopicPartition
from embedlog.wire import transaction_state as records
from embedlog.wire.transaction_state import TransactionMetadata, TransactionState

pytestmark = pytest.mark.plain


def hexed(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


KEY = hexed("0000", "0008", b"loader-1".hex())
PREPARED = TransactionMetadata(
    4_000,
    7,
    60_000,
    TransactionState.PREPARE_COMMIT,
    frozenset({TopicPartition("out", 1), TopicPartition("out", 0), TopicPartition("__consumer_offsets", 7)}),
    0x1900ABBCC00,
    0x1900ABBC800,
    previous_producer_id=4_000,
    next_producer_id=5_000,
    client_version=2,
)
HEAD = ("0000000000000fa0", "0007", "0000ea60", "02")  # producer id and epoch, timeout, PrepareCommit
TIMES = ("000001900abbcc00", "000001900abbc800")  # of the last update, of the start
PREPARED_1 = hexed(
    *("0001", *HEAD),
    "03",  # two topics
    *("13", b"__consumer_offsets".hex(), "02", "00000007", "00"),
    *("04", b"out".hex(), "03", "00000000", "00000001", "00"),
    *TIMES,
    "03",  # three tagged fields
    *("00", "08", "0000000000000fa0"),  # the previous producer id
    *("01", "08", "0000000000001388"),  # the next producer id
    *("02", "02", "0002"),  # the client's transaction.version
)
PREPARED_0 = hexed(
    *("0000", *HEAD),
    "00000002",
    *("0012", b"__consumer_offsets".hex(), "00000001", "00000007"),
    *("0003", b"out".hex(), "00000002", "00000000", "00000001"),
    *TIMES,
)
EMPTY = TransactionMetadata(4_000, 0, 60_000, TransactionState.EMPTY, last_update_ms=0x1900ABBCC00)
EMPTY_1 = hexed(
    *("0001", "0000000000000fa0", "0000", "0000ea60", "00"),
    "00",  # no list of topics
    *("000001900abbcc00", "ffffffffffffffff", "00"),
)


def test_keys_are_kafkas_bytes() -> None:
    assert records.encode_key("loader-1") == KEY
    assert records.decode_key(KEY) == "loader-1"


def test_values_are_kafkas_bytes() -> None:
    assert records.encode_value(PREPARED) == PREPARED_1
    assert records.decode_value(PREPARED_1) == PREPARED
    assert records.encode_value(EMPTY) == EMPTY_1
    assert records.decode_value(EMPTY_1) == EMPTY
    complete = PREPARED._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset())
    assert records.encode_value(complete)[17:18] == b"\x01", "an empty list, where Empty has none"


def test_values_of_version_0() -> None:
    old = PREPARED._replace(previous_producer_id=-1, next_producer_id=-1, client_version=0)
    assert records.decode_value(PREPARED_0) == old
    assert records.decode_value(hexed("0000") + EMPTY_1[2:17] + hexed("ffffffff") + EMPTY_1[18:-1]) == EMPTY


def test_unknown_tagged_fields_are_skipped() -> None:
    """Kafka adds such fields without raising the version (KIP-915)."""
    assert records.decode_value(EMPTY_1[:-1] + hexed("01", "03", "02", "0009")) == EMPTY


def test_the_numbers_of_states_are_kafkas() -> None:
    assert [(each.name, int(each)) for each in TransactionState] == [
        ("EMPTY", 0),
        ("ONGOING", 1),
        ("PREPARE_COMMIT", 2),
        ("PREPARE_ABORT", 3),
        ("COMPLETE_COMMIT", 4),
        ("COMPLETE_ABORT", 5),
    ]


@pytest.mark.parametrize("state", [6, 7, 8, 127, 255])
def test_an_unknown_state_is_an_error(state: int) -> None:
    """Kafka never stores Dead (6) and PrepareEpochFence (7)."""
    with pytest.raises(CorruptRecord, match="unknown state"):
        records.decode_value(EMPTY_1[:16] + bytes([state]) + EMPTY_1[17:])


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (None, "has no key"),
        (b"\0", "has no version"),
        (b"\0\1" + KEY[2:], "unknown version 1"),
        (KEY + b"\0", "1 bytes left over"),
        (KEY[:-1], "TransactionLogKey"),
    ],
)
def test_an_invalid_key_is_an_error(key: bytes | None, match: str) -> None:
    with pytest.raises(CorruptRecord, match=match):
        records.decode_key(key)


@pytest.mark.parametrize("value", [PREPARED_1, PREPARED_0, EMPTY_1], ids=["v1", "v0", "empty"])
def test_a_value_that_is_cut_or_too_long_is_an_error(value: bytes) -> None:
    for size in range(len(value)):
        with pytest.raises(CorruptRecord):
            records.decode_value(value[:size])
    with pytest.raises(CorruptRecord, match="left over"):
        records.decode_value(value + b"\0")
    with pytest.raises(CorruptRecord, match="unknown version 2"):
        records.decode_value(b"\0\2" + value[2:])


def test_what_cannot_be_written() -> None:
    with pytest.raises(InvalidArgument):
        records.encode_key("x" * 32_768)
    with pytest.raises(InvalidArgument):
        records.encode_value(EMPTY._replace(producer_epoch=32_768))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        TransactionMetadata,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 32_767),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=st.sampled_from([each for each in TransactionState if each is not TransactionState.EMPTY]),
        partitions=st.frozensets(
            st.builds(TopicPartition, st.text("ab._-", min_size=1), st.integers(0, 2**31 - 1)), max_size=9
        ),
        last_update_ms=st.integers(-1, 2**63 - 1),
        start_ms=st.integers(-1, 2**63 - 1),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        client_version=st.integers(0, 2),
        process=st.just(""),  # which is no part of a value
    )
)
def test_what_is_encoded_is_decoded(metadata: TransactionMetadata) -> None:
    assert records.decode_value(records.encode_value(metadata)) == metadata
