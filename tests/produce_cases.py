"""Produce requests made by hand, good and bad, with the answers that Apache Kafka 4.3.1 gives to them.

tests/java sends each to Apache Kafka and to embedlog's broker; tests/broker sends it to embedlog's alone.
"""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from wire import HasPort, Wire

import embedlog
from embedlog.codec import GZIP, LZ4, SNAPPY, ZSTD, compress, crc32c
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.error_codes import ErrorCode

NOW_MS: Final = time.time_ns() // 1_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000

CLOSED: Final = "the broker closes the connection"

TOPICS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "compacted-and-deleted": {"cleanup_policy": "compact,delete"},
    "appended": {"message_timestamp_type": "LogAppendTime"},
    "compacted-appended": {"message_timestamp_type": "LogAppendTime", "cleanup_policy": "compact"},
    "small": {"max_message_bytes": 1_000},
    "zipped": {"compression_type": "gzip"},
    "unzipped": {"compression_type": "uncompressed"},
    "recent": {"message_timestamp_before_max_ms": DAY_MS, "message_timestamp_after_max_ms": MINUTE_MS},
}


class Sent(NamedTuple):
    """One request, and Kafka's answer: an error's code and the indexes of the records that it names."""

    records: bytes
    code: ErrorCode | str = ErrorCode.NONE
    named: Sequence[int] = ()
    topic: str = "plain"
    partition: int = 0
    version: int = 9
    acks: int = 1
    transactional_id: str | None = None
    topic_id: bytes | None = None
    timeout_ms: int = 10_000


# -- encoding, also of what no encoder writes ----------------------------------------------------------


def varint(number: int) -> bytes:
    folded = (number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while folded > 0x7F:
        encoded.append(folded & 0x7F | 0x80)
        folded >>= 7
    return bytes(encoded + bytes([folded]))


def sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    delta: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    *,
    time: int = 0,
    attributes: int = 0,
    headers: bytes = b"\0",
    rest: bytes = b"",
    longer: int = 0,
    key_bytes: bytes | None = None,
    value_bytes: bytes | None = None,
) -> bytes:
    """A record; `longer` is what its length says beside the truth."""
    body = bytes([attributes]) + varint(time) + varint(delta)
    body += sized(key) if key_bytes is None else key_bytes
    body += (sized(value) if value_bytes is None else value_bytes) + headers + rest
    return varint(len(body) + longer) + body


def headers(*pairs: tuple[bytes | None, bytes | None]) -> bytes:
    return varint(len(pairs)) + b"".join(sized(key) + sized(value) for key, value in pairs)


def batch(
    *records: bytes,
    base: int = 0,
    epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    delta: int | None = None,
    first_ms: int = NOW_MS,
    last_ms: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    length: int = 0,
    packed: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """A batch with these fields and a CRC that agrees; `length` is what its length says beside the truth."""
    body = b"".join(records)
    codec = attributes & 7
    if packed is not None:
        body = packed(body)
    elif codec:
        body = bytes(compress(codec, body))
    count = len(records) if count is None else count
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        len(records) - 1 if delta is None else delta,
        first_ms,
        first_ms if last_ms is None else last_ms,
        *producer,
        count,
    )
    checked = tail + body
    return struct.pack(">qiibI", base, len(checked) + 9 + length, epoch, magic, crc32c(checked)) + checked


def message(magic: int, value: bytes = b"v") -> bytes:
    """A message of an old format."""
    from embedlog.codec.message_set import encode_message_set

    return bytes(encode_message_set([(b"k", value, (), NOW_MS)], magic))


def keyed(count: int, times: Iterable[int] | None = None, **options: Any) -> list[bytes]:
    offsets = [0] * count if times is None else [time_ms - NOW_MS for time_ms in times]
    return [record(place, time=offset, **options) for place, offset in enumerate(offsets)]


