"""Mirroring: continuously copies topics of one or several logs into another log.

    source (directory, or brokers) --batches--> worker --batches--> target (directory, or brokers)

    mirror.py    discovers topics, assigns partitions to workers, reports lag
    worker.py    a thread that copies some of a source's partitions
    source.py    a source log, and the syntax of source addresses
    target.py    the target log, and where source positions are stored
    history.py   finds where a mirror and its source diverge
    notes.py    what a mirror into a directory notes there, for people
    copy_sink.py    batches of a source made batches of a target
    move.py    moves a log: check, copy, fence off the source, copy the rest, compare
    topic_maker.py, topic_settings.py    make the target's topics, with settings that keep as much
    group_sync.py    carries the committed offsets of consumer groups
    translation.py    from an offset of the source to that of the target; offset_map.py    what a mirror into
                      brokers knows of that

    importing.py         copies log files, instead of a log, into a directory; with imported_groups.py
    legacy_files.py      reads the log files of any Kafka version

Source: Kafka 0.7 design, "Mirroring": a mirror is a consumer of one or several source clusters.
"""

from .mirror import Mirror
from .status import MirroredGroup, MirroredTopic, MirrorStatus

__all__ = ["Mirror", "MirrorStatus", "MirroredGroup", "MirroredTopic"]
