"""The compiled and plain loops are the same functions: same results, errors and limits."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest
from encoding import encode_records
from hypothesis import example, given
from hypothesis import strategies as st
from random_batches import random_batches

from embedlog.codec import encode_batch, plain_decoding, plain_scanning, read_header
from embedlog.codec.rules import ANY_OFFSET, Rules
from embedlog.errors import EmbedlogError

compiled_encoding = pytest.importorskip(
    "embedlog.codec.compiled_encoding", reason="built without a compiler", exc_type=ImportError
)
compiled_decoding = pytest.importorskip(
    "embedlog.codec.compiled_decoding", reason="built without a compiler", exc_type=ImportError
)

MAX64, MIN64 = 2**63 - 1, -(2**63)
sizes = st.sampled_from([0, 1, 2, 55, 56, 62, 63, 64, 65, 127, 128, 8181, 8191, 8192, 8193])
some_bytes = st.none() | st.binary(max_size=80) | st.builds(bytes, sizes)
odd_bytes = some_bytes | st.builds(bytearray, sizes) | st.builds(lambda size: memoryview(bytes(size)), sizes)
timestamps = st.sampled_from([0, 1, -1, 63, 64, MAX64, MIN64]) | st.integers(MIN64, MAX64)
names = st.text(max_size=20) | st.sampled_from(["", "é" * 40, "n" * 64])
headers = st.lists(st.tuples(names, some_bytes), max_size=3).map(tuple)
rows = st.lists(st.tuples(some_bytes, some_bytes, headers, timestamps), min_size=1, max_size=70)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """The result, or an error's text."""
    try:
        return function(*args)
    except (EmbedlogError, OverflowError, TypeError) as error:
        return type(error), str(error)


# -- decoding ----------------------------------------------------------------------------------------


def decoded(module: Any, body: bytes, count: int, last_delta: int, base_ms: int, start: int) -> list[Any]:
    return [
        outcome(module.decode_records, body, count, "t", 3, 1000, last_delta, base_ms, None, start),
        outcome(module.decode_records, body, count, "t", 3, 1000, last_delta, base_ms, 77, start),
        outcome(module.decode_values, body, count, last_delta, start - 1000),
        outcome(module.record_spans, body, count),
    ]


@given(rows, st.integers(0, 3))
def test_encoded_batches(given_rows: list[Any], skipped: int) -> None:
    body = encode_records(given_rows)
    arguments = (body, len(given_rows), len(given_rows) - 1, given_rows[0][3], 1000 + skipped)
    found = decoded(compiled_decoding, *arguments)
    assert found == decoded(plain_decoding, *arguments)
    assert [record.timestamp_ms for record in found[0]] == [row[3] for row in given_rows][skipped:]


@given(rows, st.data())
def test_damaged_records(given_rows: list[Any], data: st.DataObject) -> None:
    body = bytearray(encode_records(given_rows))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (bytes(body), bytes(body[:cut]), bytes(body) + b"\0"):
        arguments = (damaged, len(given_rows), len(given_rows) - 1, 0, 1000)
        assert decoded(compiled_decoding, *arguments) == decoded(plain_decoding, *arguments)


def alike(key_size: int, value_size: int, count: int, times: int) -> bytes:
    """Records of one shape, whose timestamp deltas go round."""
    chosen = random.Random(key_size + value_size + count)
    key = None if key_size < 0 else chosen.randbytes(key_size)
    given_rows = [(key, chosen.randbytes(value_size), (), i % times) for i in range(count)]
    return encode_records(given_rows)


