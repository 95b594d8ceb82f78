"""The short way of an append that runs here: the compiled one where the hot loops are, else the plain one."""

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
    "ProducerStateFields",
    "SegmentFields",
    "many_on_fast_path",
    "one_on_fast_path",
]
