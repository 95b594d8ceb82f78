"""Serializers: values and keys to bytes and back, by the libraries of these names.

    name       library            values                                             bytes
    bytes      -                  bytes                                              themselves
    utf8       -                  str                                                UTF-8
    json       json               dict, list, str, int, float, bool                  JSON
    msgspec    msgspec            Struct, dataclass, TypedDict, list[Order], ...     JSON
    msgpack    msgspec            the same                                           MessagePack
    pydantic   pydantic           BaseModel, and any type of a TypeAdapter           JSON
    avro       fastavro           what fastavro makes of a schema: dict, ...         Avro's binary encoding
    protobuf   protobuf           a generated Message class                          protobuf's encoding

A library is imported when a serializer of its name is made; each is an extra of embedlog. Neither a schema's
id nor a header is written: the bytes are what the library makes, as other programs read and write them.

Invariants: `dumps` refuses a value of another type or schema than the topic's, so that a topic takes only
what it gives back; `loads` returns a value of the topic's type or raises; serializers have no state, so
threads may share them. Nothing here runs code from the bytes (no pickle).

Source of the idea: Kafka's Serializer and Deserializer; Kafka Streams' Serdes.
"""

from __future__ import annotations

import importlib
import io
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Protocol, Union, get_args, get_origin, is_typeddict

from ..errors import EmbedlogError, InvalidArgument, InvalidType, shown
from ..model import V

_JSON_TYPES: Final = (dict, list, int, float, bool)


class Serializer(Protocol[V]):
    """Turns values into bytes and back. `Log.topic` takes any object with these two methods.

    The methods may raise any exception. Threads share a serializer. If it has an attribute `name`, messages
    use that name. None is not passed to it: None is a null value, which has no bytes.
    """

    def dumps(self, value: V, /) -> bytes:
        """Return the bytes of a value."""
        ...

    def loads(self, data: bytes, /) -> V:
        """Return the value of bytes that `dumps` returned."""
        ...


class Functions:
    """A serializer of two functions. `takes` and `gives` are the classes of the values; () if the functions
    see to it themselves, or if any will do. A value of another class raises InvalidType."""

    __slots__ = ("dumps", "loads", "name")

    def __init__(
        self,
        name: str,
        dumps: Callable[[Any], bytes],
        loads: Callable[[bytes], Any],
        *,
        takes: tuple[type, ...] = (),
        gives: tuple[type, ...] = (),
    ) -> None:
        self.name = name
        self.dumps = partial(_dumped, dumps, takes) if takes else dumps
        self.loads = partial(_loaded, loads, gives) if gives else loads


def _dumped(dumps: Callable[[Any], bytes], takes: tuple[type, ...], value: object) -> bytes:
    _check_class(value, takes)
    return dumps(value)


def _loaded(loads: Callable[[bytes], Any], gives: tuple[type, ...], data: bytes) -> Any:
    value = loads(data)
    _check_class(value, gives)
    return value


def _check_class(value: object, classes: tuple[type, ...]) -> None:
    if not isinstance(value, classes):
        expected = " or ".join(kind.__name__ for kind in classes)
        raise InvalidType(f"expected {expected}, not {type(value).__name__}")


class Schemas(NamedTuple):
    """The schemas of Avro: each a dict, a list, or the path of an .avsc file.

    written: the schema that the bytes have.
    read: the one that values get when they are read; None for the same.
    """

    written: object = None
    read: object = None


_NO_SCHEMAS: Final = Schemas()