@pytest.mark.parametrize("key_size", [-1, 0, 3, 63, 64])
@pytest.mark.parametrize("value_size", [0, 1, 50, 63, 64, 100, 9000])
def test_records_of_one_shape(key_size: int, value_size: int) -> None:
    for count, times in ((7, 1), (8, 1), (9, 1), (64, 3), (72, 64), (300, 65)):
        body = alike(key_size, value_size, count, times)
        for base in (0, MAX64 - 30):
            for start in (0, 1000, 1005, 1000 + count // 2, 1000 + count):
                arguments = (body, count, count - 1, base, start)
                assert decoded(compiled_decoding, *arguments) == decoded(plain_decoding, *arguments)
        for stop in (0, 3, 70, count):
            arguments = (body, count, count - 1, 2, stop)
            wanted = plain_decoding.decode_values(body, count, count - 1)[2:stop]
            assert plain_decoding.decode_values(*arguments) == wanted


def test_more_records_of_one_shape_than_two_bytes_can_count() -> None:
    body = alike(-1, 20, 8300, 1)
    arguments = (body, 8300, 8299, 0, 1000)
    assert decoded(compiled_decoding, *arguments) == decoded(plain_decoding, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 80])
@pytest.mark.parametrize("key_size", [-1, 2])
def test_a_byte_wrong_among_records_of_one_shape(key_size: int, count: int) -> None:
    body = alike(key_size, 4, count, 1)
    for at in range(len(body)):
        for change in (0x01, 0x02, 0x80):
            damaged = bytearray(body)
            damaged[at] ^= change
            for end in (len(body), len(body) - 5):
                arguments = (bytes(damaged[:end]), count, count - 1, 0, 1000)
                assert decoded(compiled_decoding, *arguments) == decoded(plain_decoding, *arguments)


def test_records_of_one_shape_are_taken_together() -> None:
    body = alike(3, 20, 500, 1)
    together = [deltas for deltas, *_ in plain_decoding.columns_of(body, 500, 499)]
    assert together == [range(64), range(64, 500)]  # the second ones have longer offset deltas


