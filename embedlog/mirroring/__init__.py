"""Mirroring: topics of one or several logs are copied into another one, as they grow.

    source (directory, or brokers) --batches--> worker --batches--> target (directory, or brokers)

    mirror.py    a mirror: which topics, into what, until when; how far behind it is
    worker.py    a thread that copies some of a source's partitions
    source.py    where records come from, and how such a place is written
    target.py    where they go, and where it is kept how far they have come
    history.py   whether a source still has what came from it
    copy_sink.py    batches of a source made batches of a target; no I/O

Source: Kafka 0.7 design, "Mirroring": a mirror is a consumer of one or several source clusters.
"""

from .mirror import Mirror, MirroredTopic, MirrorStatus

__all__ = ["Mirror", "MirrorStatus", "MirroredTopic"]
