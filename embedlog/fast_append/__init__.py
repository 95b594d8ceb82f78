"""The fast paths of append and send: the compiled ones if the hot loops are compiled, else the plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..codec import loops
from .limits import CLOSE, RECORD_MEMORY

if TYPE_CHECKING or loops.IMPLEMENTATION != "compiled":
    from .plain import (
        AppendLock,
        ApproximateCounter,
        FastAppend,
        FastPath,
        FileFields,
        IndexFields,
        LogFields,
        PartitionFields,
        ProducerStateFields,
        SegmentFields,
        many_on_fast_path,
        one_on_fast_path,
    )
    from .plain_send import Accumulator, BatchFields, FutureFields, TopicFields, send_on_fast_path
else:
    from .compiled import (
        AppendLock,
        ApproximateCounter,
        FastAppend,
        FileFields,
        IndexFields,
        LogFields,
        PartitionFields,
        ProducerStateFields,
        SegmentFields,
    )
    from .compiled_path import FastPath, many_on_fast_path, one_on_fast_path
    from .compiled_send import Accumulator, BatchFields, FutureFields, TopicFields, send_on_fast_path

__all__ = [
    "CLOSE",
    "RECORD_MEMORY",
    "Accumulator",
    "AppendLock",
    "ApproximateCounter",
    "BatchFields",
    "FastAppend",
    "FastPath",
    "FileFields",
    "FutureFields",
    "IndexFields",
    "LogFields",
    "PartitionFields",
    "ProducerStateFields",
    "SegmentFields",
    "TopicFields",
    "many_on_fast_path",
    "one_on_fast_path",
    "send_on_fast_path",
]
