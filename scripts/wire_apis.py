"""Writes embedlog/wire/apis and embedlog/wire/error_codes.py from the installed kio: `make wire`.

kio generates its classes from Kafka's own definitions, one per struct and version. This script merges the
versions of each struct into one declaration in the language of embedlog/wire/schema.py, and writes one module
per API. The modules are committed: kio is a dependency of the tests, never of embedlog.

To add an API, add its line to APIS and run `make wire`.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map

ROOT: Final = Path(__file__).parent.parent
TARGET: Final = ROOT / "embedlog/wire"
KIO: Final = version_of("kio")

APIS: Final = {
    "Produce": (0, 13),
    "Fetch": (0, 18),
    "ListOffsets": (0, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (0, 10),
    "OffsetFetch": (0, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "SaslHandshake": (0, 1),
    "ApiVersions": (0, 4),
    "CreateTopics": (0, 7),
    "DeleteTopics": (0, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),  # Kafka calls v6 unstable
    "OffsetForLeaderEpoch": (0, 4),
    "AddPartitionsToTxn": (0, 5),  # brokers send versions 4 and 5
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "DescribeAcls": (1, 3),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "DescribeConfigs": (0, 4),
    "AlterConfigs": (0, 2),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (0, 5),
    "SaslAuthenticate": (0, 2),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "ElectLeaders": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "OffsetDelete": (0, 0),
    "DescribeClientQuotas": (0, 1),
    "AlterClientQuotas": (0, 1),
    "DescribeUserScramCredentials": (0, 0),
    "AlterUserScramCredentials": (0, 0),
    "DescribeQuorum": (0, 2),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 1),  # v2 has a pattern, which needs a linear-time engine
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "ListConfigResources": (0, 1),
    "DescribeTopicPartitions": (0, 0),
    "ShareGroupHeartbeat": (1, 1),
    "ShareGroupDescribe": (1, 1),
    "ShareFetch": (1, 2),
    "ShareAcknowledge": (1, 2),
    "DescribeShareGroupOffsets": (0, 1),
    "AlterShareGroupOffsets": (0, 0),
    "DeleteShareGroupOffsets": (0, 0),
}
"""The first and the last version of each API that embedlog knows, in the order of the API keys."""

OVERRIDES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "Produce": {
        "ProduceRequest.transactional_id": {"since": 3, "nullable": 3},
        "PartitionProduceResponse.log_append_time_ms": {"since": 2},
        "ProduceResponse.throttle_time_ms": {"since": 1},
    },
    "Fetch": {
        "FetchRequest.max_bytes": {"since": 3},
        "FetchRequest.isolation_level": {"since": 4},
        "PartitionData.last_stable_offset": {"since": 4},
        "PartitionData.aborted_transactions": {"since": 4, "nullable": 4},
        "FetchResponse.throttle_time_ms": {"since": 1},
    },
    "ListOffsets": {
        "ListOffsetsPartition.max_num_offsets": {
            "type": "int32",
            "after": "timestamp",
            "until": 0,
            "default": 1,
        },
        "ListOffsetsRequest.replica_id": {"default": -1},  # a consumer
        "ListOffsetsPartitionResponse.old_style_offsets": {
            "type": "int64",
            "is_array": True,
            "after": "error_code",
            "until": 0,
        },
        "ListOffsetsPartitionResponse.timestamp": {"since": 1},
        "ListOffsetsPartitionResponse.offset": {"since": 1},
    },
    "OffsetCommit": {
        "OffsetCommitRequestPartition.commit_timestamp": {
            "type": "int64",
            "after": "committed_leader_epoch",
            "since": 1,
            "until": 1,
            "default": -1,
        },
        "OffsetCommitRequest.generation_id_or_member_epoch": {"since": 1},
        "OffsetCommitRequest.member_id": {"since": 1},
        "OffsetCommitRequest.retention_time_ms": {"since": 2},
    },
    "CreateTopics": {
        "CreateTopicsRequest.validate_only": {"since": 1},
        "CreatableTopicResult.error_message": {"since": 1, "nullable": 1},
        "CreateTopicsResponse.throttle_time_ms": {"since": 2},
    },
    "DeleteTopics": {
        "DeleteTopicsResponse.throttle_time_ms": {"since": 1},
    },
    "OffsetForLeaderEpoch": {
        "OffsetForLeaderPartition.current_leader_epoch": {"since": 2},
        "EpochEndOffset.leader_epoch": {"since": 1},
        "OffsetForLeaderEpochResponse.throttle_time_ms": {"since": 2},
    },
    "DescribeConfigs": {
        "DescribeConfigsRequest.include_synonyms": {"since": 1},
        "DescribeConfigsResourceResult.is_default": {"type": "bool", "after": "read_only", "until": 0},
        "DescribeConfigsResourceResult.config_source": {"since": 1},
        "DescribeConfigsResourceResult.synonyms": {"since": 1},
    },
}
"""What kio does not say, by API and field; nearly all of it is about versions that Kafka 4 has dropped.

