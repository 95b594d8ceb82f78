"""What opening a log found and did, for each partition that was not closed in order: `log.recovery`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PartitionRecovery:
    """What recovery did to one partition. `cut_path` is None where nothing but zeros was cut."""

    topic: str
    partition: int
    segments_read: int = 0
    batches_read: int = 0
    bytes_read: int = 0
    log_end_offset: int = 0
    bytes_rewritten: int = 0
    bytes_cut: int = 0
    cut_reason: str = ""
    cut_path: str | None = None
    indexes_rebuilt: int = 0
    damage: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RecoveryReport:
    """What opening found: `clean` when the last writer had closed in order; else a line a partition."""

    clean: bool = True
    duration_ms: float = 0.0
    partitions: list[PartitionRecovery] = field(default_factory=list)

    @property
    def bytes_cut(self) -> int:
        return sum(partition.bytes_cut for partition in self.partitions)

    @property
    def damage(self) -> list[str]:
        """Descriptions of what is damaged; empty where nothing is."""
        return [text for partition in self.partitions for text in partition.damage]
