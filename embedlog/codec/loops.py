"""The hot loops in use: compiled if they were built, else plain Python.

    encoding    BatchBuilder                                                   one batch, record by record
                encode_one  seal
    decoding    decode_records  decode_values  record_spans                    the records of one batch
                decode_run  values_run  record_at                              the records of a run (rules.py)
    scanning    scan_run  intact_run  compare_run  check_run  whole_batches  find_offset  bytes_near
                increasing
                ready_batch                                                    one batch as sent
                whole_records                                                  a piece of one batch
    columns     Columns                                                        records as columns

Both implementations give the same bytes and the same errors (`tests/codec` runs everything on both).
EMBEDLOG_LOOPS=compiled demands the compiled ones, EMBEDLOG_LOOPS=plain forbids them; so does
EMBEDLOG_CHECKSUM, since the compiled ones compute CRCs themselves. `IMPLEMENTATION` names the one in use.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING

from . import plain_columns, plain_decoding, plain_encoding, plain_scanning
from .checksum import FORCE_VARIABLE as CHECKSUM_VARIABLE
from .checksum import IMPLEMENTATION as PLAIN_CHECKSUM

LOOPS_VARIABLE = "EMBEDLOG_LOOPS"

logger = logging.getLogger(__name__)

_PLAIN = (plain_encoding, plain_decoding, plain_columns, plain_scanning)


def _chosen(wanted: str) -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    if wanted not in ("", "compiled", "plain"):
        raise ImportError(f"{LOOPS_VARIABLE} must be compiled or plain, not {wanted!r}")
    if wanted == "plain" or (not wanted and os.environ.get(CHECKSUM_VARIABLE)):
        return _PLAIN
    try:
        from . import compiled_columns, compiled_decoding, compiled_encoding, compiled_scanning
    except ImportError as error:
        if wanted:
            raise ImportError(
                f"{LOOPS_VARIABLE}=compiled, but embedlog was built without a compiler: install one and "
                "reinstall embedlog"
            ) from error
        logger.info("embedlog runs in plain Python: it was built without a compiler (%s)", error)
        return _PLAIN
    return compiled_encoding, compiled_decoding, compiled_columns, compiled_scanning


if TYPE_CHECKING:
    _encoding, _decoding = plain_encoding, plain_decoding
    _columns, _scanning = plain_columns, plain_scanning
else:
    _encoding, _decoding, _columns, _scanning = _chosen(os.environ.get(LOOPS_VARIABLE, ""))

IMPLEMENTATION: str = _encoding.IMPLEMENTATION
CHECKSUM_IMPLEMENTATION: str = getattr(_encoding, "CHECKSUM_IMPLEMENTATION", PLAIN_CHECKSUM)

BatchBuilder = _encoding.BatchBuilder
encode_one = _encoding.encode_one
seal = _encoding.seal

decode_records = _decoding.decode_records
decode_values = _decoding.decode_values
record_spans = _decoding.record_spans
decode_run = _decoding.decode_run
values_run = _decoding.values_run
record_at = _decoding.record_at

scan_run = _scanning.scan_run
intact_run = _scanning.intact_run
compare_run = _scanning.compare_run
check_run = _scanning.check_run
ready_batch = _scanning.ready_batch
whole_records = _scanning.whole_records
whole_batches = _scanning.whole_batches
find_offset = _scanning.find_offset
bytes_near = _scanning.bytes_near
increasing = _scanning.increasing

Columns = _columns.Columns
