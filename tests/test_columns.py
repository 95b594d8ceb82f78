"""Columns and Arrow have the same contents as records, whichever way they are read."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from encoding import encode_records
from faults import partition_of
from random_batches import random_batches
from transactions import coordinated

import embedlog
from embedlog.codec import checksum, encode_batch, plain_columns
from embedlog.codec.columns import COLUMNS
from embedlog.codec.rules import Rules
from embedlog.errors import CorruptRecord, EmbedlogError, InvalidArgument
from embedlog.model import Record

pytestmark = pytest.mark.plain

compiled_columns = pytest.importorskip(
    "embedlog.codec.compiled_columns", reason="built without a compiler", exc_type=ImportError
)


def some_rows(chosen: random.Random, count: int) -> list[tuple[Any, ...]]:
    def some(size: int) -> bytes | None:
        return None if chosen.random() < 0.2 else chosen.randbytes(chosen.randrange(size))

    def headers() -> tuple[tuple[str, bytes | None], ...]:
        names = (chosen.choice(["a", "é", "name" * 9, ""]) for _ in range(chosen.choice([0, 0, 1, 4])))
        return tuple((name, some(9)) for name in names)

    times = [0, 5, -9, 2**63 - 1, -(2**63), 1_700_000_000_000]
    return [(some(20), some(300), headers(), chosen.choice(times)) for _ in range(count)]


def subsets() -> list[tuple[str, ...]]:
    return [COLUMNS, (), *((name,) for name in COLUMNS), ("value", "offset")]


@pytest.mark.parametrize("seed", range(8))
def test_compiled_and_plain_columns_are_the_same(seed: int) -> None:
    chosen = random.Random(seed)
    rows = some_rows(chosen, 150)
    body = encode_records(rows)
    data, behind = random_batches(chosen)
    for wanted in subsets():
        pair = [module.Columns(wanted) for module in (compiled_columns, plain_columns)]
        for append_time in (None, 77):
            for columns in pair:
                columns.add(body, 150, 1000, 149, rows[0][3], append_time, 1003, 1140)
        rules = Rules(101, 2, inside=True, may_have_gaps=True)
        found = [columns.run(data, 0, len(data), rules, behind - 1, True) for columns in pair]
        assert found[0] == found[1]
        assert pair[0].rows == pair[1].rows > 0
        assert pair[0].take() == pair[1].take()
        assert pair[0].rows == pair[1].rows == 0
        assert pair[0].take() == pair[1].take()


def some_run(chosen: random.Random, offset: int) -> tuple[bytes, int]:
    """Batches, some with headers, one perhaps invalid despite its CRC; and one past their last offset."""
    data = b""
    for _ in range(chosen.randrange(1, 9)):
        rows = some_rows(chosen, chosen.choice([1, 7, 60]))
        if chosen.random() < 0.7:
            rows = [(key, value, (), time_ms) for key, value, _, time_ms in rows]
        batch = bytearray(encode_batch(rows, base_offset=offset, leader_epoch=2))
        if chosen.random() < 0.1:
            batch[-1] ^= 1
            batch[17:21] = checksum.crc32c(batch[21:]).to_bytes(4, "big")
        data += batch
        offset += len(rows)
    return data, offset


@pytest.mark.parametrize("seed", range(12))
def test_read_columns_never_change(seed: int) -> None:
    # Memory is reused as soon as it is unreferenced, and no sooner.
    chosen = random.Random(seed)
    wanted = chosen.choice(subsets())
    pair = [module.Columns(wanted) for module in (compiled_columns, plain_columns)]
    kept: list[tuple[Any, Any]] = []
    offset = 0
    for _ in range(30):
        data, behind = some_run(chosen, offset)
        rules = Rules(offset, 2, 2)
        found = [columns.run(data, 0, len(data), rules, behind + 1, True) for columns in pair]
        assert found[0] == found[1]
        offset = behind
        if chosen.random() < 0.2:
            continue
        kept.append((pair[0].take(), pair[1].take()))
        for mine, right in kept:
            assert mine == right
        kept = [each for each in kept if chosen.random() < 0.6]


def test_unreferenced_memory_is_reused() -> None:
    columns = compiled_columns.Columns(["value"])
    data = bytes(encode_batch([(None, b"x" * 5000, (), 0)] * 20, base_offset=0, leader_epoch=0))

    def take() -> Any:
        columns.run(data, 0, len(data), Rules(0), 20, True)
        return columns.take()["value"].data

    first, second = take(), take()
    assert first == second == b"x" * 100_000
    held = memoryview(first)
    places = {id(first), id(second)}
    del first
    third = take()
    assert id(third) not in places
    del second
    assert id(take()) in places
    assert held == third


@pytest.mark.parametrize("module", [compiled_columns, plain_columns])
def test_a_damaged_batch_yields_nothing(module: Any) -> None:
    rows = some_rows(random.Random(1), 40)
    body = encode_records(rows)
    whole = module.Columns(COLUMNS)
    whole.add(body, 40, 0, 39, 0, None, 0, 100)
    wanted = whole.take()
    columns = module.Columns(COLUMNS)
    for cut in range(0, len(body), 37):
        with pytest.raises(CorruptRecord):
            columns.add(body[:cut], 40, 0, 39, 0, None, 0, 100)
    assert columns.rows == 0
    columns.add(body, 40, 0, 39, 0, None, 0, 100)
    assert columns.take() == wanted


@pytest.mark.parametrize("module", [compiled_columns, plain_columns])
def test_a_header_name_that_is_no_utf8(module: Any) -> None:
    body = encode_records([(None, b"v", (("name", b"x"),), 0)])
    body = body.replace(b"name", b"n\xff\xfee")
    columns = module.Columns(("headers",))
    columns.add(body, 1, 0, 0, 0, None, 0, 1)
    assert columns.take()["headers"].names.data == "n\ufffd\ufffde".encode()


def test_an_unknown_column() -> None:
    for module in (compiled_columns, plain_columns):
        with pytest.raises(InvalidArgument, match="no column 'topic'"):
            module.Columns(("topic",))


# -- Arrow -------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Any:
    chosen = random.Random(4)
    with embedlog.open(tmp_path / "log") as opened:
        opened.create_topic("t", partitions=2, segment_bytes=20_000)
        for number in range(2):
            for codec in ("none", "zstd", "none", "lz4"):
                records = [
                    Record(key=key, value=value, headers=headers, timestamp_ms=abs(time_ms) % 10**13)
                    for key, value, headers, time_ms in some_rows(chosen, 60)
                ]
                opened.append_many("t", records, partition=number, compression=codec)
                opened.append_many("t", [b"x" * 50] * 40, partition=number)
        yield opened


def as_records(batches: Any) -> list[Record]:
    found = []
    for batch in batches:
        assert batch.num_rows
        batch.validate(full=True)
        for row in batch.to_pylist():
            time_ms = row["timestamp_ms"]
            headers = tuple((header["name"], header["value"]) for header in row["headers"])
            row |= {"timestamp_ms": round(time_ms.timestamp() * 1000), "headers": headers}
            found.append(Record(**row))
    return found


WHERE = [{}, {"partition": 1}, {"partition": 0, "start": 37, "end": 351}, {"partition": 0, "max_bytes": 1}]


@pytest.mark.parametrize("where", WHERE)
def test_arrow_has_the_records(log: embedlog.Log, where: dict[str, Any]) -> None:
    assert as_records(log.read_arrow("t", **where)) == list(log.read("t", **where))


def test_only_the_columns_asked_for(log: embedlog.Log) -> None:
    table = pa.Table.from_batches(log.read_arrow("t", columns=("value", "topic", "offset")))
    assert table.column_names == ["value", "topic", "offset"]
    assert table["offset"].to_pylist() == [record.offset for record in log.read("t")]
    assert set(table["topic"].to_pylist()) == {"t"}


def test_arrow_drops_aborted_records(log: embedlog.Log) -> None:
    batch = encode_batch(
        [(b"k", b"v", (), 5)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    coordinated(partition_of(log), batch)
    for level in ("read_committed", "read_uncommitted"):
        wanted = [record.offset for record in log.read("t", 0, isolation_level=level)]
        table = pa.Table.from_batches(log.read_arrow("t", 0, columns=["offset"], isolation_level=level))
        assert table["offset"].to_pylist() == wanted


def test_mistakes(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (["nothing"], []):
        with pytest.raises(InvalidArgument, match="there are topic, partition, offset"):
            log.read_arrow("t", columns=columns)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EmbedlogError, match=r"embedlog\[arrow\]"):
        log.read_arrow("t")
