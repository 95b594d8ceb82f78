"""Checksums: known values, and agreement with crcmod and google-crc32c."""

import os
import random
import subprocess
import sys

import google_crc32c
import pytest

from embedlog.codec import checksum

# RFC 3720, appendix B.4, and the CRC catalogue's check value.
KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
]
OTHER = """
import random, warnings
warnings.simplefilter("error")
from embedlog.codec import checksum
chance = random.Random(11)
print(checksum.implementation())
for size in (0, 1, 7, 8, 9, 61, 1000, 4096, 20_011):
    data = chance.randbytes(size)
    half = checksum.crc32c(data[:size // 2])
    print(checksum.crc32c(data), checksum.crc32c(memoryview(data)[size // 2:], half))
"""


@pytest.mark.parametrize(("data", "crc"), KNOWN)
def test_known_values(data: bytes, crc: int) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert checksum.crc32c(kind(data)) == crc


def test_crc32_is_zlibs() -> None:
    assert checksum.crc32(b"123456789") == 0xCBF43926
    assert checksum.crc32(b"6789", checksum.crc32(b"12345")) == 0xCBF43926


def test_incremental_equals_at_once() -> None:
    data = random.Random(3).randbytes(1000)
    for cut in (0, 1, 61, 999, 1000):
        assert checksum.crc32c(data[cut:], checksum.crc32c(data[:cut])) == checksum.crc32c(data)


def test_the_fast_one_is_used_if_installed() -> None:
    assert google_crc32c.implementation == "c"
    assert checksum.implementation() == "google-crc32c" or os.environ.get("EMBEDLOG_CHECKSUM")


def test_crcmod_agrees() -> None:
    environment = dict(os.environ, EMBEDLOG_CHECKSUM="crcmod", PYTHONPATH=os.pathsep.join(sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", OTHER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    name, *lines = ran.stdout.splitlines()
    assert name.startswith("crcmod")
    chance = random.Random(11)
    for size, line in zip((0, 1, 7, 8, 9, 61, 1000, 4096, 20_011), lines, strict=True):
        expected = google_crc32c.value(chance.randbytes(size))
        assert line == f"{expected} {expected}"
