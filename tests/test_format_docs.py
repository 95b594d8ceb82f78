"""The pages in docs/format agree with the code: hex examples are decoded, table positions added up."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import old_formats
import pytest

from embedlog import codec
from embedlog.codec import message_set
from embedlog.codec.sniff import identify
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import CLEAN_SHUTDOWN_FILE, LEADER_EPOCH_FILE, SEGMENT_MANIFEST_FILE, TOPICS_FILE
from embedlog.index import OFFSET_ENTRY, TIME_ENTRY, decode_offsets, decode_times
from embedlog.model import AbortedTransaction, CommittedOffset, PartitionState, TopicPartition
from embedlog.recovery import CleanEnd
from embedlog.storage.checkpoints import LeaderEpochs, read_offsets
from embedlog.storage.producer_state import ProducerState, decode_aborted, encode_aborted
from embedlog.storage.segment_manifest import SegmentManifest, Summary
from embedlog.storage.writer_state import WriterStateReader
from embedlog.store.catalog import Catalog
from embedlog.store.topic import StoredTopic
from embedlog.store.topics_journal import apply_changes
from embedlog.wire import queue_state, share_state
from embedlog.wire.offsets_topic import (
    OffsetKey,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
    partition_for,
)

pytestmark = pytest.mark.plain

PAGES = Path(__file__).resolve().parent.parent / "docs" / "format"

_EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n\n```(\w+)\n(.*?)```", re.S)
_TABLE = re.compile(r"<!-- (layout|records): (\S+) -->\n\n((?:\|.*\n)+)")
_HEX = re.compile(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:\s+(.*))?\Z")
_STATED = re.compile(r"(\w+) = ([^;]+?)(?:, [^=\"]*)?(?:; .*)?\Z")
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "u32": 4, "i64": 8}


class Example:
    """A block: its bytes, and the values that its comments state."""

    def __init__(self, kind: str, text: str) -> None:
        self.text = text
        self.data = b""
        self.comments: list[str] = []
        if kind == "hex":
            for line in text.splitlines():
                match = _HEX.match(line)
                assert match, line
                self.data += bytes.fromhex(match[1])
                if match[2]:
                    self.comments.append(match[2])

    def stated(self) -> dict[str, object]:
        found = (_STATED.match(comment) for comment in self.comments)
        return {match[1]: ast.literal_eval(match[2]) for match in found if match}

    def literals(self) -> list[object]:
        return [ast.literal_eval(comment) for comment in self.comments]


def _pages() -> str:
    return "\n".join(path.read_text() for path in sorted(PAGES.glob("*.md")))


EXAMPLES = {name: Example(kind, text) for name, kind, text in _EXAMPLE.findall(_pages())}
TABLES = {
    (kind, name): [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()[2:]]
    for kind, name, rows in _TABLE.findall(_pages())
}


def _agrees(example: Example, actual: object) -> None:
    stated = example.stated()
    assert stated
    assert {name: getattr(actual, name) for name in stated} == stated


def test_every_example_is_parsed() -> None:
    """One that is added to a page must be added here."""
    assert set(EXAMPLES) == {
        "batch", "compressed", "control",
        "offset-index", "time-index", "txn-index", "snapshot",
        "topics", "topics-journal", "checkpoint", "leader-epochs", "segment-manifest", "clean-shutdown",
        "writer-state",
        "offset-key", "offset-value",
        "message-v0", "message-v1", "wrapper-v1", "kafka-07", "fetch-07", "multifetch-07",
        "share-key", "share-update", "queue-update",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("batch-header", codec.HEADER_SIZE),
        ("offset-index", OFFSET_ENTRY.size),
        ("time-index", TIME_ENTRY.size),
        ("txn-index", len(EXAMPLES["txn-index"].data)),
        ("snapshot", len(ProducerState().encode())),
        ("snapshot-entry", len(EXAMPLES["snapshot"].data) - len(ProducerState().encode())),
    ],
)
def test_positions_add_up(layout: str, size: int) -> None:
    pos = 0
    for row in TABLES["layout", layout]:
        assert int(row[0]) == pos, row
        pos += _SIZES[row[2]]
    assert pos == size


@pytest.mark.parametrize("name", ["batch", "compressed", "control"])
def test_batches(name: str) -> None:
    example = EXAMPLES[name]
    found = codec.scan(example.data)
    assert found.error is None
    assert found.end == len(example.data)
    (header,) = found.headers
    _agrees(example, header)
    assert len(example.stated()) == 13
    records = [
        [repr(record.offset), repr(record.timestamp_ms), record.key, record.value, record.headers]
        for record in codec.decode(example.data, header, "clicks", 0)
    ]
    stated = [[cell.strip("`") for cell in row] for row in TABLES["records", name]]
    assert records == [[row[0], row[1], *map(ast.literal_eval, row[2:])] for row in stated]
    assert identify(example.data) == "batch-v2"


def test_the_batch_equals_the_encoders() -> None:
    example = EXAMPLES["batch"]
    (header,) = codec.scan(example.data).headers
    rows = [
        (r.key, r.value, r.headers, r.timestamp_ms) for r in codec.decode(example.data, header, "clicks", 0)
    ]
    assert codec.encode_batch(rows, base_offset=4711, leader_epoch=3) == example.data


def test_the_control_batch_aborts() -> None:
    example = EXAMPLES["control"]
    (header,) = codec.scan(example.data).headers
    assert header.is_control
    assert header.is_transactional
    (record,) = codec.decode(example.data, header, "clicks", 0)
    assert codec.control_type(record.key) == codec.ABORT
    assert codec.transaction_end(record.key, record.value) == (False, 0)
    written = codec.encode_control_batch(
        commit=False,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        timestamp_ms=header.max_timestamp_ms,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
    assert written == example.data


def test_indexes() -> None:
    offsets = decode_offsets(EXAMPLES["offset-index"].data, 1 << 30, 1 << 30)
    assert list(zip(*offsets, strict=True)) == EXAMPLES["offset-index"].literals()
    times = decode_times(EXAMPLES["time-index"].data, 1 << 30)
    assert list(zip(*times, strict=True)) == EXAMPLES["time-index"].literals()


def test_aborted_transactions() -> None:
    example = EXAMPLES["txn-index"]
    (transaction,) = decode_aborted(example.data, "")
    _agrees(example, transaction)
    assert encode_aborted([AbortedTransaction(9001, 100, 103, 104)]) == example.data


def test_producer_snapshot() -> None:
    example = EXAMPLES["snapshot"]
    state = ProducerState.decode(example.data, "")
    stated = example.stated()
    ((producer_id, producer),) = state.producers.items()
    (sent,) = producer.batches
    assert (sent.base_offset, sent.first_sequence) == (100, 7)
    actual = {
        "producer_id": producer_id,
        "epoch": producer.epoch,
        "transaction_start": producer.transaction_start,
        "coordinator_epoch": producer.coordinator_epoch,
        **sent._asdict(),
    }
    assert len(stated) == 7
    assert {name: actual[name] for name in stated} == stated
    assert state.encode() == example.data


def test_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text(EXAMPLES["checkpoint"].text)
    assert read_offsets(FileSystem(), str(path)) == {
        TopicPartition("clicks", 0): 4711,
        TopicPartition("clicks", 1): 12,
    }
    (tmp_path / LEADER_EPOCH_FILE).write_text(EXAMPLES["leader-epochs"].text)
    epochs = LeaderEpochs(FileSystem(), str(tmp_path))
    epochs.load()
    assert epochs.entries == ((0, 0), (3, 4711))


def test_the_list_of_segments(tmp_path: Path) -> None:
    file = tmp_path / SEGMENT_MANIFEST_FILE
    file.write_text(EXAMPLES["segment-manifest"].text)
    manifest = SegmentManifest(FileSystem(), str(tmp_path))
    manifest.load()
    assert manifest.summaries == {
        0: Summary(27508, 120, 4096, 0x2A7F00C1, times=(1_700_000_000_000, 1_700_000_003_600)),
        4096: Summary(1048433, 3, 300, 0x00C0FFEE, of_file=True),
    }
    missing = manifest.missing((), 0)
    assert [(each.base_offset, each.next_offset) for each in missing] == [
        (0, 4096),
        (4096, 4396),
        (4396, 8192),
        (8192, None),
    ]
    # Written again, it is the same but for what is new.
    manifest.rolled(8192, 9000)
    manifest.save()
    lines = EXAMPLES["segment-manifest"].text.splitlines()
    assert file.read_text().splitlines()[1:-1] == ["5", *lines[2:-2], "8192 - - - - - -", "9000"]


def test_topics(tmp_path: Path) -> None:
    path = tmp_path / TOPICS_FILE
    path.write_text(EXAMPLES["topics"].text)
    catalog = Catalog(FileSystem(), str(tmp_path))
    topics = catalog.load_topics()
    settings = {"retention_ms": 86_400_000}
    assert topics == {"clicks": StoredTopic("clicks", "5xNtP-V9QwWYMbbR1N4qkA", 2, settings, False)}
    assert catalog.deleting == {}
    catalog.save_topics(topics)
    assert json.loads(path.read_text()) == json.loads(EXAMPLES["topics"].text)


def test_topics_journal() -> None:
    crc = json.loads(EXAMPLES["topics"].text)["crc32"]
    tables = json.loads(EXAMPLES["topics"].text)["topics"], {"gone": {}}
    data = EXAMPLES["topics-journal"].text.encode()
    apply_changes(data, crc, "", *tables)
    changed = {"id": "5xNtP-V9QwWYMbbR1N4qkA", "partitions": 4, "settings": {}, "gaps": False}
    assert tables == ({"clicks": changed}, {"gone": {}})


def test_clean_shutdown(tmp_path: Path) -> None:
    path = tmp_path / CLEAN_SHUTDOWN_FILE
    path.write_text(EXAMPLES["clean-shutdown"].text)
    ends = Catalog(FileSystem(), str(tmp_path)).take_clean_shutdown()
    assert ends == {TopicPartition("clicks", 0): CleanEnd(4713, 4096, 27508, 1700000000000, 0)}
    assert not path.exists()


def test_writer_state(tmp_path: Path) -> None:
    example = EXAMPLES["writer-state"]
    path = tmp_path / "writer-state"
    path.write_bytes(example.data)
    reader = WriterStateReader(str(path))
    edges = reader.load(TopicPartition("clicks", 0))
    superseded, writer_id = reader.superseded, reader.writer_id
    reader.close()
    assert edges is not None
    stated = example.stated()
    assert stated.pop("writer_id") == writer_id
    assert edges._asdict() == {**stated, "state": PartitionState.ONLINE}
    assert not superseded


def test_committed_offsets() -> None:
    key, value = EXAMPLES["offset-key"], EXAMPLES["offset-value"]
    decoded = decode_key(key.data)
    assert isinstance(decoded, OffsetKey)
    _agrees(key, decoded)
    assert encode_offset_key("billing", "clicks", 0) == key.data
    committed = decode_offset_value(value.data)
    _agrees(value, committed)
    assert encode_offset_value(CommittedOffset(*committed)) == value.data
    assert partition_for("billing", 50) == 9


@pytest.mark.parametrize("name", ["message-v0", "message-v1", "wrapper-v1"])
def test_messages(name: str) -> None:
    example = EXAMPLES[name]
    (message,) = message_set.iter_messages(example.data)
    _agrees(example, message)
    assert message.size == len(example.data)
    assert identify(example.data) == f"message-set-{name[-2:]}"


def test_the_wrapper_holds_two_messages() -> None:
    records = old_formats.decode_message_set(EXAMPLES["wrapper-v1"].data)
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in records] == [
        (41, 1700000000000, b"k", b"hello"),
        (42, 1700000000001, b"k", b"world"),
    ]


def test_messages_of_07() -> None:
    example = EXAMPLES["kafka-07"]
    messages = old_formats.decode_messages_07(example.data)
    assert [(m.offset, m.next_offset, m.payload) for m in messages] == [(0, 14, b"hello"), (14, 29, b"world")]
    assert identify(example.data) == "0.7"
    error, body = old_formats.decode_fetch_response_07(EXAMPLES["fetch-07"].data)
    assert (error, [m.payload for m in old_formats.decode_messages_07(body)]) == (0, [b"hello"])
    sets = [(0, body), (1, b"")]
    assert old_formats.decode_multifetch_response_07(EXAMPLES["multifetch-07"].data) == (0, sets)
    assert old_formats.encode_multifetch_response_07(0, sets) == EXAMPLES["multifetch-07"].data


def test_json_blocks_are_json() -> None:
    blocks = re.findall(r"```json\n(.*?)```", _pages(), re.S)
    assert blocks
    for block in blocks:
        json.loads(block)


def test_the_records_of_share_groups() -> None:
    key = EXAMPLES["share-key"]
    stated = key.stated()
    assert len(stated) == 3
    assert share_state.decode_key(key.data, "t")._asdict() == {**stated, "is_snapshot": False}
    update = share_state.decode_update(EXAMPLES["share-update"].data)
    (batch,) = update.batches
    stated = EXAMPLES["share-update"].stated()
    assert {**update._asdict(), **batch._asdict(), "batches": None} == {**stated, "batches": None}
    assert share_state.encode_update(*update) == EXAMPLES["share-update"].data
    state = queue_state.decode_state(EXAMPLES["queue-update"].data)
    (lock,) = state.locks
    stated = EXAMPLES["queue-update"].stated()
    actual = {**state._asdict(), **lock._asdict()}
    assert len(stated) == 10
    assert {name: actual[name] for name in stated} == stated
    assert lock.until_ms - state.boot_ms == 30_000
    assert queue_state.encode_state(state) == EXAMPLES["queue-update"].data
