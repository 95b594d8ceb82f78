"""How many partitions a topic has, for a client that is about to use one of them.

A client of brokers knows a topic as it was up to metadata_max_age_ms ago. Since then it may have got
partitions, or been deleted and made again with more. So a partition that it does not know is looked up once
more before it is refused.
"""

from __future__ import annotations

from ..backends.port import Appends
from ..errors import PartitionNotFound
from ..validation import check_partition


def partition_count(backend: Appends, topic: str, partition: object) -> int:
    """The topic's partition count; `partition` is one of them.

    Raises InvalidType unless it is an int, PartitionNotFound if the topic has no such partition now, and as
    `Backend.describe_topic`.
    """
    count = backend.describe_topic(topic).partitions
    try:
        check_partition(topic, partition, count)
    except PartitionNotFound:
        backend.forget_metadata(topic)
        count = backend.describe_topic(topic).partitions
        check_partition(topic, partition, count)
    return count
