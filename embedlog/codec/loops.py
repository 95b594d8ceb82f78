"""The hot loops in use: compiled if they were built, else plain Python.

    encoding    BatchBuilder                                                   one batch, record by record
                encode_one  seal
    decoding    decode_records  decode_values  record_spans                    the records of one batch
                decode_run  values_run  record_at                              the records of a run (rules.py)
    scanning    scan_run  intact_run  compare_run  check_run  times_run  whole_batches  find_offset
                bytes_near  increasing
                ready_batch                                                    one batch as sent
                whole_records                                                  a piece of one batch
    columns     Columns                                                        records as columns
    json        json_fields                                                    fields of JSON as columns

Both implementations give the same bytes and the same errors (`tests/codec` runs everything on both).
EMBEDLOG_LOOPS=compiled demands the compiled ones, EMBEDLOG_LOOPS=plain forbids them; so does
EMBEDLOG_CHECKSUM, since the compiled ones compute CRCs themselves. `IMPLEMENTATION` names the one in use.
"""

from __future__ import annotations

import importlib
import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING

from . import checksum

if TYPE_CHECKING:
    from .plain_columns import Columns as Columns
    from .plain_json import json_fields as json_fields

LOOPS_VARIABLE = "EMBEDLOG_LOOPS"

logger = logging.getLogger(__name__)


def _plain() -> tuple[ModuleType, ...]:
    from . import plain_decoding, plain_encoding, plain_scanning

    return plain_encoding, plain_decoding, plain_scanning, plain_scanning


def _chosen(variant: str) -> tuple[ModuleType, ...]:
    if variant not in ("", "compiled", "plain"):
        raise ImportError(f"{LOOPS_VARIABLE} must be compiled or plain, not {variant!r}")
    if variant == "plain" or (not variant and os.environ.get(checksum.FORCE_VARIABLE)):
        return _plain()
    try:
        from . import compiled_decoding, compiled_encoding, compiled_scanning
    except ImportError as error:
        if variant:
            raise ImportError(
                f"{LOOPS_VARIABLE}=compiled, but embedlog was built without a compiler: install one and "
                "reinstall embedlog"
            ) from error
        logger.info("embedlog runs in plain Python: it was built without a compiler (%s)", error)
        return _plain()
    # Look-ups need the decoder's rules, and a module of their own would make each start longer.
    return compiled_encoding, compiled_decoding, compiled_scanning, compiled_decoding


if TYPE_CHECKING:
    from . import plain_decoding as _decoding
    from . import plain_encoding as _encoding
    from . import plain_scanning as _lookup
    from . import plain_scanning as _scanning
else:
    _encoding, _decoding, _scanning, _lookup = _chosen(os.environ.get(LOOPS_VARIABLE, ""))

IMPLEMENTATION: str = _encoding.IMPLEMENTATION

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
times_run = _scanning.times_run
ready_batch = _scanning.ready_batch
whole_records = _scanning.whole_records
whole_batches = _lookup.whole_batches
find_offset = _lookup.find_offset
bytes_near = _lookup.bytes_near
increasing = _lookup.increasing


def checksum_implementation() -> str:
    """What computes the CRCs of record batches."""
    return getattr(_encoding, "CHECKSUM_IMPLEMENTATION", None) or checksum.implementation()


_LATER = {"Columns": "columns", "json_fields": "json"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Imported when first used (PEP 562): only Arrow and SQL need them.
        module = importlib.import_module(f".{IMPLEMENTATION}_{_LATER[name]}", __package__)
        value = globals()[name] = getattr(module, name)
        return value
