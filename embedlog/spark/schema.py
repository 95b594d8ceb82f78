"""The columns of Spark's Kafka source, and a user's own schema as a choice of them.

    key, value    binary                    offset         bigint
    topic         string                    timestamp      timestamp (microseconds; the log has milliseconds)
    partition     int                       timestampType  int (0: the producer's time, 1: the log's)
    headers       array<struct<key: string, value: binary>>, where includeHeaders is true

Spark does not tell a source which columns a query needs. A user does, with `.schema("value binary")`: only
these are decoded.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..errors import InvalidArgument, shown

if TYPE_CHECKING:
    import pyarrow

HEADERS: Final = "headers"
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())]),
    ),
}
_NAMES: Final = {name.lower(): name for name in _TYPES}
_FIELDS: Final = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}
"""Fields of Record that have another name than their column."""


def full_schema(include_headers: bool) -> StructType:
    """The default schema."""
    return StructType(
        [StructField(name, kind) for name, kind in _TYPES.items() if include_headers or name != HEADERS]
    )


def columns_of(schema: StructType) -> list[str]:
    """For each field of a schema, the field of Record that it shows. Raises InvalidArgument."""
    columns = []
    for field in schema.fields:
        name = _NAMES.get(field.name.lower())
        if name is None:
            near = difflib.get_close_matches(field.name, _TYPES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_TYPES)}"
            raise InvalidArgument(f"no column {shown(field.name)}: {hint}")
        type_ = _TYPES[name]
        if field.dataType.simpleString() != type_.simpleString():
            raise InvalidArgument(
                f"the column {field.name} is {type_.simpleString()}, not {field.dataType.simpleString()}: "
                "convert it in the query"
            )
        columns.append(_FIELDS.get(name, name))
    if not columns:
        raise InvalidArgument(f"a schema must have columns: {', '.join(_TYPES)}")
    if len(set(columns)) < len(columns):
        raise InvalidArgument(f"a schema must name each column once, not {', '.join(columns)}")
    return columns


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """The Arrow schema that Spark expects of record batches."""
    import pyarrow as pa

    kinds: dict[str, Any] = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp_ms": pa.timestamp("us", tz="UTC"),
        "timestamp_type": pa.int32(),
    }
    fields = []
    for field, name in zip(schema.fields, columns_of(schema), strict=True):
        kind = _headers(field.dataType) if name == HEADERS else kinds[name]
        fields.append(pa.field(field.name, kind, nullable=field.nullable))
    return pa.schema(fields)


def _headers(kind: DataType) -> Any:
    import pyarrow as pa

    assert isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType)
    pair = [
        pa.field(part.name, pa.string() if name == "key" else pa.binary(), nullable=part.nullable)
        for part, name in zip(kind.elementType.fields, ("key", "value"), strict=True)
    ]
    return pa.list_(pa.field("element", pa.struct(pair), nullable=kind.containsNull))
