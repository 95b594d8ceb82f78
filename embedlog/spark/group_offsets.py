"""A query's offsets as those of a consumer group, for whoever watches lag by groups.

The checkpoint is where a query begins again; what stands here is for others to see. So a commit that fails is
told, and stops nothing. Brokers take the commit; a directory's writer is asked for it, and where there is
none, the log is opened for it (backends/handover.py).
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
    """Commit where a query stands. Does not raise: what goes wrong is logged."""
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
