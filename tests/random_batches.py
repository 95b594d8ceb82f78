"""Random batches of all kinds, as a segment may hold them."""

from __future__ import annotations

import random
from typing import Any

from encoding import encode_values

from embedlog.codec import encode_control_batch


def random_batches(chosen: random.Random) -> tuple[bytearray, int]:
    """A few batches of all kinds, offsets from 100, epochs from 2; and how many bytes may follow."""
    out = bytearray()
    offset, epoch = 100, 2
    for _ in range(chosen.randrange(1, 9)):
        values = [chosen.randbytes(chosen.randrange(40)) for _ in range(chosen.randrange(1, 5))]
        place: dict[str, Any] = {"base_offset": offset, "leader_epoch": epoch}
        kind = chosen.randrange(10)
        if kind == 0:
            place["compression"] = 1
        elif kind == 1:
            place |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        elif kind == 2:
            place |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        elif kind == 3:
            out += encode_control_batch(commit=True, producer_id=7, producer_epoch=0, timestamp_ms=5, **place)
            offset += 1
            continue
        elif kind == 4:
            place["timestamp_type"] = 1
        out += encode_values(values, chosen.randrange(1000), **place)
        offset += len(values) + (chosen.randrange(3) if chosen.random() < 0.1 else 0)
        epoch += chosen.random() < 0.1
    return out, offset
