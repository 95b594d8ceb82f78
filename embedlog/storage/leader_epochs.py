"""Loads a partition's leader epochs at opening: from the checkpoint, or else from the records.

leader-epoch-checkpoint and the epochs in the batches have the same information. If the file is missing or
invalid, or contradicts the records, it is rebuilt from them. If the records contradict each other they are
damaged, and the file counts.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from ..codec import HEADER_SIZE, BatchHeader, read_header, scan
from ..codec.rules import Rules
from ..errors import CorruptCheckpoint, CorruptRecord
from ..model import TopicPartition
from ..scan.batch_scan import RunScanner
from ..segment import Segment
from .checkpoints import LeaderEpochs

logger = logging.getLogger(__name__)


def load_epochs(epochs: LeaderEpochs, segments: list[Segment], name: TopicPartition) -> None:
    """Load the checkpoint; rebuild it if it is missing or invalid. Raises OSError."""
    try:
        epochs.load()
    except CorruptCheckpoint as error:
        logger.warning("rebuilding the leader epochs of %s: %s", name, error)
        epochs.replace(_epochs_of(segments)[0])
    else:
        if not epochs.entries and any(segment.size for segment in segments):
            logger.warning("the leader epochs of %s are missing: rebuilding them", name)
            epochs.replace(_epochs_of(segments)[0])


def check_epochs(epochs: LeaderEpochs, segments: list[Segment], name: TopicPartition) -> None:
    """Rebuild a checkpoint that contradicts the records, unless these contradict each other."""
    if all(_begins(segments, epoch, offset) for epoch, offset in epochs.entries):
        return
    epochs_of_records, consistent = _epochs_of(segments)
    if consistent:
        logger.warning("the leader epochs of %s do not match its records: rebuilding them", name)
        epochs.replace(epochs_of_records)


def _begins(segments: list[Segment], epoch: int, offset: int) -> bool:
    """Whether the record at an offset, if there is one, is the first of an epoch."""
    number = bisect_right(segments, offset, key=lambda s: s.base_offset) - 1
    if number < 0:
        return True  # deleted
    segment = segments[number]
    with contextlib.suppress(CorruptRecord):
        pos = segment.locate(offset, segment.size)
        if pos + HEADER_SIZE <= segment.size:
            header = read_header(segment.pread(HEADER_SIZE, pos))
            agrees = header.leader_epoch == epoch or header.base_offset > offset
            return agrees or not intact(segment, header)
    return True


def _epochs_of(segments: list[Segment]) -> tuple[tuple[tuple[int, int], ...], bool]:
    """(the epochs of the records, whether they never decrease)"""
    epochs: list[tuple[int, int]] = []
    consistent = True
    for segment in segments:
        with contextlib.suppress(CorruptRecord):
            for header in _changes(segment):
                latest = epochs[-1][0] if epochs else -1
                if header.leader_epoch == latest:
                    continue
                if not intact(segment, header):
                    break
                if header.leader_epoch > latest:
                    epochs.append((header.leader_epoch, header.base_offset))
                else:
                    consistent = False
    return tuple(epochs), consistent


def _changes(segment: Segment) -> Iterator[BatchHeader]:
    """The batches whose leader epoch differs from the one before. Raises CorruptRecord as `walk` does."""
    pos, expected, epoch = 0, segment.base_offset, -1
    while pos < segment.size:
        rules = Rules(expected, epoch, epoch, may_have_gaps=True)
        for run in RunScanner(segment.pread_into, pos, segment.size, rules, check_crc=False):
            pos, expected = run.end, run.end_state.rules.next_offset
        for header in islice(segment.walk(pos, segment.size, expected=expected), 1):
            if header.leader_epoch != epoch:
                yield header
            pos, expected, epoch = pos + header.size, header.next_offset, header.leader_epoch


def intact(segment: Segment, header: BatchHeader) -> bool:
    """Whether the CRC of this batch matches."""
    return bool(scan(segment.pread(header.size, header.pos)).headers)
