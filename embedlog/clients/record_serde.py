"""Encodes the value and the key of a record, and decodes them, with errors that locate themselves.

No I/O: clients call these functions with what they write or have read (decoding.py for consumers).

Invariants: None is encoded as null and null is decoded as None, without the serializer; all that a serializer
raises becomes a SerializationError or DeserializationError, except MemoryError, which says nothing about the
record; decoding the same record again gives the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, Self, TypeAlias, cast

from ..errors import (
    DeserializationError,
    InvalidArgument,
    InvalidType,
    SerializationError,
    shown,
)
from ..model import K, Record, V, of_one_or_two
from ..runtime.locks import calls_out
from .record_input import RecordInput, check_iterable
from .serializers import Serializer, name_of

OnDecodeError: TypeAlias = Literal["raise", "skip"] | Callable[[DeserializationError], object]
"""What to do with a record that does not decode: raise the error, skip the record, or call a function with
the error and then skip the record."""

_REASON_CHARACTERS = 300
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_new = tuple.__new__

_logger = logging.getLogger(__name__)


@of_one_or_two
class RecordSerde(Generic[V, K]):
    """The serializers of a topic's values and keys; None for bytes as they are. Threads may share it."""

    __slots__ = ("_key", "_on_decode_error", "_value")

    def __init__(
        self,
        value: Serializer[V] | None = None,
        key: Serializer[K] | None = None,
        on_decode_error: OnDecodeError = "raise",
    ) -> None:
        if on_decode_error not in ("raise", "skip") and not callable(on_decode_error):
            raise InvalidArgument(
                f"on_decode_error must be 'raise', 'skip' or a function, not {shown(on_decode_error)}"
            )
        code = getattr(on_decode_error, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:
            raise InvalidType("on_decode_error must not be a coroutine function: nothing awaits it")
        self._value = value
        self._key = key
        self._on_decode_error = on_decode_error

    def __repr__(self) -> str:
        value, key = (
            "bytes" if serializer is None else name_of(serializer) for serializer in (self._value, self._key)
        )
        return f"values {value}, keys {key}"

    @property
    def value_encoder(self) -> Callable[[Any], Any] | None:
        """Encodes values; None for bytes as they are."""
        return None if self._value is None else self.encode_value

    @property
    def key_encoder(self) -> Callable[[Any], Any] | None:
        """Encodes keys; None for bytes as they are."""
        return None if self._key is None else self.encode_key

    def encode_value(self, value: V | None) -> bytes | None:
        """The bytes of a value. Raises SerializationError."""
        if value is None or self._value is None:
            return cast("bytes | None", value)
        return _encoded(self._value, "value", value)

    def encode_key(self, key: K | None) -> bytes | None:
        """The bytes of a key. Raises SerializationError."""
        if key is None or self._key is None:
            return cast("bytes | None", key)
        return _encoded(self._key, "key", key)

    @calls_out
    def encode_many(
        self, records: Iterable[V | tuple[K | None, V | None] | Record[V, K] | None]
    ) -> list[RecordInput]:
        """The records of append_many, encoded. A plain tuple of two is (key, value).

        Raises SerializationError or InvalidType for the first that is invalid, with its index.
        """
        check_iterable(records)
        encoded: list[RecordInput] = []
        for number, record in enumerate(records):
            try:
                encoded.append(self._encode_one(record))
            except SerializationError as error:
                raise SerializationError(f"record {number:,}: {error}") from error.__cause__
        return encoded

    @calls_out
    def decode(self, record: Record) -> Record[V, K]:
        """The record with its value and key decoded. Raises DeserializationError."""
        if self._value is None and self._key is None:
            return cast("Record[V, K]", record)
        fields: tuple[Any, ...] = record
        topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers = fields
        serializer: Serializer[Any] | None = self._value
        part = "value"
        try:
            if serializer is not None and value is not None:
                value = serializer.loads(value)
            serializer, part = self._key, "key"
            if serializer is not None and key is not None:
                key = serializer.loads(key)
        except MemoryError:
            raise
        except Exception as error:
            raise DeserializationError(
                _reason(error), record=record, part=part, serializer=name_of(serializer)
            ) from error
        fields = (topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers)
        return _new(Record, fields)

    @calls_out
    def pass_over(self, error: DeserializationError) -> None:
        """Do what on_decode_error says. Raises the error if it is to be raised, and what a function raises;
        else the record is dealt with."""
        if callable(self._on_decode_error):
            self._on_decode_error(error)
        elif self._on_decode_error == "raise":
            raise error
        else:
            _logger.warning("%s; skipped", error)

    def decode_or_pass_over(self, record: Record) -> Record[V, K] | None:
        """As `decode`; None for a record that was passed over."""
        try:
            return self.decode(record)
        except DeserializationError as error:
            self.pass_over(error)
            return None

    def decode_all(self, records: Iterator[Record]) -> Iterator[Record[V, K]]:
        """The records decoded, without those that were passed over. After a DeserializationError the iterator
        continues with the next record, after any other error with the same one."""
        return _Decoded(self, records)

    def _encode_one(self, record: Any) -> RecordInput:
        if isinstance(record, Record):
            return record._replace(key=self.encode_key(record.key), value=self.encode_value(record.value))
        if type(record) is tuple and len(record) == 2:
            return self.encode_key(record[0]), self.encode_value(record[1])
        return self.encode_value(record)


class _Decoded(Generic[V, K]):
    """Decodes records as they are taken. A generator would end with the first error."""

    __slots__ = ("_record", "_records", "_serde")

    def __init__(self, serde: RecordSerde[V, K], records: Iterator[Record]) -> None:
        self._serde = serde
        self._records = records
        self._record: Record | None = None  # taken, and not handed out or passed over yet

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record[V, K]:
        while True:
            if self._record is None:
                self._record = next(self._records)
            try:
                decoded = self._serde.decode_or_pass_over(self._record)
            except DeserializationError:
                self._record = None
                raise
            self._record = None
            if decoded is not None:
                return decoded


@calls_out
def _encoded(serializer: Serializer[Any], part: str, content: object) -> bytes:
    try:
        encoded: object = serializer.dumps(content)
    except MemoryError:
        raise
    except Exception as error:
        raise SerializationError(
            f"the {part} cannot be encoded by {name_of(serializer)}: {_reason(error)}: {shown(content)}"
        ) from error
    if not isinstance(encoded, bytes | bytearray | memoryview):
        raise SerializationError(
            f"the {part} cannot be encoded: {name_of(serializer)}.dumps returned {type(encoded).__name__}, "
            f"not bytes, for {shown(content)}"
        )
    return bytes(encoded)


def _reason(error: Exception) -> str:
    """What an error says, in one line. Libraries show whole values in theirs."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _REASON_CHARACTERS else f"{text[:_REASON_CHARACTERS]}..."