@given(st.binary(max_size=60), st.integers(0, 5))
@example(b"\xff" * 30, 3)
@example(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01" * 3, 1)
def test_garbage_for_records(body: bytes, count: int) -> None:
    arguments = (body, count, 5, 0, 1000)
    assert decoded(compiled_decoding, *arguments) == decoded(plain_decoding, *arguments)


# -- runs --------------------------------------------------------------------------------------------


def runs(decoding: Any, lookup: Any, data: Any, pos: int, end: int, rules: Rules, offset: int) -> list[Any]:
    records: list[Any] = []
    values: list[Any] = []
    return [
        *(
            decoding.decode_run(data, pos, end, rules, offset, "t", 0, flag, records)
            for flag in (True, False)
        ),
        decoding.decode_run(data, pos, end, rules, ANY_OFFSET, "t", 0, True, records),
        *(decoding.values_run(data, pos, end, rules, offset, flag, values) for flag in (True, False)),
        decoding.values_run(data, pos, end, rules, ANY_OFFSET, True, values),
        lookup.whole_batches(data, pos, end, offset),
        lookup.find_offset(data, pos, end, rules, offset),
        lookup.find_offset(data[: len(data) // 2], pos, end, rules, offset),
        records,
        values,
    ]


def test_runs() -> None:
    for seed in range(300):
        check_runs(seed)


def check_runs(seed: int) -> None:
    chosen = random.Random(seed)
    data, behind = random_batches(chosen)
    if seed % 3 == 1:
        data[chosen.randrange(len(data))] = chosen.randrange(256)
    elif seed % 3 == 2:
        del data[chosen.randrange(len(data)) :]
    rules = Rules(
        next_offset=chosen.choice([0, 99, 100, 101, 102, -1, ANY_OFFSET]),
        epoch=chosen.choice([-1, 2]),
        latest_epoch=chosen.choice([2, 3, 2**31 - 1]),
        limit_offset=chosen.choice([ANY_OFFSET, behind, behind - 3]),
        end_offset=chosen.choice([ANY_OFFSET, behind, behind - 2]),
        may_have_gaps=chosen.random() < 0.5,
        inside=chosen.random() < 0.5,
    )
    for buffer in (bytes(data), data, memoryview(data)):
        end, offset = chosen.choice([len(data), len(data) + 5]), chosen.randrange(98, behind + 2)
        arguments = (buffer, 0, end, rules, offset)
        found = runs(compiled_decoding, compiled_decoding, *arguments)
        assert found == runs(plain_decoding, plain_scanning, *arguments)


def test_one_record_of_a_run() -> None:
    found = 0
    for seed in range(400):
        chosen = random.Random(seed)
        data, behind = random_batches(chosen)
        if seed % 4 == 1:
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        elif seed % 4 == 2:
            del data[chosen.randrange(len(data)) :]
        first = read_header(data).last_offset if len(data) > 61 and seed % 4 != 1 else 100
        for offset in range(99, behind + 2):
            for begins, ends in ((100, -1), (-1, first), (100, first), (101, -1), (-1, first + 1), (-1, -1)):
                epoch, end = chosen.choice([2, 2, 3]), chosen.choice([ANY_OFFSET, behind, behind - 2])
                arguments = (bytes(data), begins, ends, offset, epoch, end, "t", 7)
                wanted = plain_decoding.record_at(*arguments)
                assert compiled_decoding.record_at(*arguments) == wanted, (seed, arguments)
                assert wanted is None or (wanted.offset == offset and (begins, ends) != (101, -1))
                found += wanted is not None
    assert found > 1000


def test_a_whole_run() -> None:
    data = b"".join(
        encode_batch(
            [(None, b"v%02d" % i, (), 1000 + i) for i in range(start, start + 10)],
            base_offset=start,
            leader_epoch=0,
        )
        for start in range(0, 50, 10)
    )
    for module, lookup in ((plain_decoding, plain_scanning), (compiled_decoding, compiled_decoding)):
        values: list[Any] = []
        rules = Rules(13, 0, 0, inside=True, end_offset=50)
        second = read_header(data).size
        assert module.values_run(data, second, len(data), rules, 48, False, values) == (len(data), 50)
        assert values == [b"v%02d" % i for i in range(13, 48)]
        assert lookup.find_offset(data, 0, len(data), Rules(0), 25) == (2 * second, 20, True)
        assert lookup.whole_batches(data, 0, len(data), 30) == (3 * second, 30)


# -- the checksum ------------------------------------------------------------------------------------


def test_every_checksum_implementation() -> None:
    data = random.Random(3).randbytes(40_000)
    edges = (64, 120, 128, 256, 512, 768, 1543, 3_584, 7_168, 12_288, 14_336, 17_920)
    for size in [*range(70), *(edge + i for edge in edges for i in (-1, 0, 1, 15, 16, 17, 63, 64)), 39_900]:
        for start in (0, 1, 3, 7):
            part = memoryview(data)[start : start + size]
            wanted = google_crc32c.value(bytes(part))
            assert [compiled_encoding.crc32c(part, way) for way in range(4)] == [wanted] * 4, size


# -- which one runs ----------------------------------------------------------------------------------


def chosen_by(wanted: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = f"{code}\nfrom embedlog.codec import LOOPS_IMPLEMENTATION\nprint(LOOPS_IMPLEMENTATION)"
    environment = {**os.environ, "EMBEDLOG_LOOPS": wanted}
    environment.pop("EMBEDLOG_CHECKSUM", None)
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("wanted", "found"), [("compiled", "compiled"), ("plain", "plain"), ("", "compiled")]
)
def test_the_environment_chooses(wanted: str, found: str) -> None:
    assert chosen_by(wanted).stdout == f"{found}\n"


_HIDDEN = "import sys; sys.modules['embedlog.codec.compiled_decoding'] = None"


def test_without_compiled_modules_there_is_one_log_line() -> None:
    logged = f"import logging; logging.basicConfig(level={logging.INFO})\n{_HIDDEN}"
    ran = chosen_by("", logged)
    assert ran.stdout == "plain\n"
    assert ran.stderr.count("\n") == 1 and "plain Python" in ran.stderr


def test_compiled_modules_required_but_missing() -> None:
    ran = chosen_by("compiled", _HIDDEN)
    assert ran.returncode == 1 and "EMBEDLOG_LOOPS=compiled" in ran.stderr


def test_an_unknown_value_of_the_variable() -> None:
    assert "must be compiled or plain" in chosen_by("fast").stderr
