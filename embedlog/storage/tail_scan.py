"""Validates the tail of a segment: its batches from the recovery point on.

Recovery trusts no batch of it without this check: each must fit the file, match its CRC, and continue the
offsets and leader epochs. The first one that does not ends the tail, and `problem` has the reason for the
report. Regular batches are scanned in runs (scan/batch_scan.py), which also builds their index.
"""

from __future__ import annotations

from collections.abc import Callable

from ..codec import HEADER_SIZE, BatchHeader
from ..codec.rules import ANY_OFFSET, Rules
from ..config import MAX_INT32
from ..errors import CorruptRecord
from ..index import IndexBuilder
from ..scan.batch_scan import Run, scan_batches
from ..segment import Segment
from .checkpoints import LeaderEpochs


class Tail:
    """The valid batches of a segment from a position on: up to byte `end` and `next_offset`.

    `problem` tells why they end before the file does, None if they do not. With `superseded` they end because
    the next segment begins with the batch at that position. `first_sequenced` is the position of the first
    batch that producer state depends on.
    """

    def __init__(
        self,
        segment: Segment,
        pos: int,
        next_offset: int,
        following: Segment | None,
        epochs: LeaderEpochs,
        may_have_gaps: bool,
    ) -> None:
        self.end = pos
        self.next_offset = next_offset
        self.batches = 0
        self.problem: str | None = None
        self.superseded = False
        self.first_sequenced: int | None = None
        self._segment = segment
        self._following = following
        self._epoch = epochs.epoch_at(next_offset)
        self._latest_epoch = epochs.latest
        self._may_have_gaps = may_have_gaps

    def read(self, builder: IndexBuilder, origin: int, passed: Callable[[int], None]) -> None:
        """Scan the tail. Positions in the index count from byte `origin`.

        `passed` is called with the number of bytes of each step. Raises OSError.
        """
        segment, following = self._segment, self._following
        rules = Rules(
            self.next_offset,
            self._epoch,
            self._latest_epoch,
            following.base_offset if following is not None else ANY_OFFSET,
            min(segment.base_offset + MAX_INT32 + 1, ANY_OFFSET),
            self._may_have_gaps,
        )
        batches = scan_batches(segment.pread_into, self.end, segment.size, rules, builder, origin=origin)
        try:
            for batch in batches:
                if isinstance(batch, BatchHeader) and self._ends_before(batch):
                    break
                size = -self.end
                self._take(batch)
                passed(size + self.end)
        except CorruptRecord as error:
            self.problem = error.reason

    def _take(self, batch: Run | BatchHeader) -> None:
        if isinstance(batch, Run):
            self.end, self.batches = batch.end, self.batches + batch.scanned.batches
            self.next_offset, self._epoch = batch.scanned.rules.next_offset, batch.scanned.rules.epoch
            sequenced = [batch.pos + at for at in batch.scanned.sequenced[:1]]
        else:
            self.end, self.batches = batch.pos + batch.size, self.batches + 1
            self.next_offset, self._epoch = batch.next_offset, batch.leader_epoch
            sequenced = [batch.pos] if batch.is_sequenced else []
        if sequenced and self.first_sequenced is None:
            self.first_sequenced = sequenced[0]

    def _ends_before(self, header: BatchHeader) -> bool:
        """Whether the tail ends before this batch, which is valid by itself."""
        following = self._following
        if following is not None and header.base_offset >= following.base_offset:
            self.superseded = moved(self._segment, header.pos, following)
            if not self.superseded:
                self.problem = "the batch's offset is one of the next segment's"
            return True
        self.problem = self._discontinuity(header)
        return self.problem is not None

    def _discontinuity(self, header: BatchHeader) -> str | None:
        """Why the batch cannot follow the one before it, None if it can."""
        base, expected = header.base_offset, self.next_offset
        if header.last_offset - self._segment.base_offset > MAX_INT32:
            return f"a batch with offset {base:,} is outside this segment"
        if base != expected and not (self._may_have_gaps and base > expected):
            return f"the batch begins with offset {base:,}, the next one is {expected:,}"
        if not self._epoch <= header.leader_epoch <= self._latest_epoch:
            return f"the batch is of leader epoch {header.leader_epoch}, the partition's is {self._epoch}"
        return None


def moved(segment: Segment, pos: int, following: Segment) -> bool:
    """Whether the next segment begins with the batch at `pos` of this one."""
    ours, theirs = segment.pread(HEADER_SIZE, pos), following.pread(HEADER_SIZE, 0)
    return len(ours) == HEADER_SIZE and ours == theirs