def serializer_for(
    value_type: Any, serializer: object, schemas: Schemas = _NO_SCHEMAS
) -> Serializer[Any] | None:
    """The serializer that a caller asks for; None for bytes as they are.

    Args:
        value_type: the type of the values; None for any that the serializer makes.
        serializer: its name, a Serializer, or None to choose by the type.

    Raises InvalidArgument, InvalidType; EmbedlogError if the library is not installed.
    """
    if isinstance(value_type, str) or (serializer is None and _is_serializer(value_type)):
        raise InvalidType(f"{shown(value_type)} is not a type of values: give it as serializer=")
    if serializer is not None and not isinstance(serializer, str):
        if not _is_serializer(serializer):
            raise InvalidType(
                "serializer must be a name or an object with the methods dumps and loads, "
                f"not {type(serializer).__name__} ({shown(serializer)})"
            )
        _check_no_schemas(schemas, "a serializer of your own")
        return serializer  # type: ignore[return-value]
    name = _name_by_type(value_type) if serializer is None else serializer
    if name not in _MAKERS:
        raise InvalidArgument(f"serializer must be one of {', '.join(_MAKERS)}, not {shown(name)}")
    if name != "avro":
        _check_no_schemas(schemas, repr(name))
    elif schemas.written is None:
        raise InvalidArgument("serializer='avro' needs schema=, a dict or the path of an .avsc file")
    return _MAKERS[name](value_type, schemas)


def _check_no_schemas(schemas: Schemas, instead: str) -> None:
    for name, schema in zip(("schema", "reader_schema"), schemas, strict=True):
        if schema is not None:
            raise InvalidArgument(f"{name} belongs to serializer='avro', not to {instead}")


def name_of(serializer: object) -> str:
    """The serializer's name in messages."""
    name = getattr(serializer, "name", None)
    return name if isinstance(name, str) else type(serializer).__name__


def _is_serializer(candidate: object) -> bool:
    methods = (getattr(candidate, name, None) for name in ("dumps", "loads"))
    return not isinstance(candidate, type) and all(map(callable, methods))


def _name_by_type(value_type: Any) -> str:
    if value_type is None or value_type is bytes:
        return "bytes"
    if value_type is str:
        return "utf8"
    if value_type in _JSON_TYPES:
        return "json"
    if hasattr(value_type, "DESCRIPTOR") and hasattr(value_type, "FromString"):
        return "protobuf"
    if hasattr(value_type, "__pydantic_validator__"):
        return "pydantic"
    return "msgspec"


def _classes_of(value_type: Any) -> tuple[type, ...]:
    """Classes of which every value of a type is an instance; with object if that cannot be said."""
    origin = get_origin(value_type)
    if origin is Annotated:
        return _classes_of(get_args(value_type)[0])
    if origin in (Union, UnionType):
        return tuple(chain.from_iterable(map(_classes_of, get_args(value_type))))
    if value_type is None or value_type is Any:
        return (object,)
    if is_typeddict(value_type):
        return (dict,)
    plain_class = value_type if origin is None else origin
    try:
        isinstance(None, plain_class)
    except TypeError:  # not a class, or a protocol that cannot be checked
        return (object,)
    return (plain_class,) if isinstance(plain_class, type) else (object,)


def _plain_classes(value_type: Any, allowed: tuple[type, ...], name: str) -> tuple[type, ...]:
    """The classes to check values with, for libraries that know no other types than Python's own."""
    if value_type is None:
        return ()
    if value_type not in allowed:
        raise InvalidArgument(
            f"serializer={name!r} makes {', '.join(kind.__name__ for kind in allowed)}, not "
            f"{shown(value_type)}: leave out the serializer, and the type chooses one"
        )
    return (float, int) if value_type is float else (value_type,)  # a whole float may be written as an int


