"""The Python blocks of docs/reference/spark.md run in their order, on a log that has the topics they name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import embedlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def test_the_blocks_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with embedlog.open(data) as log:
        for topic in ("clicks", "events", "copies", "a", "b", "flights"):
            log.create_topic(topic)
        log.append_many("clicks", [b"one", b"two"])
        log.append_many("flights", [b"LH 1", b"LH 2", b"LH 3"])
    found = BLOCK.findall(PAGE)
    assert len(found) == 6
    names: dict[str, Any] = {}
    for block in found:
        # Spark's processes are elsewhere.
        here = block.replace('"./', f'"{tmp_path}/').replace('"warehouse/', f'"{tmp_path}/warehouse/')
        exec(compile(here, "docs/reference/spark.md", "exec"), names)
        if query := names.pop("query", None):
            query.processAllAvailable()  # nothing: a stream begins at the end
            with embedlog.open(data) as log:
                log.append("clicks", b"new")
            query.processAllAvailable()
            query.stop()
    parts = spark.createDataFrame([(None, "left", 0), ("k", "right", 1)], "key string, value string, n int")
    names["both"](parts, 1)
    names["both"](parts, 1)  # the second time it is there already
    assert spark.read.parquet(str(tmp_path / "tables" / "clicks")).count() == 1
    assert names["done"].records == names["flights"].count() == 3
    with embedlog.open(data, mode="r") as log:
        assert [record.key for record in log.read("events")] == [b"user-7"]
        assert [record.value for record in log.read("copies")] == [b"new"]
        assert [[r.value for r in log.read(topic)] for topic in ("a", "b")] == [[b"left"], [b"right"]]
