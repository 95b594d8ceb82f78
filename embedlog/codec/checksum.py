"""The two checksums: CRC-32C over record batches, CRC-32 over the older messages.

`crc32c` is google-crc32c's if that has its C extension, else crcmod's, which installs anywhere but may lack
its own extension and then is very slow. EMBEDLOG_CHECKSUM=crcmod forces crcmod, the oracle in tests.
`implementation` names the one in use. It is imported for the first checksum:
the compiled loops compute their own.

Both functions are thread-safe. google-crc32c takes only bytes, so other buffers are copied first.

Source: Kafka 2.7 implementation, section 5.3.1 (CRC-32C, Castagnoli) and 5.4 (CRC-32).
"""

from __future__ import annotations

import importlib
import os
import warnings
import zlib
from collections.abc import Callable
from functools import cache

FORCE_VARIABLE = "EMBEDLOG_CHECKSUM"


def crc32(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC-32 (zlib's) of `data`, continuing from `crc`."""
    return zlib.crc32(data, crc)


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing from `crc`."""
    return _extend(crc, data if type(data) is bytes else bytes(data))


def implementation() -> str:
    """What computes `crc32c`."""
    return _chosen()[1]


@cache
def _chosen() -> tuple[Callable[[int, bytes], int], str]:
    with warnings.catch_warnings():
        # Without its C extension google-crc32c warns that it is slow; we use crcmod then.
        warnings.simplefilter("ignore")
        google = None if os.environ.get(FORCE_VARIABLE) == "crcmod" else _google()
        return _crcmod() if google is None else (google, "google-crc32c")


def _extend_first(crc: int, data: bytes) -> int:
    global _extend
    _extend = _chosen()[0]
    return _extend(crc, data)


_extend: Callable[[int, bytes], int] = _extend_first


def _google() -> Callable[[int, bytes], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    extend: Callable[[int, bytes], int] = google_crc32c.extend
    return extend if google_crc32c.implementation == "c" else None


def _crcmod() -> tuple[Callable[[int, bytes], int], str]:
    import crcmod.predefined

    update: Callable[[bytes, int], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    # By name, since the package rebinds its attribute `crcmod` to itself.
    compiled = importlib.import_module("crcmod.crcmod")._usingExtension
    return lambda crc, data: update(data, crc), "crcmod (C)" if compiled else "crcmod (Python)"
