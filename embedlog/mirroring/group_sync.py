"""Carries the committed offsets of consumer groups to the target, translated, while records are copied.

    each interval, for each group of a source with commits in mirrored partitions:
        translate its offsets (translation.py)          within what the target has
        compare with what the group has in the target   left alone if others have changed that
        note what is about to be committed              so that a mirror that is killed here knows it later
        commit                                          refused by the coordinator if the group has members

What is noted are commits, too: those of the group "mirror-<source>:<group>" in the target. Each has the
offset that was about to be committed, and in its metadata the one that was there before, if any. An offset
that is neither was committed by others: a consumer that has been moved there, or somebody who has reset the
group.

Offsets and their metadata are carried; leader epochs are not, they are the source's. An offset that has gone
back in the source goes back in the target. Groups that are deleted in the source stay in the target. All
offsets are committed again now and then, since brokers let those of idle groups expire.

Source: KIP-545 (sync.group.offsets in MirrorMaker 2), and what was reported of it since: KAFKA-12468, 12566,
12635, 13659.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..backends.port.coordinators import GroupAdmin, GroupReader
from ..errors import EmbedlogError, PartitionNotFound, TopicNotFound, UnknownMember
from ..log import Log
from ..model import CommittedOffset, PartitionOffsets, TopicPartition
from .source import Source
from .status import MirroredGroup
from .target import Target
from .worker import TRANSIENT, PartitionCopy

logger = logging.getLogger(__name__)

MIRRORS: Final = "mirror"
"""How the names of groups begin that mirrors keep for themselves, by default."""
_COMMIT_AGAIN_S: Final = 3600.0
_MOST_AT_A_TIME_S: Final = 0.5  # the mirror has other things to do each second
_IN_USE: Final = "has members in the target: left alone until they have left"


class GroupSync:
    """Carries groups. For one thread.

    Args:
        target: where translations come from. log: the same, whose groups are changed.
        groups: matches the whole names of the groups to carry.
        prefix: of the names of groups that this mirror keeps for itself.
        interval_s: the time between two rounds.
    """

    def __init__(
        self, target: Target, log: Log, groups: re.Pattern[str], prefix: str, interval_s: float
    ) -> None:
        self.status: tuple[MirroredGroup, ...] = ()
        self._target = target
        self._log = log
        self._groups = groups
        self._prefix = prefix
        self._interval_s = interval_s
        self._next = 0.0
        self._round: Iterator[MirroredGroup] | None = None
        self._carried: list[MirroredGroup] = []  # in this round
        self._known: dict[PartitionCopy, dict[int, int]] = {}  # translations of this round
        self._known_before: dict[PartitionCopy, dict[int, int]] = {}  # of the last one
        self._edges: dict[str, dict[int, PartitionOffsets]] = {}  # of the target's topics, in this round
        self._notes: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._all_at = time.monotonic()
        self._troubles: dict[tuple[Source, str], str] = {}

    def step(self, copies: Iterable[PartitionCopy]) -> None:
        """Go on with a round, or begin one when it is due. Raises the TRANSIENT errors."""
        if self._round is None:
            if time.monotonic() < self._next:
                return
            self._begin(copies)
        self._go_on(time.monotonic() + _MOST_AT_A_TIME_S)

    def sync(self, copies: Iterable[PartitionCopy]) -> None:
        """Carry all groups as they are now. Raises the TRANSIENT errors."""
        self._begin(copies)
        self._go_on(None)

    def _begin(self, copies: Iterable[PartitionCopy]) -> None:
        self._next = time.monotonic() + self._interval_s
        self._carried = []
        self._round = self._all(list(copies))

    def _go_on(self, until: float | None) -> None:
        """Raises the TRANSIENT errors; the round is over then."""
        assert self._round is not None
        try:
            for carried in self._round:
                self._carried.append(carried)
                if until is not None and time.monotonic() >= until:
                    return
        except TRANSIENT:
            self._round = None
            raise
        self._round = None
        self.status = tuple(self._carried)

    def _all(self, copies: list[PartitionCopy]) -> Iterator[MirroredGroup]:
        """Carries each group."""
        self._known_before, self._known = self._known, {copy: {} for copy in copies}
        self._edges = {}
        again = time.monotonic() - self._all_at >= _COMMIT_AGAIN_S
        if again:
            self._all_at = time.monotonic()
        for source in dict.fromkeys(copy.source for copy in copies):
            copied = {copy.name: copy for copy in copies if copy.source is source}
            reader = source.backend.group_reader()
            for group in reader.list_groups():
                if self._groups.fullmatch(group) and not self._is_of_a_mirror(group):
                    carried = self._carry(source, reader, group, copied, again)
                    if carried is not None:
                        yield carried

    def _is_of_a_mirror(self, group: str) -> bool:
        return group.startswith((f"{MIRRORS}-", f"{self._prefix}-"))

    def _carry(
        self,
        source: Source,
        reader: GroupReader,
        group: str,
        copied: Mapping[TopicPartition, PartitionCopy],
        again: bool,
    ) -> MirroredGroup | None:
        """Carry a group; None if it has no offsets that are to be carried. Raises the TRANSIENT errors."""
        commits: dict[PartitionCopy, CommittedOffset] = {}
        try:
            for name, commit in reader.committed_offsets(group).items():
                if name in copied and commit.offset >= 0:
                    commits[copied[name]] = commit
            if not commits:
                return None
            trouble = self._commit(source, group, self._translated(commits), again)
        except TRANSIENT:
            raise
        except EmbedlogError as error:  # of this group: it is not permitted, say
            trouble = f"not carried: {error}"
        if trouble is None:
            self._troubles.pop((source, group), None)
        elif self._troubles.get((source, group)) != trouble:
            self._troubles[source, group] = trouble
            logger.warning("%s: group %r: %s", self._log.path, group, trouble)
        behind = sum(max(0, commit.offset - copy.position) for copy, commit in commits.items())
        return MirroredGroup(source.path, group, len(commits), behind, trouble)

    def _translated(
        self, commits: Mapping[PartitionCopy, CommittedOffset]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The commits for the target, by its partitions."""
        wanted = {}
        for copy, commit in commits.items():
            name = copy.target_partition
            try:
                if name.topic not in self._edges:
                    self._edges[name.topic] = self._log.backend.offsets(name.topic)
                edge = self._edges[name.topic].get(name.partition)
                if edge is None or copy.gone:
                    continue
                offset = self._translate(copy, commit.offset)
            except (TopicNotFound, PartitionNotFound):  # the next discovery handles it
                continue
            if offset is None:  # copied by a mirror that noted nothing
                offset = edge.log_start_offset
            offset = max(edge.log_start_offset, min(offset, edge.log_end_offset))
            wanted[name] = CommittedOffset(offset, metadata=commit.metadata)
        return wanted

    def _translate(self, copy: PartitionCopy, offset: int) -> int | None:
        is_copied = offset <= copy.position  # first: what is copied meanwhile is not translated
        known = self._known_before.get(copy, {}) | self._known[copy]
        translated = known.get(offset)
        if translated is None:
            partition = copy.name.partition
            translated = self._target.translate(copy.source, copy.topic, partition, offset, known)
        if is_copied and translated is not None:
            self._known[copy][offset] = translated
        return translated

    def _commit(
        self, source: Source, group: str, wanted: Mapping[TopicPartition, CommittedOffset], again: bool
    ) -> str | None:
        """Commit what differs, unless the group is not this mirror's to change: then why."""
        coordinator = self._coordinator
        there = coordinator.committed_offsets(group, wanted)
        name_of_notes = f"{self._prefix}-{source.key}:{group}"
        notes = self._notes.get(name_of_notes)
        if notes is None:
            notes = self._notes[name_of_notes] = coordinator.committed_offsets(name_of_notes)
        others = {name for name, commit in there.items() if not _is_ours(commit, notes.get(name))}
        for name in sorted(others):
            commit = there[name]
            if commit.offset != wanted[name].offset:
                return (
                    f"its offset in {name} of the target was set by others ({commit.offset:,}; the mirror "
                    f"has {wanted[name].offset:,}): left alone until its offsets there are deleted"
                )
        changed = {
            name: commit
            for name, commit in wanted.items()
            if name not in others
            and (again or name not in there or there[name][0] != commit[0] or there[name][2] != commit[2])
        }
        if not changed:
            return None
        noted = {
            name: CommittedOffset(commit.offset, metadata=str(there[name].offset) if name in there else "")
            for name, commit in changed.items()
        }
        coordinator.commit_offsets(name_of_notes, noted)
        notes.update(noted)
        try:
            coordinator.commit_offsets(group, changed)
        except UnknownMember:
            return _IN_USE
        return None

    @property
    def _coordinator(self) -> GroupAdmin:
        coordinator = self._log.backend.coordinator
        assert coordinator is not None  # a target is open for writing
        return coordinator


def _is_ours(there: CommittedOffset, noted: CommittedOffset | None) -> bool:
    return noted is not None and str(there.offset) in (str(noted.offset), noted.metadata)
