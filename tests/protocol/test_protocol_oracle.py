"""Our messages against kio's, which are generated from Kafka's definitions: same bytes, same values."""

from __future__ import annotations

import datetime
import io
import re
import uuid
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import kio.schema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta, i64Timedelta
from protocol_messages import EVERY_CLASS, EVERY_MESSAGE, messages, name_of

from embedlog.wire.apis import APIS
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.messages import Message
from embedlog.wire.schema import wire_of


def module_of(cls: type[Message], version: int) -> str:
    """kio's module of this message."""
    family = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.api.name).lower()
    direction = "request" if cls.__name__.endswith("Request") else "response"
    return f"kio.schema.{family}.v{version}.{direction}"


def theirs(cls: type[Message], version: int) -> Any:
    """kio's class."""
    return getattr(import_module(module_of(cls, version)), cls.__name__)


def known_to_kio(cls: type[Message], version: int) -> bool:
    """Whether it has this version; Kafka 4 has dropped the oldest."""
    _, _, *family, direction = module_of(cls, version).split(".")
    return Path(kio.schema.__path__[0], *family, f"{direction}.py").exists()


def own_name(name: str, their_type: str) -> str:
    """kio takes times for what they are, and says so by leaving out the unit."""
    return f"{name}_ms" if their_type.startswith(("timedelta", "datetime")) else name


def to_kio(message: Any, their_class: Any, version: int) -> Any:
    """The same message as an instance of kio's class; the fields of this version are there, and no others."""
    wires = dict(wire_of(type(message)))
    values = {}
    named = set()
    for field in fields(their_class):
        kafka_type = field.metadata.get("kafka_type", "")
        name = own_name(field.name, kafka_type)
        named.add(name)
        value = getattr(message, name)
        if value is None and wires[name].tagged is not None and wires[name].kind == "struct":
            assume(field.default is not MISSING)  # kio cannot leave it out
            continue
        values[field.name] = converted(value, field.type, kafka_type, version)
    assert named == {name for name, wire in wires.items() if wire.is_in(version)}
    return their_class(**values)


def converted(value: Any, annotation: Any, kafka_type: str, version: int) -> Any:
    """A value as kio has it."""
    if value is None:
        return None
    if type(None) in get_args(annotation):
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    if isinstance(value, list):
        return tuple(converted(each, get_args(annotation)[0], kafka_type, version) for each in value)
    if kafka_type == "error_code":
        return KioErrorCode(value)
    if kafka_type == "uuid":
        return None if value == bytes(16) else uuid.UUID(bytes=value)
    if kafka_type == "timedelta_i32":
        return i32Timedelta.parse(datetime.timedelta(milliseconds=value))
    if kafka_type == "timedelta_i64":
        return i64Timedelta.parse(datetime.timedelta(milliseconds=value))
    if kafka_type == "datetime_i64":
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return None if value == -1 else epoch + datetime.timedelta(milliseconds=value)
    if hasattr(type(value), "_wire"):
        return to_kio(value, annotation, version)
    return value


def check_against_kio(message: Message, version: int) -> None:
    """kio writes the same bytes, and both read the same values from them."""
    cls = type(message)
    their_message = to_kio(message, theirs(cls, version), version)
    buffer = io.BytesIO()
    entity_writer(type(their_message))(buffer, their_message)
    encoded = buffer.getvalue()

    assert message.encode(version) == encoded
    assert b"".join(map(bytes, message.encode_chunks(version))) == encoded
    assert cls.decode(encoded, version) == message
    assert cls.decode(memoryview(b"head" + encoded + b"tail"), version, 4) == message
    decoded, size = entity_reader(type(their_message))(encoded, 0)
    assert (decoded, size) == (their_message, len(encoded))


ORACLE = [case for case in EVERY_MESSAGE if known_to_kio(*case)]


@pytest.mark.parametrize("case", ORACLE, ids=name_of)
@settings(max_examples=8, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_the_same_bytes_and_values_as_kio(case: tuple[type[Message], int], data: st.DataObject) -> None:
    check_against_kio(data.draw(messages(*case)), case[1])


@pytest.mark.parametrize("cls", EVERY_CLASS, ids=lambda cls: cls.__name__)
def test_all_versions_of_kafka_4_are_there(cls: type[Message]) -> None:
    """And kio has no newer one, but for what scripts/wire_apis.py gives a reason to leave out."""
    newer = cls.api.max_version + 1
    assert known_to_kio(cls, cls.api.max_version)
    left_out = {"InitProducerId", "ListTransactions"}
    assert known_to_kio(cls, newer) == (cls.api.name in left_out)
    versions = [version for of, version in ORACLE if of is cls]
    assert versions == list(range(versions[0], newer))


@pytest.mark.parametrize("cls", EVERY_CLASS, ids=lambda cls: cls.__name__)
def test_api_keys_and_flexible_versions(cls: type[Message]) -> None:
    their_classes = {version: theirs(cls, version) for of, version in ORACLE if of is cls}
    assert {each.__api_key__ for each in their_classes.values()} == {cls.api.key}
    flexible = {version: each.__flexible__ for version, each in their_classes.items()}
    assert flexible == {version: cls.api.is_flexible(version) for version in their_classes}
    assert APIS[cls.api.key].api is cls.api


def test_error_codes() -> None:
    assert {code.name.lower(): int(code) for code in ErrorCode} == {
        code.name: int(code) for code in KioErrorCode
    }
    assert {int(code) for code in ErrorCode if code.retriable} == {
        int(code) for code in KioErrorCode if code.retriable
    }
