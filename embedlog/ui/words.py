"""Settings, health and recovery in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..config import MAX_INT64, UNLIMITED, TopicSettings
from ..model import Health, RecoveryReport
from ..units import counted, duration, moment, size

_BY_RECORD_OR_SIZE: Final = frozenset({"record_timestamp", "bytes"})


def kept(settings: TopicSettings) -> str:
    """What a topic keeps: `for 7 days`, `the last record of each key`."""
    parts = ["the last record of each key"] if settings.compacts else []
    if settings.deletes:
        if settings.keeps_unfinished:
            parts.append("until each job is done")
        if settings.retention_ms != UNLIMITED:
            parts.append(f"for {duration(settings.retention_ms / 1000)}")
        if settings.retention_bytes != UNLIMITED:
            parts.append(f"up to {size(settings.retention_bytes)} a partition")
        policies = set(settings.delete_policies) - _BY_RECORD_OR_SIZE - {"finished", ""}
        if policies:
            parts.append(f"by {', '.join(sorted(policies))}")
    return ", ".join(parts) or "forever"


def setting(name: str, value: object) -> str:
    """A setting's value with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if value in (UNLIMITED, MAX_INT64):
            return "no limit"
        if name.endswith("_ms"):
            return duration(value / 1000) if value else "0 ms"
        return size(value) if name.endswith("_bytes") else f"{value:,}"
    return str(value) or "none"


def health(state: Health) -> list[str]:
    """What is wrong, each in a sentence; empty if nothing is."""
    sentences = [f"{partition} refuses appends: {why}" for partition, why in state.refusing.items()]
    sentences += state.damage
    sentences += state.failing
    if state.full:
        sentences.append(f"there is no room for appends: {state.full}")
    return sentences


def recovery(report: RecoveryReport) -> str:
    """The last recovery, in a sentence."""
    if report.clean:
        return "The last writer closed the log in order: nothing had to be recovered."
    read = sum(partition.bytes_read for partition in report.partitions)
    took = duration(report.duration_ms / 1000)
    cut_text = f"cut {size(report.bytes_cut)}" if report.bytes_cut else "cut nothing"
    return (
        f"The last writer did not close the log: opening it checked "
        f"{counted(len(report.partitions), 'partition')}, read {size(read)} in {took} and {cut_text}."
    )


def writer(holder: Mapping[str, Any], closed: bool) -> str:
    """The process that writes a directory, in a sentence. holder: what writer.json has; closed: in order."""
    if closed or not holder:
        return "No process has the log open for writing; it was closed in order."
    pid, since_ms = holder.get("pid"), holder.get("since_ms")
    process = f"{holder.get('program')!s:.80} (process {pid})"
    if isinstance(pid, int) and _runs(pid):
        since = f" since {moment(since_ms)}" if isinstance(since_ms, int) else ""
        return f"{process} has the log open for writing{since}."
    return f"{process} wrote the log and did not close it in order: the next open for writing recovers it."


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True
