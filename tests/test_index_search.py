"""A search in the index files finds what the segment finds, also where they are damaged or gone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import embedlog
from embedlog.storage.index_search import first_from, largest_timestamp
from embedlog.store.read_only_store import ReadOnlyStore


@pytest.mark.parametrize("harm", ["none", "gone", "empty", "zeros", "garbage", "swapped"])
@pytest.mark.slow
def test_as_the_segment_itself(path: Path, harm: str) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=3_000, index_interval_bytes=300)
        for number in range(300):  # times go back now and then
            log.append("t", b"x" * 30, timestamp_ms=1_000 + 10 * (number - number % 7))
    for index in path.glob("t_0/*index"):
        if harm == "gone":
            index.unlink()
        elif harm != "none":
            data = index.read_bytes()
            index.write_bytes(
                {
                    "empty": b"",
                    "zeros": bytes(len(data)),
                    "garbage": b"\xa5" * len(data),
                    "swapped": data[::-1],
                }[harm]
            )
    with closing(ReadOnlyStore(str(path))) as store, closing(ReadOnlyStore(str(path))) as other:
        segments = store.partition("t", 0).readable_segments()
        others = other.partition("t", 0).readable_segments()
        assert len(segments) > 5
        for (segment, size), (same, _) in zip(segments, others, strict=True):
            for time_ms in range(990, 4_020, 10):
                expected = next(same.from_time(time_ms, size), None)
                assert first_from(store.fs, segment, time_ms, size) == expected
            if harm in ("none", "gone", "empty", "zeros"):
                assert largest_timestamp(store.fs, segment) == same.largest_timestamp_ms
