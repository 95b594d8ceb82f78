"""Quotas without a network: precedence, windows, what they cost. Time is an argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.errors import CorruptCheckpoint, InvalidArgument
from embedlog.security.quota_meters import Meters, RateMeter, TokenBucket, Windows
from embedlog.security.quota_rules import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Applied,
    Entity,
    QuotaRules,
    checked_value,
    entity,
)
from embedlog.security.quota_store import StoredQuotas
from embedlog.security.quotas import Quotas

_IN_ORDER: list[tuple[Entity, tuple[str, str]]] = [
    (((USER, "u"), (CLIENT_ID, "c")), ("u", "c")),
    (((USER, "u"), (CLIENT_ID, None)), ("u", "c")),
    (((USER, "u"),), ("u", "")),
    (((USER, None), (CLIENT_ID, "c")), ("u", "c")),
    (((USER, None), (CLIENT_ID, None)), ("u", "c")),
    (((USER, None),), ("u", "")),
    (((CLIENT_ID, "c"),), ("", "c")),
    (((CLIENT_ID, None),), ("", "c")),
]
_WINDOWS = Windows()


@pytest.mark.parametrize("first", range(8))
def test_the_most_specific_of_eight_quotas_applies(first: int) -> None:
    rules = QuotaRules({of: {PRODUCER_BYTE_RATE: n + 1} for n, (of, _) in enumerate(_IN_ORDER) if n >= first})
    assert rules.applied("u", "c") == {PRODUCER_BYTE_RATE: Applied(first + 1, *_IN_ORDER[first][1])}


def test_each_key_has_its_own_quota_and_others_have_none() -> None:
    rules = QuotaRules(
        {((USER, "u"),): {PRODUCER_BYTE_RATE: 1}, ((CLIENT_ID, "c"),): {CONSUMER_BYTE_RATE: 2}}
    )
    assert rules.applied("u", "c") == {
        PRODUCER_BYTE_RATE: Applied(1, "u", ""),
        CONSUMER_BYTE_RATE: Applied(2, "", "c"),
    }
    assert rules.applied("v", "d") == {}


def test_an_address_has_its_own_rate_or_the_default_one() -> None:
    rate = CONNECTION_CREATION_RATE
    rules = QuotaRules({((IP, None),): {rate: 5}, ((IP, "10.0.0.1"),): {rate: 7}})
    assert (rules.connection_rate("10.0.0.1"), rules.connection_rate("10.0.0.2")) == (7, 5)
    assert QuotaRules({}).connection_rate("10.0.0.1") is None


def test_within_the_limit_nobody_waits_and_beyond_it_as_kafka_computes() -> None:
    meter = RateMeter(_WINDOWS, 0.0)
    meter.record(10_000, 100.0)  # what ten seconds allow
    assert meter.throttle_ms(1_000, 100.0) == 0
    meter.record(5_000, 100.5)  # 15,000 bytes over 10.5 s: (15000 / 10.5 - 1000) / 1000 * 10.5
    assert meter.throttle_ms(1_000, 100.5) == 4_500
    assert meter.throttle_ms(1_000, 100.5, 1_000) == 1_000
    assert meter.throttle_ms(1_000, 111.0) == 0  # the window of 100.0 is over


@given(
    limit=st.floats(1, 1e6),
    requests=st.lists(st.tuples(st.floats(0, 3), st.floats(1, 1e6)), min_size=1, max_size=200),
)
def test_who_waits_as_told_stays_within_the_rate(limit: float, requests: list[tuple[float, float]]) -> None:
    """Twice the rate at worst, as in Kafka: what windows without requests allow may be used at once, and
    bursts that are as far apart as the windows reach may do so again and again."""
    meter, now, total = RateMeter(_WINDOWS, 0.0), 1000.0, 0.0
    for pause_s, size in requests:
        now += pause_s
        meter.record(size, now)
        total += size
        now += meter.throttle_ms(limit, now) / 1000
    assert total <= limit * (2 * (now - 1000) + _WINDOWS.span_s) * 1.001


@given(
    limit=st.floats(0.1, 100),
    requests=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1_000)), min_size=1, max_size=100),
)
def test_a_bucket_lets_through_what_has_flowed_in(limit: float, requests: list[tuple[float, int]]) -> None:
    bucket, now, taken, last = TokenBucket(_WINDOWS, 0.0), 0.0, 0.0, 0
    for pause_s, count in requests:
        now += pause_s
        if not bucket.throttle_ms(limit, now):
            bucket.record(count, limit, now)
            taken, last = taken + count, count
    assert taken - last <= limit * (_WINDOWS.span_s + now) * 1.001


@given(st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 2)), max_size=300))
def test_invented_names_cost_a_bounded_amount(uses: list[tuple[int, float]]) -> None:
    meters, now = Meters(lambda now: RateMeter(_WINDOWS, now), _WINDOWS.span_s, 50), 0.0
    for name, pause_s in uses:
        now += pause_s
        meters.get(name, now).record(1, now)
        assert len(meters) <= 50


def test_a_meter_that_was_not_used_is_forgotten() -> None:
    meters = Meters(lambda now: RateMeter(_WINDOWS, now), _WINDOWS.span_s, 50)
    for name, now in (("a", 0.0), ("b", 5.0), ("c", 11.0)):
        meters.get(name, now)
    assert len(meters) == 2


def _quotas(tmp_path: Path, of: Entity, **values: float) -> Quotas:
    store = StoredQuotas(str(tmp_path / "quotas.json"))
    store.alter(of, values)
    return Quotas(store)


def test_bytes_that_are_not_sent_are_not_counted(tmp_path: Path) -> None:
    quotas = _quotas(tmp_path, ((CLIENT_ID, "c"),), consumer_byte_rate=100)
    limits = quotas.limits("u", "c")
    assert quotas.record(limits, CONSUMER_BYTE_RATE, 5_000, 1.0) == 0  # more than ever fits, but the first
    assert [quotas.record(limits, CONSUMER_BYTE_RATE, 1, now) > 0 for now in (1.0, 6.0, 11.9, 12.1)] == [
        *(True, True, True),
        False,
    ]


def test_the_time_of_threads_is_a_percentage_and_waits_end_within_a_window(tmp_path: Path) -> None:
    quotas = _quotas(tmp_path, ((USER, "u"),), request_percentage=50)
    limits = quotas.limits("u", "c")
    assert quotas.record(limits, REQUEST_PERCENTAGE, 5.0, 1.0) == 0
    assert quotas.record(limits, REQUEST_PERCENTAGE, 0.25, 1.0) == 500
    assert quotas.record(limits, REQUEST_PERCENTAGE, 60.0, 1.0) == 1_000


def test_a_strict_client_is_refused_and_another_one_slowed(tmp_path: Path) -> None:
    quotas = _quotas(tmp_path, ((USER, "u"),), controller_mutation_rate=1)
    limits = quotas.limits("u", "c")
    assert quotas.mutate(limits, 21, 100.0, strict=True) == (True, 0)
    assert quotas.mutate(limits, 1, 100.0, strict=True) == (False, 10_000)
    assert quotas.mutate(limits, 5, 100.0, strict=False) == (True, 15_000)
    assert quotas.mutate(limits, 1, 115.1, strict=True) == (True, 0)
    assert quotas.mutate({}, 1_000, 100.0, strict=True) == (True, 0)
    assert CONTROLLER_MUTATION_RATE in limits


def test_refused_connections_are_not_counted(tmp_path: Path) -> None:
    quotas = _quotas(tmp_path, ((IP, None),), connection_creation_rate=1)
    assert [quotas.admit("10.0.0.1", 100.0) for _ in range(11)] == [0] * 10 + [1_000]
    assert all(quotas.admit("10.0.0.1", 100.0 + attempt / 4) for attempt in range(1, 44))
    assert quotas.admit("10.0.0.1", 111.0) == 0  # however often it has tried meanwhile
    assert quotas.admit("10.0.0.2", 100.0) == 0


def test_quotas_outlive_the_process_and_are_private(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    of = entity([(CLIENT_ID, None), (USER, "Zoë/<default>")])
    StoredQuotas(str(path)).alter(of, {PRODUCER_BYTE_RATE: 5, REQUEST_PERCENTAGE: 0.5})
    StoredQuotas(str(path)).alter(of, {PRODUCER_BYTE_RATE: None})
    assert StoredQuotas(str(path)).read() == {of: {REQUEST_PERCENTAGE: 0.5}}
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text('{"version": 1, "quotas": [{"entity": {"user": "u"}, "values": {"nonsense": 1}}]}')
    with pytest.raises(CorruptCheckpoint):
        StoredQuotas(str(path)).read()


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("user", "")],
        [("group", "g")],
        [("user", "a"), ("user", "b")],
        [("ip", "1.1.1.1"), ("user", "a")],
    ],
    ids=str,
)
def test_what_no_quota_can_be_of(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(InvalidArgument):
        entity(parts)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (PRODUCER_BYTE_RATE, 0),
        (PRODUCER_BYTE_RATE, 1.5),
        (CONSUMER_BYTE_RATE, 1e300),
        (REQUEST_PERCENTAGE, float("nan")),
        (REQUEST_PERCENTAGE, float("inf")),
        (CONNECTION_CREATION_RATE, 1),
        ("retention.ms", 1),
    ],
)
def test_what_no_quota_can_be(key: str, value: float) -> None:
    with pytest.raises(InvalidArgument):
        checked_value(((USER, "u"),), key, value)
