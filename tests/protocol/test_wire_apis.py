"""The script that declares Kafka's messages: its output equals the committed files, for any API."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import wire_apis
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from protocol_messages import messages
from test_protocol_oracle import check_against_kio

from embedlog.wire.apis import APIS


def sources(wire: Path) -> dict[str, str]:
    """The script's output by file name."""
    return {path.name: path.read_text() for path in [wire / "error_codes.py", *wire.glob("apis/*.py")]}


def test_the_declarations_equal_the_scripts_output(tmp_path: Path) -> None:
    wire_apis.write(tmp_path)
    assert sources(wire_apis.TARGET) == sources(tmp_path), "run `make wire`"


@cache
def declared(key: int) -> ModuleType:
    """The module that the script writes for an API, in the versions that kio has."""
    versions = schema_name_map[api_key_map[key]]
    api = load_request_schema(key, max(versions)).__name__.removesuffix("Request")
    module = ModuleType(f"embedlog.wire.apis.declared_{key}")
    module.__package__ = "embedlog.wire.apis"
    sys.modules[module.__name__] = module  # dataclass looks there
    exec(wire_apis.module_of(api, min(versions), max(versions)), vars(module))
    return module


@pytest.mark.parametrize("key", sorted(api_key_map.keys() - APIS.keys()), ids=lambda key: api_key_map[key])
@settings(max_examples=4)
@given(st.data())
def test_another_api_takes_one_line(key: int, data: st.DataObject) -> None:
    for cls in (each for each in vars(declared(key)).values() if hasattr(each, "api")):
        version = cls.api.max_version
        check_against_kio(data.draw(messages(cls, version)), version)