The options replace those of the field. A field that kio does not have gives its `type` (a key of TYPES) and
the field that it comes `after`.
"""

TYPES: Final = {
    "bool": ("boolean", "bool"),
    "int8": ("int8", "int"),
    "int16": ("int16", "int"),
    "error_code": ("int16", "int"),
    "uint16": ("uint16", "int"),
    "int32": ("int32", "int"),
    "timedelta_i32": ("int32", "int"),
    "int64": ("int64", "int"),
    "timedelta_i64": ("int64", "int"),
    "datetime_i64": ("int64", "int"),
    "float64": ("float64", "float"),
    "uuid": ("uuid", "bytes"),
    "string": ("string", "str"),
    "bytes": ("byte_string", "bytes"),
    "records": ("records", "Records"),
}
"""kio's name of a primitive type: the function of schema.py that declares it, and its type in Python."""

IMPLICIT: Final = {"string": "", "bool": False}
"""Kafka's defaults where a definition has none; 0 for numbers."""

OPTIONS: Final = ("since", "until", "nullable", "tagged", "default")


class Field(NamedTuple):
    """A field as one version of a struct has it."""

    name: str
    type: str | type
    """A key of TYPES, or kio's class of a struct."""
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any
    """None for null, MISSING for Kafka's implicit default."""


class Line(NamedTuple):
    """A field as it is declared, for all versions of its struct."""

    name: str
    type: str
    """A key of TYPES, or the name of a struct."""
    is_array: bool
    options: Mapping[str, Any]

    def __str__(self) -> str:
        function, annotation = TYPES.get(self.type, ("struct", self.type))
        arguments = [f"{name}={self.options[name]!r}" for name in OPTIONS if name in self.options]
        if self.is_array:
            arguments.insert(0, function if self.type in TYPES else self.type)
            function, annotation = "array", f"list[{annotation}]"
        elif function == "struct":
            arguments.insert(0, self.type)
        if "nullable" in self.options or (function == "struct" and "tagged" in self.options):
            annotation += " | None"
        return f"{self.name}: {annotation} = {function}({', '.join(arguments)})"


Structs = dict[str, list[Line]]
"""Structs by their names; each comes after those that it consists of."""


# -- what kio says -----------------------------------------------------------------------------------------


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def messages(api: str, direction: str, first: int, last: int) -> dict[int, type]:
    """kio's classes of a request or response, by version."""
    family = f"kio.schema.{snake_case(api)}"
    return {
        version: getattr(import_module(f"{family}.v{version}.{direction.lower()}"), api + direction)
        for version in sorted(schema_name_map[snake_case(api)])
        if first <= version <= last
    }


def without_none(annotation: Any) -> tuple[Any, bool]:
    """A type without None, and whether it allowed None."""
    if NoneType not in get_args(annotation):
        return annotation, False
    (rest,) = (type_ for type_ in get_args(annotation) if type_ is not NoneType)
    return rest, True