TWO: Final = keyed(2)
GOOD: Final = batch(*TWO)
APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 8, 16, 32, 64
E: Final = ErrorCode
CODECS: Final = {"plain": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


def _header_cases() -> dict[str, Sent]:
    control = record(0, b"\0\0\0\1", b"\0\0\0\0\0\0")
    return {
        "a good batch": Sent(GOOD),
        "one record": Sent(batch(*keyed(1))),
        "base offset 1": Sent(batch(*TWO, base=1), E.INVALID_RECORD),
        "base offset -1": Sent(batch(*TWO, base=-1), E.INVALID_RECORD),
        "a huge base offset": Sent(batch(*TWO, base=2**63 - 1), E.INVALID_RECORD),
        "base offset 1, codec": Sent(batch(*TWO, base=1, attributes=GZIP), E.INVALID_RECORD),
        "leader epoch 5": Sent(batch(*TWO, epoch=5)),
        "leader epoch -2": Sent(batch(*TWO, epoch=-2), E.INVALID_RECORD),
        "count too large": Sent(batch(*TWO, count=3, delta=2), E.INVALID_RECORD),
        "count too large, codec": Sent(batch(*TWO, count=3, delta=2, attributes=GZIP), E.INVALID_RECORD),
        "count huge": Sent(batch(*TWO, count=2**31 - 1, delta=2**31 - 2), E.INVALID_RECORD),
        "count too small": Sent(batch(*TWO, count=1, delta=0), E.INVALID_RECORD),
        "count too small, codec": Sent(batch(*TWO, count=1, delta=0, attributes=GZIP), E.INVALID_RECORD),
        "count above offsets": Sent(batch(*TWO, count=2, delta=0), E.INVALID_RECORD),
        "count below offsets": Sent(batch(*TWO, count=2, delta=5), E.INVALID_RECORD),
        "count 0": Sent(batch(count=0, delta=0), E.INVALID_RECORD),
        "count 0, delta -1": Sent(batch(count=0, delta=-1), E.INVALID_RECORD),
        "count -1": Sent(batch(*TWO, count=-1, delta=1), E.INVALID_RECORD),
        "delta -1": Sent(batch(*TWO, delta=-1), E.INVALID_RECORD),
        "a control batch": Sent(
            batch(control, attributes=TRANSACTIONAL | CONTROL, producer=(901, 0, -1)),
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        "a control batch that is not transactional": Sent(
            batch(control, attributes=CONTROL, producer=(902, 0, 0)), E.INVALID_RECORD
        ),
        "a control batch without a producer": Sent(batch(control, attributes=CONTROL), E.INVALID_RECORD),
        **{f"magic {magic}": Sent(batch(*TWO, magic=magic), E.CORRUPT_MESSAGE) for magic in (3, 127, -1)},
        **{f"a message of magic {magic}": Sent(message(magic), E.INVALID_RECORD) for magic in (0, 1)},
        "no bytes": Sent(b"", E.INVALID_RECORD),
        "a piece of a header": Sent(GOOD[:40], E.INVALID_RECORD),
        "fewer bytes than name a magic": Sent(GOOD[:10], E.INVALID_RECORD),
        "garbage": Sent(bytes(range(100)), E.CORRUPT_MESSAGE),
        "cut short": Sent(GOOD[:-1], E.INVALID_RECORD),
        "a byte follows": Sent(GOOD + b"\0", E.INVALID_RECORD),
        "twenty bytes follow": Sent(GOOD + bytes(20), E.INVALID_RECORD),
        "a piece of a batch follows": Sent(GOOD + GOOD[:70], E.INVALID_RECORD),
        "a batch follows": Sent(GOOD + GOOD, E.INVALID_RECORD),
        "a byte less than its length": Sent(batch(*TWO, length=1), E.INVALID_RECORD),
        "a length below a header's": Sent(GOOD[:8] + struct.pack(">i", 20) + GOOD[12:], E.CORRUPT_MESSAGE),
        "a length of 0": Sent(GOOD[:8] + bytes(4) + GOOD[12:], E.CORRUPT_MESSAGE),
        "a negative length": Sent(GOOD[:8] + struct.pack(">i", -1) + GOOD[12:], E.CORRUPT_MESSAGE),
        "another CRC": Sent(GOOD[:17] + bytes(4) + GOOD[21:], E.CORRUPT_MESSAGE),
        "a byte changed": Sent(GOOD[:-3] + b"x" + GOOD[-2:], E.CORRUPT_MESSAGE),
        **{
            f"codec {codec}": Sent(batch(*TWO, attributes=codec, packed=bytes), E.CORRUPT_MESSAGE)
            for codec in (5, 6, 7)
        },
        "the delete horizon": Sent(batch(*TWO, attributes=HORIZON)),
        "attributes without a meaning": Sent(batch(*TWO, attributes=0x7F80)),
        "too large": Sent(batch(record(value=bytes(1_000))), E.MESSAGE_TOO_LARGE, topic="small"),
        "small when packed": Sent(batch(record(value=bytes(5_000)), attributes=GZIP), topic="small"),
        "too large for Kafka's default": Sent(batch(record(value=bytes(1 << 20))), E.MESSAGE_TOO_LARGE),
    }


def _producer_cases() -> dict[str, Sent]:
    def of(*producer: int, **options: Any) -> bytes:
        return batch(*TWO, producer=(producer[0], producer[1], producer[2]), **options)

    return {
        "a producer's first": Sent(of(910, 0, 0)),
        "an unknown producer's sequence 5": Sent(of(911, 0, 5)),
        "a producer without a sequence": Sent(of(912, 0, -1), E.INVALID_RECORD),
        "a producer without an epoch": Sent(of(913, -1, 0)),
        "a producer with sequence -2": Sent(of(914, 0, -2), E.INVALID_RECORD),
        "a producer without both": Sent(of(915, -1, -1), E.INVALID_RECORD),
        "a sequence without a producer": Sent(of(-1, -1, 0)),
        "an epoch without a producer": Sent(of(-1, 0, -1)),
        "producer id -2": Sent(of(-2, -1, -1), E.INVALID_RECORD),
        "epoch -2": Sent(of(-1, -2, -1), E.INVALID_RECORD),
        "sequence -2": Sent(of(-1, -1, -2), E.INVALID_RECORD),
        "a sequence that wraps": Sent(of(916, 0, 2**31 - 1)),
        "transactional without an id": Sent(
            of(917, 0, 0, attributes=TRANSACTIONAL), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ),
        "transactional without a producer": Sent(
            of(-1, -1, -1, attributes=TRANSACTIONAL), E.INVALID_PRODUCER_ID_MAPPING, transactional_id="x"
        ),
        "transactional without a producer and an id": Sent(
            of(-1, -1, -1, attributes=TRANSACTIONAL), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ),
        **{
            f"transactional, of an unknown producer, version {version}": Sent(
                of(920 + version, 0, 0, attributes=TRANSACTIONAL),
                code,
                transactional_id="unknown",
                version=version,
            )
            for version, code in (
                (3, E.INVALID_TXN_STATE),
                (10, E.INVALID_TXN_STATE),
                (11, E.TRANSACTION_ABORTABLE),
                (12, E.INVALID_PRODUCER_ID_MAPPING),
            )
        },
        "an id, but not transactional": Sent(of(918, 0, 0), transactional_id="x"),
        "an id, but no producer": Sent(GOOD, transactional_id="x"),
        "an id, and base offset 1": Sent(
            of(919, 0, 0, attributes=TRANSACTIONAL, base=1), E.INVALID_RECORD, transactional_id="x"
        ),
    }


def _time_cases() -> dict[str, Sent]:
    ahead = keyed(3, (NOW_MS, NOW_MS + 2 * HOUR_MS, NOW_MS))
    old = keyed(3, (NOW_MS, NOW_MS, NOW_MS - 2 * DAY_MS))
    stated = NOW_MS + 2 * HOUR_MS
    cases = {
        "no time": Sent(batch(*TWO, first_ms=-1)),
        "no time, compacted": Sent(batch(*TWO, first_ms=-1), topic="compacted"),
        "time -2": Sent(batch(*TWO, first_ms=-2)),
        "time 0": Sent(batch(*TWO, first_ms=0)),
        "the earliest time": Sent(batch(*TWO, first_ms=-(2**63))),
        "a time that overflows": Sent(
            batch(record(0, time=5), first_ms=2**63 - 1, last_ms=-(2**63) + 4),
        ),
        "a maximum that is too small": Sent(batch(*keyed(2, (NOW_MS, NOW_MS + 9)), last_ms=-1)),
        "a maximum too far ahead": Sent(batch(*TWO, last_ms=stated)),
        "a maximum too far ahead, codec": Sent(batch(*TWO, last_ms=stated, attributes=GZIP)),
        "no time, where times are limited": Sent(batch(*TWO, first_ms=-1), topic="recent"),
        "time -2, where times are limited": Sent(
            batch(*TWO, first_ms=-2), E.INVALID_TIMESTAMP, (0, 1), topic="recent"
        ),
        "too far ahead, append time": Sent(batch(*ahead, last_ms=stated), topic="appended"),
        "append time, said by the producer": Sent(batch(*TWO, attributes=APPEND_TIME)),
        "append time, said by the producer, of no time": Sent(
            batch(*TWO, attributes=APPEND_TIME, first_ms=-1), E.INVALID_TIMESTAMP, (0, 1)
        ),
        "append time, said by the producer, compacted": Sent(
            batch(*TWO, attributes=APPEND_TIME), topic="compacted"
        ),
        "append time, said by the producer to a topic of append time": Sent(
            batch(*TWO, attributes=APPEND_TIME), E.INVALID_TIMESTAMP, (0, 1), topic="appended"
        ),
        "append time, said to a topic of limited times": Sent(
            batch(*TWO, attributes=APPEND_TIME), topic="recent"
        ),
    }
    for name, codec in CODECS.items():
        cases |= {
            f"too far ahead, {name}": Sent(
                batch(*ahead, last_ms=stated, attributes=codec), E.INVALID_TIMESTAMP, (1,)
            ),
            f"too old, {name}": Sent(
                batch(*old, attributes=codec), E.INVALID_TIMESTAMP, (2,), topic="recent"
            ),
            f"append time, said by the producer, {name}": Sent(batch(*TWO, attributes=APPEND_TIME | codec)),
        }
    return cases


def _record_cases() -> dict[str, Sent]:
    keyless = [record(0), record(1, None), record(2)]
    cases: dict[str, Sent] = {
        "no key and too far ahead": Sent(
            batch(record(0, None), record(1, time=DAY_MS), last_ms=NOW_MS + DAY_MS),
            E.INVALID_RECORD,
            (0,),
            topic="compacted",
        ),
        "a null key where append time": Sent(
            batch(*keyless), E.INVALID_RECORD, (1,), topic="compacted-appended"
        ),
        "an empty key, compacted": Sent(batch(record(0, b"")), topic="compacted"),
    }
    malformed: dict[str, tuple[list[bytes], ErrorCode]] = {
        "a null value": ([record(value=None)], E.NONE),
        "a null key": ([record(key=None)], E.NONE),
        "headers": ([record(headers=headers((b"a", b"b"), (b"a", None)))], E.NONE),
        "an empty header key": ([record(headers=headers((b"", b"")))], E.NONE),
        "a null header key": ([record(headers=headers((None, b"")))], E.INVALID_RECORD),
        "a header key that is not UTF-8": ([record(headers=headers((b"\xff", b"")))], E.NONE),
        "a header key of length -2": ([record(headers=b"\2\3\0")], E.INVALID_RECORD),
        "a header value of length -2": ([record(headers=b"\2\2a\3")], E.INVALID_RECORD),
        "a header value past the end": ([record(headers=b"\2\2a\x20")], E.INVALID_RECORD),
        "-1 headers": ([record(headers=varint(-1))], E.INVALID_RECORD),
        "more headers than bytes": ([record(headers=varint(50))], E.INVALID_RECORD),
        "no number of headers": ([record(headers=b"")], E.INVALID_RECORD),
        "a key of length -2": ([record(key_bytes=varint(-2))], E.INVALID_RECORD),
        "a value of length -2": ([record(value_bytes=varint(-2))], E.INVALID_RECORD),
        "a key past the end": ([record(key_bytes=varint(99))], E.INVALID_RECORD),
        "a value past the end": ([record(value_bytes=varint(99))], E.INVALID_RECORD),
        "attributes of a record": ([record(attributes=0x55)], E.NONE),
        "bytes after a record's headers": ([record(rest=b"x")], E.INVALID_RECORD),
        "a record longer than it is": ([record(longer=1)], E.INVALID_RECORD),
        "a record shorter than it is": ([record(longer=-1)], E.INVALID_RECORD),
        "a record of negative length": ([varint(-5) + record()[1:]], E.INVALID_RECORD),
        "a record of length 0": ([b"\0" + record()[1:]], E.INVALID_RECORD),
        "a record's length of six bytes": ([b"\xff\xff\xff\xff\xff\1" + record()[1:]], E.INVALID_RECORD),
        "an offset delta of five bytes and a bit": (
            [b"\x1c\0\0" + b"\xff\xff\xff\xff\x7f" + record()[4:]],
            E.INVALID_RECORD,
        ),
        "the first offset delta 1": ([record(1)], E.INVALID_RECORD),
        "equal offset deltas": ([record(0), record(0)], E.INVALID_RECORD),
        "falling offset deltas": ([record(1), record(0)], E.INVALID_RECORD),
        "a gap between offset deltas": ([record(0), record(2)], E.INVALID_RECORD),
        "a negative offset delta": ([record(-1)], E.INVALID_RECORD),
    }
    for name, codec in CODECS.items():
        cases |= {
            f"{what}, {name}": Sent(batch(*records, attributes=codec), code)
            for what, (records, code) in malformed.items()
        }
        cases |= {
            f"no key, compacted, {name}": Sent(
                batch(*keyless, attributes=codec), E.INVALID_RECORD, (1,), topic="compacted"
            ),
            f"no key, compacted and deleted, {name}": Sent(
                batch(*keyless, attributes=codec), E.INVALID_RECORD, (1,), topic="compacted-and-deleted"
            ),
            f"a key, compacted, {name}": Sent(batch(*TWO, attributes=codec), topic="compacted"),
            f"bytes after the last record, {name}": Sent(
                batch(*TWO[:1], b"xx", attributes=codec, count=1, delta=0), E.INVALID_RECORD
            ),
            f"a gap, recompressed, {name}": Sent(
                batch(record(0), record(2), attributes=codec), E.INVALID_RECORD, topic="zipped"
            ),
            f"recompressed, {name}": Sent(batch(*TWO, attributes=codec), topic="zipped"),
            f"decompressed, {name}": Sent(batch(*TWO, attributes=codec), topic="unzipped"),
        }
        if codec:
            cases |= {
                f"not {name}": Sent(batch(*TWO, attributes=codec, packed=bytes), E.INVALID_RECORD),
                f"half of {name}": Sent(
                    batch(
                        *TWO,
                        attributes=codec,
                        packed=lambda body, codec=codec: bytes(compress(codec, body))[:-9],
                    ),
                    E.INVALID_RECORD,
                ),
                f"bytes after {name}": Sent(
                    batch(
                        *TWO,
                        attributes=codec,
                        packed=lambda body, codec=codec: bytes(compress(codec, body)) + b"xyz",
                    ),
                    E.INVALID_RECORD,
                ),
            }
    cases["gzip in two members"] = Sent(
        batch(*TWO, attributes=GZIP, packed=lambda body: gzip.compress(body[:5]) + gzip.compress(body[5:]))
    )
    return cases


def _request_cases() -> dict[str, Sent]:
    cases = {
        **{f"acks={acks}": Sent(GOOD, acks=acks) for acks in (-1, 1)},
        **{f"acks={acks}": Sent(GOOD, E.INVALID_REQUIRED_ACKS, acks=acks) for acks in (-2, 2)},
        "acks=2 and base offset 1": Sent(batch(*TWO, base=1), E.INVALID_REQUIRED_ACKS, acks=2),
        "acks=0 and base offset 1": Sent(batch(*TWO, base=1), CLOSED, acks=0),
        "acks=0 and an unknown topic": Sent(GOOD, CLOSED, topic="unknown", acks=0),
        "a timeout of -1": Sent(GOOD, timeout_ms=-1),
        "an unknown topic": Sent(GOOD, E.UNKNOWN_TOPIC_OR_PARTITION, topic="unknown"),
        "a name that no topic has": Sent(GOOD, E.INVALID_TOPIC_EXCEPTION, topic="a b"),
        "an empty name": Sent(GOOD, E.INVALID_TOPIC_EXCEPTION, topic=""),
        "partition 1 of one": Sent(GOOD, E.UNKNOWN_TOPIC_OR_PARTITION, partition=1),
        "partition -1": Sent(GOOD, E.UNKNOWN_TOPIC_OR_PARTITION, partition=-1),
        "an unknown topic id": Sent(GOOD, E.UNKNOWN_TOPIC_ID, topic_id=UUID(int=77).bytes, version=13),
        "no topic id": Sent(GOOD, E.UNKNOWN_TOPIC_ID, topic_id=UUID(int=0).bytes, version=13),
        "an internal topic": Sent(GOOD, E.INVALID_TOPIC_EXCEPTION, topic="__consumer_offsets"),
        "an internal topic's partition 99": Sent(
            GOOD, E.UNKNOWN_TOPIC_OR_PARTITION, topic="__consumer_offsets", partition=99
        ),
        "an internal topic and base offset 1": Sent(
            batch(*TWO, base=1), E.INVALID_TOPIC_EXCEPTION, topic="__consumer_offsets"
        ),
    }
    for version in range(3, 13):
        cases |= {
            f"a good batch in version {version}": Sent(GOOD, version=version),
            f"base offset 1 in version {version}": Sent(
                batch(*TWO, base=1), E.INVALID_RECORD, version=version
            ),
            f"zstd in version {version}": Sent(
                batch(*TWO, attributes=ZSTD),
                E.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else E.NONE,
                version=version,
            ),
        }
    return cases


CASES: Final[dict[str, Sent]] = {
    **_header_cases(),
    **_producer_cases(),
    **_time_cases(),
    **_record_cases(),
    **_request_cases(),
}


def _kafkas_own() -> dict[str, tuple[ErrorCode, list[int]]]:
    failed, taken = (E.UNKNOWN_SERVER_ERROR, []), (E.NONE, [])
    different = {
        # Kafka fails in its own code, and says so.
        **dict.fromkeys([f"codec {codec}" for codec in (5, 6, 7)], failed),
        "a record's length of six bytes, plain": failed,
        "a gap, recompressed, gzip": failed,
        "bytes after zstd": failed,
        # It takes what it does not look at; its consumers could not read some of it.
        "leader epoch -2": taken,
        "producer id -2": taken,
        "epoch -2": taken,
        "sequence -2": taken,
        "transactional without a producer": taken,
        "a byte follows": taken,
        "a piece of a batch follows": taken,
        "twenty bytes follow": (E.CORRUPT_MESSAGE, []),
        # It reads times that no calendar has as out of range.
        "the earliest time": (E.INVALID_TIMESTAMP, [0, 1]),
        "a time that overflows": (E.INVALID_TIMESTAMP, [0]),
        # Another order of the checks.
        **{
            f"transactional, of an unknown producer, version {version}": (E.INVALID_PRODUCER_ID_MAPPING, [])
            for version in (3, 10, 11)
        },
        "an id, and base offset 1": (E.INVALID_PRODUCER_ID_MAPPING, []),
        "no key and too far ahead": (E.INVALID_TIMESTAMP, [0, 1]),
        "a name that no topic has": (E.UNKNOWN_TOPIC_OR_PARTITION, []),
        "an empty name": (E.UNKNOWN_TOPIC_OR_PARTITION, []),
    }
    for name, codec in CODECS.items():
        for what in ("a key", "a value", "a header value"):
            different[f"{what} of length -2, {name}"] = taken
        for what in ("the first offset delta 1", "equal offset deltas", "falling offset deltas"):
            different[f"{what}, {name}"] = failed if codec else taken
        for what in ("a gap between offset deltas", "a negative offset delta"):
            different[f"{what}, {name}"] = failed if codec else taken
        if codec:
            for what in ("longer than it is", "shorter than it is", "of negative length", "of length 0"):
                different[f"a record {what}, {name}"] = taken
            for what in (
                f"not {name}",
                f"half of {name}",
                f"an offset delta of five bytes and a bit, {name}",
            ):
                different[what] = failed
        if codec != ZSTD:
            different[f"bytes after {name}"] = taken
        if codec != GZIP:
            different[f"a gap, recompressed, {name}"] = taken
    return {name: answer for name, answer in different.items() if name in CASES}


KAFKAS_OWN: Final = _kafkas_own()
"""Kafka's answers where embedlog's broker gives another one."""


# -- asking --------------------------------------------------------------------------------------------


def create_topics(address: str) -> None:
    """All topics of the cases, at a broker; and the topic of committed offsets."""
    with embedlog.open(f"kafka://{address}") as log:
        for name, settings in TOPICS.items():
            log.create_topic(name, exist_ok=True, **settings)
        log.append("plain", b"v")
        with log.consumer("plain", group="g", auto_commit=False, auto_offset_reset="earliest") as consumer:
            while not consumer.poll(1_000):
                pass
            consumer.commit()
        with log.transaction("a-transaction") as tx:
            tx.append("plain", b"v")


def answer(broker: HasPort, sent: Sent) -> tuple[ErrorCode | str, list[int]]:
    """What a broker answers: an error code, and the indexes of the records that it names."""
    part = PartitionProduceData(index=sent.partition, records=sent.records)
    topic = TopicProduceData(name=sent.topic, partition_data=[part])
    if sent.topic_id is not None:
        topic.topic_id = sent.topic_id
    request = ProduceRequest(
        transactional_id=sent.transactional_id,
        acks=sent.acks,
        timeout_ms=sent.timeout_ms,
        topic_data=[topic],
    )
    with Wire(broker) as wire:
        if not sent.acks:
            wire.send(request, sent.version)
            assert wire.is_closed_by_peer()
            return CLOSED, []
        try:
            response = wire.ask(request, sent.version)
        except ConnectionError:
            return CLOSED, []
    (answer,) = response.responses[0].partition_responses
    return ErrorCode(answer.error_code), [error.batch_index for error in answer.record_errors]
