"""Random histories of a source: what each group has not read there, it has not read in the mirror."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import examples
from unread import carry, commit, no_lag_below_zero, unread

import embedlog
from embedlog import Log
from embedlog.cluster import Broker
from embedlog.mirroring.offset_map import MOST_RUNS, OffsetMap, Run

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("transaction"), st.integers(1, 4)),
        st.tuples(st.just("abort"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("commit"), st.integers(0, 200)),
        st.tuples(st.just("mirror"), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


def step(log: Log, what: str, number: int, count: int) -> None:
    """A step of a history; `number` is that of the step."""
    values = [b"%d %d" % (number, i) for i in range(count)]
    edges = log.offsets("t")[0]
    if what == "append":
        log.append_many("t", values)
    elif what in ("transaction", "abort"):
        try:
            with log.transaction("history") as tx:
                for value in values:
                    tx.append("t", value)
                if what == "abort":
                    raise InterruptedError
        except InterruptedError:
            pass
    elif what == "delete":
        span = edges.log_end_offset - edges.log_start_offset
        log.delete_records("t", 0, edges.log_start_offset + span * count // 200)
    elif what == "commit":
        commit(log, f"g{count % 3}", "t", edges.log_end_offset * min(count, 100) // 100)


def compare(source: Log, target: Log, deleted: bool) -> None:
    """Both are the same; if records were deleted before they were read, the target may have kept more."""
    for group in ("g0", "g1", "g2"):
        theirs, ours = unread(source, group), unread(target, group)
        assert len(theirs) == len(ours)
        for here, there in zip(theirs, ours, strict=True):
            assert there[len(there) - len(here) :] == here
            assert deleted or len(there) == len(here)
    for group in source.groups():
        assert no_lag_below_zero(target, group)


@pytest.mark.parametrize("to_broker", [False, True], ids=["directory", "serve"])
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_histories(to_broker: bool, steps: list[tuple[str, int]]) -> None:
    """Each mirror is another one, which begins with what the last one has left."""
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = stack.enter_context(embedlog.open(path / "source"))
        there = stack.enter_context(embedlog.open(path / "target"))
        target: Log | str = there
        if to_broker:
            target = f"kafka://{stack.enter_context(Broker(there, port=0)).bootstrap_servers}"
        source.create_topic("t")
        for number, (what, count) in enumerate([*steps, ("mirror", 0)]):
            if what == "mirror":
                carry(source, target)
                compare(source, there, any(done == "delete" for done, _ in steps[:number]))
            else:
                step(source, what, number, count)


@settings(max_examples=examples(200), deadline=None)
@given(
    pieces=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5)), max_size=400),
    start=st.integers(0, 50),
)
def test_a_map_is_never_ahead(pieces: list[tuple[int, int, int]], start: int) -> None:
    """However many runs it has forgotten; and what is stored is what it was."""
    copied: list[tuple[int, int]] = []
    offset_map, source, target = OffsetMap.empty(start), 7, start
    for gap, others, length in pieces:
        source, target = source + gap, target + others
        offset_map.add(Run(source, target, length))
        copied += [(source + i, target + i) for i in range(length)]
        source, target = source + length, target + length
    stored = OffsetMap.decode(offset_map.encode())
    assert stored is not None and stored.encode() == offset_map.encode()
    assert len(offset_map.encode()) < 4_000
    for offset in range(source + 3):
        place = stored.find(offset)
        assert place is not None
        between = sum(place.counted_to <= at < offset for at, _ in copied)
        translated = min(place.target + between, place.limit)
        unread_there = [at for at, to in copied if to >= translated]
        assert {at for at, _ in copied if at >= offset} <= set(unread_there)
        if len(pieces) < MOST_RUNS:
            assert [at for at, _ in copied if at >= offset] == unread_there
