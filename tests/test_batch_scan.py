"""Scans by runs of batches equal scans batch by batch: same entries and same end from every start."""

from __future__ import annotations

import os
import random
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
from encoding import encode_values
from random_batches import random_batches

import embedlog.scan.batch_scan
from embedlog.codec import BatchHeader, crc32c, encode_batch, plain_scanning, scan
from embedlog.codec.rules import ANY_OFFSET, Compared, IndexEntries, IndexState, Rules
from embedlog.errors import CorruptRecord
from embedlog.files.filesystem import FileSystem
from embedlog.index import IndexBuilder
from embedlog.scan.batch_scan import Run, RunScanner, batch_at, scan_batches

_MODULES: list[ModuleType] = [plain_scanning]
_LOOKUPS: list[ModuleType] = [plain_scanning]
try:
    from embedlog.codec import compiled_decoding, compiled_scanning
except ImportError:
    pass
else:
    _MODULES.append(compiled_scanning)
    _LOOKUPS.append(compiled_decoding)


def change(data: bytearray, chosen: random.Random) -> None:
    """One byte, but so that no offset becomes one that an index cannot name."""
    kept = {header.pos + i for header in scan(data).headers for i in range(4)}
    data[chosen.choice(sorted(set(range(len(data))) - kept))] ^= 1 << chosen.randrange(8)


def damaged(seed: int) -> tuple[bytearray, int, random.Random]:
    """Batches, two times in three with a changed byte or a missing end; and one past their last offset."""
    chosen = random.Random(seed)
    data, behind = random_batches(chosen)
    if seed % 3 == 1:
        change(data, chosen)
    elif seed % 3 == 2:
        del data[chosen.randrange(len(data)) :]
    return data, behind, chosen


def some_rules(chosen: random.Random, behind: int) -> Rules:
    return Rules(
        next_offset=chosen.choice([0, 99, 100, 100, 101, -1, ANY_OFFSET]),
        epoch=chosen.choice([-1, 2]),
        latest_epoch=chosen.choice([2, 3, 2**31 - 1]),
        limit_offset=chosen.choice([ANY_OFFSET, behind, behind - 3]),
        end_offset=chosen.choice([ANY_OFFSET, behind, behind - 2]),
        may_have_gaps=chosen.random() < 0.5,
        inside=chosen.random() < 0.5,
    )


def index_of(data: bytes, chosen: random.Random) -> IndexEntries:
    """A right index of the batches, or one with an entry that is not."""
    builder = IndexBuilder(90, chosen.choice([0, 100]))
    for header in scan(data).headers:
        builder.add(1000 + header.pos, header.last_offset, header.max_timestamp_ms)
    builder.add_time_entry()
    entries = IndexEntries(builder.offsets.positions, builder.offsets.offsets, *builder.times)
    column = chosen.choice(entries)
    if column and chosen.random() < 0.5:
        column[chosen.randrange(len(column))] += chosen.choice([1, 5])
    return entries


# -- the loops ---------------------------------------------------------------------------------------


