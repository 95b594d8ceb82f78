"""The page on compatibility agrees with the broker and Kafka's list of APIs, and names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

from kio.schema.index import api_key_map
from wire import Wire

from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersionsRequest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
TEST_FILES = {path.name: path for path in (ROOT / "tests").glob("*/test_*.py")}
ROW = re.compile(r"^\| (\w+) \| ([\d-]+) \|(.*?)\| (.+?) \|$", re.MULTILINE)
KEY = re.compile(r"^\| (\d+) \| (\w+) \| ([\d-]*) ?\|(.*)\|$", re.MULTILINE)
NOT_IN_KIO = {
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    93: "GetReplicaLogInfo",
}
"""Keys that Kafka 4 has retired, and the one that 4.3 has added."""
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def offered_by(wire: Wire) -> dict[int, str]:
    """The versions that the broker advertises, by API key."""
    return {
        each.api_key: f"{each.min_version}-{each.max_version}".removesuffix(
            f"-{each.min_version}" if each.min_version == each.max_version else "\0"
        )
        for each in wire.ask(ApiVersionsRequest(), 2).api_keys
    }


def test_every_api_has_its_row_and_every_row_its_versions(wire: Wire) -> None:
    offered = {APIS[key].api.name: versions for key, versions in offered_by(wire).items()}
    assert {name: versions for name, versions, _, _ in ROW.findall(PAGE.read_text())} == offered


def test_every_key_of_kafka_is_offered_or_has_a_reason_why_not(wire: Wire) -> None:
    rows = KEY.findall(PAGE.read_text())
    known = {key: family.replace("_", "") for key, family in api_key_map.items()}
    known |= {key: name.lower() for key, name in NOT_IN_KIO.items()}
    assert {int(key): name.lower() for key, name, _, _ in rows} == known
    assert [int(key) for key, _, _, _ in rows] == sorted(known)
    assert {int(key): versions for key, _, versions, _ in rows if versions} == offered_by(wire)
    for key, name, versions, why_not in rows:
        assert bool(versions) != bool(why_not.strip()), (key, name)


def test_every_row_names_a_test_that_is_there() -> None:
    for name, _, _, shown_by in ROW.findall(PAGE.read_text()):
        tests = TEST.findall(shown_by)
        assert tests, name
        for file, test in tests:
            assert f"def {test}(" in TEST_FILES[file].read_text(), f"{name}: {file}::{test}"