def _library(module: str, extra: str) -> Any:
    """A library of an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EmbedlogError(
            f"serializer={extra!r} needs {module}: pip install 'embedlog[{extra}]' ({error})"
        ) from error


# -- by name -------------------------------------------------------------------------------------------------


def _bytes(value_type: Any, _: Schemas) -> None:
    _plain_classes(value_type, (bytes,), "bytes")


def _utf8(value_type: Any, _: Schemas) -> Functions:
    _plain_classes(value_type, (str,), "utf8")
    return Functions("utf8", lambda value: value.encode(), lambda data: data.decode(), takes=(str,))


def _json(value_type: Any, _: Schemas) -> Functions:
    classes = _plain_classes(value_type, (*_JSON_TYPES, str), "json")
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
    decode = json.JSONDecoder(parse_constant=_not_json).decode
    return Functions(
        "json",
        lambda value: encode(value).encode(),
        lambda data: decode(data.decode()),
        takes=classes,
        gives=classes,
    )


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _msgspec(value_type: Any, _: Schemas, name: str = "msgspec") -> Functions:
    msgspec = _library("msgspec", "msgspec")
    codec = msgspec.msgpack if name == "msgpack" else msgspec.json
    try:
        decoder = codec.Decoder(Any if value_type is None else value_type)
        info = _library("msgspec.inspect", "msgspec").type_info(decoder.type)
    except Exception as error:
        raise InvalidType(f"msgspec does not know the type {shown(value_type)}: {error}") from error
    if type(info).__name__ == "CustomType":
        raise InvalidType(
            f"msgspec does not know the type {shown(value_type)}: make it a dataclass or a msgspec.Struct, "
            "or give serializer=, an object with the methods dumps and loads"
        )
    return Functions(name, codec.Encoder().encode, decoder.decode, takes=_classes_of(value_type))


def _pydantic(value_type: Any, _: Schemas) -> Functions:
    pydantic = _library("pydantic", "pydantic")
    try:
        adapter = pydantic.TypeAdapter(Any if value_type is None else value_type)
    except Exception as error:
        raise InvalidType(f"pydantic does not know the type {shown(value_type)}: {error}") from error

    def dumps(value: Any) -> bytes:
        # by_alias, round_trip: what is written must pass the validation when it is read
        written: bytes = adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error")
        return written

    return Functions("pydantic", dumps, adapter.validate_json, takes=_classes_of(value_type))


def _avro(value_type: Any, schemas: Schemas) -> Functions:
    fastavro = _library("fastavro", "avro")
    classes = _plain_classes(value_type, (dict, list, str, bytes, int, float, bool), "avro")
    parsed = _avro_schema("schema", schemas.written)
    reader_schema = None if schemas.read is None else _avro_schema("reader_schema", schemas.read)

    def dumps(value: Any) -> bytes:
        if reader_schema is not None:
            raise InvalidType("with reader_schema= a topic is only read: append without it")
        out = io.BytesIO()
        # Without it a field that the schema lacks would be dropped silently.
        fastavro.schemaless_writer(out, parsed, value, strict_allow_default=True)
        return out.getvalue()

    def loads(data: bytes) -> Any:
        source = io.BytesIO(data)
        value = fastavro.schemaless_reader(source, parsed, reader_schema)
        if unread := len(data) - source.tell():
            raise ValueError(f"{unread:,} bytes are left after the value: it has another schema")
        return value

    return Functions("avro", dumps, loads, takes=classes, gives=classes)


def _avro_schema(name: str, schema: object) -> object:
    library = _library("fastavro.schema", "avro")
    if not isinstance(schema, Mapping | list | str | os.PathLike):
        raise InvalidType(
            f"{name} must be a dict, a list, or the path of an .avsc file, not {type(schema).__name__}"
        )
    try:
        if isinstance(schema, str | os.PathLike):
            return library.load_schema(os.fspath(schema))
        return library.parse_schema(schema)
    except Exception as error:
        raise InvalidArgument(f"{name} {shown(schema)} is not an Avro schema: {error}") from error


def _protobuf(value_type: Any, _: Schemas) -> Functions:
    message = _library("google.protobuf.message", "protobuf").Message
    if not (isinstance(value_type, type) and issubclass(value_type, message)):
        raise InvalidArgument(
            "serializer='protobuf' needs a generated Message class as the type of the values, not "
            f"{shown(value_type)}"
        )
    generated: Any = value_type
    return Functions("protobuf", generated.SerializeToString, generated.FromString, takes=(generated,))


_MAKERS: Final[Mapping[str, Callable[[Any, Schemas], Functions | None]]] = {
    "bytes": _bytes,
    "utf8": _utf8,
    "json": _json,
    "msgspec": _msgspec,
    "msgpack": partial(_msgspec, name="msgpack"),
    "pydantic": _pydantic,
    "avro": _avro,
    "protobuf": _protobuf,
}
