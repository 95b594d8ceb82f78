"""docs/compatibility.md agrees with the broker and names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

from wire import Wire

from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersionsRequest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "compatibility.md"
ROW = re.compile(r"^\| (\w+) \| ([\d-]+) \|(.*?)\| (.+?) \|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_api_has_its_row_and_every_row_its_versions(wire: Wire) -> None:
    offered = {
        APIS[each.api_key].api.name: f"{each.min_version}-{each.max_version}".removesuffix(
            f"-{each.min_version}" if each.min_version == each.max_version else "\0"
        )
        for each in wire.ask(ApiVersionsRequest(), 2).api_keys
    }
    assert {name: versions for name, versions, _, _ in ROW.findall(PAGE.read_text())} == offered


def test_every_row_names_a_test_that_is_there() -> None:
    for name, _, _, shown_by in ROW.findall(PAGE.read_text()):
        tests = TEST.findall(shown_by)
        assert tests, name
        for file, test in tests:
            assert f"def {test}(" in (HERE / file).read_text(), f"{name}: {file}::{test}"
