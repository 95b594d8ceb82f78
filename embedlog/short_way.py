"""The short way of an append that runs here: the compiled one where the hot loops are, else the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .codec import loops
from .plain_short_way import CLOSE

if TYPE_CHECKING or loops.IMPLEMENTATION != "compiled":
    from .plain_short_way import (
        FileFields,
        IndexFields,
        LedgerFields,
        Lock,
        SegmentFields,
        ShortCut,
        ShortWay,
        Tally,
        many_by_short_cut,
        one_by_short_cut,
    )
else:
    from .compiled_short_way import (
        FileFields,
        IndexFields,
        LedgerFields,
        Lock,
        SegmentFields,
        ShortCut,
        ShortWay,
        Tally,
        many_by_short_cut,
        one_by_short_cut,
    )

__all__ = [
    "CLOSE",
    "FileFields",
    "IndexFields",
    "LedgerFields",
    "Lock",
    "SegmentFields",
    "ShortCut",
    "ShortWay",
    "Tally",
    "many_by_short_cut",
    "one_by_short_cut",
]