def field_of(field: dataclasses.Field[Any]) -> Field:
    """A field in Kafka's terms, without what kio makes of times, ids and errors."""
    name, default = field.name, field.default
    inner, is_nullable = without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = without_none(get_args(inner)[0])
    its_type = field.metadata.get("kafka_type", inner)
    if its_type in ("timedelta_i32", "timedelta_i64", "datetime_i64"):
        name += "_ms"
    if its_type in ("uuid", "datetime_i64") and not is_array:  # None is all zeros, or -1
        is_nullable = False
        default = -1 if default is None and its_type == "datetime_i64" else dataclasses.MISSING
    elif isinstance(default, timedelta):
        default //= timedelta(milliseconds=1)
    elif default == () or dataclasses.is_dataclass(default):
        default = dataclasses.MISSING
    return Field(name, its_type, is_array, is_nullable, field.metadata.get("tag"), default)


# -- all versions in one -----------------------------------------------------------------------------------


def structs_of(versions: Mapping[int, type], overrides: Mapping[str, Mapping[str, Any]]) -> Structs:
    """The structs of a request or response; the message itself comes last."""
    classes: dict[str, dict[int, type]] = {}
    for version, cls in versions.items():
        collect(cls, version, classes)
    structs: Structs = {}
    declare(cls.__name__, classes, overrides, structs)
    return structs


def collect(cls: type, version: int, classes: dict[str, dict[int, type]]) -> None:
    """Add a class of kio's and the classes that it consists of."""
    classes.setdefault(cls.__name__, {})[version] = cls
    for field in map(field_of, dataclasses.fields(cls)):
        if isinstance(field.type, type):
            collect(field.type, version, classes)


def declare(
    name: str,
    classes: Mapping[str, Mapping[int, type]],
    overrides: Mapping[str, Mapping[str, Any]],
    structs: Structs,
) -> None:
    """Add a struct, after the structs that it consists of."""
    lines = []
    for field, seen in fields_of(classes[name]).items():
        newest = seen[max(seen)]
        its_type = newest.type
        if isinstance(its_type, type):
            its_type = its_type.__name__
            if its_type not in structs:
                declare(its_type, classes, overrides, structs)
        options = options_of(seen, classes[name]) | overrides.get(f"{name}.{field}", {})
        lines.append(Line(field, its_type, newest.is_array, options))
    for place, options in overrides.items():
        struct, _, field = place.partition(".")
        if struct == name and "type" in options:
            at = [line.name for line in lines].index(options["after"]) + 1
            lines.insert(at, Line(field, options["type"], options.get("is_array", False), options))
    structs[name] = lines


def fields_of(versions: Mapping[int, type]) -> dict[str, dict[int, Field]]:
    """A struct's fields in their order on the wire, each in the versions that have it."""
    fields: dict[str, dict[int, Field]] = {}
    order: list[str] = []
    for version in sorted(versions, reverse=True):
        at = 0
        for field in map(field_of, dataclasses.fields(versions[version])):
            if field.name not in fields:
                order.insert(at, field.name)
            at = order.index(field.name, at if field.tag is None else 0) + 1
            fields.setdefault(field.name, {})[version] = field
    return {name: fields[name] for name in order}


def options_of(seen: Mapping[int, Field], versions: Iterable[int]) -> dict[str, Any]:
    """What a declaration says of a field, beside its type."""
    newest = seen[max(seen)]
    options: dict[str, Any] = {}
    if min(seen) > min(versions):
        options["since"] = min(seen)
    if max(seen) < max(versions):
        options["until"] = max(seen)
    nullable = [version for version, field in seen.items() if field.is_nullable]
    if nullable:
        options["nullable"] = min(nullable) if min(nullable) > min(seen) else options.get("since", 0)
    if newest.tag is not None:
        options["tagged"] = newest.tag
    if newest.default is not dataclasses.MISSING:
        is_null_by_default = not newest.is_array and options.get("nullable") == options.get("since", 0)
        if newest.default != (None if is_null_by_default else IMPLICIT.get(newest.type, 0)):
            options["default"] = newest.default
    return options


# -- writing -----------------------------------------------------------------------------------------------


