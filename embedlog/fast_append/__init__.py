"""The fast path of an append: the compiled one if the hot loops are compiled, else the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..codec import loops
from .plain import CLOSE

if TYPE_CHECKING or loops.IMPLEMENTATION != "compiled":
    from .plain import (
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
else:
    from .compiled import (
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

__all__ = [
    "CLOSE",
    "ApproximateCounter",
    "FastAppend",
    "FastPath",
    "FileFields",
    "IndexFields",
    "LogFields",
    "PartitionFields",
    "ProducerStateFields",
    "SegmentFields",
    "many_on_fast_path",
    "one_on_fast_path",
]
