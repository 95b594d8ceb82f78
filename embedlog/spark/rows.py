"""Converts records to table rows: raw values, or JSON parsed into a schema's columns.

    without a schema   key, value, headers, partition, offset, timestamp, timestampType
    with one           its columns, then _key, _headers, _partition, _offset, _timestamp
    both               event_date, which stands in the directories' names and not in the files

A value that is not a JSON object, or does not fit its columns, goes to the side table unchanged: partition,
offset, timestamp, key, value, headers, reason. A null value (a tombstone) is good: all its columns are null.

A value fits its column as in SQL (`sql/fields.py`): a number, a date or a time, or a text that spells one, if
the type holds it as it is. Spark alone would round decimals, cut the time off a date and digits off a second,
take 2026 for its first day and 20260501 for a year. It parses nested columns, and writes numbers with an
exponent anew (1e3 as 1000.0) before this module sees them. Decimals of more than 15 digits it parses, too,
with all the digits after the point that it has room for.

Dates and times are UTC in any session's time zone: two loads from two places agree on a record's date.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..errors import InvalidArgument, shown
from .manifest import DATE_NAME
from .schema import full_schema

_CORRUPT: Final = "_corrupt_record"
_RAW: Final = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType")
_BESIDE: Final = ("key", "headers", "partition", "offset", "timestamp")  # beside a schema's columns
_BAD: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
_DAY_MS: Final = 86_400_000
_DOUBLE_DIGITS: Final = 15  # that each double has
_MOST_DIGITS: Final = 38  # of a decimal
_WHOLE: Final = "-?(0|[1-9][0-9]*)"
_DATE: Final = "[0-9]+-[0-9]+-[0-9]+"
_TIME: Final = f"{_DATE}[T ][0-9:]+([.][0-9]{{0,6}}0*)?"
_ZONE: Final = "( ?[A-Za-z][A-Za-z0-9_/+:-]*| ?[+-][0-9:]+)"
_DATED: Final = DateType | TimestampType | TimestampNTZType


class Rows:
    """Converts a topic's records to rows of its table."""

    def __init__(self, ddl: str | None, date_column: str | None) -> None:
        """Needs an active session. Raises InvalidArgument."""
        self._columns = None if ddl is None else _parsed(ddl)
        self._date_column = date_column
        self.prefix = "" if ddl is None else "_"
        if date_column is not None:
            self._check_date_column(date_column)

    def schema(self) -> StructType:
        """The table's schema, with its date."""
        record = full_schema(include_headers=True)
        if self._columns is None:
            fields = [record[name] for name in _RAW]
        else:
            fields = [StructField(column.name, column.dataType) for column in self._columns.fields]
            fields += [StructField(f"_{name}", record[name].dataType) for name in _BESIDE]
        return StructType([*fields, StructField(DATE_NAME, DateType())])

    @staticmethod
    def bad_schema() -> StructType:
        """The side table's schema."""
        record = full_schema(include_headers=True)
        return StructType([*(record[name] for name in _BAD), StructField("reason", StringType())])

    def read(self, records: DataFrame) -> DataFrame:
        """The records with their parsed values, as `good`, `bad` and `is_bad` need them."""
        if self._columns is None:
            return records
        text = F.col("value").cast("string")
        fields = [
            StructField(column.name, _parsed_by_spark(column.dataType)) for column in self._columns.fields
        ]
        schema = StructType([*fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "timeZone": "UTC"}
        return records.withColumn("parsed", F.from_json(text, schema, options))

    def is_bad(self) -> Column | None:
        """A condition on what `read` returns: the row belongs in the side table. None if no row ever does."""
        if self._columns is None:
            return None
        broken = F.col("parsed").isNull() | F.col(f"parsed.{_CORRUPT}").isNotNull()
        for column in self._columns.fields:
            if not isinstance(column.dataType, StringType):
                text = F.col("parsed").getField(column.name)
                broken = broken | (text.isNotNull() & _value(text, column.dataType).isNull())
        return F.col("value").isNotNull() & (broken | ~F.is_valid_utf8(F.col("value").cast("string")))

    def good(self, read: DataFrame) -> DataFrame:
        """The table's rows."""
        is_bad = self.is_bad()
        if self._columns is None or is_bad is None:
            return read.select(*_RAW, _date_utc(F.col("timestamp")).alias(DATE_NAME))
        columns = [
            _value(F.col("parsed").getField(column.name), column.dataType).alias(column.name)
            for column in self._columns.fields
        ]
        beside = [F.col(name).alias(f"_{name}") for name in _BESIDE]
        return read.where(~is_bad).select(*columns, *beside, self._date(self._columns).alias(DATE_NAME))

    def bad(self, read: DataFrame) -> DataFrame:
        """The side table's rows, for topics with a schema."""
        is_bad = self.is_bad()
        assert is_bad is not None
        text = F.col("value").cast("string")
        reason = (
            F.when(~F.is_valid_utf8(text), "not UTF-8")
            .when(F.col("parsed").isNull(), "empty")
            .when(F.try_parse_json(text).isNull(), "not JSON")
            .otherwise("does not fit the schema")
        )
        return read.where(is_bad).select(*_BAD, reason.alias("reason"))

    def _date(self, columns: StructType) -> Column:
        if self._date_column is None:
            return _date_utc(F.col("timestamp"))
        field = columns[self._date_column]
        value = _value(F.col("parsed").getField(field.name), field.dataType)
        return _date_utc(value) if isinstance(field.dataType, TimestampType) else value.cast("date")

    def _check_date_column(self, name: str) -> None:
        assert self._columns is not None
        dated = [column.name for column in self._columns.fields if isinstance(column.dataType, _DATED)]
        if name not in dated:
            raise InvalidArgument(
                f"date_column must be a DATE or TIMESTAMP of the schema, not {shown(name)}; there "
                f"{'are ' + ', '.join(dated) if dated else 'is none'}"
            )


def _is_long(kind: DataType) -> bool:
    """Whether it is a decimal with more digits than the text of a double has."""
    return isinstance(kind, DecimalType) and kind.precision > _DOUBLE_DIGITS


def _parsed_by_spark(kind: DataType) -> DataType:
    """What Spark makes of a column's JSON: texts of numbers, which go through doubles, and of times."""
    if isinstance(kind, DecimalType) and _is_long(kind):
        return DecimalType(_MOST_DIGITS, _MOST_DIGITS - kind.precision + kind.scale)
    return StringType() if isinstance(kind, NumericType | BooleanType | _DATED) else kind


def _value(text: Column, kind: DataType) -> Column:
    """The value of what `_parsed_by_spark` is there, null if it does not fit the column's type."""
    if isinstance(kind, BooleanType):
        return F.when(text.isin("true", "false"), text == "true")
    if isinstance(kind, _DATED):
        return _moment(text, kind)
    if _is_long(kind):
        value = text.try_cast(kind)
        return F.when(value == text, value)
    if isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
        value = text.try_cast(kind)
        is_number = text.rlike(f"^{_WHOLE}([.][0-9]+)?([eE][+-]?[0-9]+)?$") & (F.abs(value) != float("inf"))
        return F.when(is_number | text.isin("NaN", "Infinity", "-Infinity"), value)
    if not isinstance(kind, NumericType):
        return F.when(~_is_infinite(text, kind), text)
    scale = kind.scale if isinstance(kind, DecimalType) else 0
    without_zeros = F.regexp_replace(text, "[.]0*$|([.][0-9]*[1-9])0+$", "$1")
    return F.when(text.rlike(f"^{_WHOLE}([.][0-9]{{0,{scale}}}0*)?$"), without_zeros.try_cast(kind))


def _moment(text: Column, kind: DataType) -> Column:
    """The date or time that a text spells, which is in UTC if it names no zone."""
    if isinstance(kind, DateType):
        return F.when(text.rlike(f"^{_DATE}$"), text.try_cast(kind))
    text = F.regexp_replace(text, f"^{_DATE}$", "$0T00:00:00")
    text = F.regexp_replace(text, f"^({_DATE}[T ][0-9]+:[0-9]+){_ZONE}?$", "$1:00$2")
    is_whole = text.rlike(f"^{_TIME}$")
    if isinstance(kind, TimestampNTZType):
        return F.when(is_whole, text.try_cast(kind))
    in_utc = F.when(is_whole, F.concat(text, F.lit("Z"))).when(text.rlike(f"^{_TIME}{_ZONE}$"), text)
    return in_utc.try_cast(kind)


def _is_infinite(column: Column, kind: DataType) -> Column:
    """Whether there is an infinite number in a nested value, as Spark reads 1e400."""
    if isinstance(kind, ArrayType):
        inner = F.exists(column, lambda item: _is_infinite(item, kind.elementType))
    elif isinstance(kind, MapType):
        inner = F.exists(F.map_values(column), lambda item: _is_infinite(item, kind.valueType))
    elif isinstance(kind, StructType):
        inner = F.lit(False)
        for field in kind.fields:
            inner = inner | _is_infinite(column.getField(field.name), field.dataType)
    elif isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
        inner = F.abs(column) == float("inf")
    else:
        return F.lit(False)
    return F.coalesce(inner, F.lit(False))


def _date_utc(moment: Column) -> Column:
    """A UTC date; to_date would use the session's time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(moment) / _DAY_MS).cast("int"))


def _parsed(ddl: str) -> StructType:
    """Raises InvalidArgument."""
    try:
        columns: Any = StructType.fromDDL(ddl)
    except ParseException as error:
        first = str(error).strip().splitlines()[0]
        raise InvalidArgument(
            f"the schema {shown(ddl)} is not like 'carrier STRING, dep_delay INT': {first}"
        ) from None
    if not isinstance(columns, StructType) or not columns.fields:
        raise InvalidArgument(
            f"the schema {shown(ddl)} has no columns, as 'carrier STRING, dep_delay INT' has"
        )
    reserved = {DATE_NAME, _CORRUPT, *(f"_{name}".lower() for name in _BESIDE)}
    seen: set[str] = set()
    for field in columns.fields:
        name = field.name.lower()
        if name in reserved:
            raise InvalidArgument(
                f"the schema's column {shown(field.name)} has the name of one of the table's own"
            )
        if name in seen:
            raise InvalidArgument(f"the schema has the column {shown(field.name)} twice")
        seen.add(name)
    return columns