def module_of(api: str, first: int, last: int) -> str:
    """The source of one API's module."""
    requests = messages(api, "Request", first, last)
    overrides = OVERRIDES.get(api, {})
    request = structs_of(requests, overrides)
    response = structs_of(messages(api, "Response", first, last), overrides)
    shared = request.keys() & response.keys()
    if any(request[name] != response[name] for name in shared):
        request = renamed(request, {name: f"Request{name}" for name in shared})
        response = renamed(response, {name: f"Response{name}" for name in shared})
    structs = request | response
    places = {f"{name}.{line.name}" for name, lines in structs.items() for line in lines}
    assert overrides.keys() <= places, f"overrides of what {api} does not have: {overrides.keys() - places}"
    constant = snake_case(api).upper()
    body = "\n\n\n".join(declaration(name, lines, api, constant) for name, lines in structs.items())
    key = next(iter(requests.values())).__api_key__
    flexible = next((version for version, cls in requests.items() if cls.__flexible__), None)
    arguments = f'"{api}", key={key}, max_version={last}, flexible_since={flexible}'
    if first:
        arguments += f", min_version={first}"
    functions = {function for function, _ in TYPES.values()}
    return f"""{notice(f"{api}, v{first} to v{last}.")}
from typing import ClassVar, Final

from ..messages import Records, Request, Response
from ..schema import Api, array, message, struct, {", ".join(functions)}

{constant}: Final = Api({arguments})


{body}
"""


def notice(title: str) -> str:
    """How each module begins."""
    return f'''"""{title} Generated by `make wire` from kio {KIO}: do not edit."""

from __future__ import annotations
'''


def declaration(name: str, lines: list[Line], api: str, constant: str) -> str:
    """The class of one struct."""
    base = {f"{api}Request": "(Request)", f"{api}Response": "(Response)"}.get(name, "")
    its_api = [f"    api: ClassVar[Api] = {constant}"] if base else []
    return "\n".join(["@message", f"class {name}{base}:", *its_api, *(f"    {line}" for line in lines)])


def renamed(structs: Structs, names: Mapping[str, str]) -> Structs:
    """The same structs by other names."""
    return {
        names.get(name, name): [line._replace(type=names.get(line.type, line.type)) for line in lines]
        for name, lines in structs.items()
    }


def index_of() -> str:
    """The source of the package's __init__."""
    imports = "\n".join(f"from .{snake_case(api)} import {api}Request, {api}Response" for api in sorted(APIS))
    exchanges = "\n".join(f"    Exchange({api}Request.api, {api}Request, {api}Response)," for api in APIS)
    return f"""{notice("All APIs by their keys.")}
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ..messages import Exchange
{imports}

_ALL: Final = (
{exchanges}
)

APIS: Final[Mapping[int, Exchange]] = MappingProxyType({{exchange.api.key: exchange for exchange in _ALL}})
"""


def error_codes() -> str:
    """The source of error_codes.py."""
    codes = "\n".join(f"    {code.name.upper()} = {int(code)}" for code in ErrorCode)
    retriable = "\n".join(f"        ErrorCode.{code.name.upper()}," for code in ErrorCode if code.retriable)
    return f'''{notice("Kafka's error codes.")}
from enum import IntEnum
from typing import Final


class ErrorCode(IntEnum):
    """The error of a response; 0 is none."""

{codes}

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later or on another broker."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset(
    {{
{retriable}
    }}
)
'''


def write(target: Path) -> None:
    """Write error_codes.py and the package apis, in place of those that are there."""
    package = target / "apis"
    package.mkdir(parents=True, exist_ok=True)
    for path in package.glob("*.py"):
        path.unlink()
    written = {target / "error_codes.py": error_codes(), package / "__init__.py": index_of()}
    for api, (first, last) in APIS.items():
        written[package / f"{snake_case(api)}.py"] = module_of(api, first, last)
    for path, source in written.items():
        path.write_text(source)
    for command in ("check --fix --select F401", "check --fix --select I", "format"):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command.split(),
            "--quiet",
            "--config",
            str(ROOT / "pyproject.toml"),
        ]
        subprocess.run([*ruff, *map(str, written)], check=True)


if __name__ == "__main__":
    write(TARGET)
