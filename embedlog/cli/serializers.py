"""`--serializer TOPIC=HOW`: what a command shows the values of a topic with."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any, Final

from ..clients.serializers import Schemas, Serializer, serializer_for
from ..errors import InvalidArgument
from .arguments import arg

_FORMS: Final = "json, utf8, msgpack, avro:SCHEMA.avsc, protobuf:MODULE:CLASS, or MODULE:NAME of your own"


SERIALIZER: Final = arg(
    "--serializer TOPIC=HOW...",
    f"show the values of a topic with {_FORMS}, an object with a method loads; may be repeated",
)
"""The option, as `args.serializer`."""


def serializers(texts: Iterable[str]) -> dict[str, Serializer[Any]]:
    """The serializer of each topic that is given. Raises InvalidArgument; what a module raises.

    Modules are looked for in the current directory first, as `embedlog work` does.
    """
    by_topic = {}
    for text in texts:
        topic, equals, serializer_text = text.partition("=")
        if not (topic and equals and serializer_text):
            raise InvalidArgument(f"--serializer {text!r}: write TOPIC=HOW, where HOW is {_FORMS}")
        serializer = _serializer(serializer_text)
        if serializer is not None:
            by_topic[topic] = serializer
    return by_topic


def _serializer(serializer_text: str) -> Serializer[Any] | None:
    name, _, rest = serializer_text.partition(":")
    if name == "avro":
        return serializer_for(None, "avro", Schemas(rest or None))
    if name == "protobuf":
        return serializer_for(_named(rest), "protobuf")
    return serializer_for(None, _named(serializer_text) if rest else serializer_text)


def _named(text: str) -> Any:
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise InvalidArgument(f"{text!r} names nothing: write module:name, such as shop.orders:Order")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidArgument(f"there is no {text}: {error}") from error
