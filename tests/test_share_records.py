"""The records of __share_group_state and __queue_state: golden bytes, and what becomes of damaged ones.

The hex is written out by hand: that of __share_group_state from Kafka's message schemas (ShareSnapshotKey,
ShareSnapshotValue, ShareUpdateKey, ShareUpdateValue), field by field, that of __queue_state from ours.
"""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedlog.errors import CorruptRecord, InvalidArgument
from embedlog.groups.machines.share_events import ShareKey
from embedlog.groups.machines.share_records import Clocks, History, LoadedShares, latest
from embedlog.model import DeliveryState, ShareDelay, ShareLock, ShareRejection, StateBatch
from embedlog.wire import queue_state, share_state
from embedlog.wire.queue_state import QueueState
from embedlog.wire.share_state import ShareSnapshot, ShareUpdate, StateKey

pytestmark = pytest.mark.plain


def hexed(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


TOPIC_ID = "l7S--x86QoGx5Onftu4grw"
KEY = hexed("0007", b"mailers".hex(), "97b4befb1f3a4281b1e4e9dfb6ee20af", "00000003")
ACKNOWLEDGED, AVAILABLE = DeliveryState.ACKNOWLEDGED, DeliveryState.AVAILABLE

BATCHES = (StateBatch(42, 49, ACKNOWLEDGED, 1), StateBatch(51, 51, AVAILABLE, 2))
BATCH_BYTES = hexed(
    "03",  # two batches, as a compact array says it
    *("000000000000002a", "0000000000000031", "02", "0001", "00"),  # no tagged fields
    *("0000000000000033", "0000000000000033", "00", "0002", "00"),
)
SNAPSHOT = ShareSnapshot(7, 5, 41, BATCHES, 0, 0x1900ABBCC00, 0x1900ABBCC01)
SNAPSHOT_BYTES = hexed(
    "0000",
    *("00000007", "00000000", "00000005"),  # snapshot, state and leader epoch
    *("0000000000000029", "000001900abbcc00", "000001900abbcc01"),
    BATCH_BYTES.hex(),
    "00",
)
UPDATE = ShareUpdate(7, 5, -1, BATCHES)
UPDATE_BYTES = hexed("0000", "00000007", "00000005", "ff" * 8, BATCH_BYTES.hex(), "00")

LOCK = ShareLock(42, 49, 17, 1, "m-1", 5_000)
DELAY = ShareDelay(51, 16, 2, 0x1900ABBCC00)
REJECTION = ShareRejection(50, 15, 5, "why", 2, 77)
STATE = QueueState(5, 18, bytes(range(16)), 4_000, 0x1900ABBCC02, (LOCK,), (DELAY,), (REJECTION,))
STATE_BYTES = hexed(
    "0000",
    *("00000005", "0000000000000012"),  # leader epoch, next delivery id
    *("000102030405060708090a0b0c0d0e0f", "0000000000000fa0", "000001900abbcc02"),
    *("02", "000000000000002a", "0000000000000031", "0000000000000011", "0001"),
    *("04", b"m-1".hex(), "0000000000001388", "00"),
    *("02", "0000000000000033", "0000000000000010", "0002", "000001900abbcc00", "00"),
    *("02", "0000000000000032", "000000000000000f", "0005", "04", b"why".hex()),
    *("00000002", "000000000000004d", "00", "00"),
)


def test_keys_are_kafkas_bytes() -> None:
    of = ("mailers", TOPIC_ID, 3)
    for snapshot, version in ((True, "0000"), (False, "0001")):
        key = hexed(version) + KEY
        assert share_state.encode_key(*of, snapshot=snapshot) == key
        assert share_state.decode_key(key, "t") == StateKey(*of, snapshot)


def test_values_are_kafkas_bytes() -> None:
    assert share_state.encode_snapshot(SNAPSHOT) == SNAPSHOT_BYTES
    assert share_state.encode_update(*UPDATE) == UPDATE_BYTES
    assert share_state.decode_snapshot(SNAPSHOT_BYTES) == SNAPSHOT._replace(batches=list(BATCHES))
    assert share_state.decode_update(UPDATE_BYTES) == UPDATE._replace(batches=list(BATCHES))
    complete = hexed("01", "00", "04", "00000009")  # Kafka 4.2's tagged field
    assert share_state.decode_update(UPDATE_BYTES[:-1] + complete) == UPDATE._replace(batches=list(BATCHES))
    assert share_state.decode_snapshot(SNAPSHOT_BYTES[:-1] + complete).batches == list(BATCHES)


def test_the_values_of_our_own_topic() -> None:
    assert queue_state.encode_state(STATE) == STATE_BYTES
    read = STATE._replace(locks=[LOCK], delays=[DELAY], rejections=[REJECTION])
    assert queue_state.decode_state(STATE_BYTES) == read


@pytest.mark.parametrize("version", [-1, 2, 99])
def test_unknown_versions_are_damage(version: int) -> None:
    number = version.to_bytes(2, "big", signed=True)
    with pytest.raises(CorruptRecord, match=f"unknown version {version} of a __queue_state key"):
        share_state.decode_key(number + KEY, "__queue_state")
    for decode, data in DECODED:
        with pytest.raises(CorruptRecord, match=f"unknown version {version}"):
            decode(number + data[2:])


DECODED = (
    (share_state.decode_snapshot, SNAPSHOT_BYTES),
    (share_state.decode_update, UPDATE_BYTES),
    (queue_state.decode_state, STATE_BYTES),
)


def test_bytes_cut_or_too_long_are_damage() -> None:
    with pytest.raises(CorruptRecord, match="no key"):
        share_state.decode_key(None, "t")
    key = hexed("0001") + KEY
    for bad in [*(key[:size] for size in range(len(key))), key + b"\0"]:
        with pytest.raises(CorruptRecord):
            share_state.decode_key(bad, "t")
    for decode, data in DECODED:
        for bad in [*(data[:size] for size in range(len(data))), data + b"\0"]:
            with pytest.raises(CorruptRecord):
                decode(bad)


def test_unknown_states_and_ranges_that_are_none_are_damage() -> None:
    for state in ("01", "03", "05", "ff"):
        bad = UPDATE_BYTES.replace(hexed("31", "02"), hexed("31", state))
        with pytest.raises(CorruptRecord, match="unknown delivery state"):
            share_state.decode_update(bad)
    with pytest.raises(CorruptRecord, match="offsets 50 to 49 are no range"):
        share_state.decode_update(UPDATE_BYTES.replace(hexed("2a"), hexed("32")))
    with pytest.raises(CorruptRecord, match="offsets 50 to 49 are no range"):
        queue_state.decode_state(STATE_BYTES.replace(hexed("000000000000002a"), hexed("0000000000000032")))
    with pytest.raises(CorruptRecord, match="offsets -1 to -1 are no range"):
        queue_state.decode_state(STATE_BYTES.replace(hexed("0000000000000033"), hexed("ff" * 8)))


def test_unwritable_values_are_errors_of_the_caller() -> None:
    with pytest.raises(InvalidArgument, match="32767"):
        share_state.encode_key("x" * 32_768, TOPIC_ID, 0, snapshot=True)
    for topic_id in ("short", "l7S--x86QoGx5Onftu4grwxx", "ü"):
        with pytest.raises(InvalidArgument, match="topic"):
            share_state.encode_key("g", topic_id, 0, snapshot=True)
    with pytest.raises(InvalidArgument, match="ShareUpdateValue"):
        share_state.encode_update(*UPDATE._replace(leader_epoch=2**31))


def test_partition_of_agrees_with_java() -> None:
    """Utils.abs("mailers:l7S--x86QoGx5Onftu4grw:3".hashCode()) % 50, computed as Java's String does."""
    text, value = f"mailers:{TOPIC_ID}:3", 0
    for letter in text:
        value = (31 * value + ord(letter)) % 2**32
    signed = value - 2**32 if value >= 2**31 else value
    assert share_state.partition_of("mailers", TOPIC_ID, 3, 50) == abs(signed) % 50
    assert share_state.partition_of("mailers", TOPIC_ID, 3, 1) == 0


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSET = st.integers(0, 2**63 - 1)
RANGE = st.tuples(OFFSET, OFFSET).map(sorted)
BATCH = st.builds(
    lambda span, state, count: StateBatch(*span, state, count), RANGE, st.sampled_from(DeliveryState), INT16
)
LOCKS = st.builds(lambda span, *rest: ShareLock(*span, *rest), RANGE, INT64, INT16, TEXT, INT64)


@unhurried
@given(TEXT, st.binary(min_size=16, max_size=16), INT32, st.booleans())
def test_keys_round_trip(group: str, topic_id: bytes, partition: int, snapshot: bool) -> None:
    text = share_state.urlsafe_b64encode(topic_id)[:22].decode()
    key = share_state.encode_key(group, text, partition, snapshot=snapshot)
    assert share_state.decode_key(key, "t") == (group, text, partition, snapshot)


@unhurried
@given(INT32, INT32, INT64, st.lists(BATCH, max_size=4), INT32, INT64, INT64)
def test_share_values_round_trip(
    epoch: int, leader: int, start: int, batches: list[StateBatch], state_epoch: int, made: int, now: int
) -> None:
    snapshot = ShareSnapshot(epoch, leader, start, batches, state_epoch, made, now)
    assert share_state.decode_snapshot(share_state.encode_snapshot(snapshot)) == snapshot
    update = ShareUpdate(epoch, leader, start, batches)
    assert share_state.decode_update(share_state.encode_update(*update)) == update


@unhurried
@given(
    st.builds(
        QueueState,
        INT32,
        INT64,
        st.binary(min_size=16, max_size=16),
        INT64,
        INT64,
        st.lists(LOCKS, max_size=3),
        st.lists(st.builds(ShareDelay, OFFSET, INT64, INT16, INT64), max_size=3),
        st.lists(st.builds(ShareRejection, OFFSET, INT64, INT16, TEXT, INT32, INT64), max_size=3),
    )
)
def test_queue_values_round_trip(state: QueueState) -> None:
    assert queue_state.decode_state(queue_state.encode_state(state)) == state


@unhurried
@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode, _ in DECODED:
        try:
            decode(data)
        except CorruptRecord:
            pass
    try:
        share_state.decode_key(data, "t")
    except CorruptRecord:
        pass


@unhurried
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_of_one_offset_the_latest_counts(spans: list[tuple[int, int]]) -> None:
    ranges = [(first, first + more, number) for number, (first, more) in enumerate(spans)]
    wanted: dict[int, int] = {}
    for first, last, number in ranges:
        wanted.update(dict.fromkeys(range(first, last + 1), number))
    found = latest(ranges)
    assert {at: number for first, last, number in found for at in range(first, last + 1)} == wanted
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
    assert all(
        before[2] != after[2] or before[1] + 1 < after[0] for before, after in itertools.pairwise(found)
    )


NAME = ShareKey("g", TOPIC_ID, 0)
BOOT, OTHER_BOOT = bytes(range(16)), bytes(range(1, 17))


def locked(state: QueueState, boot_id: bytes, boot_ms: int, wall_ms: int) -> int:
    """When a stored lock ends, on the clock of a later boot; -1 if it is gone."""
    shares = LoadedShares(lambda key: History(((0, 0),), 100), Clocks(boot_id, boot_ms, wall_ms))
    shares.apply_share(NAME, share_state.encode_snapshot(ShareSnapshot(0, 0, 0, ())), snapshot=True)
    shares.apply_queue(NAME, queue_state.encode_state(state), snapshot=False)
    (lock,) = shares.shares()[NAME].stored().locks
    return lock.until_ms


def test_a_lock_ends_by_the_clock_of_its_boot_whatever_the_wall_clock_says() -> None:
    lock = ShareLock(1, 1, 1, 1, "m", 34_000)  # 30 s from 4 s after boot
    state = QueueState(0, -1, BOOT, 4_000, 1_000_000, (lock,), (), ())
    for wall_ms in (1_000_000, 0, 10**12):
        assert locked(state, BOOT, 5_000, wall_ms) == 34_000
    # After another boot the wall clock tells what is left, at most what was left.
    assert locked(state, OTHER_BOOT, 700, 1_010_000) == 700 + 20_000
    assert locked(state, OTHER_BOOT, 700, 1_040_000) == 700
    assert locked(state, OTHER_BOOT, 700, 0) == 700 + 30_000
    # A system that does not tell its boot: as after another one.
    unknown = state._replace(boot_id=bytes(16))
    assert locked(unknown, bytes(16), 700, 1_010_000) == 700 + 20_000


def test_what_was_stored_of_lost_records_is_ignored() -> None:
    """Epoch 3 ended at 100: an update of it that names later offsets survived records that did not."""
    history = History(((3, 0), (4, 100)), 150)
    shares = LoadedShares(lambda key: history, Clocks(BOOT, 0, 0))

    def update(epoch: int, start: int, *batches: StateBatch) -> None:
        value = share_state.encode_update(0, epoch, start, batches)
        shares.apply_share(NAME, value, snapshot=False)

    shares.apply_share(NAME, share_state.encode_snapshot(ShareSnapshot(0, 3, 90, ())), snapshot=True)
    update(3, -1, StateBatch(95, 120, ACKNOWLEDGED, 1))
    update(3, 110)
    lock = ShareLock(98, 105, 9, 1, "m", 50)
    state = QueueState(3, -1, BOOT, 0, 0, (lock,), (ShareDelay(99, 8, 1, 0), ShareDelay(100, 8, 1, 0)), ())
    shares.apply_queue(NAME, queue_state.encode_state(state), snapshot=False)
    stored = shares.shares()[NAME].stored()
    assert (stored.start_offset, stored.batches) == (100, [])
    assert stored.locks == [lock._replace(last_offset=98)]
    assert stored.delays == [ShareDelay(99, 8, 1, 0)]
    assert stored.next_delivery_id == 10
    update(4, -1, StateBatch(101, 120, ACKNOWLEDGED, 1), StateBatch(148, 160, AVAILABLE, 3))
    stored = shares.shares()[NAME].stored()
    assert stored.batches == [StateBatch(101, 120, ACKNOWLEDGED, 1), StateBatch(148, 149, AVAILABLE, 3)]
