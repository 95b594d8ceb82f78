"""The consumer group for tasks: `embedlog.ConsumerGroup`, awaited."""

from __future__ import annotations

from ..clients.group_admin import ConsumerGroup as SyncConsumerGroup
from ..runtime.closing import OfOneProcess
from .threads import Threads, in_thread


class ConsumerGroup(OfOneProcess):
    """Describes, resets and deletes a consumer group; see `Log.group` and `embedlog.ConsumerGroup`."""

    describe = in_thread(SyncConsumerGroup.describe)
    members = in_thread(SyncConsumerGroup.members)
    offsets = in_thread(SyncConsumerGroup.offsets)
    oldest_unread_ms = in_thread(SyncConsumerGroup.oldest_unread_ms)
    reset = in_thread(SyncConsumerGroup.reset)
    delete = in_thread(SyncConsumerGroup.delete)
    delete_offsets = in_thread(SyncConsumerGroup.delete_offsets)

    def __init__(self, group: SyncConsumerGroup, threads: Threads) -> None:
        self._group = group
        self.threads = threads

    def __repr__(self) -> str:
        return f"<embedlog.aio.ConsumerGroup {self.name!r}>"

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._group.name

    def opened(self) -> SyncConsumerGroup:
        """The `embedlog.ConsumerGroup` beneath this one."""
        return self._group
