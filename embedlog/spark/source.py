"""The data source that Spark knows as "embedlog": for each way of using it, the reader or writer for it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ..errors import InvalidArgument
from .batch_reader import BatchReader, PushedReader, pushes_filters
from .options import read_options, write_options
from .schema import full_schema
from .stream_reader import StreamReader
from .writing import BatchWriter, stream_writer


class EmbedlogSource(DataSource):
    """format("embedlog"). Spark makes one for each query, in a process of its own, from the options."""

    @classmethod
    def name(cls) -> str:
        return "embedlog"

    def schema(self) -> StructType:
        if _of_a_table(self.options):
            return full_schema(include_headers=False)
        return full_schema(read_options(self.options, "load").include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        made = PushedReader if pushes_filters() else BatchReader
        return made(read_options(self.options, "batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options, "stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(write_options(self.options, stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(write_options(self.options, stream=True), schema, overwrite)


def _of_a_table(options: Mapping[str, str]) -> bool:
    """Are these the properties of a table, as CREATE TABLE passes them? Raises InvalidArgument for OPTIONS.

    Spark keeps them in its catalog but passes none of them to a Python source when the table is read.
    """
    names = {name.lower() for name in options}
    if "provider" not in names:
        return False
    if any(name in ("path", "location") or name.startswith("option.") for name in names):
        raise InvalidArgument(
            "Spark does not pass a table's OPTIONS and LOCATION to a Python source. Use CREATE "
            "TEMPORARY VIEW ... USING embedlog OPTIONS (path '...', subscribe '...'), or CREATE TABLE t "
            "USING embedlog without them and SELECT ... FROM t WITH (path = '...', subscribe = '...')"
        )
    return True
