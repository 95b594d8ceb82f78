"""Commits a query's offsets to a consumer group, for tools that monitor lag by group.

A query restarts from its checkpoint, never from these offsets, so a failed commit is logged and the query
continues. Brokers take the commit directly. For a directory its writer is asked to commit; without a writer
the log is opened for the commit (backends/handover.py).
"""

from __future__ import annotations

import logging
from typing import Final

from ..backends.handover import commit_offsets
from ..errors import EmbedlogError
from ..model import CommittedOffset
from .access import LogLocation, opened
from .progress import Progress

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 5.0  # for a writer that is busy; the next batch commits again


def commit_to_group(location: LogLocation, group: str, progress: Progress) -> None:
    """Commit a query's position. Logs failures instead of raising."""
    offsets = {tp: CommittedOffset(at.offset, at.leader_epoch) for tp, at in progress.positions.items()}
    try:
        if location.path is not None:
            commit_offsets(location.path, group, offsets, taken_within_s=_PATIENCE_S)
        else:
            coordinator = opened(location).backend.coordinator
            assert coordinator is not None  # brokers have one
            coordinator.commit_offsets(group, offsets)
    except (EmbedlogError, OSError) as error:
        logger.warning("the group %s does not know how far the query is: %s", group, error)