def test_compiled_and_plain_are_the_same() -> None:
    if len(_MODULES) < 2:
        pytest.skip("built without a compiler")
    for seed in range(600):
        data, behind, chosen = damaged(seed)
        rules, entries = some_rules(chosen, behind), index_of(data, chosen)
        index_states = [
            IndexState(),
            IndexState(0, 90, 0),
            IndexState(60, 90, 1005, 500, 3, 400, 2),
            IndexState(0, 10**10, 0),
            IndexState(60, -(2**32) + 105, 50),
        ]
        whole = chosen.random() < 0.5
        for buffer in (bytes(data), data, memoryview(data)):
            end = chosen.choice([len(data), len(data) + 5, len(data) // 2])
            chosen_pos = chosen.choice([0, *(each.pos for each in scan(data, check_crc=False).headers)])
            found = [
                [
                    [
                        module.scan_run(buffer, 0, end, rules, index_state, check, at, check)
                        for index_state in index_states
                        for check in (True, False)
                        for at in (0, 2**32 - 100)
                    ],
                    module.compare_run(buffer, 0, end, 90, entries, Compared(whole=whole), 1000),
                    module.check_run(buffer, 0, end),
                    module.times_run(buffer, chosen_pos, end),
                    module.intact_run(buffer, 0, end),
                    [
                        (module.ready_batch(one), module.times_run(one, 0, len(one), False))
                        for each in scan(data, check_crc=False).headers
                        for one in (buffer[each.pos : each.pos + each.size],)
                    ],
                ]
                for module in _MODULES
            ]
            assert found[0] == found[1], seed


def batches(*places: tuple[int, int]) -> bytes:
    """Batches with so many records from these offsets on."""
    return b"".join(
        bytes(encode_values([b"v" * 20] * count, 1000 + base, base_offset=base, leader_epoch=0))
        for base, count in places
    )


@pytest.mark.parametrize("module", _MODULES)
def test_a_run(module: ModuleType) -> None:
    data = batches((0, 10), (10, 10), (20, 10), (30, 10))
    size = len(data) // 4
    scanned = module.scan_run(data, 0, len(data), Rules(0), IndexState(100, 0, 100))
    assert (scanned.pos, scanned.batches, scanned.records) == (len(data), 4, 40)
    assert scanned.rules == Rules(40, 0)
    assert scanned.entries.positions == array("I", [size, 2 * size, 3 * size])
    assert scanned.entries.offsets == array("I", [19, 29, 39])
    assert scanned.entries.timestamps == array("q", [1010, 1020, 1030])
    assert scanned.entries.timestamp_offsets == array("I", [19, 29, 39])
    assert (scanned.index_state.largest_timestamp_ms, scanned.index_state.largest_offset) == (1030, 39)
    assert not scanned.sequenced


@pytest.mark.parametrize("module", _MODULES)
def test_a_batch_after_a_gap_needs_a_confirming_neighbour(module: ModuleType) -> None:
    """Its offset is in no CRC: that it is too high shows only by the next one."""
    rules = Rules(0, may_have_gaps=True)
    first, good = batches((0, 5)), batches((0, 5), (7, 5), (20, 5), (25, 5))
    assert module.scan_run(good, 0, len(good), rules, IndexState()).rules.next_offset == 30
    for data in (batches((0, 5), (7, 5)), batches((0, 5), (17, 5), (10, 5)), batches((0, 5), (7, 5), (9, 5))):
        scanned = module.scan_run(data, 0, len(data), rules, IndexState(0, 0, 0))
        assert (scanned.pos, scanned.batches, scanned.records) == (len(first), 1, 5)
        assert (scanned.rules.next_offset, scanned.index_state.largest_timestamp_ms) == (5, 1000)
        assert not scanned.entries.positions


def short_batches(chosen: random.Random) -> list[bytes]:
    """Mostly one record each, of the same producer; a few of another shape."""
    found, offset = [], 100
    for _ in range(chosen.randrange(1, 30)):
        unlike = chosen.random() < 0.1
        count = chosen.choice([2, 3]) if unlike else 1
        rows = [
            (None, bytes(chosen.choice([0, 7, 50, 50, 50, 1100])), (), 1000 + chosen.randrange(50))
            for _ in range(count)
        ]
        sequence = (
            {"producer_id": 5, "producer_epoch": 0, "base_sequence": 9} if chosen.random() < 0.05 else {}
        )
        epoch = 3 if chosen.random() < 0.02 else 2
        found.append(encode_batch(rows, base_offset=offset, leader_epoch=epoch, **sequence))
        offset += count + (chosen.random() < 0.05)
    return found


@pytest.mark.skipif(len(_MODULES) < 2, reason="built without a compiler")
def test_short_batches_are_scanned_together() -> None:
    """Where they differ, end, or are damaged, both builds stop at the same one."""
    scanned, damaged = 0, 0
    for seed in range(3000):
        chosen = random.Random(seed)
        parts = short_batches(chosen)
        data = bytearray(b"".join(parts))
        if seed % 3 == 1:
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        elif seed % 3 == 2:
            del data[chosen.randrange(len(data)) :]
        rules = Rules(
            100,
            latest_epoch=chosen.choice([2, 3]),
            limit_offset=chosen.choice([ANY_OFFSET, 100 + len(parts) // 2]),
            end_offset=chosen.choice([ANY_OFFSET, 101 + len(parts) // 2]),
            may_have_gaps=chosen.random() < 0.5,
        )
        state = IndexState(chosen.choice([0, 100, 4096]), 100)
        for check_crc in (True, False):
            plain, compiled = (
                module.scan_run(data, 0, len(data), rules, state, check_crc, 7, seed % 2 == 0)
                for module in _MODULES
            )
            assert plain == compiled, seed
            scanned += plain.batches
            damaged += seed % 3 == 1 and plain.pos < len(data)
    assert scanned > 10_000
    assert damaged > 500


@pytest.mark.parametrize("module", _MODULES)
def test_the_same_change_of_all_heads_changes_their_sum(module: ModuleType) -> None:
    data = bytearray()
    for offset in range(4096):
        data += encode_batch([(None, b"the same", (), 1000)], base_offset=offset, leader_epoch=4)
    size = len(data) // 4096
    sums = set()
    for epoch in (4, 5, 6, 7, 4 + (1 << 20)):
        for pos in range(0, len(data), size):
            data[pos + 12 : pos + 16] = epoch.to_bytes(4, "big")
        scanned = module.scan_run(data, 0, len(data), Rules(0), IndexState(), sum_heads=True)
        assert scanned.batches == 4096
        sums.add(scanned.heads)
    assert len(sums) == 5


@pytest.mark.parametrize("module", _LOOKUPS)
def test_increasing_numbers(module: ModuleType) -> None:
    for code, most in (("I", 2**32 - 1), ("q", 2**63 - 1)):
        for numbers in ([], [5], [0, 1, most], [most - 1, most]):
            assert module.increasing(array(code, numbers)) is True
        for numbers in ([1, 1], [0, 2, 1], [most, 0], [1, 2, 3, 3]):
            assert module.increasing(array(code, numbers)) is False
    assert module.increasing(array("q", [-(2**63), -1, 0, 1]))


@pytest.mark.parametrize("module", _MODULES)
def test_records_are_validated(module: ModuleType) -> None:
    good = batches((0, 10))
    wrong = bytearray(batches((10, 10)))
    wrong[61] = 0x7F
    late = bytearray(batches((20, 10)))
    struct.pack_into(">q", late, 35, 5)  # the largest timestamp
    packed = bytes(encode_values([b"v" * 20] * 9, 5, compression=1))
    for odd in (wrong, late, packed):
        data = good + good + bytes(odd) + good
        assert module.check_run(data, 0, len(data)) == 2 * len(good)
    assert module.check_run(good * 3, len(good), 3 * len(good)) == 3 * len(good)


def sealed(batch: bytes | bytearray) -> bytes:
    """The batch with the CRC that its bytes have."""
    made = bytearray(batch)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


@pytest.mark.parametrize("module", _MODULES)
def test_a_batch_as_most_producers_send_it(module: ModuleType) -> None:
    for count in (1, 10, 500):
        good = batches((0, count))
        assert module.ready_batch(good) == (count, 1000, False)
        assert module.ready_batch(memoryview(bytearray(good))) == (count, 1000, False)
    rows = [(None, b"v", (), 5)]
    sequenced = bytes(encode_batch(rows, producer_id=0, producer_epoch=0, base_sequence=0))
    assert module.ready_batch(sequenced) == (1, 5, True)
    good = batches((0, 10))
    odd = {
        "nothing": b"",
        "cut off": good[:-1],
        "cut off in its header": good[:60],
        "a byte behind it": good + b"\0",
        "two": good + good,
        "a wrong CRC": good[:-1] + b"\x05",
        "compressed": bytes(encode_values([b"v" * 20] * 9, 5, compression=1)),
        "of a transaction": sealed(good[:22] + b"\x10" + good[23:]),
        "control": sealed(good[:22] + b"\x20" + good[23:]),
        "of append time": sealed(good[:22] + b"\x08" + good[23:]),
        "not from offset 0 on": bytes(7) + b"\x01" + good[8:],
        "of a producer without a sequence": bytes(encode_batch(rows, producer_id=0, producer_epoch=0)),
        "without a record for each offset": sealed(good[:26] + b"\x0a" + good[27:]),
        "later than it says": sealed(good[:35] + bytes(8) + good[43:]),
        "earlier than it says": sealed(good[:42] + b"\xff" + good[43:]),
        "of records that cannot be read": sealed(good[:61] + b"\x7f" + good[62:]),
    }
    assert {what: module.ready_batch(data) for what, data in odd.items()} == dict.fromkeys(odd)
    for what in ("later than it says", "earlier than it says"):
        data = odd[what]
        assert module.times_run(data, 0, len(data), False) == (len(data), 1000, 1000)
    for what in ("cut off", "compressed", "control", "of records that cannot be read"):
        assert module.times_run(odd[what], 0, len(odd[what]), False)[0] == 0


@pytest.mark.parametrize("module", _MODULES)
def test_the_times_of_a_run(module: ModuleType) -> None:
    rows = [[(None, b"v", (), time_ms) for time_ms in times] for times in ((7, -3, 5), (-9,), (2**63 - 1, 0))]
    good = b"".join(bytes(encode_batch(each)) for each in rows)
    nothing = 2**63 - 1, -(2**63)
    assert module.times_run(good, 0, len(good)) == (len(good), -9, 2**63 - 1)
    first = len(encode_batch(rows[0]))
    assert module.times_run(good, 0, first) == (first, -3, 7)
    assert module.times_run(good, first, first) == (first, *nothing)
    assert module.times_run(good, len(good), len(good)) == (len(good), *nothing)
    append_time = bytearray(encode_batch(rows[0], timestamp_type=1))
    assert module.times_run(append_time, 0, len(append_time)) == (len(append_time), 7, 7)
    emptied = sealed(good[:8] + b"\0\0\0\x31" + good[12:57] + bytes(4))  # as compaction leaves it
    assert module.times_run(emptied + good, 0, 10_000) == (61 + len(good), -9, 2**63 - 1)
    for odd in (
        good[: first - 1] + b"\x05",  # a wrong CRC
        good[: first - 1],
        bytes(encode_batch(rows[0], compression=1)),
        sealed(good[:22] + b"\x20" + good[23:first]),  # control
        sealed(good[:61] + b"\x7f" + good[62:first]),  # records that cannot be read
    ):
        assert module.times_run(good[:first] + odd, 0, 10_000) == (first, -3, 7)


# -- a file ------------------------------------------------------------------------------------------


class Reading:
    """A file's bytes, and how many were asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.asked = 0

    def __call__(self, buffer: memoryview, pos: int) -> int:
        self.asked += len(buffer)
        return FileSystem().pread_into(self.file.fileno(), buffer, pos)


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Callable[[bytes], Reading]]:
    """From a file with these bytes."""

    def make(data: bytes) -> Reading:
        (tmp_path / "segment").write_bytes(data)
        return Reading(files.enter_context((tmp_path / "segment").open("rb")))

    with ExitStack() as files:
        yield make


@pytest.fixture(params=[64, 200, 1 << 20])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buffers, so that they end anywhere."""
    monkeypatch.setattr(embedlog.scan.batch_scan, "_FIRST_CHUNK", 64)
    monkeypatch.setattr(embedlog.scan.batch_scan, "_CHUNK", request.param)


def one_by_one(data: bytes, rules: Rules) -> list[BatchHeader]:
    """The batches that follow the rules, looked at singly."""
    expected, epoch, inside = rules.next_offset, rules.epoch, rules.inside
    taken: list[BatchHeader] = []
    behind_gap = False
    for header in scan(data).headers:
        base, last = header.base_offset, header.last_offset
        if base < expected and not (inside and last >= expected):
            break
        if base > expected and not rules.may_have_gaps:
            break
        if base >= rules.limit_offset or last >= rules.end_offset:
            break
        if not epoch <= header.leader_epoch <= rules.latest_epoch:
            break
        taken.append(header)
        behind_gap = base > expected
        expected, epoch, inside = header.next_offset, header.leader_epoch, False
    return taken[:-1] if behind_gap else taken


def many_batches(chosen: random.Random) -> tuple[bytearray, int]:
    """Some hundred batches, mostly in their places."""
    data, behind = bytearray(), 100
    for _ in range(30):
        more, end = random_batches(chosen)
        pos = 0
        for header in scan(more).headers:
            struct.pack_into(">q", more, pos, header.base_offset - 100 + behind)
            pos += header.size
        data += more
        behind += end - 100
    return data, behind


def bytes_of(buffer: bytearray, at: int, run: Run) -> bytes:
    return bytes(buffer[at : at + run.end - run.pos])


@pytest.mark.usefixtures("chunk")
def test_runs_of_a_file(reading: Callable[[bytes], Reading]) -> None:
    """Wherever the buffers end: the batches one by one, and the index that they make."""
    for seed in range(40):
        chosen = random.Random(seed)
        data, behind = many_batches(chosen)
        if seed % 2:
            change(data, chosen)
        rules = some_rules(chosen, behind)._replace(next_offset=100, epoch=-1)
        wanted = one_by_one(data, rules)
        slowly, quickly = IndexBuilder(100, 90), IndexBuilder(100, 90)
        for header in wanted:
            slowly.add(header.pos, header.last_offset, header.max_timestamp_ms)
        runs = RunScanner(reading(data), 0, len(data), rules, quickly.index_state, inspect=bytes_of)
        found: list[BatchHeader] = []
        for run in runs:
            assert run.inspected == data[run.pos : run.end]
            quickly.add_run(run.scanned)
            found += [h._replace(pos=run.pos + h.pos) for h in scan(run.inspected).headers]
            assert run.end_state.rules.next_offset == found[-1].next_offset
            sequenced = [header.pos for header in scan(run.inspected).headers if header.is_sequenced]
            assert run.scanned.sequenced.tolist() == sequenced
        assert found == wanted
        assert runs.pos == (wanted[-1].pos + wanted[-1].size if wanted else 0)
        assert (quickly.offsets, quickly.times) == (slowly.offsets, slowly.times)
        assert quickly.index_state == slowly.index_state


@pytest.mark.usefixtures("chunk")
def test_irregular_batches_are_reported_singly(reading: Callable[[bytes], Reading]) -> None:
    for seed in range(40):
        chosen = random.Random(seed)
        data, _ = many_batches(chosen)
        if seed % 2:
            change(data, chosen)
        slowly, quickly = IndexBuilder(0, 90), IndexBuilder(0, 90)
        checked = scan(data)
        for header in checked.headers:
            slowly.add(header.pos + 7, header.last_offset, header.max_timestamp_ms)
        rules = Rules(103, may_have_gaps=chosen.random() < 0.5)
        end = passed = 0
        error = None
        try:
            for found in scan_batches(reading(data), 0, len(data), rules, quickly, origin=-7):
                assert found.pos == end
                end = found.end if isinstance(found, Run) else found.pos + found.size
                passed += found.scanned.batches if isinstance(found, Run) else 1
        except CorruptRecord as corrupt:
            error = corrupt
        assert (end, passed) == (checked.end, len(checked.headers))
        assert (quickly.offsets, quickly.times) == (slowly.offsets, slowly.times)
        if checked.error is not None:
            assert error is not None and error.pos == end
            assert error.reason == checked.error.reason
        else:
            assert (error is not None) == (end < len(data))


def test_a_wrong_length_costs_no_memory(tmp_path: Path) -> None:
    """Neither one that runs past the end nor one that no batch can have is believed as far as reading it."""
    good = batches((0, 5), (5, 5))
    for length, reason in [(2**31 - 1, "cannot be"), (300 << 20, "cannot be"), (2**31 - 1, "cut short")]:
        path = tmp_path / "segment"
        head = bytearray(batches((10, 5)))
        struct.pack_into(">i", head, 8, length)
        path.write_bytes(good + head)
        if reason == "cannot be":
            os.truncate(path, 4 << 30)  # a hole: it need not be written
        size = path.stat().st_size
        with path.open("rb") as file:
            read_into = Reading(file)
            runs = RunScanner(read_into, 0, size, Rules(0))
            assert sum(run.scanned.batches for run in runs) == 2
            with pytest.raises(CorruptRecord, match=reason) as caught:
                batch_at(read_into, runs.pos, size)
        assert caught.value.pos == runs.pos == len(good)
        assert read_into.asked < 4 << 20


def test_a_file_that_shrank(reading: Callable[[bytes], Reading]) -> None:
    data = batches((0, 5), (5, 5), (10, 5))
    for size in (0, 1, len(data) // 3, len(data) // 2, len(data) - 1, len(data)):
        runs = RunScanner(reading(data[:size]), 0, len(data), Rules(0))
        whole = size * 3 // len(data)
        assert sum(run.scanned.batches for run in runs) == whole
        assert runs.pos == whole * len(data) // 3
