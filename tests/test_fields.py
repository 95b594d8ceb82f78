"""Dataclasses with `Fields`, and a segment's times, which come from its file unless they are set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embedlog
from embedlog.config import TopicSettings
from embedlog.model import PartitionRecovery
from embedlog.segment import Segment


def test_settings_have_no_other_fields() -> None:
    settings = TopicSettings(retention_ms=5)
    assert tuple(settings.as_dict()) == TopicSettings.names()
    assert settings == TopicSettings(retention_ms=5) != TopicSettings()
    assert hash(settings) == hash(TopicSettings(retention_ms=5))


def test_a_copy_derives_its_attributes_again() -> None:
    settings = TopicSettings().replaced(compression_type="zstd", cleanup_policy="compact")
    assert settings.compresses and settings.compacts
    assert not TopicSettings().compresses
    with pytest.raises(AttributeError, match="retention_ms"):
        settings.retention_ms = 1  # type: ignore[misc]


def test_recoveries_share_no_list() -> None:
    first, second = PartitionRecovery("t", 0), PartitionRecovery("t", 0)
    first.damage.append("a hole")
    assert second.damage == []
    assert first.as_dict() == {**second.as_dict(), "damage": ["a hole"]}


def test_the_times_of_a_segment_are_its_files_until_they_are_set(tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("t")
        log.append("t", b"value")
        partition = log._writer().partition("t", 0)
        path = partition.segments()[0].path
        os.utime(path, ns=(7_000_000, 7_000_000))
        loaded = Segment(partition.files, partition.directory, 0, 1, 4096)
        assert (loaded.created_ms, loaded.modified_ms) == (7, 7)
        os.utime(path, ns=(9_000_000, 9_000_000))
        assert loaded.modified_ms == 7
        partly_set = Segment(partition.files, partition.directory, 0, 1, 4096)
        partly_set.created_ms = 3
        assert (partly_set.modified_ms, partly_set.created_ms) == (9, 3)
